"""The book on paper: one file with all pages, of which nothing is cut off."""

import os
import re
import subprocess
import sys

import pytest
import yaml

from browser import PAGES
from lib.book import folders
from lib.book import page as chapters
from lib.book.site import pdf

pypdf = pytest.importorskip("pypdf")


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """A table of contents of the first two parts alone (all of them take minutes): its folder, and its pages."""
    root = tmp_path_factory.mktemp("contents")
    toc = yaml.safe_load((folders.ROOT / "_toc.yml").read_text())
    (root / "_toc.yml").write_text(yaml.safe_dump({**toc, "parts": toc["parts"][:2]}))
    return root, [chapters.Page(name) for _, _, name in chapters.contents(root)]


@pytest.fixture(scope="module")
def printed(chromium, smoke_book, listed, tmp_path_factory):
    """These parts of the smoke book, printed; that is an error where something is wider than the page."""
    target = tmp_path_factory.mktemp("pdf") / pdf.NAME
    sheets = pdf.write(smoke_book.html, target, listed[0])
    reader = pypdf.PdfReader(target)
    assert len(reader.pages) == sheets
    return reader


def bookmarks(reader):
    """The title and the sheet of every bookmark, in their order."""

    def walk(outline):
        for one in outline:
            yield from walk(one) if isinstance(one, list) else [(one.title, reader.get_destination_page_number(one))]

    return list(walk(reader.outline))


def test_all_pages_are_bookmarks_in_their_order(printed, listed):
    found = bookmarks(printed)
    titles = iter([title for title, _ in found])
    assert [page.title for page in listed[1] if page.title not in titles] == []
    sheets = [sheet for _, sheet in found]
    assert sheets == sorted(sheets)
    assert all(caption in dict(found) for _, caption, _ in chapters.contents(listed[0]) if caption)


def test_the_contents_name_the_sheet_on_which_a_page_begins(printed, listed):
    places, sheet = printed.named_destinations.items(), printed.get_destination_page_number
    begins = {name.removeprefix("/"): sheet(place) + 1 for name, place in places}
    contents = "\n".join(printed.pages[number].extract_text() for number in range(1, begins[PAGES[0]] - 1))
    for page in listed[1]:
        assert page.title in contents
        assert str(begins[page.name]) in contents.split()
        running = printed.pages[begins[page.name] - 1].extract_text().splitlines()[:2]
        assert running == [page.title, str(begins[page.name])]


def test_links_between_pages_stay_in_the_file_and_none_leads_to_the_site(printed, listed):
    links = [link.get_object() for sheet in printed.pages for link in sheet.get("/Annots", [])]
    inside = {link["/Dest"] for link in links if "/Dest" in link}
    assert len(inside) > len(listed[1])
    assert inside <= set(printed.named_destinations)
    assert not [link for link in links if "/A" in link and link["/A"].get("/URI", "").startswith(pdf.HOST)]


def test_the_poster_is_one_sheet_with_all_of_its_page(chromium, smoke_book, tmp_path):
    pdf.write_poster(smoke_book.html, tmp_path / pdf.POSTER_NAME)
    (sheet,) = pypdf.PdfReader(tmp_path / pdf.POSTER_NAME).pages
    assert [float(side) / 72 * 25.4 for side in sheet.mediabox[2:]] == pytest.approx([420, 594], abs=1)
    text = sheet.extract_text()
    assert [number for number in range(1, 9) if f"Fig. {number} " not in text] == []
    assert "Where to go next" in text


def test_what_is_wider_than_the_page_is_found_and_a_formula_made_smaller(tab):
    tab.set_viewport_size({"width": pdf.WIDTH, "height": 900})
    tab.set_content("""<body style="margin: 0"><article class="bd-article"><p>fits</p><mjx-container display="true"
        style="display: block; font-size: 20px"><i style="display: inline-block; width: 50em">x</i></mjx-container>""")
    tab.add_script_tag(path=pdf.SCRIPT)
    assert tab.evaluate("fit") == []
    assert tab.evaluate("() => document.querySelector('i').clientWidth") == pytest.approx(pdf.WIDTH, abs=3)
    tab.evaluate("() => document.querySelector('p').style.width = '900px'")
    assert [found[:2] for found in tab.evaluate("fit")] == ["<p"]


def test_without_a_site_or_a_browser_it_says_what_is_missing(smoke_book, tmp_path, monkeypatch):
    with pytest.raises(chapters.BadInput, match="`make book` builds the site"):
        pdf.write(tmp_path, tmp_path / pdf.NAME)
    monkeypatch.setattr(pdf, "BROWSERS", ("no-such-browser",))
    with pytest.raises(chapters.BadInput, match="none of these is on the PATH: no-such-browser"):
        pdf.write(smoke_book.html, tmp_path / pdf.NAME)


def test_a_browser_that_does_not_start_is_named_in_one_line(smoke_book, tmp_path):
    broken = tmp_path / pdf.BROWSERS[0]
    broken.write_text("#!/bin/sh\necho this machine lacks a library >&2\nexit 1\n")
    broken.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "BOOK_BUILD": str(smoke_book.build)}
    command = [sys.executable, "-m", "lib.book", "pdf"]  # a process of its own, as this one has a browser already
    done = subprocess.run(command, cwd=folders.ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(rf"error: {re.escape(str(broken))} does not start: .+", "".join(done.stdout.splitlines()))


def test_the_site_offers_the_file_once_it_is_there(tmp_path, monkeypatch):
    first = tmp_path / f"{PAGES[0]}.html"
    first.parent.mkdir(parents=True)
    first.write_text("<p>text</p><!-- pdf -->")
    monkeypatch.setattr(pdf, "write", lambda html, target: target.write_bytes(b"%PDF"))
    monkeypatch.setattr(pdf, "write_poster", lambda html, target: target.write_bytes(b"%PDF"))
    pdf.publish(tmp_path)
    assert f'href="../{pdf.NAME}"' in first.read_text()
