"""The pages as they are written: links, headings, figures and words, read from the HTML of the finished site."""

import ast
import functools
import itertools
import re
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup
from bs4.element import PreformattedString

from browser import CHAPTERS, PAGES
from lib.book import folders
from lib.book import page as chapters
from lib.book.ledger import declarations

BIBLIOGRAPHY = "chapters/back/bibliography"
INLINE = {"a", "b", "em", "i", "span", "strong", "sub", "sup"}


def text(element, leave_out=lambda element: False):
    """The text of an element, that of its blocks apart, without comments and what is left out."""
    strings = ("" if isinstance(child, PreformattedString) else child for child in element.children)
    parts = [one if isinstance(one, str) else "" if leave_out(one) else text(one, leave_out) for one in strings]
    return "".join(parts) if element.name in INLINE else f" {' '.join(parts)} "


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


def test_every_internal_link_leads_to_a_file_and_every_fragment_to_an_element(smoke_book, site, tree):
    targets = {name: {element["id"] for element in tree(name).select("[id]")} for name in site}
    broken = []
    for name in site:
        for element in tree(name).find_all(True):
            for key in ("href", "src", "data-src", "poster"):
                address = element.get(key)
                if not address or (parts := urlsplit(address)).scheme or parts.netloc:
                    continue
                page = smoke_book.html / f"{name}.html"
                file = (page.parent / unquote(parts.path) if parts.path else page).resolve()
                if not file.is_file():
                    broken.append(f"{name}: {address}")
                elif parts.fragment and file.suffix == ".html":
                    page = file.relative_to(smoke_book.html.resolve()).with_suffix("").as_posix()
                    if unquote(parts.fragment) not in targets[page]:
                        broken.append(f"{name}: {address}")
    assert sorted(set(broken)) == []


def test_no_name_of_an_element_stands_twice_on_a_page(site, tree):
    for name in site:
        names = Counter(element["id"] for element in tree(name).select("[id]"))
        assert [one for one, count in names.items() if count > 1] == [], name


def test_only_prose_leads_out_of_the_site_and_nothing_is_fetched_from_elsewhere(site, tree):
    fetched, linked = [], []
    for name in site:
        for element in tree(name).find_all(True):
            for key in ("href", "src", "action", "data-src", "poster"):
                address = element.get(key) or ""
                if address.startswith(("http:", "https:", "//")):
                    article = element.find_parent(class_="bd-article")
                    (linked if element.name == "a" and article else fetched).append(f"{name}: {address}")
    assert fetched == []
    assert all(": https://" in link for link in linked), linked


# ----------------------------------------------------------------------------------------------------------- structure


def headings(element):
    return [(int(one.name[1]), " ".join(text(one, lambda part: "headerlink" in classes(part)).split()))
            for one in element.select("h1, h2, h3, h4, h5, h6")]  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_one_title_and_no_heading_skips_a_level(name, article):
    found = headings(article(name))
    assert [level for level, _ in found].count(1) == 1 and found[0][0] == 1
    skipped = [text for (before, _), (level, text) in zip(found, found[1:], strict=False) if level > before + 1]
    assert skipped == []
    assert all(text for _, text in found)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_with_a_paragraph_that_says_what_it_shows(name, article):
    after = article(name).h1.find_next_siblings()
    first = next(one for one in after if "run-note" not in classes(one) and one.name != "span")
    assert first.name == "p", "no paragraph stands right under the title"
    assert len(text(first).split()) >= 12, text(first)
    if article(name).select(".claim"):
        assert 60 < len(text(first)) <= 560, "a few lines"


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_code_that_prepares_a_page_stands_in_the_line_under_its_title(name, article):
    line = next(one for one in article(name).h1.find_next_siblings() if one.name != "span")
    assert classes(line) == {"run-note"} and 'profile = "smoke"' in line.get_text()
    cells = article(name).select("div.cell")
    assert not any({"tag_parameters", "tag_injected-parameters"} & classes(cell) for cell in cells)
    assert cells[0].select_one(".cell_output") or "tag_hide-input" not in classes(cells[0])
    silent = itertools.takewhile(lambda cell: not cell.select_one(".cell_output"), cells)
    assert not any("pick(SETTINGS, profile)" in cell.get_text() for cell in silent)
    assert "import " in line.get_text() or "import " in cells[0].get_text(), "they are where something is shown"


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_that_checks_claims_ends_with_what_to_remember_and_what_was_measured(name, article):
    if article(name).select(".claim"):
        last = [words for level, words in headings(article(name)) if level == 2][-2:]
        assert last == ["What to remember", "What was measured"]
        remember, audit = article(name).select_one("#what-to-remember"), article(name).select_one("#what-was-measured")
        assert len(remember.select("div.math")) == 1 and len(remember.select('a[href*="#fig-"]')) == 1
        assert [one.name for one in audit.find_all(recursive=False) if one.name != "span"] == ["h2", "details"]


def spoken(image):
    """What a picture says to those who do not see it."""
    return image.get("alt") or image.get("aria-label", "")


@pytest.mark.parametrize("name", PAGES)
def test_every_figure_has_a_caption_and_says_its_message_in_words(name, article):
    for image in article(name).select("img, figure svg"):
        assert len(spoken(image).split()) >= 4, str(image)[:100]
        if not image.find_parent(class_="animation"):
            figure = image.find_parent("figure")
            assert figure is not None, f"{str(image)[:100]} is no figure"
            (caption,) = figure.select("figcaption")
            assert len(text(caption).split()) >= 3, figure.get("id")


@pytest.mark.parametrize("page", chapters.chapters(), ids=lambda page: page.name)
def test_a_page_shows_the_code_that_it_is_about_and_folds_the_rest(page):
    folded = {"hide-input", "hide-cell", "remove-input"}
    cells = [cell.source.splitlines() for cell in page.code if not folded & set(cell.metadata.get("tags", []))]
    assert [cell for cell in cells if len(cell) > 32] == []
    lines = [line for cell in cells for line in cell if line.strip() and not line.strip().startswith("#")]
    assert [line for line in lines if len(line) > 80] == []
    read_for_its_code = re.search(r"/errata/|/exercises$", page.name)
    assert len(lines) <= (250 if read_for_its_code else 120)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_statement_says_whose_it_is_what_is_printed_where_it_is_proven_and_what_measures_it(name, article):
    """A theorem, lemma or proposition is of a paper, and then a card, or says that it is not in the paper."""
    authors = "Laurent et al.|Tirer and Bruna|Nguyen et al.|Súkeník et al."
    for box in article(name).select(".proof.theorem, .proof.lemma, .proof.proposition"):
        title = box.select_one(".admonition-title").get_text()
        if re.search(authors, title):
            words = " ".join(text(box).split())
            parts = [part for part in ("As printed.", "Printed", "Here", "Proven", "Measured") if part in words]
            assert parts in (["As printed.", "Proven", "Measured"], ["Printed", "Here", "Proven", "Measured"]), title
        else:
            assert "not in the paper" in title or "/synthesis/" in name, title


@pytest.mark.parametrize("name", CHAPTERS)
def test_printed_output_is_short(name, article):
    for element in article(name).select(".output.stream"):
        assert len(element.get_text().strip().splitlines()) <= 60, element.get_text()[:200]


def test_every_claim_and_every_erratum_can_be_reached_from_the_ledger(smoke_book, tree):
    links = {link.get("href") for link in tree("chapters/back/ledger").select("a")}
    declared = declarations.read()
    for name in declared.claims:
        assert any(link and link.endswith(f"#claim-{name}") for link in links), name
    for erratum in declared.errata.values():
        assert f"../errata/{erratum['paper']}.html#erratum-{erratum['id']}" in links


# ------------------------------------------------------------------------------------------------------------- weight


@pytest.mark.parametrize("name", PAGES)
def test_a_page_with_its_pictures_weighs_less_than_six_megabytes(name, smoke_book, tree):
    assert (smoke_book.html / f"{name}.html").stat().st_size < 6e6
    assert all(image["src"].startswith("data:") for image in tree(name).select("img"))  # all pictures are in the page


# ------------------------------------------------------------------------------------------------------------ spelling

#: British spellings, by what their American form has in their place.
BRITISH = {"our": "or", "is": "iz", "ys": "yz", "ll": "l", "ogue": "og", "mme": "m",
           "tre": "ter", "tred": "tered", "tring": "tering"}  # fmt: skip
NO_PROSE = {"pre", "code", "script", "style", "svg", "kbd", "button", "select", "dt"}


def no_prose(element):
    outside = {*("math", "headerlink", "bibtex-citation", "claim-head", "claim-table", "claim-record")}
    outside |= {"animation", "output", "highlight"}
    return element.name in NO_PROSE or bool(classes(element) & outside)


def words_of(element):
    """The words of a page's prose, captions and alt texts; names in code, mathematics and outputs are left out."""
    prose = text(element, no_prose) + " ".join(map(spoken, element.select("img, figure svg")))
    names = r"\S*[\d_/@\\=]\S*|\b(?:fc|ufm|md|lr|x|ex)-[\w-]+|\w+\.\w+"
    prose = re.sub(names, " ", prose.replace("’", "'"))
    for word in re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)*", prose):
        plain = re.sub(r"'s$|'$", "", word)
        if len(plain) > 2 and not plain.isupper() and not re.search(r".[A-Z]", plain):
            yield plain


@pytest.fixture(scope="module")
def dictionary():
    from spellchecker import SpellChecker

    return SpellChecker(language="en", distance=1).word_frequency.dictionary


def is_known(word, dictionary):
    """Is a word in the dictionary, or its American spelling, both with a common beginning or as a plural?"""
    word = word.lower()
    forms = {word, *(word[len(start) :] for start in ("non", "un", "re", "pre", "sub") if word.startswith(start))}
    forms |= {form[:-1] for form in forms if form.endswith("s")}
    forms |= {form.replace(old, new, 1) for form in forms for old, new in BRITISH.items()}
    return any(len(form) > 2 and form in dictionary for form in forms)


def test_the_prose_is_spelt_as_the_dictionary_and_the_list_of_the_books_own_words_say(article, dictionary):
    own = (folders.ROOT / "tests" / "book" / "words.txt").read_text(encoding="utf8").split()
    assert own == sorted(set(own), key=lambda word: (word.lower(), word)), "the list is sorted, each word once"
    unknown, seen = {}, set()
    for name in PAGES:
        if name != BIBLIOGRAPHY:  # names and titles
            for word in words_of(article(name)):
                if not is_known(word, dictionary):
                    seen |= {word, word.lower()}
                    if not {word, word.lower()} & set(own):
                        unknown.setdefault(word, name)
    assert unknown == {}, "correct them, or add what is right to tests/book/words.txt"
    assert [word for word in own if word not in seen] == [], "words that the dictionary knows, or that no page uses"


# ------------------------------------------------------------------------------------------------------------- figures

#: White and black stand on coloured tiles, "none" is no colour; everything else comes from lib.figures.
FREE_COLORS = {"none", "white", "black"}
MAPS = {"cividis", "cividis_r", "PuOr", "PuOr_r"}
SMALLEST = 9  # points, for a note inside a figure
QUOTED = r"[\"']([^\"']+)[\"']"


def keywords(page):
    """(name, value) of everything that the code of a chapter passes by name, also through a dictionary."""
    for node in (node for cell in page.code for node in ast.walk(chapters.parsed(cell.source))):
        if isinstance(node, ast.Call):
            yield from ((keyword.arg, keyword.value) for keyword in node.keywords)
        elif isinstance(node, ast.Dict):
            yield from ((getattr(key, "value", ""), value) for key, value in zip(node.keys, node.values, strict=True))


@pytest.mark.parametrize("page", chapters.chapters(), ids=lambda page: page.name)
def test_colours_and_letters_of_figures_come_from_the_style_of_the_book(page):
    from matplotlib.colors import is_color_like

    given = [(name, re.sub(r"\w\[[^][]*\]", "", ast.unparse(value))) for name, value in keywords(page)]
    named = [value for name, value in given if re.fullmatch(r"\w*colors?|c|[fe]c|m[fe]c", str(name))]
    assert {one for value in named for one in re.findall(QUOTED, value) if is_color_like(one)} <= FREE_COLORS
    assert {value.strip("'") for name, value in given if name == "cmap" and value.startswith("'")} <= MAPS
    sizes = [value for name, value in given if name in ("fontsize", "labelsize")]
    assert [size for size in sizes if size[0] == "'" or size[0].isdigit() and float(size) < SMALLEST] == []
    code = "\n".join(cell.source for cell in page.code)
    formats = re.findall(r"\.(?:plot|semilogy|semilogx|loglog|errorbar)\([^()\n]*,\s*[\"']([^\"']*)[\"']", code)
    assert [one for one in formats if re.search(r"C\d|^\W*[bgrcmykw]\W*$", one)] == []
    if "plt." in code or "figures." in code:
        assert "figures.use()" in code
