"""The pages as they are written: links, headings, figures and statements, read from the HTML of the finished site."""

import ast
import functools
import importlib
import re
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup
from sphinx.util.inventory import InventoryFile

from browser import CHAPTERS, PAGES
from lib.book import inputs
from lib.book.ledger import declarations

ADDRESSES = ("href", "src", "action", "data-src", "poster")


def classes(element):
    return set(element.get("class", []))


@pytest.fixture(scope="module")
def tree(smoke_book):
    """The parsed page of a name."""
    read = functools.partial(Path.read_text, encoding="utf8")
    return functools.cache(lambda name: BeautifulSoup(read(smoke_book.html / f"{name}.html"), "html.parser"))


@pytest.fixture(scope="module")
def article(tree):
    """The part of a page that the book wrote."""
    return lambda name: tree(name).select_one("article.bd-article")


# -------------------------------------------------------------------------------------------------------------- links


@pytest.fixture(scope="module")
def site(smoke_book):
    """The names of all HTML files of the site: its pages, the entry page, and what Sphinx adds."""
    found = (path.relative_to(smoke_book.html) for path in smoke_book.html.rglob("*.html"))
    return sorted(path.with_suffix("").as_posix() for path in found if path.parts[0] not in ("_static", "_sources"))


@pytest.fixture(scope="module")
def links(site, tree):
    """(page, element, address) of everything that a page of the site links to or loads."""
    elements = [(name, element) for name in site for element in tree(name).find_all(True)]
    return [(name, element, element[key]) for name, element in elements for key in ADDRESSES if element.get(key)]


def test_every_internal_link_leads_to_a_file_and_every_fragment_to_an_element(smoke_book, site, tree, links):
    targets = {name: {element["id"] for element in tree(name).select("[id]")} for name in site}
    broken = set()
    for name, _, address in links:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        page = smoke_book.html / f"{name}.html"
        file = (page.parent / unquote(parts.path) if parts.path else page).resolve()
        known = {""}
        if file.suffix == ".html" and file.is_file():
            known |= targets[file.relative_to(smoke_book.html.resolve()).with_suffix("").as_posix()]
        if not file.is_file() or (file.suffix == ".html" and unquote(parts.fragment) not in known):
            broken.add(f"{name}: {address}")
    assert sorted(broken) == []


def test_no_name_of_an_element_stands_twice_on_a_page(site, tree):
    for name in site:
        names = Counter(element["id"] for element in tree(name).select("[id]"))
        assert [one for one, count in names.items() if count > 1] == [], name


def test_only_prose_leads_out_of_the_site_and_nothing_is_fetched_from_elsewhere(links):
    outward = [link for link in links if link[2].startswith(("http:", "https:", "//"))]
    prose = [link for link in outward if link[1].name == "a" and link[1].find_parent(class_="bd-article")]
    assert [link for link in outward if link not in prose] == []
    assert all(address.startswith("https://") for _, _, address in prose)


def test_every_claim_and_every_erratum_can_be_reached_from_the_ledger(tree):
    links = {link.get("href", "") for link in tree("chapters/back/ledger").select("a")}
    declared = declarations.read()
    fragments = {link.partition("#")[2] for link in links}
    assert {f"claim-{name}" for name in declared.claims} <= fragments
    assert {f"../errata/{one['paper']}.html#erratum-{one['id']}" for one in declared.errata.values()} <= links


def test_every_public_function_and_class_of_the_library_has_a_place_on_its_pages(smoke_book):
    """Under the module that defines it, or under the package that passes it on by `__all__`."""
    with open(smoke_book.html / "objects.inv", "rb") as file:
        kinds = InventoryFile.load(file, "", lambda base, place: place)
    shown = {name for kind, names in kinds.items() if kind.startswith("py:") for name in names}
    public = set()
    for module, path in inputs.modules().items():
        if module.startswith("lib.book") or "._" in module:
            continue
        package = module.rpartition(".")[0] or module
        listed = getattr(importlib.import_module(package), "__all__", None)
        tree = ast.parse(path.read_text(encoding="utf8"))
        names = [one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)]
        if listed is None:
            public |= {f"{module}.{name}" for name in names if not name.startswith("_")}
        else:
            public |= {f"{package}.{name}" for name in names if name in listed}
    assert sorted(public - shown) == [], "give it a docstring, and name a new module in chapters/api and back/api.md"


# ----------------------------------------------------------------------------------------------------------- structure


def headings(element):
    return [(int(one.name[1]), one.get_text()) for one in element.select("h1, h2, h3, h4, h5, h6")]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_one_title_and_no_heading_skips_a_level(name, article):
    found = headings(article(name))
    assert [level for level, _ in found].count(1) == 1 and found[0][0] == 1
    assert [text for (before, _), (level, text) in zip(found, found[1:], strict=False) if level > before + 1] == []


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_code_that_prepares_a_page_stands_in_the_line_under_its_title(name, article):
    line = next(one for one in article(name).h1.find_next_siblings() if one.name != "span")
    assert classes(line) == {"run-note"} and 'profile = "smoke"' in line.get_text()
    cells = article(name).select("div.cell")
    assert not any({"tag_parameters", "tag_injected-parameters"} & classes(cell) for cell in cells)
    assert cells[0].select_one(".cell_output") or "tag_hide-input" not in classes(cells[0])
    assert "import " in line.get_text() or "import " in cells[0].get_text(), "they are where something is shown"


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_lesson_says_how_long_it_takes_and_ends_with_what_to_remember_and_folded_evidence(name, article):
    if article(name).select(".claim"):
        assert re.search(r"^About [a-z]+ minutes\. (Builds on|Needs) .*", article(name).get_text(), re.MULTILINE)
        last = [text.rstrip("#") for level, text in headings(article(name)) if level == 2][-2:]
        assert last == ["What to remember", "Evidence"]
        heading, *folds = article(name).select_one("#evidence").find_all(recursive=False)
        assert heading.name == "h2" and {fold.name for fold in folds} == {"details"}


@pytest.mark.parametrize("name", PAGES)
def test_every_figure_has_a_caption_and_says_its_message_in_words(name, article):
    for image in article(name).select("img, figure svg"):
        said = image.get("alt") or image.get("aria-label", "")
        assert len(said.split()) >= 4, str(image)[:100]
        (caption,) = image.find_parent("figure").select("figcaption")
        assert len(caption.get_text().split()) >= 3, said


def test_theorems_equations_and_citations_are_numbered_and_linked(article):
    page = article("chapters/feature-collapse/theorems")
    boxes, numbers = page.select("div.proof.theorem"), page.select("div.proof .caption-number")
    assert len(boxes) >= 3 and all(box.get("id") for box in boxes)
    expected = [f"I.2.{n}" for n in range(1, len(numbers) + 1)]  # part, page, place on the page
    assert [number.get_text().split()[1] for number in numbers] == expected
    assert page.select("span.eqno") and page.select("a.reference[href*='bibliography.html#']")


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_statement_says_whose_it_is_what_is_printed_where_it_is_proven_and_what_measures_it(name, article):
    """A theorem, lemma or proposition is of a paper, and then a card, or says that it is not in the paper."""
    authors = "Laurent et al.|Tirer and Bruna|Nguyen et al.|Súkeník et al."
    for box in article(name).select(".proof.theorem, .proof.lemma, .proof.proposition"):
        title = box.select_one(".admonition-title").get_text()
        if re.search(authors, title):
            text = box.get_text(" ")
            changed = ["In the paper", "In this book", "Proven", "Checked"]
            parts = [part for part in ("As in the paper.", *changed) if part in text]
            assert parts in (["As in the paper.", "Proven", "Checked"], changed), title
        else:
            assert "not in the paper" in title or "/synthesis/" in name, title
