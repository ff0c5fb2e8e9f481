# make book    execute the chapters and build the site in _build/html
#              PROFILE=smoke|laptop|night|paper  CHAPTER=path-or-glob[,...]  DEVICE=auto|cpu|cuda  SEED=n
#              JOBS=n chapters at a time (one per core up to 4; on a GPU they share its memory)
#              SCHEDULER=tcp://host:port of a Dask cluster that makes their runs
# make test    run the suite                  make lab     open the chapters in JupyterLab
# make bench   measure what is claimed fast   make status  say what is stale and why
# make pdf     print the built site into one file, and a poster, beside its pages (needs a Chromium)
# make lint    check form and spelling         make clean   remove _build
# make diff    say which verdicts and values changed since the last release, or an older build (OLD=claims.json)
# make data    download the image sets (DATA="mnist fashion_mnist cifar10 svhn")
# make constraints   renew constraints.txt, which pins what the packages of requirements.txt bring along
# make record  keep what chapters executed with PROFILE=paper or night measured in recorded/ (CHAPTER=path-or-glob[,...])
#
# The first of these sets up .venv (PYTHON= names the interpreter, 3.11 or later), as does one after
# requirements.txt or constraints.txt changed.

PYTHON ?= python3
VENV   ?= .venv
# A value goes into the environment as it is, where commands find it: make would expand it, a shell run it. PROFILE and
# the like count on the command line alone, and become BOOK_PROFILE: a shell may have a variable of that name.
options := PROFILE CHAPTER DEVICE SEED JOBS SCHEDULER OLD DATA TESTS BENCH LAB
$(foreach name,$(options),$(if $(filter command,$(origin $(name))),$(eval override BOOK_$(name) := $$(value $(name)))))
given := $(foreach name,VENV PYTHON BOOK_BUILD $(options) $(options:%=BOOK_%),\
  $(if $(filter command environment file override,$(origin $(name))),$(name)))
$(foreach name,$(given),$(eval override $(name) := $$(value $(name)))$(eval export $(name)))
$(if $(filter 1,$(words $(VENV))),,$(error VENV = '$(VENV)': a folder whose name has no space is needed))

# These would skip every assert, hide this folder from Python, put other packages or kernels before those of the
# environment, stop at a letter or a warning, or have pip install elsewhere and succeed.
unexport PYTHONOPTIMIZE PYTHONSAFEPATH PYTHONHOME PYTHONINSPECT PYTHONPATH PYTHONIOENCODING PYTHONWARNINGS JUPYTER_PATH
unexport PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER PIP_DRY_RUN

python := "$$VENV"/bin/python
# What pip says is kept, and its end shown where it fails: quietly it would not say which packages are in conflict.
install = $(python) -m pip install --disable-pip-version-check --progress-bar off $(1) >"$$VENV"/.ready.log 2>&1 || \
  { tail -n 40 "$$VENV"/.ready.log; echo "pip failed: is there a package index, and do its own settings agree?"; exit 1; }

.PHONY: book execute publish pdf status claims diff data record test lab bench lint constraints clean

book execute: $(VENV)/.ready
	@$(python) -m lib.book $(if $(filter execute,$@),execute,build)

publish pdf claims diff status record: $(VENV)/.ready
	@$(python) -m lib.book $@

data: $(VENV)/.ready
	@$(python) -m lib.data.image_files fetch $$BOOK_DATA

test: $(VENV)/.ready
	@$(python) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder $$BOOK_TESTS

bench: $(VENV)/.ready
	@$(python) -m bench $$BOOK_BENCH

lint: $(VENV)/.ready
	@$(python) -m ruff check . && $(python) -m ruff format --check . && "$$VENV"/bin/lint-imports --no-cache && \
	  "$$VENV"/bin/codespell

lab: $(VENV)/.ready-lab
	@PYTHONPATH="$$PWD" JUPYTER_CONFIG_DIR="$$(cd "$$VENV" && pwd)/lab" $(python) -m jupyterlab $$BOOK_LAB chapters

# In a folder of its own, which is new; with the oldest Python, since its pins are to be there for every later one.
constraints:
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && "$$PYTHON" -m venv "$$scratch"/venv && \
	"$$scratch"/venv/bin/python -m pip install --disable-pip-version-check -r requirements-lab.txt && \
	"$$scratch"/venv/bin/python -m pip freeze --all --exclude pip --exclude-editable >"$$scratch"/packages && { \
	  echo '# What the packages of requirements.txt and requirements-lab.txt bring along; `make constraints` writes it.'; \
	  sed 's/+.*//' "$$scratch"/packages; } >$@.txt

# What builds have made, by name, in a folder that is theirs; see lib/book/folders.py.
clean:
	@"$$PYTHON" -m lib.book.folders clean

# A folder is refused that is no environment, or that holds this one, before anything is done; only an environment that
# was made here, and that does not work, is emptied. The stamp goes first and is written last: an installation that broke
# off is taken up again.
$(VENV)/.ready: requirements.txt constraints.txt
	@"$$PYTHON" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "PYTHON = '$$PYTHON': Python 3.11 or later is needed, with venv"; exit 1; }
	@"$$PYTHON" -m lib.book.folders set-up "$$VENV"
	@rm -f "$$VENV"/.ready
	@echo "setting up $$VENV (once, a few minutes)"
	@$(call install,-r requirements.txt -c constraints.txt)
	@touch "$$VENV"/.ready && for file in $^; do \
	  if [ $$file -nt "$$VENV"/.ready ]; then touch -r $$file "$$VENV"/.ready; fi; done # one dated in the future

$(VENV)/.ready-lab: $(VENV)/.ready requirements-lab.txt
	@$(call install,-r requirements-lab.txt -c constraints.txt)
	@JUPYTER_CONFIG_DIR="$$(cd "$$VENV" && pwd)/lab" $(python) -m jupytext_config set-default-viewer markdown myst
	@touch "$$VENV"/.ready-lab
