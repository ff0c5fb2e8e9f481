# make book    execute the chapters and build the site in _build/html
#              PROFILE=smoke|laptop|paper  CHAPTER=path-or-glob[,...]  DEVICE=auto|cpu|cuda  SEED=n
#              JOBS=n chapters at a time (one per core up to 4; on a GPU they share its memory)
# make test    run the suite                  make lab     open the chapters in JupyterLab
# make bench   measure what is claimed fast   make status  say what is stale and why
# make lint    check the code's form          make clean   remove _build
# make data    download the image sets (DATA="mnist fashion_mnist cifar10 svhn")
# make constraints   renew constraints.txt, which pins what the packages of requirements.txt bring along
# make record  keep what chapters executed with PROFILE=paper measured in recorded/ (CHAPTER=path-or-glob[,...])
#
# The first of these sets up .venv (PYTHON= names the interpreter, 3.11 or later), as does one after
# requirements.txt or constraints.txt changed.

PYTHON  ?= python3
VENV    ?= .venv
PROFILE ?= laptop
CHAPTER ?=
DEVICE  ?= auto
SEED    ?=
JOBS    ?= auto
BENCH   ?=
TESTS   ?=
LAB     ?=
DATA    ?=

python := $(VENV)/bin/python
pip    := -m pip install -qq --disable-pip-version-check
book   := $(python) -m lib.book
options = --profile "$(PROFILE)" --chapter "$(CHAPTER)" --device "$(DEVICE)" --seed "$(SEED)"

.PHONY: book execute publish status claims data record test lab bench lint constraints clean
.DEFAULT_GOAL := book

book execute: $(VENV)/.ready
	@$(book) $(if $(filter execute,$@),execute,build) $(options) --jobs "$(JOBS)"

publish claims: $(VENV)/.ready
	@$(book) $@

status: $(VENV)/.ready
	@$(book) status $(options)

record: $(VENV)/.ready
	@$(book) record --chapter "$(CHAPTER)"

data: $(VENV)/.ready
	@$(python) -m lib.data.image_files fetch $(DATA)

test: $(VENV)/.ready
	@$(python) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder $(TESTS)

bench: $(VENV)/.ready
	@$(python) -m bench $(BENCH)

lint: $(VENV)/.ready
	@$(python) -m ruff check . && $(python) -m ruff format --check .

lab: $(VENV)/.ready-lab
	@PYTHONPATH="$(CURDIR)" JUPYTER_CONFIG_DIR="$(CURDIR)/$(VENV)/lab" $(python) -m jupyter lab $(LAB) chapters

constraints:
	@$(PYTHON) -m venv --clear _build/venv
	@_build/venv/bin/python $(pip) -r requirements-lab.txt
	@echo '# What the packages of requirements.txt and requirements-lab.txt bring along; `make constraints` writes it.' > $@.txt
	@_build/venv/bin/python -m pip freeze --all --exclude pip | sed 's/+.*//' >> $@.txt
	@rm -r _build/venv

clean:
	rm -rf _build

# The stamp is written last: an installation that broke off is taken up again.
$(VENV)/.ready: requirements.txt constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; PYTHON=... names one")'
	@rm -f $@
	@test -x $(python) && $(python) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "setting up $(VENV) (once, a few minutes)"
	@$(python) $(pip) -r requirements.txt -c constraints.txt
	@touch $@

$(VENV)/.ready-lab: $(VENV)/.ready requirements-lab.txt
	@$(python) $(pip) -r requirements-lab.txt -c constraints.txt
	@JUPYTER_CONFIG_DIR="$(CURDIR)/$(VENV)/lab" $(VENV)/bin/jupytext-config set-default-viewer markdown myst
	@touch $@
