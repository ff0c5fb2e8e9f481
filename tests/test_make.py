"""The Makefile: values that are given reach the commands as they are, and no shell and no make reads them."""

import io
import os
import shutil
import subprocess

import pytest
from rich.console import Console

from lib.book import __main__ as command_line
from lib.book import execute, folders
from made_up import ROOT

COMMANDS = {"test": ("TESTS",), "bench": ("BENCH",), "lab": ("LAB",), "data": ("DATA",), "diff": ("OLD",)}
COMMANDS |= {"book": ("PROFILE", "CHAPTER", "DEVICE", "SEED", "JOBS", "SCHEDULER")}
COMMANDS |= {"status": ("CHAPTER", "BOOK_BUILD"), "record": ("CHAPTER",)}
HOSTILE = "`touch struck` $(touch struck) $(shell touch struck) \"; touch struck; \" '; touch struck; '"


@pytest.fixture
def folder(tmp_path):
    """The Makefile beside an environment whose interpreter says what it is called with."""
    files = "Makefile requirements.txt constraints.txt requirements-lab.txt lib/__init__.py lib/book/__init__.py"
    for name in (*files.split(), "lib/book/folders.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    interpreter(tmp_path / ".venv" / "bin" / "python", 'echo "arguments: $*"\nenv')
    (tmp_path / ".venv" / "pyvenv.cfg").touch()
    for stamp in (".ready", ".ready-lab"):
        (tmp_path / ".venv" / stamp).touch()
    return tmp_path


def interpreter(path, program):
    """A file that is called like Python and runs a program of the shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    return path


def make(folder, *arguments, status=0, **environment):
    known = {name: value for name, value in os.environ.items() if name not in sum(COMMANDS.values(), ())}
    known = {name: value for name, value in known.items() if not name.startswith(("MAKE", "MFLAGS", "BOOK_BUILD"))}
    process = subprocess.run(
        ["make", *arguments], cwd=folder, env=known | environment, text=True, capture_output=True, timeout=60
    )
    assert process.returncode == status, process.stdout + process.stderr
    return process.stdout + process.stderr


@pytest.mark.parametrize("target", COMMANDS)
def test_no_value_is_run(folder, target):
    shown = {name: name if name == "BOOK_BUILD" else f"BOOK_{name}" for name in COMMANDS[target]}
    given = [f"{name}={HOSTILE}" for name in shown]
    for output in (make(folder, target, *given), make(folder, target, **dict.fromkeys(shown.values(), HOSTILE))):
        assert {f"{name}={HOSTILE}" for name in shown.values()} <= {*output.splitlines()}
    assert not (folder / "struck").exists()


def test_variables_that_a_shell_has_for_something_else_change_nothing(folder):
    output = make(folder, "book", **dict.fromkeys(COMMANDS["book"], "7")).splitlines()
    assert not [line for name in COMMANDS["book"] for line in output if line.startswith(f"BOOK_{name}=")]


@pytest.mark.parametrize("name", ["PYTHONOPTIMIZE", "PYTHONSAFEPATH", "PIP_TARGET", "PIP_DRY_RUN"])
def test_variables_that_skip_asserts_or_misdirect_an_installation_reach_no_command(folder, name):
    os.utime(folder / ".venv" / ".ready", (0, 0))
    assert f"{name}=1" not in make(folder, "book", **{name: "1"}).splitlines()
    assert f"{name}=1" not in (folder / ".venv" / ".ready.log").read_text().splitlines()


@pytest.mark.parametrize("value", ["", "two words", HOSTILE])
def test_an_environment_is_a_folder_without_spaces(folder, value):
    assert f"VENV = '{value}'" in make(folder, "book", f"VENV={value}", status=2)
    assert not (folder / "struck").exists()


@pytest.mark.parametrize("name", COMMANDS["book"])
def test_a_value_that_is_given_and_empty_is_refused(folder, monkeypatch, name):
    assert f"BOOK_{name}=" in make(folder, "book", f"{name}=").splitlines()
    console = Console(file=io.StringIO(), width=1000)
    monkeypatch.setattr(command_line, "console", console)
    monkeypatch.setenv(f"BOOK_{name}", "")
    assert command_line.app(["status"], standalone_mode=False) == 2
    assert f"{name} is given and empty" in console.file.getvalue()


def test_the_values_in_the_environment_are_those_of_the_options(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(command_line, "select", lambda pages, pattern: given.append(pattern) or [])
    monkeypatch.setattr(execute, "stale", lambda selected, parameters: given.append(parameters) or {})
    for name, value in {"PROFILE": "smoke", "CHAPTER": "x", "DEVICE": "cpu", "SEED": "3"}.items():
        monkeypatch.setenv(f"BOOK_{name}", value)
    command_line.app(["status"], standalone_mode=False)
    assert given == ["x", {"profile": "smoke", "device": "cpu", "seed": 3}]


def test_a_folder_that_is_no_environment_is_refused_and_nothing_is_lost(folder):
    (folder / "letters").mkdir()
    (folder / "letters" / "letter").touch()
    said = make(folder, "book", "VENV=letters", status=2)
    assert "is no virtual environment" in said and "setting up" not in said
    assert [path.name for path in (folder / "letters").iterdir()] == ["letter"]
    assert "is the folder of the book, or contains it" in make(folder, "test", "VENV=.", status=2)


def test_an_environment_that_works_is_used_whoever_made_it(folder):
    (folder / ".venv" / "letter").touch()
    os.utime(folder / ".venv" / ".ready", (0, 0))
    assert "arguments: -m lib.book build" in make(folder, "book")
    assert (folder / ".venv" / "letter").exists()


def test_an_installation_that_fails_says_why(folder):
    interpreter(folder / ".venv" / "bin" / "python", 'echo "The conflict is caused by $*"; [ "$3" != install ]')
    os.utime(folder / ".venv" / ".ready", (0, 0))
    said = make(folder, "book", status=2)
    assert "The conflict is caused by -m pip install" in said and "-q" not in said
    assert not (folder / ".venv" / ".ready").exists()


def test_the_constraints_are_made_in_a_folder_of_their_own(folder):
    fake = (
        'if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi\n[ "$3" != freeze ] || echo a==1+cpu'
    )
    make(folder, "constraints", f"PYTHON={interpreter(folder / 'fake', fake)}", TMPDIR=str(folder))
    assert (folder / "constraints.txt").read_text().splitlines()[1:] == ["a==1"]
    interpreter(folder / "fake", fake.replace("echo a==1+cpu", "exit 1"))
    make(folder, "constraints", f"PYTHON={folder / 'fake'}", TMPDIR=str(folder), status=2)
    assert (folder / "constraints.txt").read_text().splitlines()[1:] == ["a==1"]
    assert not list(folder.glob("tmp.*"))


def test_cleaning_empties_a_folder_of_the_books_and_refuses_another(folder):
    (folder / "_build" / "executed").mkdir(parents=True)
    (folder / "_build" / folders.MARK).touch()
    (folder / "letters").mkdir()
    (folder / "letters" / "executed").touch()
    assert "BOOK_BUILD = " in make(folder, "clean", f"BOOK_BUILD={folder / 'letters'}", status=2)
    assert (folder / "letters" / "executed").exists()
    make(folder, "clean")
    assert not (folder / "_build").exists()
