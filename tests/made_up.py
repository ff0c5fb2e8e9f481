"""Throw-away books, which the tests of the pipeline build, edit and break."""

import json
import os
import shutil
import signal
import subprocess
import sys

import nbformat
import yaml

from lib.book import execute, inputs
from lib.book.folders import ROOT
from lib.book.ledger import claims
from lib.book.page import Page, chapters
from one_claim import claim

HEADER = """---
jupytext:
  formats: ipynb,md:myst
  text_representation: {extension: .md, format_name: myst}
kernelspec: {display_name: Python 3, language: python, name: python3}
---
"""
CLAIM = claim(statement="It is 42.", data=["mnist"], expect={"x": {"value": 42, "abs": 1}, "note": {"report": True}})
MEASURE = """from lib.book.ledger import claims
from lib.helper import answer
ledger = claims.Ledger("feature-collapse", profile=profile)
ledger.check("fc-one", measured={"x": answer(), "note": [1, 2]})
if profile == "smoke":
    ledger.check("fc-two", measured={"x": 41, "note": []})
else:
    ledger.skip("fc-two", reason="it takes a cluster")
print(f"seed is {seed}")"""
MACHINE = {"device": "cuda", "name": "Card 1", "torch": "2.13", "numpy": "2.3", "python": "3.11", "cuda": "13.0"}
DATA = {"mnist": {"files": 4, "sha256": "0" * 64}}
SETTINGS = ("--profile", "paper", "--seed", "7")
NOTES = """import os
from lib.book.kernel import devices, notes
devices.choose("cpu")
notes.note("data", name="some", files=2, sha256="ab")
stored = open("chapters/other/stored.txt").read()
print(os.environ.get("OMP_NUM_THREADS"), os.environ.get("COLLAPSE_GPU_SHARE"))"""
ERRATA = """errata:
- {id: slip, paper: feature-collapse, place: (7), kind: another constant, printed: $a$ is new,
   corrected: $b$, shown_by: fc-one, how: by hand, consequence: none, transcription: it is not}
"""
SECTION = """(erratum-slip)=
## What slipped

<!-- erratum slip -->

```{code-cell} ipython3
print("decided")
```

<!-- consequence slip -->

## The end
"""


def _heed_interrupts():
    """A shell that starts the suite in the background has it ignore interrupts, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Book:
    """A book of two chapters, of which the first measures. What executed it may be made up or real."""

    def __init__(self, root, exists=False):
        self.root, self.build, self.started = root, root / "_build", []
        if exists:
            return
        self.write("lib/__init__.py", "")
        self.write("pyproject.toml", (ROOT / "pyproject.toml").read_text())
        helper = '"""Helps."""\n\nfrom lib.deeper import value\n\ndef answer():\n    return value()\n'
        self.write("lib/helper.py", helper)
        self.write("lib/deeper.py", "def value():\n    return 42\n")
        self.write("lib/unused.py", "nothing = None\n")
        self.write("references.bib", "@book{b2000, author={A. Bee}, title={Bees}, publisher={P}, year={2000}}\n")
        self.write("chapters/errata.yml", "errata: []\n")
        self.write("chapters/symbols.yml", "[]\n")
        self.write("_config.yml", "title: A book\n")
        self.write("chapters/intro.md", "# Intro\n\n[One](part/one.md), {cite}`b2000`.\n\n```{bibliography}\n```\n")
        self.write("chapters/back/ledger.md", "# Ledger\n\n<!-- ledger -->\n")
        self.declare(CLAIM, {**CLAIM, "id": "fc-two"})
        self.chapter("one", MEASURE)
        self.chapter("two", "print('two')")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name, old, new):
        text = (self.root / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def declare(self, *entries):
        self.write("chapters/claims.yml", yaml.safe_dump({"claims": list(entries)}))

    def chapter(self, name, *code, prose="Prose.", parameters="", part="part"):
        head = f':tags: [parameters]\nprofile = "laptop"\nseed = 0\n{parameters}'
        cells = "\n".join(f"```{{code-cell}} ipython3\n{each}\n```\n" for each in (head, *code))
        self.write(f"chapters/{part}/{name}.md", f"{HEADER}# Chapter {name}\n\n{prose}\n\n{cells}")
        files = sorted(path.relative_to(self.root) for path in (self.root / "chapters").glob("*/*.md"))
        listed = "".join(f"- file: {path.with_suffix('')}\n" for path in files)
        self.write("_toc.yml", f"format: jb-book\nroot: chapters/intro\nchapters:\n{listed}")

    def page(self, name="one"):
        return Page(f"chapters/part/{name}", self.root)

    # ---------------------------------------------------------------------------------------- executions made up

    def pretend(self, name="one", profile="paper", x=42, read=(), without=(), **facts):
        """Leave what an execution with these values would leave. read: the data sets that it read."""
        page = self.page(name)
        about = {"verdict": "?", "expected": {}, "profile": profile, "device": "cuda", "seconds": 1.5}
        about |= {"chapter": page.short, "dataset": "mnist"}
        measured = [
            {"id": "fc-one", "measured": {"x": x, "note": [1, 2]}, **about},
            {"id": "fc-two", "measured": {}, "reason": "it takes a cluster", **about, "verdict": "not run"},
        ]
        notebook = nbformat.from_dict(json.loads(nbformat.writes(page.notebook)))
        if name == "one":
            shown = ({claims.MIME: one} for one in measured)
            notebook.cells[-1].outputs = [nbformat.v4.new_output("display_data", data=data) for data in shown]
        before = {"files": {}, "data": dict.fromkeys(read)}
        key = json.loads(json.dumps(inputs.key(page, {"profile": profile, "device": "cuda"}, before)))
        noted = {"chapter": page.name, "key": key, "seconds": 9.5, "finished": "2026-11-22T10:00:00+00:00"}
        noted |= {"machine": MACHINE, "data": DATA, "resumed": 0, **facts}
        notebook.metadata["book"] = {key: value for key, value in noted.items() if key not in without}
        execute.keep(page, notebook)

    def stale(self, **parameters):
        """Why chapters have to be executed, by chapter."""
        reasons = execute.stale(chapters(self.root), {"profile": "laptop", **parameters})
        return {page.path.stem: "; ".join(why) for page, why in reasons.items()}

    # ---------------------------------------------------------------------------------- the real thing, by commands

    def with_library(self):
        """Let the book have its own copy of the library, so that commands can run in its folder."""
        halves = shutil.ignore_patterns("*.pyc.*")  # which another process may be writing
        shutil.copytree(ROOT / "lib", self.root / "lib", dirs_exist_ok=True, ignore=halves)
        (self.root / "_static").mkdir()
        for name in ("_config.yml", "CITATION.cff", "chapters/papers.yml", "_static/favicon.svg"):
            shutil.copy(ROOT / name, self.root / name)
        return self

    def start(self, *arguments, **environment):
        changed = {"BOOK_BUILD": None, "PYTHONPATH": None, "COLLAPSE_DATA": str(self.root / "data"), **environment}
        environment = {key: value for key, value in {**os.environ, **changed}.items() if value is not None}
        command, said = [sys.executable, "-m", "lib.book", *arguments], {"stdout": subprocess.PIPE, "text": True}
        said |= {"stderr": subprocess.STDOUT, "start_new_session": True, "preexec_fn": _heed_interrupts}
        process = subprocess.Popen(command, cwd=self.root, env=environment, **said)
        self.started.append(process)
        return process

    def end(self):
        """Kill what a failed test leaves at work, and say what it said."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                print(process.communicate()[0])

    def run(self, *arguments, status=0, **environment):
        process = self.start(*arguments, **environment)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == status, output
        return output

    def executed(self):
        """Which chapters have results, and when they got them."""
        return {path.stem: path.stat().st_mtime_ns for path in (self.build / "executed").rglob("[!.]*.ipynb")}

    def notebook(self, name):
        return nbformat.read(self.build / "executed" / "chapters" / "part" / f"{name}.ipynb", as_version=4)

    def printed(self, name):
        outputs = (output for cell in self.notebook(name).cells for output in cell.get("outputs", []))
        return "".join(output.get("text", "") for output in outputs)

    def html(self, name):
        return (self.build / "html" / "chapters" / f"{name}.html").read_text()
