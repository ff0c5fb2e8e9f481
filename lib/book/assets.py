"""Last touches on a finished site: what the theme sends and no page needs goes, and so do names given twice."""

from __future__ import annotations

import re
from pathlib import Path

#: The theme's scripts that do what other files of the site do already: icons (there is a font of them) ...
_ICONS = re.compile(r"\s*<script[^>]*scripts/fontawesome\.js[^>]*></script>")
#: ... and the search with its index, which every page would load.
_SEARCH = re.compile(r'\s*<script src="[^"]*(searchtools|language_data|searchindex)\.js[^"]*"></script>')
#: sphinx-proof and sphinx-exercise give one name to all their boxes, the theme none to what unfolds its contents.
_NAMES = {
    ' id="proof-content"': "",
    ' id="exercise-content"': "",
    ' id="solution-content"': "",
    '"proof admonition" id="proof"': '"proof admonition a-proof"',
    '<dl>\n<dd><em class="sig-param">': '<dl role="presentation">\n<dd><em class="sig-param">',  # no terms: no list
    ' role="doc-biblioentry"': ' role="listitem"',  # it stands in a role="list"
    '<summary><span class="toctree-toggle"': '<summary aria-label="Pages of this part"><span class="toctree-toggle"',
}
_RULE = re.compile(r'((?:\.fa-[a-z0-9-]+:before,?)+)\{content:"(\\[0-9a-f]+|.)"\}')
_FACE = re.compile(r'url\([^)]*\.woff2\) format\("woff2"\),(?=url\([^)]*/(fa-[a-z]+-\d+)\.ttf\))')


def trim(site: Path) -> None:
    """Make the pages of a finished site light: icons as a font of those in use, and the search where it is used."""
    used = set()
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf8")
        used |= set(re.findall(r"\bfa-[a-z0-9-]+", text))
        light = _ICONS.sub("", text)
        if page != site / "search.html":
            light = _SEARCH.sub("", light)
        for old, new in _NAMES.items():
            light = light.replace(old, new)
        if light != text:
            page.write_text(light, encoding="utf8")
    static = site / "_static"
    for script in (static / "scripts").glob("*.js"):
        if script.name != "fontawesome.js":
            used |= set(re.findall(r"\bfa-[a-z0-9-]+", script.read_text(encoding="utf8")))
    for path in {*static.rglob("*.map"), *static.glob("scripts/fontawesome.js*")}:
        path.unlink()
    _trim_icons(static, used)


def _trim_icons(static: Path, used: set[str]) -> None:
    """Keep, of the style sheet's icons and of their fonts, the used ones and those that style sheets name by number."""
    from fontTools import subset

    characters, sheets = set(), {}
    for path in static.rglob("*.css"):
        sheets[path] = path.read_text(encoding="utf8")
        others = _RULE.sub("", sheets[path])
        characters |= {int(code, 16) for code in re.findall(r'"\\([ef][0-9a-f]{3})"', others)}
        characters |= {ord(sign) for sign in others if "\ue000" <= sign <= "\uf8ff"}

    def keep(rule) -> str:
        if used.isdisjoint(re.findall(r"fa-[a-z0-9-]+", rule[1])):
            return ""
        characters.add(int(rule[2][1:], 16) if rule[2].startswith("\\") else ord(rule[2]))
        return rule[0]

    for path, text in sheets.items():
        light = _FACE.sub("", _RULE.sub(keep, text)).replace("div#proof{", "div.a-proof {")
        if light != text:
            path.write_text(light, encoding="utf8")
    fonts = static / "vendor" / "fontawesome" / "webfonts"
    unicodes = f"--unicodes={','.join(f'{character:x}' for character in characters)}"
    for path in fonts.glob("*.ttf"):
        subset.main([str(path), unicodes, f"--output-file={path}", "--drop-tables=FFTM", "--layout-features="])
    for path in fonts.glob("*.woff2"):
        path.unlink()
