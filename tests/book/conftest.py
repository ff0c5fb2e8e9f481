"""A throw-away book that the pipeline of this process takes for its own, and a browser with a server for the site."""

import functools
import http.server
import os
import shutil
import threading

import pytest

from browser import opened
from lib.book import folders
from lib.book.ledger import declarations
from lib.book.site.pdf import BROWSERS
from made_up import ERRATA, NOTES, SECTION, SETTINGS, Book


@pytest.fixture
def book(tmp_path, monkeypatch):
    monkeypatch.setattr(declarations, "CLAIMS", tmp_path / "chapters" / "claims.yml")
    monkeypatch.setattr(declarations, "ERRATA", tmp_path / "chapters" / "errata.yml")
    monkeypatch.setattr(folders, "BUILD", tmp_path / "_build")
    monkeypatch.setenv("COLLAPSE_DATA", str(tmp_path / "data"))
    return Book(tmp_path)


@pytest.fixture
def current(book):
    """A book whose chapters have results."""
    for name in ("one", "two"):
        book.pretend(name, "laptop")
    assert book.stale() == {}
    return book


@pytest.fixture
def real(tmp_path):
    """A book that commands can execute, and that has not been."""
    made = Book(tmp_path).with_library()
    yield made
    made.end()


@pytest.fixture(scope="session")
def built_once(tmp_path_factory):
    """A book with an erratum, recorded and built by commands; tests get copies of it."""
    made = Book(tmp_path_factory.mktemp("made"))
    made.write("chapters/errata.yml", ERRATA)
    made.chapter("feature-collapse", "pass", prose=SECTION, part="errata")
    made.chapter("two", NOTES, parameters='device = "auto"')
    made.write("chapters/other/stored.txt", "5")
    marks = "<!-- errata -->\n\n<!-- ledger -->\n\n<!-- cite button -->\n\n<!-- unmeasured -->\n"
    made.write("chapters/back/ledger.md", f"# Ledger\n\n{marks}")
    made.with_library()
    made.output = made.run("execute", *SETTINGS, "--jobs", "1", OMP_NUM_THREADS=None)
    made.said = made.run("record")
    made.run("build", *SETTINGS)
    return made


@pytest.fixture
def built(built_once, tmp_path):
    shutil.copytree(built_once.root, tmp_path / "book", symlinks=True)
    made = Book(tmp_path / "book", exists=True)
    yield made
    made.end()


@pytest.fixture(scope="module")
def address(smoke_book):
    """The address of a server for the site on the loopback interface."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(smoke_book.html))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def chromium():
    """The path of a browser."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        message = f"no browser found (looked for {', '.join(BROWSERS)})"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture(scope="module")
def browser(chromium):
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def tab(browser):
    page = opened(browser)
    yield page
    page.close()


@pytest.fixture
def still(browser):
    """A tab without JavaScript."""
    page = opened(browser, java_script_enabled=False)
    yield page
    page.close()
