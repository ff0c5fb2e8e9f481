"""A chapter in JupyterLab: its boxes and references are set, it runs, and saving it changes what was edited."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys

import jupytext
import nbformat
import pytest

from browser import PAGES
from lib.book.folders import ROOT
from lib.book.lab import merged
from waiting import wait_for

CHAPTER = "low-rank-bias/dufm.md"


def as_jupytext_writes(text):
    return jupytext.writes(jupytext.reads(text, fmt="md:myst"), fmt="md:myst")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_is_saved_without_an_edit_stays_as_it_is(name):
    text = (ROOT / f"{name}.md").read_text(encoding="utf8")
    assert merged(text, as_jupytext_writes(text)) == text


def test_an_edit_a_new_cell_and_a_cell_that_went_change_their_lines_only():
    text = (ROOT / "chapters" / CHAPTER).read_text(encoding="utf8")
    notebook = jupytext.reads(text, fmt="md:myst")
    prose = next(cell for cell in notebook.cells if "## Collapse in every layer" in cell.source)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    first.source = first.source.replace("seed = 0", "seed = 1")
    prose.source = prose.source.replace("## Collapse in every", "## Collapse in all")
    rest = text.replace(notebook.cells.pop().source, "")
    expected = rest.replace("seed = 0", "seed = 1").replace("## Collapse in every", "## Collapse in all")
    notebook.cells.insert(3, nbformat.v4.new_code_cell("new = 1"))
    saved = merged(text, jupytext.writes(notebook, fmt="md:myst"))
    assert re.sub(r"```\{code-cell\} ipython3\n+new = 1\n```\n\n?", "", saved).rstrip() == expected.rstrip()


@pytest.fixture
def lab(tmp_path):
    """`make lab` in a copy of this folder, with the packages of this process: its address, and its folder."""
    if not all(map(importlib.util.find_spec, ("jupyterlab", "jupyterlab_myst"))):
        pytest.skip("JupyterLab and jupyterlab-myst are not installed (make .venv/.ready-lab)")
    for name in ("Makefile", "requirements.txt", "constraints.txt", "requirements-lab.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "chapters" / CHAPTER).parent.mkdir(parents=True)
    shutil.copy(ROOT / "chapters" / CHAPTER, tmp_path / "chapters" / CHAPTER)
    (tmp_path / "lib").symlink_to(ROOT / "lib")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    own = {"JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTERLAB_WORKSPACES_DIR": "workspaces"}
    environment = {**os.environ, **{name: str(tmp_path / folder) for name, folder in own.items()}}
    options = "--no-browser --allow-root --ip=127.0.0.1 --port=0 --expose-app-in-browser"
    log = tmp_path / "log"
    with open(log, "w") as file:
        server = subprocess.Popen(
            ["make", "--old-file=.venv/.ready-lab", "lab", "VENV=.venv", f"LAB={options}"],
            cwd=tmp_path, env=environment, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        address = re.compile(r"http://127\.0\.0\.1:\d+/lab\?token=\w+")
        ended = lambda: server.poll() is not None  # noqa: E731
        found = wait_for(lambda: ended() or address.search(log.read_text()), "JupyterLab to begin", 120)
        assert not ended(), log.read_text()
        yield found[0].replace("/lab?", f"/lab/tree/{CHAPTER}?"), tmp_path
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def test_a_chapter_opens_with_its_boxes_runs_and_is_saved_as_it_was_but_for_the_edit(lab, tab):
    address, folder = lab
    chapter = folder / "chapters" / CHAPTER
    text = chapter.read_text(encoding="utf8")
    assert text.count('profile = "laptop"') == 1
    tab.set_default_timeout(60_000)
    tab.set_viewport_size({"width": 1280, "height": 4000})
    tab.goto(address)
    tab.locator("aside", has_text="Definition 2 of Súkeník et al.").wait_for()
    tab.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').wait_for()
    tab.wait_for_function("() => !/{(prf:|eq|numref)/.test(document.querySelector('.jp-Notebook').innerText)")
    tab.get_by_text('"laptop"').dblclick()
    tab.keyboard.type("smoke")
    tab.keyboard.press("Escape")
    tab.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells')")
    last = "jupyterapp.shell.currentWidget.content.widgets.findLast(cell => cell.model.type === 'code')"
    assert tab.evaluate(f"() => {last}.model.executionCount") > 1, "not run to the end"
    tab.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    assert chapter.read_text(encoding="utf8") == text.replace('profile = "laptop"', 'profile = "smoke"')
