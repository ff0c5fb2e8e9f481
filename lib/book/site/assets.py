"""Last touches on a finished site: figures become part of their pages, and scripts that no page needs are removed, as
are names given twice."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

#: The theme's scripts that do what other files of the site already do: icons (for which there is a font) ...
_ICONS = re.compile(r"\s*<script[^>]*scripts/fontawesome\.js[^>]*></script>")
#: ... and the search with its index, which every page would load.
_SEARCH = re.compile(r'\s*<script src="[^"]*(searchtools|language_data|searchindex)\.js[^"]*"></script>')
#: sphinx-proof and sphinx-exercise give all their boxes one name, and the toggles of the theme's contents have none.
_NAMES = {
    ' id="proof-content"': "",
    ' id="exercise-content"': "",
    ' id="solution-content"': "",
    '"proof admonition" id="proof"': '"proof admonition a-proof"',
    '<dl>\n<dd><em class="sig-param">': '<dl role="presentation">\n<dd><em class="sig-param">',  # no terms: no list
    ' role="doc-biblioentry"': ' role="listitem"',  # it stands in a role="list"
    '<summary><span class="toctree-toggle"': '<summary aria-label="Pages of this part"><span class="toctree-toggle"',
}
#: A figure in a page, and the colour of a line of text in matplotlib's SVG, where a comment holds the words.
_FIGURE = re.compile(r'<img alt="([^"]*)" src="[^"]*_images/(\w+\.svg)" />')
_TEXT = re.compile(r'(-->\s*<g style="fill: )(#\w{6})')


def finish(site: Path) -> None:
    """Put the figures of a finished site into its pages, and keep the scripts of the search on the page that has it."""
    for page in site.rglob("*.html"):
        text = _inline_figures(_ICONS.sub("", page.read_text(encoding="utf8")), site / "_images")
        if page != site / "search.html":
            text = _SEARCH.sub("", text)
        for old, new in _NAMES.items():
            text = text.replace(old, new)
        page.write_text(text, encoding="utf8")
    for path in (*site.glob("_static/scripts/fontawesome.js*"), *site.glob("_images/*.svg")):
        path.unlink()


def _inline_figures(text: str, pictures: Path) -> str:
    """A page with the SVG of each figure in it; the figures' text takes the page's colour, in both themes.

    Grey text gets the colour of the page's text; coloured text is mixed with it in equal parts, which is legible on a
    light and on a dark page; white and black text stands on tiles and keeps its colour. Names are numbered, since
    figures share them.
    """
    from lib.figures import GREY  # which loads matplotlib

    numbers = itertools.count()

    def colour(match) -> str:
        own = match[2]
        page = "currentColor" if own == GREY else f"color-mix(in srgb, {own}, currentColor)"
        return match[1] + (own if own in ("#ffffff", "#000000") else page)

    def inline(match) -> str:
        svg = (pictures / match[2]).read_text(encoding="utf8")
        svg = _TEXT.sub(colour, svg)
        svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
        names = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
        number = next(numbers)
        svg = re.sub(r' id="([^"]+)"', lambda name: name[0] if name[1] in names else "", svg)
        svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>svg-{number}-", svg)
        return f'<svg role="img" aria-label="{match[1]}"{svg.partition("<svg")[2]}'

    return _FIGURE.sub(inline, text)
