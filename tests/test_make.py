"""The Makefile: values that are given reach the commands as they are, and no shell and no make reads them."""

import io
import os
import shutil
import subprocess
import sys

import pytest
from rich.console import Console

from lib.book import __main__ as command_line
from lib.book import execute as run
from lib.book import folders
from made_up import ROOT

COMMANDS = {
    "book": ("PROFILE", "CHAPTER", "DEVICE", "SEED", "JOBS"), "status": ("CHAPTER", "BOOK_BUILD"),
    "record": ("CHAPTER",), "test": ("TESTS",), "bench": ("BENCH",), "lab": ("LAB",), "data": ("DATA",),
    "diff": ("OLD",),
}  # fmt: skip
HOSTILE = "`touch struck` $(touch struck) $(shell touch struck) \"; touch struck; \" '; touch struck; '"


@pytest.fixture
def said(monkeypatch):
    """What the command line prints."""
    console = Console(file=io.StringIO(), width=1000)
    monkeypatch.setattr(command_line, "console", console)
    return console.file


@pytest.fixture
def folder(tmp_path):
    """The Makefile beside an environment whose interpreter says what it is called with."""
    files = "Makefile requirements.txt constraints.txt requirements-lab.txt lib/__init__.py lib/book/__init__.py"
    for name in (*files.split(), "lib/book/folders.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    interpreter(tmp_path / ".venv" / "bin" / "python", 'echo "arguments: $*"\nenv')
    for stamp in (".ready", ".ready-lab"):
        (tmp_path / ".venv" / stamp).touch()
    return tmp_path


def interpreter(path, program):
    """A file that is called like Python and runs a program of the shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def letters(tmp_path_factory):
    """A folder of somebody's, with folders that are called as a build's are; nothing in it may change."""
    folder = tmp_path_factory.mktemp("letters")
    for name in ("letter", "source/letter", "executed/letter", "results/letter", "bin/python"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("Dear ...")
    before = contents(folder)
    yield folder
    assert contents(folder) == before


def contents(folder):
    """What is in a folder, but for what Python keeps beside its modules."""
    paths = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


def make(folder, *arguments, status=0, **environment):
    known = {name: value for name, value in os.environ.items() if name not in sum(COMMANDS.values(), ())}
    known = {name: value for name, value in known.items() if not name.startswith(("MAKE", "MFLAGS", "BOOK_BUILD"))}
    process = subprocess.run(
        ["make", *arguments], cwd=folder, env=known | environment, text=True, capture_output=True, timeout=60
    )
    assert process.returncode == status, process.stdout + process.stderr
    return process.stdout + process.stderr


@pytest.mark.parametrize(("target", "name"), [(target, name) for target, names in COMMANDS.items() for name in names])
def test_no_value_is_run(folder, target, name):
    shown = name if name == "BOOK_BUILD" else f"BOOK_{name}"
    for output in (make(folder, target, f"{name}={HOSTILE}"), make(folder, target, **{shown: HOSTILE})):
        assert f"{shown}={HOSTILE}" in output.splitlines()
    assert not (folder / "struck").exists()


def test_variables_that_a_shell_has_for_something_else_change_nothing(folder):
    output = make(folder, "book", **dict.fromkeys(COMMANDS["book"], "7")).splitlines()
    assert not [line for name in COMMANDS["book"] for line in output if line.startswith(f"BOOK_{name}=")]


@pytest.mark.parametrize("value", ["", "two words", HOSTILE])
def test_an_environment_is_a_folder_without_spaces(folder, value):
    assert f"VENV = '{value}'" in make(folder, "book", f"VENV={value}", status=2)
    assert not (folder / "struck").exists()


@pytest.mark.parametrize("name", COMMANDS["book"])
def test_a_value_that_is_given_and_empty_is_refused(folder, monkeypatch, said, name):
    assert f"BOOK_{name}=" in make(folder, "book", f"{name}=").splitlines()
    monkeypatch.setenv(f"BOOK_{name}", "")
    assert command_line.app(["status"], standalone_mode=False) == 2
    assert f"{name} is given and empty" in said.getvalue()


def test_the_values_in_the_environment_are_those_of_the_options(monkeypatch):
    monkeypatch.setattr(command_line, "_settings", lambda *given: pytest.fail(f"{given}"))
    values = {"PROFILE": "smoke", "CHAPTER": "x", "DEVICE": "cpu", "SEED": "3", "JOBS": "2"}
    for name, value in values.items():
        monkeypatch.setenv(f"BOOK_{name}", value)
    with pytest.raises(pytest.fail.Exception, match="'smoke', 'x', 'cpu', 3, 2"):
        command_line.app(["execute"], standalone_mode=False)


def test_there_is_a_job_for_each_core_unless_another_number_is_given(monkeypatch):
    for cores, wanted, jobs in ((3, None, 3), (1000, None, run.MOST_JOBS), (3, 5, 5)):
        monkeypatch.setattr(run, "cores", lambda cores=cores: cores)
        assert command_line._settings("smoke", "", "auto", None, wanted)[2] == jobs


@pytest.mark.parametrize("target", ["status", "book", "test", "lab"])
@pytest.mark.parametrize("kind", ["is", "contains", "is, by a link", "contains, and is an environment"])
def test_an_environment_that_is_or_contains_the_checkout_is_refused_and_nothing_is_lost(folder, target, kind):
    checkout = folder / "clone"
    shutil.copytree(folder, checkout, ignore=shutil.ignore_patterns("clone"))
    (checkout / "letter").write_text("Dear ...")
    (checkout / "link").symlink_to(checkout)
    if "environment" in kind:
        (folder / "pyvenv.cfg").touch()
    named = {"is": ".", "contains": str(folder), "is, by a link": "link"}.get(kind, "..")
    before = contents(folder)
    assert "is the folder of the book, or contains it" in make(checkout, target, f"VENV={named}", status=2)
    assert contents(folder) == before


@pytest.mark.parametrize("kind", ["by name", "by a link", "the default", "a file", "a link to nothing"])
def test_a_folder_that_is_no_environment_is_refused_and_nothing_is_lost(folder, letters, kind):
    named = {"by name": letters, "a file": letters / "letter"}.get(kind, "link")
    (folder / "link").symlink_to(letters if kind == "by a link" else "nothing")
    if kind == "the default":
        shutil.rmtree(folder / ".venv")
        (folder / ".venv").symlink_to(letters)
    said = make(folder, "book", *([] if kind == "the default" else [f"VENV={named}"]), status=2)
    assert "is no virtual environment" in said and "setting up" not in said


def test_an_environment_that_does_not_work_and_that_make_has_not_made_is_refused(folder, letters):
    environment = folder / "own"
    interpreter(environment / "bin" / "python", "exit 1")
    for name in ("pyvenv.cfg", ".ready", "letter"):
        (environment / name).touch()
    os.utime(environment / ".ready", (0, 0))
    before = contents(environment)
    assert "has no pip that works, and `make` has not made it" in make(folder, "book", "VENV=own", status=2)
    assert contents(environment) == before


def test_only_an_environment_that_make_has_made_and_that_does_not_work_is_made_anew(folder, letters):
    """This makes real environments, into which nothing is installed."""
    for name in ("requirements.txt", "constraints.txt"):
        (folder / name).write_text("")
    python, environment = f"PYTHON={sys.executable}", folder / "new"
    assert "setting up new" in make(folder, "new/.ready", "VENV=new", python)
    (environment / "note").write_text("works, so it stays")
    (environment / "link").symlink_to(letters)
    os.utime(environment / ".ready", (0, 0))
    make(folder, "new/.ready", "VENV=new", python)
    assert (environment / "note").exists()
    (environment / "bin" / "python").unlink()
    os.utime(environment / ".ready", (0, 0))
    make(folder, "new/.ready", "VENV=new", python)
    assert not (environment / "note").exists() and not (environment / "link").exists()
    assert subprocess.run([environment / "bin" / "python", "-m", "pip", "--version"]).returncode == 0


def test_an_environment_that_works_is_used_whoever_made_it(folder):
    (folder / ".venv" / "pyvenv.cfg").touch()
    (folder / ".venv" / "letter").touch()
    os.utime(folder / ".venv" / ".ready", (0, 0))
    assert "arguments: -m lib.book build" in make(folder, "book")
    assert (folder / ".venv" / "letter").exists()


def test_an_installation_that_fails_says_why(folder):
    (folder / ".venv" / "pyvenv.cfg").touch()
    interpreter(folder / ".venv" / "bin" / "python", 'echo "The conflict is caused by $*"; [ "$3" != install ]')
    os.utime(folder / ".venv" / ".ready", (0, 0))
    said = make(folder, "book", status=2)
    assert "The conflict is caused by -m pip install" in said and "-q" not in said
    assert not (folder / ".venv" / ".ready").exists()


def test_the_constraints_are_made_in_a_folder_of_their_own(folder, letters):
    (folder / "_build").mkdir()
    (folder / "_build" / "venv").symlink_to(letters)
    fake = (
        'if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi\n[ "$3" != freeze ] || echo a==1+cpu'
    )
    make(folder, "constraints", f"PYTHON={interpreter(folder / 'fake', fake)}", TMPDIR=str(folder))
    assert (folder / "constraints.txt").read_text().splitlines()[1:] == ["a==1"]
    interpreter(folder / "fake", fake.replace("echo a==1+cpu", "exit 1"))
    make(folder, "constraints", f"PYTHON={folder / 'fake'}", TMPDIR=str(folder), status=2)
    assert (folder / "constraints.txt").read_text().splitlines()[1:] == ["a==1"]
    assert not list(folder.glob("tmp.*"))


def test_cleaning_removes_what_builds_make_in_a_folder_of_theirs_and_nothing_else(folder, letters):
    marked = folder / "two words"
    for build in (folder / "_build", marked):
        (build / "executed").mkdir(parents=True)
        (build / "source").symlink_to(letters) if build == marked else (build / "source").mkdir()
        (build / "results").symlink_to(letters)
        (build / "claims.json").touch()
    (marked / "note").touch()
    assert "holds what no build has made" in make(folder, "clean", BOOK_BUILD=str(marked), status=2)
    (marked / folders.MARK).touch()
    assert "has a link at source" in make(folder, "clean", BOOK_BUILD=str(marked), status=2)
    assert {path.name for path in marked.iterdir()} > {"executed", "source", "results", "claims.json", "note"}
    (marked / "source").unlink()
    assert "stays, for what no build has made: note" in make(folder, "clean", BOOK_BUILD=str(marked))
    assert {path.name for path in marked.iterdir()} == {"note", folders.MARK}
    make(folder, "clean", f"BOOK_BUILD={folder / 'nothing'}")
    make(folder, "clean")
    assert not (folder / "_build").exists()


@pytest.mark.parametrize("kind", ["by name", "by a link", "the default", "the checkout"])
def test_cleaning_a_folder_that_is_not_the_books_is_refused_and_nothing_is_lost(folder, letters, kind):
    named = {"by name": letters, "the default": "_build", "the checkout": folder}.get(kind, folder / "link")
    (folder / "link").symlink_to(letters)
    (folder / "_build").symlink_to(letters)
    before = contents(folder)
    assert f"BOOK_BUILD = '{folder / named}'" in make(folder, "clean", f"BOOK_BUILD={named}", status=2)
    assert contents(folder) == before


def test_the_settings_of_the_user_for_matplotlib_do_not_reach_the_chapters(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "BUILD", tmp_path / "_build")
    monkeypatch.setattr(os, "environ", {**os.environ, "MATPLOTLIBRC": "mine", "MPLCONFIGDIR": "mine"})
    monkeypatch.chdir(tmp_path)
    run._prepare_environment(folders.ROOT, 1)
    assert "MATPLOTLIBRC" not in os.environ and os.environ["MPLCONFIGDIR"].startswith(str(tmp_path / "_build"))
