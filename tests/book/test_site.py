"""The site in a real browser: every page loads, alone, and what it promises works."""

import functools
import http.server
import json
import os
import re
import shutil
import threading
from pathlib import Path
from urllib.parse import urlparse

import pytest

from lib.book import chapters

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page.name for page in chapters.pages(ROOT)]
CHAPTERS = [page.name for page in chapters.chapters(ROOT)]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(smoke_book):
    """The address of a server for the site on the loopback interface."""
    handler = functools.partial(_Quiet, directory=str(smoke_book.html))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        message = f"no browser found (looked for {', '.join(BROWSERS)})"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def tab(browser):
    """A page at desktop width that remembers its errors and the hosts it asked for anything."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.problems, page.hosts = [], set()
    page.on("console", lambda message: message.type == "error" and page.problems.append(message.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("response", lambda response: response.status >= 400 and page.problems.append(response.url))
    page.on("request", lambda request: page.hosts.add(urlparse(request.url).netloc))
    yield page
    page.close()


def typeset(page):
    """Wait for MathJax, where the page has mathematics."""
    page.wait_for_function("() => !document.querySelector('.math') || document.querySelector('mjx-container')")
    page.evaluate("() => window.MathJax?.startup?.promise")


@pytest.mark.parametrize("name", PAGES)
def test_every_page_loads_alone_and_whole(tab, address, name):
    tab.goto(f"{address}/{name}.html", wait_until="load")
    typeset(tab)
    # pictures are loaded when they come into view: bring all of them there
    tab.evaluate("() => document.querySelectorAll('img').forEach(image => { image.loading = 'eager' })")
    tab.wait_for_function("() => [...document.images].every(image => image.complete)")
    assert tab.problems == []
    assert tab.hosts - {""} == {urlparse(address).netloc}
    assert tab.title().endswith("How Representations Collapse")
    broken = "() => [...document.images].filter(image => !image.naturalWidth).map(image => image.src.slice(0, 200))"
    assert tab.evaluate(broken) == []
    mute = "() => [...document.images].filter(image => !image.alt?.trim()).map(image => image.src.slice(0, 200))"
    assert tab.evaluate(mute) == [], "figures without alt text"
    assert tab.evaluate("() => document.querySelectorAll('mjx-merror').length") == 0
    raw = "() => [...document.querySelectorAll('.math')].filter(math => !math.querySelector('mjx-container')).length"
    assert tab.evaluate(raw) == 0, "mathematics that is not typeset"


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_no_page_scrolls_sideways(tab, address, name, width):
    tab.set_viewport_size({"width": width, "height": 900})
    tab.goto(f"{address}/{name}.html", wait_until="load")
    typeset(tab)
    overflow = """() => [...document.querySelectorAll('main *')].filter(element => {
        const box = element.getBoundingClientRect();
        for (let parent = element.parentElement; parent; parent = parent.parentElement)
            if (getComputedStyle(parent).overflowX !== 'visible' && parent !== document.body
                && parent !== document.documentElement && !parent.matches('main, .bd-container, .bd-content'))
                return false;
        return box.width && box.right > innerWidth + 1;
    }).slice(0, 5).map(element => element.outerHTML.slice(0, 120))"""
    scrolls = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert tab.evaluate(scrolls) <= 1, tab.evaluate(overflow)


def test_the_entry_page_leads_into_the_book(tab, address):
    tab.goto(f"{address}/", wait_until="load")
    tab.wait_for_url(f"{address}/{PAGES[0]}.html")
    assert tab.problems == []


def test_search_finds_a_term_of_the_book(tab, address):
    tab.goto(f"{address}/search.html?q=type-III", wait_until="load")
    tab.wait_for_selector("#search-results li a")
    assert "feature-collapse" in tab.locator("#search-results").inner_html()
    assert tab.problems == []
    assert tab.hosts - {""} == {urlparse(address).netloc}


def test_the_ledger_is_filtered_by_paper_and_verdict(tab, address):
    tab.goto(f"{address}/chapters/back/ledger.html", wait_until="load")

    def visible():
        return tab.evaluate(
            "() => [...document.querySelectorAll('table#ledger tbody tr')].filter(row => row.offsetParent).length"
        )

    everything = visible()
    tab.select_option("select#ledger-paper", "feature-collapse")
    of_the_paper = visible()
    assert 0 < of_the_paper < everything
    tab.select_option("select#ledger-paper", "")
    assert visible() == everything
    tab.select_option("select#ledger-verdict", "not written yet")
    assert 0 < visible() < everything
    tab.select_option("select#ledger-paper", "feature-collapse")
    assert visible() == 0, "every claim of this paper has its chapter"
    assert tab.problems == []


def test_the_theme_switches_to_dark_and_back(tab, address):
    tab.goto(f"{address}/{PAGES[0]}.html", wait_until="load")
    background = "() => getComputedStyle(document.body).backgroundColor"
    seen = set()
    for _ in range(4):
        seen.add((tab.evaluate("() => document.documentElement.dataset.theme"), tab.evaluate(background)))
        tab.locator("button.theme-switch-button:visible").first.click()
    assert {theme for theme, _ in seen} == {"light", "dark"}
    assert len({colour for _, colour in seen}) == 2


def test_figures_are_transparent_so_that_they_suit_both_themes(smoke_book):
    from PIL import Image

    pictures = list((smoke_book.html / "_images").glob("*.png"))
    assert pictures
    for path in pictures:
        with Image.open(path) as picture:
            corner = picture.convert("RGBA").getpixel((0, 0))
        assert corner[3] == 0, f"{path.name} has an opaque background"


def test_theorems_equations_and_citations_are_numbered_and_linked(tab, address):
    tab.goto(f"{address}/chapters/feature-collapse/theorems.html", wait_until="load")
    boxes = tab.locator("div.proof.theorem")
    assert boxes.count() >= 3
    assert all(boxes.nth(number).get_attribute("id") for number in range(boxes.count()))
    assert re.search(r"Theorem \d", boxes.first.inner_text())
    assert tab.locator("span.eqno").count() > 0
    assert tab.locator("a.reference[href*='bibliography.html#']").count() > 0


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_chapter_tells_how_to_run_it_and_offers_its_notebook(smoke_book, name):
    page = (smoke_book.html / f"{name}.html").read_text()
    assert f"make book CHAPTER={name}.md PROFILE=smoke" in re.sub("<[^>]*>", "", page)
    notebook = json.loads((smoke_book.html / "_sources" / f"{name}.ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    (injected,) = (cell for cell in code if "injected-parameters" in cell["metadata"].get("tags", []))
    assert 'profile = "smoke"' in "".join(injected["source"])
    assert any(cell["outputs"] for cell in code)


def test_the_smoke_profile_claims_nothing(smoke_book):
    rows = json.loads((smoke_book.build / "claims.json").read_text())
    assert len(rows) == len({row["id"] for row in rows})
    assert {row["verdict"] for row in rows} <= {"not run", "not written yet"}
    assert {row["chapter"] for row in rows if row["profile"]} <= {name.removeprefix("chapters/") for name in CHAPTERS}
    assert {row["device"] for row in rows if row["profile"]} <= {"cpu", "cuda"}, "a device is recorded, not a wish"
    assert sum(row["profile"] == "smoke" for row in rows) == sum(row["verdict"] == "not run" for row in rows)
