"""Last touches on a finished site: figures become part of their pages, and what no page needs is removed, as are
names given twice."""

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
_RULE = re.compile(r'((?:\.fa-[a-z0-9-]+:before,?)+)\{content:"(\\[0-9a-f]+|.)"\}')
_FACE = re.compile(r'url\([^)]*\.woff2\) format\("woff2"\),(?=url\([^)]*/(fa-[a-z]+-\d+)\.ttf\))')


def trim(site: Path) -> None:
    """Make a finished site's pages light: a font of only the icons in use, and the search only where it is used."""
    used = set()
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf8")
        used |= set(re.findall(r"\bfa-[a-z0-9-]+", text))
        text = _inline_figures(_ICONS.sub("", text), site / "_images")
        if page != site / "search.html":
            text = _SEARCH.sub("", text)
        for old, new in _NAMES.items():
            text = text.replace(old, new)
        page.write_text(text, encoding="utf8")
    static = site / "_static"
    needless = {*static.rglob("*.map"), *static.glob("scripts/fontawesome.js*"), *(site / "_images").glob("*.svg")}
    for path in needless | {*static.glob("vendor/fontawesome/webfonts/*.woff2")}:
        path.unlink()
    for script in (static / "scripts").glob("*.js"):
        used |= set(re.findall(r"\bfa-[a-z0-9-]+", script.read_text(encoding="utf8")))
    _trim_icons(static, used)


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


def _trim_icons(static: Path, used: set[str]) -> None:
    """Keep in the style sheets and fonts only the icons that are used and those that style sheets name by number."""
    from fontTools import subset

    sheets = {path: path.read_text(encoding="utf8") for path in static.rglob("*.css")}
    others = _RULE.sub("", "\n".join(sheets.values()))
    characters = {int(code, 16) for code in re.findall(r'"\\([ef][0-9a-f]{3})"', others)}
    characters |= {ord(sign) for sign in others if "\ue000" <= sign <= "\uf8ff"}

    def keep(rule) -> str:
        if used.isdisjoint(re.findall(r"fa-[a-z0-9-]+", rule[1])):
            return ""
        characters.add(int(rule[2][1:], 16) if rule[2].startswith("\\") else ord(rule[2]))
        return rule[0]

    for path, text in sheets.items():
        text = _FACE.sub("", _RULE.sub(keep, text)).replace("div#proof{", "div.a-proof {")
        path.write_text(text, encoding="utf8")
    unicodes = f"--unicodes={','.join(f'{character:x}' for character in characters)}"
    for path in static.glob("vendor/fontawesome/webfonts/*.ttf"):
        subset.main([str(path), unicodes, f"--output-file={path}", "--drop-tables=FFTM", "--layout-features="])
