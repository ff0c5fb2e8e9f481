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
from made_up import Book


@pytest.fixture
def book(tmp_path, monkeypatch):
    monkeypatch.setattr(declarations, "CLAIMS", tmp_path / "chapters" / "claims.yml")
    monkeypatch.setattr(declarations, "ERRATA", tmp_path / "chapters" / "errata.yml")
    monkeypatch.setattr(folders, "BUILD", tmp_path / "_build")
    monkeypatch.setattr(folders, "BUILD", tmp_path / "_build")
    monkeypatch.setenv("COLLAPSE_DATA", str(tmp_path / "data"))
    return Book(tmp_path)


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
