"""A chapter in JupyterLab: its boxes and references are set, it runs, and saving it changes what was edited."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys

import jupytext
import pytest
from jupytext.config import load_jupytext_config

from browser import CHAPTERS
from lib.book.folders import ROOT
from waiting import wait_for

CHAPTER = "chapters/low-rank-bias/dufm.md"


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_has_the_form_in_which_jupytext_saves_it(name):
    path = ROOT / f"{name}.md"
    text, config = path.read_text(encoding="utf8"), load_jupytext_config(str(path))
    notebook = jupytext.reads(text, fmt="md:myst", config=config)
    saved = jupytext.writes(notebook, fmt="md:myst", config=config)
    assert saved == text, f"`.venv/bin/jupytext --to md:myst {name}.md` brings it into this form"


@pytest.fixture
def lab(tmp_path):
    """`make lab` in a copy of this folder, with the packages of this process: its address, and the folder."""
    if not all(map(importlib.util.find_spec, ("jupyterlab", "jupyterlab_myst"))):
        pytest.skip("JupyterLab and jupyterlab-myst are not installed (make .venv/.ready-lab)")
    (tmp_path / CHAPTER).parent.mkdir(parents=True)
    files = ["Makefile", "requirements.txt", "constraints.txt", "requirements-lab.txt", "chapters/jupytext.toml"]
    for name in (*files, CHAPTER):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "lib").symlink_to(ROOT / "lib")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    own = {"JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTERLAB_WORKSPACES_DIR": "workspaces"}
    environment = {**os.environ, **{name: str(tmp_path / folder) for name, folder in own.items()}}
    options = "--no-browser --allow-root --ip=127.0.0.1 --port=0 --expose-app-in-browser"
    log = tmp_path / "log"
    with open(log, "w") as file:
        command = ["make", "--old-file=.venv/.ready-lab", "lab", "VENV=.venv", f"LAB={options}"]
        where = {"cwd": tmp_path, "env": environment, "stdout": file, "stderr": file}
        server = subprocess.Popen(command, **where, start_new_session=True)
    try:
        address = re.compile(r"http://127\.0\.0\.1:\d+/lab\?token=\w+")
        found = wait_for(lambda: address.search(log.read_text()), "JupyterLab to begin", 120)
        yield found[0].replace("/lab?", f"/lab/tree/{CHAPTER.removeprefix('chapters/')}?"), tmp_path
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def test_a_chapter_opens_with_its_boxes_runs_and_is_saved_as_it_was_but_for_the_edit(lab, tab):
    address, folder = lab
    text = (folder / CHAPTER).read_text(encoding="utf8")
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
    assert (folder / CHAPTER).read_text(encoding="utf8") == text.replace('profile = "laptop"', 'profile = "smoke"')
