"""Every page of the site in a real browser: it loads alone and whole, fits a phone, and can be used by everybody."""

import functools
import gzip
from urllib.parse import unquote, urlparse

import pytest

from browser import CHAPTERS, PAGES, axe, hosts, opened, typeset

# what is wider than the page and not in a box that scrolls, and by how much the page can be scrolled
SIDEWAYS = """() => [document.documentElement.scrollWidth - document.documentElement.clientWidth,
    [...document.querySelectorAll('main *:not(mjx-container *)')].filter(element => {
        const box = element.getBoundingClientRect();
        if (!box.width || box.right <= innerWidth + 1) return false;
        for (let parent = element.parentElement; parent; parent = parent.parentElement)
            if (getComputedStyle(parent).overflowX !== 'visible' && parent !== document.body
                && parent !== document.documentElement && !parent.matches('main, .bd-container, .bd-content'))
                return false;
        return true;
    }).slice(0, 5).map(element => element.outerHTML.slice(0, 120))]"""
# a figure's text has 12 points or more, as many units of its picture
LETTERS = """() => [...document.querySelectorAll('figure svg')].filter(picture => picture.clientWidth)
    .map(picture => [12 * picture.clientWidth / picture.viewBox.baseVal.width, picture.ariaLabel.slice(0, 60)])"""
CUT_OFF = """() => [...document.querySelectorAll('.cell_output pre')]
    .filter(block => block.scrollWidth > block.clientWidth + 1).map(block => block.textContent.slice(0, 100))"""


@pytest.fixture(scope="module")
def visit(browser, address):
    """What is seen on a page, by its name; each page is opened once for all tests that ask."""

    @functools.cache
    def look(name):
        page = opened(browser)
        page.goto(f"{address}/{name}.html", wait_until="load")
        typeset(page)
        # pictures are loaded when they come into view: bring all of them there
        page.evaluate("() => document.querySelectorAll('img').forEach(image => { image.loading = 'eager' })")
        page.wait_for_function("() => [...document.images].every(image => image.complete)")
        height = page.evaluate("() => document.documentElement.scrollHeight")
        seen = {"title": page.title(), "sideways": {}, "height": height}
        # with all code in sight
        page.evaluate("() => document.querySelectorAll('.run-note, .above-input').forEach(one => { one.open = true })")
        broken = "() => [...document.images].filter(image => !image.naturalWidth).map(image => image.src.slice(0, 200))"
        seen["broken"] = page.evaluate(broken)
        seen["errors of mathematics"] = page.evaluate("() => document.querySelectorAll('mjx-merror').length")
        raw = "() => [...document.querySelectorAll('.math')].filter(one => !one.querySelector('mjx-container')).length"
        seen["raw mathematics"] = page.evaluate(raw)
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            seen["sideways"][width] = page.evaluate(SIDEWAYS)
            seen["cut off"] = page.evaluate(CUT_OFF)  # at 1280 pixels
            if width == 390:
                seen["letters"] = page.evaluate(LETTERS)
        seen |= {"problems": list(page.problems), "hosts": hosts(page), "requests": list(page.requests)}
        # axe is slow on the thousands of elements of mathematics and code; another test looks at the colours of code
        page.evaluate("() => document.querySelectorAll('mjx-container, div.highlight').forEach(part => part.remove())")
        page.evaluate("() => document.querySelectorAll('details').forEach(part => { part.open = true })")
        seen["axe"] = axe(page, rules={"color-contrast": {"enabled": False}})
        page.close()
        return seen

    return look


@pytest.mark.parametrize("name", PAGES)
def test_every_page_loads_alone_and_whole(visit, address, name):
    seen = visit(name)
    assert seen["problems"] == []
    assert seen["hosts"] == {urlparse(address).netloc}
    assert seen["title"].endswith("How Representations Collapse")
    assert seen["broken"] == [], "pictures that do not load"
    assert seen["errors of mathematics"] == 0
    assert seen["raw mathematics"] == 0, "mathematics that is not typeset"


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_no_page_scrolls_sideways(visit, name, width):
    distance, elements = visit(name)["sideways"][width]
    assert distance <= 1, elements


@pytest.mark.parametrize("name", PAGES)
def test_no_page_is_too_long_to_read(visit, name):
    assert visit(name)["height"] <= 18_000, "pixels in a wide window, with nothing unfolded: shorten, fold or split it"


@pytest.mark.parametrize("name", PAGES)
def test_no_printed_line_is_cut_off(visit, name):
    assert visit(name)["cut off"] == []


@pytest.mark.parametrize("name", PAGES)
def test_no_page_has_a_serious_finding_of_axe(visit, name):
    assert visit(name)["axe"] == []


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_text_of_figures_is_legible_on_a_phone(visit, name):
    assert [letter for letter in visit(name)["letters"] if letter[0] < 7] == []


def test_the_first_page_is_light(visit, smoke_book):
    """Less than 1.3 MB over the wire, where text is compressed as any static host does."""
    packed = 0
    for request in visit(PAGES[0])["requests"]:
        if request.netloc:
            content = (smoke_book.html / unquote(request.path).lstrip("/")).read_bytes()
            text = request.path.endswith((".html", ".js", ".css", ".svg"))
            packed += len(gzip.compress(content, 6)) if text else len(content)
    assert packed < 1.3e6


def test_mathematics_is_loaded_where_there_is_some_and_the_search_index_where_it_is_searched(visit, smoke_book):
    for name in ("chapters/back/ledger", "chapters/feature-collapse/theorems"):
        loaded = {request.path for request in visit(name)["requests"]}
        mathematics = 'class="math' in (smoke_book.html / f"{name}.html").read_text(encoding="utf8")
        assert any("mathjax" in path for path in loaded) == mathematics
        assert not any("searchindex" in path or "fontawesome.js" in path for path in loaded)
