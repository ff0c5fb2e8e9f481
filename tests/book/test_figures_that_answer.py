"""Figures that answer do so by keyboard and pointer, and are still pictures without JavaScript and in print."""

import re

import pytest

from lib.book import page as chapters

CALL = re.compile(r'answers\.answering\(\s*"([\w-]+)"')
ANSWERS = [(page.name, name) for page in chapters.chapters() for name in CALL.findall(page.text)]
KEYS = {"range": "ArrowRight", "select-one": "ArrowDown", "checkbox": " "}


def unfolded(page, figure):
    """Open the fold in which the figure may stand."""
    for title in page.locator(f"details:has(#{figure}) > summary").all():
        title.click()


def check_still(page, figure):
    assert page.locator(f"#{figure} > svg").is_visible()
    assert page.locator(f"#{figure} .answer:visible").count() == 0
    assert page.locator(f"#{figure} .caption-text:visible").count() == 1


@pytest.mark.parametrize(("name", "figure"), ANSWERS)
def test_a_figure_answers_to_keyboard_and_pointer_and_is_a_still_picture_in_print(tab, address, name, figure):
    tab.goto(f"{address}/{name}.html", wait_until="load")
    unfolded(tab, figure)
    whole = tab.locator(f"#{figure} .answer")
    assert not tab.locator(f"#{figure} > svg").is_visible()
    assert tab.locator(f"#{figure} .caption-text:visible").count() == 1

    def drawn():
        return whole.locator("svg").evaluate_all("all => all.map(one => one.innerHTML).join()")

    controls = whole.locator("input, select")
    for control in controls.all():
        control.press("Home")
        before, kind = drawn(), control.evaluate("one => one.type")
        control.press(KEYS[kind])
        assert drawn() != before, f"{kind} changes nothing"
    tip, panels = whole.locator(".answer-tip"), whole.locator('svg[tabindex="0"]')
    for panel in panels.all():
        panel.press("ArrowRight")
        assert tip.inner_text().strip()
        panel.press("Escape")
        assert not tip.is_visible()
    tab.mouse.move(0, 0)
    panels.first.scroll_into_view_if_needed()
    mark = panels.first.locator("g path, rect").first.bounding_box()
    tab.mouse.move(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    assert tip.is_visible()
    tab.emulate_media(media="print")
    check_still(tab, figure)
    assert tab.problems == []


@pytest.mark.parametrize(("name", "figure"), ANSWERS)
def test_without_javascript_it_is_a_still_picture(still, address, name, figure):
    still.goto(f"{address}/{name}.html", wait_until="load")
    unfolded(still, figure)
    check_still(still, figure)


@pytest.mark.parametrize("name", sorted({name for name, _ in ANSWERS}))
def test_the_states_of_a_figure_weigh_less_than_150_kilobytes(smoke_book, name):
    page = (smoke_book.html / f"{name}.html").read_text(encoding="utf8")
    states = re.findall(r'<script type="application/json" class="answering">(.*?)</script>', page, re.DOTALL)
    assert states and all(len(one) < 150_000 for one in states)
