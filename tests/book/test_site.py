"""What the site promises works in a real browser: its frame, the ledger's filters, the search, printing."""

import json
import re
from urllib.parse import urlparse

import pytest

from browser import CHAPTERS, PAGES, axe, hosts, opened, typeset
from lib.book.ledger import declarations

CONTRAST = ["chapters/intro", "chapters/feature-collapse/data-model", "chapters/errata/low-rank-bias"]
CONTRAST += [f"chapters/back/{name}" for name in ("building", "ledger", "errata", "paper-profile")]


def wear(tab, theme):
    """Have the system ask for a theme, which a page follows at once."""
    tab.emulate_media(color_scheme=theme, reduced_motion="reduce")
    tab.wait_for_function(f"() => document.documentElement.dataset.theme === '{theme}'", timeout=5000)


@pytest.mark.parametrize("name", [*CONTRAST, "chapters/api/networks"])
def test_text_stands_out_from_its_background_in_both_themes(tab, address, name):
    tab.route("**/mathjax/**", lambda route: route.abort())
    tab.goto(f"{address}/{name}.html", wait_until="load")
    tab.evaluate("() => document.querySelectorAll('.run-note').forEach(line => { line.open = true })")
    tab.evaluate("() => [...document.querySelectorAll('div.highlight')].slice(6).forEach(part => part.remove())")
    for theme in ("light", "dark"):
        wear(tab, theme)
        assert axe(tab, runOnly=["color-contrast"]) == []


@pytest.mark.parametrize("name", ["chapters/intro", "chapters/back/ledger", "search"])
def test_the_frame_of_the_pages_has_no_serious_finding_of_axe_either(tab, address, name):
    tab.route("**/mathjax/**", lambda route: route.abort())
    tab.goto(f"{address}/{name}.html", wait_until="load")
    tab.evaluate("() => document.querySelectorAll('.bd-article > * > *').forEach(part => part.remove())")
    assert axe(tab, "html") == []


def test_a_formula_says_what_its_symbols_mean(tab, address):
    tab.goto(f"{address}/chapters/low-rank-bias/dufm.html", wait_until="load")
    typeset(tab)
    formula, box = map(tab.locator, ("#equation-lr-dufm-objective mjx-container", "#symbols-box"))
    for width, look in ((1280, formula.hover), (390, formula.focus)):
        tab.set_viewport_size({"width": width, "height": 900})
        look()
        box.wait_for()
        assert "weights of a layer" in box.inner_text() and "words in a sentence" in box.inner_text()
        assert formula.get_attribute("aria-describedby") == "symbols-box"
        assert box.locator("mjx-container").count() > 6 and box.locator("mjx-merror").count() == 0
        frame = box.bounding_box()
        assert frame["x"] >= 0 and frame["x"] + frame["width"] <= width
        assert tab.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 1
        assert axe(tab, "#symbols-box") == []
        tab.keyboard.press("Escape")
        assert not box.is_visible()
        tab.mouse.move(0, 0)
    assert tab.problems == []


def test_the_entry_page_leads_into_the_book_where_the_bibtex_entry_is_copied_or_read(browser, still, address):
    """Copied by the keyboard, and read without JavaScript."""
    page = opened(browser, permissions=["clipboard-read", "clipboard-write"])
    page.goto(f"{address}/", wait_until="load")
    page.wait_for_url(f"{address}/{PAGES[0]}.html")
    page.locator("button.cite").press("Enter")
    page.wait_for_function("() => document.querySelector('.cite-said').textContent === 'Copied.'")
    assert re.fullmatch(r"@misc\{.*\}\s*", page.evaluate("() => navigator.clipboard.readText()"), re.DOTALL)
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed')) }")
    page.locator("button.cite").press("Enter")
    page.wait_for_function("() => getSelection().toString().startsWith('@misc{')")
    assert page.problems == []
    page.close()
    still.goto(f"{address}/{PAGES[0]}.html", wait_until="load")
    still.locator("details.cite-entry summary").click()
    assert still.locator("details.cite-entry pre").inner_text().startswith("@misc{")
    assert not still.locator("button.cite").is_visible()


def test_a_page_is_printed_in_the_light_theme_without_what_only_a_screen_has_use_for(tab, address):
    tab.emulate_media(color_scheme="dark")
    tab.goto(f"{address}/chapters/feature-collapse/data-model.html", wait_until="load")
    tab.emulate_media(media="print", color_scheme="dark")
    tab.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate("() => document.documentElement.dataset.theme") == "light"
    assert tab.locator("article h1").first.is_visible()
    assert "executed with profile smoke" in tab.locator(".run-note").inner_text()
    seen = """() => [...document.querySelectorAll('button, nav, aside, .bd-sidebar, .above-input')]
        .filter(one => one.checkVisibility() && one.clientHeight).map(one => one.outerHTML)"""
    assert tab.evaluate(seen) == []
    tab.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate("() => document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize(
    "typed, found", [("Theorem 5", "low-rank-bias/[^#]*#lr-theorem-5"), ("type-III", "feature-collapse/[^#]*#")]
)
def test_search_finds_statements_and_sections_of_the_book(tab, address, typed, found):
    tab.goto(f"{address}/search.html?q={typed}", wait_until="load")
    tab.wait_for_selector("#search-results li a")
    link = tab.locator("#search-results li a").first
    assert re.search(found, link.get_attribute("href"))
    link.click()
    tab.wait_for_url(re.compile(found))  # and until the page is loaded
    assert tab.evaluate("() => document.querySelector(location.hash) !== null")
    assert tab.problems == []
    assert hosts(tab) == {urlparse(address).netloc}


def visible(tab, and_so=""):
    rows = f"[...document.querySelectorAll('table#ledger tbody tr{and_so}')].filter(row => row.offsetParent)"
    return tab.evaluate(f"() => {rows}.length")


def test_the_ledger_is_filtered_by_paper_kind_verdict_and_text(tab, address):
    tab.goto(f"{address}/chapters/back/ledger.html", wait_until="load")
    everything = visible(tab)
    assert everything == len(declarations.read().claims)
    for key, value in (("paper", "feature-collapse"), ("kind", "theorem"), ("verdict", "not run")):
        tab.select_option(f"select#ledger-{key}", value)
        assert 0 < visible(tab) == visible(tab, f'[data-{key}="{value}"]')
        tab.select_option(f"select#ledger-{key}", "")
        assert visible(tab) == everything
    tab.select_option("select#ledger-paper", "low-rank-bias")
    tab.fill("#ledger-text", "LR-THM5 theorem")
    assert 0 < visible(tab) < 5
    assert tab.locator("#ledger-shown").inner_text() == f"{visible(tab)} of {everything} claims"
    tab.fill("#ledger-text", "no claim says abracadabra")
    assert visible(tab) == 0
    assert tab.problems == []


def test_the_address_carries_the_filters_of_the_ledger_and_the_counts_are_filters(tab, address):
    query = "paper=low-rank-bias&kind=theorem&verdict=nonsense"
    tab.goto(f"{address}/chapters/back/ledger.html?{query}", wait_until="load")
    both = visible(tab)
    assert 0 < both == visible(tab, "[data-paper=low-rank-bias][data-kind=theorem]")
    tab.select_option("select#ledger-kind", "")
    assert visible(tab) > both
    assert urlparse(tab.url).query == "paper=low-rank-bias"
    count = tab.locator('.ledger-tally a[data-verdict="not run"]')
    number = int(count.locator("strong").inner_text())
    assert number == visible(tab, '[data-paper=low-rank-bias][data-verdict="not run"]')
    count.click()
    assert visible(tab) == number
    assert urlparse(tab.url).query == "paper=low-rank-bias&verdict=not+run"
    tab.reload()
    assert visible(tab) == number
    count.click()
    assert urlparse(tab.url).query == "paper=low-rank-bias"
    tab.go_back()
    assert urlparse(tab.url).query == "paper=low-rank-bias&verdict=not+run"
    assert tab.problems == []


def test_a_row_of_the_ledger_leads_to_the_cell_that_measures_it(tab, address):
    tab.goto(f"{address}/chapters/back/ledger.html", wait_until="load")
    tab.locator("#ledger-fc-thm1-constant a").first.click()
    tab.wait_for_url("**/feature-collapse/*.html#claim-fc-thm1-constant")
    tab.wait_for_load_state("load")
    typeset(tab)
    in_view = "() => document.querySelector('#claim-fc-thm1-constant').getBoundingClientRect().top"
    tab.wait_for_function(f"() => {{ const top = ({in_view})(); return 0 <= top && top < innerHeight }}", timeout=5000)
    tab.locator("#claim-fc-thm1-constant a").first.click()
    tab.wait_for_url("**/ledger.html#ledger-fc-thm1-constant")


def test_the_text_of_figures_stands_out_in_both_themes(tab, address):
    from test_figures import contrast

    tab.goto(f"{address}/chapters/extended-ufm/models.html", wait_until="load")
    fills = """() => [document.body, ...document.querySelectorAll('figure svg [style*=currentColor]')]
        .map(one => getComputedStyle(one)).map(style => [style.fill, style.backgroundColor])"""

    def rgb(color):
        numbers = [float(number) for number in re.findall(r"[\d.]+", color)[:3]]
        return numbers if color.startswith("color(") else [number / 255 for number in numbers]

    for theme in ("light", "dark"):
        wear(tab, theme)
        (_, page), *texts = tab.evaluate(fills)
        assert len({fill for fill, _ in texts}) > 1  # grey text and coloured text
        assert all(contrast(rgb(fill), rgb(page)) >= 4.5 for fill, _ in texts)


@pytest.mark.parametrize("name", CHAPTERS)
def test_figures_are_transparent_parts_of_their_page_with_names_of_their_own(smoke_book, name):
    page = (smoke_book.html / f"{name}.html").read_text(encoding="utf8")
    names = re.findall(r'(?<![\w-])id="(svg-\d+-[^"]*)"', page)
    assert set(re.findall(r'(?:href="|url\()#(svg-\d+-[^")]*)', page)) == set(names)
    first = re.findall(r"<figure.*?<svg.*?<path.*?>", page, re.DOTALL)
    assert all("fill: none" in shape for shape in first), "a figure has an opaque background"


def test_the_code_of_a_page_is_shown_and_hidden_from_the_line_under_its_title(tab, address):
    tab.goto(f"{address}/chapters/feature-collapse/theorems.html", wait_until="load")
    parts = ".cell_input:not(.aside *)", ".cell_output:visible", ".run-note summary"
    code, results, line = map(tab.locator, parts)
    shown, hidden = (tab.get_by_role("button", name=f"{verb} all code") for verb in ("Show", "Hide"))
    as_written, of_results = code.locator("visible=true").count(), results.count()
    assert 0 < as_written < code.count()

    def press(button, key, expected):
        button.press(key)
        assert code.locator("visible=true").count() == expected
        assert results.count() == of_results
        return button.get_attribute("aria-pressed")

    line.press("Enter")
    assert press(hidden, "Enter", 0) == "true"
    tab.reload(wait_until="load")
    assert code.locator("visible=true").count() == 0, "the choice is remembered"
    line.press("Enter")
    assert press(shown, " ", code.count()) == "true"
    assert hidden.get_attribute("aria-pressed") == "false"
    assert press(shown, "Enter", as_written) == "false"
    assert tab.problems == []


def test_without_scripts_there_is_no_switch_and_code_is_folded(still, address):
    still.goto(f"{address}/chapters/feature-collapse/theorems.html", wait_until="load")
    still.locator(".run-note summary").click()
    assert still.locator(".run-note pre").last.is_visible()
    assert still.locator(".code-switch button:visible").count() == 0
    fold = still.locator("details.above-input").first
    assert not fold.locator(".cell_input").is_visible()
    fold.locator("summary").click()
    assert fold.locator(".cell_input").is_visible()


def test_the_smoke_profile_claims_nothing(smoke_book):
    rows = json.loads((smoke_book.build / "claims.json").read_text())
    assert {(row["verdict"], row["profile"]) for row in rows} == {("not run", "smoke")}
    assert {row["device"] for row in rows} == {"cpu"}, "a device is recorded, not a wish"
