"""Every page of the site in a real browser: it loads alone and whole, fits a phone, and can be used by everybody."""

import functools
import gzip
from urllib.parse import unquote, urlparse

import pytest

from browser import PAGES, axe, hosts, opened, typeset

# by how much the page can be scrolled sideways, and what is wider than it and not in a box that scrolls
SIDEWAYS = """() => {
    const distance = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    const beyond = element => {
        if (element.getBoundingClientRect().right <= innerWidth + 1) return false;
        for (let parent = element.parentElement; parent; parent = parent.parentElement)
            if (getComputedStyle(parent).overflowX !== 'visible' && parent !== document.body
                && parent !== document.documentElement && !parent.matches('main, .bd-container, .bd-content'))
                return false;
        return true;
    };
    const elements = () => [...document.querySelectorAll('main *:not(mjx-container *)')].filter(beyond);
    return distance <= 1 ? [] : [distance, ...elements().slice(0, 5).map(element => element.outerHTML.slice(0, 120))];
}"""
# a figure's text has 12 points or more, as many units of its picture
SMALL_LETTERS = """() => [...document.querySelectorAll('figure svg')].filter(picture => picture.clientWidth)
    .map(picture => [12 * picture.clientWidth / picture.viewBox.baseVal.width, picture.ariaLabel?.slice(0, 60)])
    .filter(letter => letter[0] < 7)"""
CUT_OFF = """() => [...document.querySelectorAll('.cell_output pre')]
    .filter(block => block.scrollWidth > block.clientWidth + 1).map(block => block.textContent.slice(0, 100))"""
BROKEN = """() => [...document.images].filter(image => !image.naturalWidth).map(image => image.src.slice(0, 200))"""
NOT_TYPESET = """() => [...document.querySelectorAll('mjx-merror, .math:not(:has(mjx-container))')]
    .map(formula => formula.outerHTML.slice(0, 120))"""
# these are tested for what they look like on some pages, and axe is slow on their thousands of elements
STRIP = """() => {
    document.querySelectorAll('mjx-container, div.highlight').forEach(part => part.remove());
    document.querySelectorAll('figure svg').forEach(picture => picture.replaceChildren());
    document.querySelectorAll('details').forEach(part => { part.open = true });
}"""
RULES = {"color-contrast": {"enabled": False}}  # see test_site


@pytest.fixture(scope="module")
def visit(browser, address):
    """What is seen on a page, by its name; one tab opens each page once for all tests that ask."""
    page = opened(browser)

    @functools.cache
    def look(name):
        page.problems, page.requests = [], []
        page.goto(f"{address}/{name}.html", wait_until="load")
        typeset(page)
        # pictures are loaded when they come into view: bring all of them there
        page.evaluate("() => document.querySelectorAll('img').forEach(image => { image.loading = 'eager' })")
        page.wait_for_function("() => [...document.images].every(image => image.complete)")
        seen = {"title": page.title(), "height": page.evaluate("() => document.documentElement.scrollHeight")}
        # with all code in sight
        page.evaluate("() => document.querySelectorAll('.run-note, .above-input').forEach(one => { one.open = true })")
        wrong = {"pictures that do not load": page.evaluate(BROKEN), "not typeset": page.evaluate(NOT_TYPESET)}
        wrong |= {"printed lines cut off": page.evaluate(CUT_OFF), "wider than a screen": page.evaluate(SIDEWAYS)}
        page.set_viewport_size({"width": 390, "height": 900})
        wrong |= {"wider than a phone": page.evaluate(SIDEWAYS), "letters too small": page.evaluate(SMALL_LETTERS)}
        seen |= {"hosts": hosts(page), "requests": list(page.requests)}
        page.evaluate(STRIP)
        page.set_viewport_size({"width": 1280, "height": 900})  # where the theme has seen which tables scroll
        seen["wrong"] = wrong | {"found by axe": axe(page, rules=RULES), "errors": list(page.problems)}
        return seen

    yield look
    page.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_alone_and_whole_fits_a_phone_and_can_be_used_by_everybody(visit, address, name):
    seen = visit(name)
    assert {kind: found for kind, found in seen["wrong"].items() if found} == {}
    assert seen["hosts"] == {urlparse(address).netloc}
    assert seen["title"].endswith("How Representations Collapse")
    assert seen["height"] <= 18_000, "pixels in a wide window, with nothing unfolded: shorten, fold or split it"


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
