"""Whose the build folder is: what the book has not made is refused before anything in it is touched, and stays."""

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from lib.book import __main__ as command_line
from lib.book import execute as run
from lib.book import folders, forks, inputs
from lib.book import page as chapters
from lib.book.site import publish as site

WRITING = ("build", "execute", "publish", "pdf", "claims", "record")


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.fixture
def letters(tmp_path_factory):
    """A folder of somebody's, with folders that are called as a build's are; nothing in it may change."""
    folder = tmp_path_factory.mktemp("letters")
    for name in ("source/letter.md", "failed/chapters/part/one.ipynb", "sites/letter", "html/letter", "_toc.yml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("Dear ...")
    before = contents(folder)
    yield folder
    assert contents(folder) == before


@pytest.fixture
def build(tmp_path, letters):
    """By a word, a build folder that is refused."""

    def make(kind):
        if kind == "somebody's":
            return letters
        if kind == "the checkout":
            return folders.ROOT
        if kind == "around the checkout":
            return folders.ROOT.parent
        (link := tmp_path / "a link").symlink_to(folders.ROOT if kind == "a link to the checkout" else letters)
        if kind.startswith("a link"):
            return link
        made = tmp_path / "made"
        folders.take(made)
        (made / kind.removeprefix("a build with a link at ")).symlink_to(letters)
        return made

    return make


LINKED = [f"a build with a link at {name}" for name in (*folders.REPLACED, "html")]
KINDS = ("somebody's", "the checkout", "around the checkout", "a link to somebody's", "a link to the checkout", *LINKED)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_is_not_the_books_is_refused_in_one_sentence(build, monkeypatch, kind):
    folder = build(kind)
    monkeypatch.setattr(folders, "BUILD", folder)
    before = {path.name for path in folder.iterdir()}
    allowed = "a new or empty folder is needed, or one that a build has made$"
    with pytest.raises(chapters.BadInput, match=f"^BOOK_BUILD = '{folder}' .*: {allowed}"), run.lock(print):
        pass
    assert {path.name for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", WRITING)
def test_every_command_that_writes_refuses_it_before_any_work(letters, monkeypatch, name):
    said = io.StringIO()
    monkeypatch.setattr(command_line, "console", Console(file=said, width=1000))
    monkeypatch.setattr(command_line, "_validate_claims", lambda **_: None)
    monkeypatch.setattr(folders, "BUILD", letters)
    assert CliRunner().invoke(command_line.app, [name]).exit_code == 2
    assert "holds what no build has made" in said.getvalue()


@pytest.mark.parametrize("kind", ["new", "empty", "empty, by a link", "marked", "of an older version"])
def test_a_folder_that_is_the_books_is_taken_and_marked(tmp_path, monkeypatch, kind):
    folder = tmp_path / "two words"
    if kind != "new":
        (tmp_path / "real").mkdir()
        folder.symlink_to("real") if "link" in kind else folder.mkdir()
    if kind == "marked":
        (folder / folders.MARK).touch()
        (folder / "html").symlink_to("sites/1")
    if kind == "of an older version":
        (folder / ".lock").touch()
        (folder / "executed").mkdir()
    monkeypatch.setattr(folders, "BUILD", folder)
    for _ in range(2):
        with run.lock(print):
            assert (folder / folders.MARK).exists()


@pytest.mark.parametrize(
    ("there", "taken"),
    [("smoke", True), ("results", True), (".lock", True), ("source", False), ("results, notes", False)],
)
def test_in_the_default_folder_the_suite_and_sweeps_may_have_come_first(tmp_path, there, taken):
    for name in there.split(", "):
        (tmp_path / "_build" / name).mkdir(parents=True) if name != ".lock" else folders.take(tmp_path / "_build")
    assert (folders.refused(tmp_path / "_build", tmp_path) == "") == taken
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "results").mkdir()
    assert folders.refused(tmp_path / "other", tmp_path)


def test_what_a_link_in_the_build_folder_leads_to_stays(book, letters, monkeypatch):
    """A deeper link than those that are refused."""
    for name in ("one", "two"):
        book.execute(name, "laptop")
    monkeypatch.setattr(site, "_build", lambda *_, **__: [])
    for name in ("sites/old", "source/chapters", "source/_toc.yml", "source/gone.md"):
        (book.build / name).parent.mkdir(parents=True, exist_ok=True)
        target = {"source/_toc.yml": "_toc.yml", "source/gone.md": "source/letter.md"}.get(name, ".")
        (book.build / name).symlink_to(letters / target)
    (book.build / "sites" / "older").mkdir()
    site.publish(book.root)
    assert not (book.build / "source" / "chapters").is_symlink() and not (book.build / "sites" / "older").exists()


def test_what_a_link_among_the_files_of_sphinx_leads_to_stays(book, letters, monkeypatch):
    monkeypatch.setattr("jupyter_book.sphinx.build_sphinx", lambda *_, **__: 1)
    for name in ("doctrees/letters", "doctrees/trusted", "sites/jupyter_execute", "sites/.old.new"):
        (book.build / name).parent.mkdir(parents=True, exist_ok=True)
        (book.build / name).symlink_to(letters / ("_toc.yml" if name == "doctrees/trusted" else "."))
    with pytest.raises(chapters.SiteError, match="Sphinx found problems"):
        site.publish(book.root, partial=True)
    assert not (book.build / "doctrees").exists()


def test_what_a_link_left_by_a_killed_build_leads_to_stays(book, letters, monkeypatch):
    def full(page, key):
        unfinished(page, key)
        raise OSError("the disk is full")

    unfinished = run._unfinished
    monkeypatch.setattr(run, "_unfinished", full)
    monkeypatch.setattr(run, "_prepare_environment", lambda *_: None)
    monkeypatch.setattr(forks, "prepare", lambda *_: None)
    now = unfinished(book.page("two"), inputs.key(book.page("two"), {})).name
    older = book.build / "unfinished" / f"{now.rpartition('-')[0]}-0"
    for place in (book.build / "running", older):
        place.mkdir(parents=True)
        (place / "link").symlink_to(letters)
    run.execute([book.page("two")], {}, 1, Console(file=io.StringIO()))
    assert not older.exists() and not (book.build / "running").exists()


def test_the_finished_runs_of_other_chapters_stay_whatever_a_chapter_is_called(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "BUILD", tmp_path)
    key = {"parameters": {}, "code": "1"}
    other = run._unfinished(chapters.Page("chapters/one"), key)
    other.mkdir(parents=True)
    for name in ("chapters/*", "chapters/on[a-z]", "*"):
        run._unfinished(chapters.Page(name), {**key, "code": "2"})
    assert other.exists()
    run._unfinished(chapters.Page("chapters/one"), {**key, "code": "2"})
    assert not other.exists(), "it belongs to another state of the code"
