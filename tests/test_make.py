"""The Makefile: values that are given reach the commands as they are, and no shell and no make reads them."""

import io
import os
import shutil
import subprocess

import pytest
from made_up import ROOT
from rich.console import Console

from lib.book import __main__ as command_line
from lib.book import chapters, run

COMMANDS = {
    "book": ("PROFILE", "CHAPTER", "DEVICE", "SEED", "JOBS"), "status": ("CHAPTER",), "record": ("CHAPTER",),
    "test": ("TESTS",), "bench": ("BENCH",), "lab": ("LAB",), "data": ("DATA",), "diff": ("OLD",),
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
    for name in ("Makefile", "requirements.txt", "constraints.txt", "requirements-lab.txt"):
        shutil.copy2(ROOT / name, tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    interpreter = tmp_path / ".venv" / "bin" / "python"
    interpreter.write_text('#!/bin/sh\necho "arguments: $*"\nenv\n')
    interpreter.chmod(0o755)
    for stamp in (".ready", ".ready-lab"):
        (tmp_path / ".venv" / stamp).touch()
    return tmp_path


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
    for output in (make(folder, target, f"{name}={HOSTILE}"), make(folder, target, **{name: HOSTILE})):
        assert f"{name}={HOSTILE}" in output.splitlines()
    assert not (folder / "struck").exists()


@pytest.mark.parametrize("value", ["", "two words", HOSTILE])
def test_an_environment_is_a_folder_without_spaces(folder, value):
    assert f"VENV = '{value}'" in make(folder, "book", f"VENV={value}", status=2)
    assert not (folder / "struck").exists()


@pytest.mark.parametrize("name", COMMANDS["book"])
def test_a_value_that_is_given_and_empty_is_refused(folder, monkeypatch, said, name):
    assert f"{name}=" in make(folder, "book", f"{name}=").splitlines()
    monkeypatch.setenv(name, "")
    assert command_line.app(["status"], standalone_mode=False) == 2
    assert f"{name} is given and empty" in said.getvalue()


def test_the_values_in_the_environment_are_those_of_the_options(monkeypatch):
    monkeypatch.setattr(command_line, "_settings", lambda *given: pytest.fail(f"{given}"))
    values = {"PROFILE": "smoke", "CHAPTER": "x", "DEVICE": "cpu", "SEED": "3", "JOBS": "2"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(pytest.fail.Exception, match="'smoke', 'x', 'cpu', 3, 2"):
        command_line.app(["execute"], standalone_mode=False)


def test_there_is_a_job_for_each_core_unless_another_number_is_given(monkeypatch):
    for cores, wanted, jobs in ((3, None, 3), (1000, None, run.MOST_JOBS), (3, 5, 5)):
        monkeypatch.setattr(run, "cores", lambda cores=cores: cores)
        assert command_line._settings("smoke", "", "auto", None, wanted)[2] == jobs


def test_cleaning_removes_the_build_folder_in_use_and_no_other(folder):
    for name in ("_build", "elsewhere/executed", "letters"):
        (folder / name).mkdir(parents=True)
    make(folder, "clean", BOOK_BUILD="elsewhere")
    assert "nothing is removed" in make(folder, "clean", BOOK_BUILD="letters")
    assert (folder / "_build").exists() and (folder / "letters").exists() and not (folder / "elsewhere").exists()
    make(folder, "clean")
    assert not (folder / "_build").exists()


def test_the_settings_of_the_user_for_matplotlib_do_not_reach_the_chapters(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "BUILD", tmp_path / "_build")
    monkeypatch.setattr(os, "environ", {**os.environ, "MATPLOTLIBRC": "mine", "MPLCONFIGDIR": "mine"})
    monkeypatch.chdir(tmp_path)
    run._prepare_environment(chapters.ROOT, 1)
    assert "MATPLOTLIBRC" not in os.environ and os.environ["MPLCONFIGDIR"].startswith(str(tmp_path / "_build"))
