"""Whose a folder is: what the book has not made is refused before anything in it is touched, and stays."""

import io
import subprocess

import pytest
from rich.console import Console
from typer.testing import CliRunner

from lib.book import __main__ as command_line
from lib.book import execute, folders, records
from lib.book.ledger import claims, errata
from lib.book.page import BadInput, SiteError
from lib.book.site import publish

WRITING = ("build", "execute", "publish", "pdf", "claims", "record")


def contents(folder):
    """What is in a folder, by name."""
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.fixture
def letters(tmp_path_factory):
    """A folder of somebody's, with folders that are called as a build's are; nothing in it may change."""
    folder = tmp_path_factory.mktemp("letters")
    for name in ("source/letter.md", "failed/chapters/part/one.ipynb", "sites/letter", "bin/python", "_toc.yml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("Dear ...")
    before = contents(folder)
    yield folder
    assert contents(folder) == before


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder that the book takes for its checkout, with a letter in it."""
    root = tmp_path / "around" / "checkout"
    root.mkdir(parents=True)
    (root / "letter").write_text("Dear ...")
    (root / "link").symlink_to(root)
    monkeypatch.setattr(folders, "ROOT", root)
    yield root
    assert (root / "letter").exists()


# ------------------------------------------------------------------------------------------------------------- builds


@pytest.mark.parametrize("kind", ["somebody's", "a link to somebody's", "checkout", "around", "link"])
def test_a_build_folder_that_is_not_the_books_is_refused_in_one_sentence(checkout, letters, monkeypatch, kind):
    (checkout / "_build").symlink_to(letters)
    inside = {"checkout": checkout, "around": checkout.parent, "link": checkout / "link"}
    folder = {"somebody's": letters, "a link to somebody's": checkout / "_build", **inside}[kind]
    monkeypatch.setattr(folders, "BUILD", folder)
    assert folders.refused(folder) == folders.clean(folder) != ""
    allowed = "a new or empty folder is needed, or one that a build has made$"
    with pytest.raises(BadInput, match=f"^BOOK_BUILD = '{folder}' .*: {allowed}"), execute.lock(print):
        pass


@pytest.mark.parametrize("name", [*folders.REPLACED, "html"])
def test_a_build_folder_with_a_link_where_builds_delete_is_refused(tmp_path, letters, name):
    folders.take(tmp_path / "made")
    (tmp_path / "made" / name).symlink_to(letters)
    assert f"has a link at {name}" in folders.refused(tmp_path / "made")


@pytest.mark.parametrize("name", WRITING)
def test_every_command_that_writes_refuses_it_before_any_work(letters, monkeypatch, name):
    said = io.StringIO()
    monkeypatch.setattr(command_line, "console", Console(file=said, width=1000))
    monkeypatch.setattr(folders, "BUILD", letters)
    for module, check in ((records, "load"), (claims, "check_sources"), (errata, "check_sections")):
        monkeypatch.setattr(module, check, lambda *_: None)  # takes seconds
    assert CliRunner().invoke(command_line.app, [name]).exit_code == 2
    assert "holds what no build has made" in said.getvalue()


@pytest.mark.parametrize("kind", ["new", "empty", "empty, by a link", "marked"])
def test_a_folder_that_is_the_books_is_taken_and_marked(tmp_path, kind):
    folder = tmp_path / "two words"
    if kind == "empty, by a link":
        (tmp_path / "real").mkdir()
        folder.symlink_to("real")
    elif kind != "new":
        folder.mkdir()
    if kind == "marked":
        (folder / folders.MARK).touch()
        (folder / "html").symlink_to("sites/1")
    for _ in range(2):
        assert folders.refused(folder) == ""
        folders.take(folder)
        assert (folder / folders.MARK).exists()


@pytest.mark.parametrize(("there", "taken"), [("smoke", True), ("source", False), ("results, notes", False)])
def test_in_the_default_folder_the_suite_and_sweeps_may_have_come_first(tmp_path, checkout, there, taken):
    for name in there.split(", "):
        (checkout / "_build" / name).mkdir(parents=True)
    assert (folders.refused(checkout / "_build") == "") == taken
    (tmp_path / "other" / "results").mkdir(parents=True)
    assert folders.refused(tmp_path / "other")


def test_what_links_below_the_build_folder_lead_to_stays(current, letters, monkeypatch):
    """Links in the sources, the sites and what Sphinx keeps: deeper ones than those that are refused."""
    monkeypatch.setattr("jupyter_book.sphinx.build_sphinx", lambda *_, **__: 1)
    folder_links = "sites/old", "source/chapters", "doctrees/letters", "sites/jupyter_execute", "sites/.old.new"
    links = dict.fromkeys(folder_links, ".") | dict.fromkeys(("source/_toc.yml", "source/gone.md"), "_toc.yml")
    for name, target in links.items():
        (current.build / name).parent.mkdir(parents=True, exist_ok=True)
        (current.build / name).symlink_to(letters / target)
    with pytest.raises(SiteError, match="Sphinx found problems"):
        publish.publish(current.root)
    assert not (current.build / "source" / "chapters").is_symlink() and not (current.build / "doctrees").exists()


def test_cleaning_removes_what_builds_make_by_name_and_nothing_else(tmp_path, letters, capsys):
    build = tmp_path / "two words"
    folders.take(build)
    (build / "executed").mkdir()
    (build / "results").symlink_to(letters)
    for name in ("claims.json", "note"):
        (build / name).touch()
    assert folders.clean(build) == "" and "stays, for what no build has made: note" in capsys.readouterr().out
    assert {path.name for path in build.iterdir()} == {"note", folders.MARK}
    (build / "note").unlink()
    assert folders.clean(build) == "" and not build.exists()


# ------------------------------------------------------------------------------------------------------- environments


@pytest.fixture
def python(tmp_path, monkeypatch):
    """A Python that makes environments without anything in them, and says no to all else."""
    path = tmp_path / "python"
    path.write_text('#!/bin/sh\n[ "$2" = venv ] && mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && touch "$3/made"\n')
    path.chmod(0o755)
    monkeypatch.setattr(folders.sys, "executable", str(path))
    return path


def works(environment):
    environment.mkdir(exist_ok=True)
    (environment / "pyvenv.cfg").touch()
    (environment / "bin").mkdir(exist_ok=True)
    (environment / "bin" / "python").write_text("#!/bin/sh\n")
    (environment / "bin" / "python").chmod(0o755)


@pytest.mark.parametrize("kind", ["checkout", "around", "link", "around, an environment"])
def test_an_environment_that_is_or_contains_the_checkout_is_refused(checkout, python, kind):
    if "environment" in kind:
        works(checkout.parent)
    folder = {"checkout": checkout, "link": checkout / "link"}.get(kind, checkout.parent)
    assert "is the folder of the book, or contains it" in folders.set_up(folder)


@pytest.mark.parametrize("kind", ["by name", "by a link", "a file", "a link to nothing"])
def test_a_folder_that_is_no_environment_is_refused(tmp_path, letters, python, kind):
    (tmp_path / "link").symlink_to(letters if kind == "by a link" else "nothing")
    folder = {"by name": letters, "a file": letters / "_toc.yml"}.get(kind, tmp_path / "link")
    assert "is no virtual environment" in folders.set_up(folder)


def test_only_an_environment_that_the_book_has_made_and_that_does_not_work_is_made_anew(tmp_path, letters, python):
    own, made = tmp_path / "own", tmp_path / "made"
    works(own)
    (own / "letter").touch()
    before = contents(own)
    assert folders.set_up(own) == "" and contents(own) == before, "it works, whoever has made it"
    (own / "bin" / "python").unlink()
    before = contents(own)
    assert "has no pip that works, and `make` has not made it" in folders.set_up(own) and contents(own) == before
    assert folders.set_up(made) == "" and (made / "made").exists()
    works(made)
    (made / "note").touch()
    (made / "link").symlink_to(letters)
    assert folders.set_up(made) == "" and (made / "note").exists(), "it works"
    (made / "bin" / "python").unlink()
    assert folders.set_up(made) == "" and {path.name for path in made.iterdir()} == {"bin", "made", folders.MARK}
    subprocess.run([made / "bin" / "python", "-m", "venv", tmp_path / "again"], check=True)
