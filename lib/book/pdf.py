"""The whole book as one PDF: the pages of the finished site, set into one and printed by a headless Chromium.

Links, page numbers and bookmarks are Chromium's own, because what it prints is one document. What paper looks like
stands in `_static/print.css`, which serves a reader who prints a single page as well.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path
from urllib.parse import unquote, urlparse

import yaml

from lib.book.chapters import ROOT, BadInput, SiteError
from lib.book.site import seal
from lib.data.files import atomically

NAME, POSTER_NAME = "how-representations-collapse.pdf", "poster.pdf"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOST = "http://book"  # there is none: the browser's requests are answered with the files of the site
WIDTH = 658  # of what stands between the margins of print.css, in pixels of 1/96 inch

#: Runs in the first page and puts the articles of all pages into the place of its own. Names get the page's name in
#: front, so that each is there once (not within pictures, and not that of the ledger's table, which the style sheet
#: knows); a link to a page leads to its place in the whole, one to another file nowhere.
COMPOSE = """async listed => {
    const known = new Set(listed.map(([, , name]) => `/${name}.html`));
    const whole = document.querySelector("article.bd-article"), main = document.querySelector("main");
    const contents = document.createElement("ol"), cover = document.createElement("header");
    const running = document.head.appendChild(document.createElement("style"));
    const [title, footer] = ["h1", ".bd-footer-content__inner"].map(one => document.querySelector(one));
    cover.className = "cover";
    cover.innerHTML = `<p class="title">${title.firstChild.textContent}</p>${footer.innerHTML}`;
    whole.replaceChildren();
    for (const [number, [level, part, name]] of listed.entries()) {
        const home = new URL(`/${name}.html`, location);
        const page = new DOMParser().parseFromString(await (await fetch(home)).text(), "text/html");
        const article = page.querySelector("article.bd-article");
        for (const one of article.querySelectorAll("script, .headerlink, .moved")) one.remove();
        for (const one of article.querySelectorAll("[id]:not(#ledger, svg *)")) one.id = `${name}/${one.id}`;
        for (const image of article.querySelectorAll("img")) image.src = new URL(image.getAttribute("src"), home);
        for (const link of article.querySelectorAll("a[href]")) {
            const url = new URL(link.getAttribute("href"), home);
            if (known.has(url.pathname)) link.href = `#${url.pathname.slice(1, -5)}${url.hash.replace("#", "/")}`;
            else if (url.origin === home.origin) link.removeAttribute("href");
        }
        for (const heading of article.querySelectorAll("h1, h2, h3, h4, h5"))
            heading.ariaLevel = Math.min(6, level - 1 + Number(heading.tagName[1]));
        const own = article.querySelector("h1");
        if (part) {
            own.insertAdjacentHTML("beforebegin", `<h1 class="part" aria-level="1">${part}</h1>`);
            contents.insertAdjacentHTML("beforeend", `<li class="part">${part}</li>`);
        }
        contents.insertAdjacentHTML("beforeend", `<li><a href="#${name}">${own.innerHTML}</a><span></span></li>`);
        running.append(`@page p${number} { @top-right { content: ${JSON.stringify(own.textContent)} } }\\n`);
        whole.insertAdjacentHTML("beforeend",
            `<section id="${name}" style="page: p${number}">${article.innerHTML}</section>`);
    }
    cover.append(contents);
    document.body.replaceChildren(cover, main);
    await MathJax.typesetPromise();
    await Promise.all([...document.images].map(image =>
        image.complete || new Promise(done => image.onload = image.onerror = done)));
    return [...whole.querySelectorAll("h1, h2, h3, h4, h5")].map(one => one.textContent);
}"""
#: Makes formulas that are wider than the page as small as it takes, and says what still sticks out.
FIT = """() => {
    for (const formula of document.querySelectorAll('mjx-container[display="true"]')) {
        const share = formula.clientWidth / (formula.scrollWidth + 1);
        const size = parseFloat(getComputedStyle(formula).fontSize);
        if (formula.scrollWidth > formula.clientWidth + 1)
            formula.style.setProperty("font-size", `${share * size}px`, "important");
    }
    const edge = document.querySelector(".bd-article").getBoundingClientRect().right + 1;
    return [...document.querySelectorAll(".bd-article *:not(mjx-assistive-mml, mjx-assistive-mml *, svg *)")]
        .filter(one => one.getBoundingClientRect().right > edge).map(one => one.outerHTML.slice(0, 160));
}"""

#: Leaves of the book its first sheets alone, and of these the numbers in the contents.
NUMBERS = """leaves => {
    document.querySelector("main").remove();
    document.head.insertAdjacentHTML("beforeend", `<style>
        @page { @bottom-center { content: none } } .cover { visibility: hidden } .cover span { visibility: visible }
    </style>`);
    for (const link of document.querySelectorAll(".cover a")) {
        link.nextElementSibling.textContent = leaves[`/${link.hash.slice(1)}`];
        link.removeAttribute("href");
    }
}"""


#: Lays a page out in three columns of one sheet of A2, with letters as large as it takes.
POSTER = """async () => {
    const { documentElement: root, images } = document;
    const article = document.querySelector("article.bd-article");
    for (const one of article.querySelectorAll(".run-note, .headerlink")) one.remove();
    article.querySelector("h1").textContent = document.title.replace(/^.* \u2014 /, "");
    document.body.replaceChildren(document.querySelector("main"));
    root.classList.add("poster");
    await Promise.all([...images].map(image =>
        image.complete || new Promise(done => image.onload = image.onerror = done)));
    let [fits, over] = [8, 40];
    while (over - fits > 0.02) {
        const size = (fits + over) / 2;
        root.style.fontSize = `${size}px`;
        if (article.scrollWidth > article.clientWidth) over = size;
        else fits = size;
    }
    root.style.fontSize = `${0.98 * fits}px`; // print breaks a few lines elsewhere
}"""


@contextlib.contextmanager
def _printing(html: Path, name: str, width: int, height: int):
    """A page of the site `html` in Chromium, as print shows it, its mathematics typeset. BadInput without either."""
    from playwright.sync_api import sync_playwright

    if not (html / f"{name}.html").is_file():
        raise BadInput(f"there is no {name}.html in {html}: `make book` builds the site")
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        raise BadInput(f"Chromium prints the PDF, and none of these is on the PATH: {', '.join(BROWSERS)}")

    def answer(route):
        path = html / unquote(urlparse(route.request.url).path).lstrip("/")
        route.fulfill(path=path) if path.is_file() else route.fulfill(status=404)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        page.set_default_timeout(0)  # a slow machine takes minutes
        page.emulate_media(media="print")
        page.route("**/*", answer)
        page.goto(f"{HOST}/{name}.html")
        page.wait_for_function("() => window.MathJax?.startup?.promise")
        page.evaluate("() => MathJax.startup.promise")
        yield page
        browser.close()


def write(html: Path, target: Path, root: Path = ROOT) -> int:
    """Print the site `html` into the file `target`; returns the number of sheets.

    Raises BadInput where there is no site or no Chromium, and SiteError when something is wider than the page.
    """
    from pypdf import PdfReader, PdfWriter

    listed = _listed(root)
    with _printing(html, listed[0][2], WIDTH, 987) as page, atomically(target) as partial:
        titles = page.evaluate(COMPOSE, listed)
        if wide := page.evaluate(FIT):
            raise SiteError("wider than the page:\n" + "\n".join(wide))
        page.pdf(path=partial, prefer_css_page_size=True, outline=True, tagged=True)
        document = PdfWriter(partial, incremental=True)
        _name_bookmarks(document, titles)
        places = document.named_destinations.items()
        page.evaluate(NUMBERS, {name: document.get_destination_page_number(place) + 1 for name, place in places})
        numbers = PdfReader(io.BytesIO(page.pdf(prefer_css_page_size=True)))
        for sheet, above in zip(document.pages, numbers.pages, strict=False):
            sheet.merge_page(above)
        document.write(partial)
        return len(document.pages)


def write_poster(html: Path, target: Path) -> None:
    """Print the page `ten-minutes` of the site `html` on one sheet of A2. Raises BadInput as `write` does."""
    with _printing(html, "chapters/ten-minutes", 1474, 2133) as page, atomically(target) as partial:
        page.evaluate(POSTER)
        page.pdf(path=partial, prefer_css_page_size=True, tagged=True)


def publish(html: Path, root: Path = ROOT) -> int:
    """Print the site `html` and its poster into files of it, which its first page then offers; the number of sheets."""
    folder = html.resolve()
    sheets = write(folder, folder / NAME, root)
    write_poster(folder, folder / POSTER_NAME)
    first = folder / f"{_listed(root)[0][2]}.html"
    text = first.read_text(encoding="utf8")
    offer = f"""<p>To print: <a href="../{NAME}">the whole book in one file</a>,
<a href="../{POSTER_NAME}">ten minutes as a poster</a> (A2).</p>"""
    with atomically(first) as partial:
        partial.write_text(text.replace("<!-- pdf -->", offer), encoding="utf8")
    seal(folder)
    return sheets


def _listed(root: Path) -> list[tuple[int, str, str]]:
    """Of each page: its level in the table of contents, the part that begins with it, its name."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf8"))
    listed = [(1, "", toc["root"])]
    for part in toc["parts"]:
        for number, chapter in enumerate(part["chapters"]):
            listed.append((2, "" if number else part["caption"], chapter["file"]))
            listed += [(3, "", section["file"]) for section in chapter.get("sections", [])]
    return [(level, part, name.removesuffix(".md")) for level, part, name in listed]


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
