"""The whole book as one PDF: the pages of the finished site, joined into one and printed by a headless Chromium.

Links, page numbers and bookmarks are Chromium's own, because what it prints is one document. The look on paper
is set in `_static/print.css`, which also serves a reader who prints a single page.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path
from urllib.parse import unquote, urlparse

from lib.book.atomic import atomically
from lib.book.folders import ROOT
from lib.book.page import BadInput, SiteError, contents

NAME, POSTER_NAME = "how-representations-collapse.pdf", "poster.pdf"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOST = "http://book"  # there is no such host: the browser's requests are answered with the files of the site
WIDTH = 658  # of what stands between the margins of print.css, in pixels of 1/96 inch
SCRIPT = Path(__file__).with_name("pdf.js")  # what runs in the pages


@contextlib.contextmanager
def _printing(html: Path, name: str, width: int, height: int):
    """A page of the site `html` in Chromium, as print shows it, its mathematics typeset. BadInput if the page
    or Chromium is missing or does not start."""
    from playwright.sync_api import Error, sync_playwright

    if not (html / f"{name}.html").is_file():
        raise BadInput(f"there is no {name}.html in {html}: `make book` builds the site")
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        raise BadInput(f"Chromium prints the PDF, and none of these is on the PATH: {', '.join(BROWSERS)}")

    def answer(route):
        path = html / unquote(urlparse(route.request.url).path).lstrip("/")
        route.fulfill(path=path) if path.is_file() else route.fulfill(status=404)

    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        except Error as error:  # the folder of TMPDIR does not exist, say
            raise BadInput(f"{chromium} does not start: {error.message.splitlines()[0]}") from error
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        page.set_default_timeout(0)  # a slow machine takes minutes
        page.emulate_media(media="print")
        page.route("**/*", answer)
        page.goto(f"{HOST}/{name}.html")
        page.wait_for_function("() => window.MathJax?.startup?.promise")
        page.evaluate("() => MathJax.startup.promise")
        page.add_script_tag(path=SCRIPT)
        yield page
        browser.close()


def write(html: Path, target: Path, root: Path = ROOT) -> int:
    """Print the site `html` into the file `target`; returns the number of sheets.

    Raises BadInput where there is no site or no Chromium, and SiteError when something is wider than the page.
    """
    from pypdf import PdfReader, PdfWriter

    listed = contents(root)
    with _printing(html, listed[0][2], WIDTH, 987) as page, atomically(target) as partial:
        titles = page.evaluate("compose", listed)
        if wide := page.evaluate("fit"):
            raise SiteError("wider than the page:\n" + "\n".join(wide))
        page.pdf(path=partial, prefer_css_page_size=True, outline=True, tagged=True)
        document = PdfWriter(partial, incremental=True)
        _name_bookmarks(document, titles)
        places = document.named_destinations.items()
        page.evaluate("numbers", {name: document.get_destination_page_number(place) + 1 for name, place in places})
        numbers = PdfReader(io.BytesIO(page.pdf(prefer_css_page_size=True)))
        for sheet, above in zip(document.pages, numbers.pages, strict=False):
            sheet.merge_page(above)
        document.write(partial)
        return len(document.pages)


def write_poster(html: Path, target: Path) -> None:
    """Print the page `ten-minutes` of the site `html` on one sheet of A2. Raises BadInput as `write` does."""
    with _printing(html, "chapters/ten-minutes", 1474, 2133) as page, atomically(target) as partial:
        page.evaluate("poster")
        page.pdf(path=partial, prefer_css_page_size=True, tagged=True)


def publish(html: Path) -> int:
    """Print the site `html` and its poster into files of the site, whose first page then offers both; returns the
    number of sheets."""
    folder = html.resolve()
    sheets = write(folder, folder / NAME)
    write_poster(folder, folder / POSTER_NAME)
    first = folder / f"{contents()[0][2]}.html"
    text = first.read_text(encoding="utf8")
    offer = f"""<p>To print: <a href="../{NAME}">the whole book in one file</a>,
<a href="../{POSTER_NAME}">ten minutes as a poster</a> (A2).</p>"""
    with atomically(first) as partial:
        partial.write_text(text.replace("<!-- pdf -->", offer), encoding="utf8")
    return sheets


def _name_bookmarks(document, titles: list[str]) -> None:
    """Chromium writes the bookmark of a heading at the top of a sheet twice, and leaves out its mathematics."""
    from pypdf.generic import NameObject, TextStringObject

    def walk(item):
        while item is not None:
            item = item.get_object()
            yield item
            yield from walk(item.get("/First"))
            item = item.get("/Next")

    items = list(walk(document.root_object["/Outlines"]["/First"]))
    for item, title in zip(items, titles, strict=True):
        item[NameObject("/Title")] = TextStringObject(" ".join(title.split()))
