"""What the symbols mean: the notation table, and what a formula tells about its own, from `chapters/symbols.yml`."""

from __future__ import annotations

import functools
import html
import json
import re
from pathlib import Path

import yaml

from lib.book.folders import ROOT
from lib.book.ledger import tables
from lib.book.ledger.declarations import PAPERS
from lib.book.page import NUMBERS

FILE = "chapters/symbols.yml"
FIELDS = {"means", "lib", "hover"}  # of a row, beside the places that use its symbols
#: The parts on the papers, each with its number and name.
PARTS = {key: (number, paper["short"]) for number, (key, paper) in zip(NUMBERS, PAPERS.items(), strict=False)}
_LAYOUT = re.compile(r"\\(?:begin|end|label|tag)\s*\{[^{}]*\}")
_WORD = re.compile(r"\\(?:text|mathrm|operatorname\*?)\s*\{(\w*)\}|(?<=[_^])\{([A-Z]{2,})\}")
_ALONE = re.compile(r"\{\s*((?:\\[a-z]+\s*)*(?:\w|\\[a-zA-Z]+))\s*\}")
_ACCENTS = set(re.findall(r"\\\w+", r"\mathbf\mathcal\mathfrak\mathbb\boldsymbol\overline\bar\tilde\hat"))
_FORMULA = re.compile(
    r'(<(?:span|div) class="math[^>]*)>(\s*(?:<span class="eqno">.*?</span>)?\s*)(\\[(\[].*?\\[)\]])', re.DOTALL
)


def read(root: Path = ROOT) -> list[dict]:
    """The rows of `chapters/symbols.yml`, whose head says what they hold."""
    return yaml.safe_load((root / FILE).read_text(encoding="utf8"))


def table(rows: list[dict]) -> str:
    """Markdown: a table of what two papers or more have a symbol for, and folded below it what only one has."""

    def cells(row) -> list[str]:
        signs = (", ".join(f"${sign}$" for sign in row.get(part, [])) for part in PARTS)
        return [row["means"], *signs, f"`{row['lib']}`" if "lib" in row else ""]

    shared = [cells(row) for row in rows if sum(part in row for part in PARTS) > 1]
    lines = [tables.table(["", *(name for _, name in PARTS.values()), "`lib`"], shared)]
    lines += ["", ":::{dropdown} Symbols of one paper"]
    for part, (_, name) in PARTS.items():
        own = [row for row in rows if [one for one in PARTS if one in row] == [part]]
        lines += ["", f"**{name}**: " + "; ".join(f"${'$, $'.join(row[part])}$ {row['means']}" for row in own) + "."]
    return "\n".join([*lines, ":::"])


def signs(tex: str) -> list[str]:
    r"""TeX as a list of signs: `\mathbf{H}` is one, and so are `\overline{\mathbf h}`, a word and a name like DNC.

    >>> signs(r"\mathbf{H}_1 = n_{\text{spl}} c_{k,i}")
    ['\\mathbf H', '_', '1', '=', 'n', '_', '\\spl', 'c', '_', '{', 'k', ',', 'i', '}']
    """
    text, before = _WORD.sub(lambda match: rf"\{match[1] or match[2]} ", _LAYOUT.sub(" ", tex)), ""
    while text != before:
        before, text = text, _ALONE.sub(r" \1 ", text)
    found = re.findall(r"\\[a-zA-Z]+|\S", text)
    for i in reversed(range(len(found) - 1)):
        if found[i] in _ACCENTS:
            found[i : i + 2] = [f"{found[i]} {found[i + 1]}"]
    return found


def meanings(rows: list[dict], page: str) -> dict[str, str]:
    """The symbols that a page may use, and, in HTML, what they mean there and in the other parts.

    page: "low-rank-bias/dufm", or a page of the synthesis, where a symbol means what it does in the four papers.
    """
    rows = [row for row in rows if row.get("hover", True)]
    known = {}
    for row in rows:
        for place in row.keys() - FIELDS:
            known |= {(place, sign): row for sign in row[place]}
    here = page.partition("/")[0]
    own_places = (page, here) if here in PARTS else tuple(PARTS)
    found = {}
    for sign in [sign for row in rows for place in own_places for sign in row.get(place, [])]:
        row = _row(known, sign, page, here)
        parts_by_text: dict[str, list[str]] = {}
        for part, (number, _) in PARTS.items():
            if part != here and (text := _elsewhere(sign, row, _row(known, sign, part), part)):
                parts_by_text.setdefault(text, []).append(number)
        others = "; ".join(f"Part {', '.join(numbers)}: {_tex(text)}" for text, numbers in parts_by_text.items())
        own = f"<strong>{_tex(row['means'])}</strong><br>" if row else ""
        found[sign] = f"<dt>\\({html.escape(sign)}\\)</dt><dd>{own}{others}</dd>"
    return found


def _row(known: dict, sign: str, *places: str) -> dict | None:
    """The row of a symbol in the first of the places that has it, with this index or with any (`used`)."""
    for alike in (sign, *(sign[:-1] + index for index in "lnk" if sign[-2:-1] == "_")):
        for place in places:
            if (place, alike) in known:
                return known[place, alike]
    return None


def _elsewhere(sign: str, row: dict | None, other: dict | None, part: str) -> str:
    """What to say of another part: its symbols for what the sign means here, and what the sign means there."""
    if row is None:
        return other["means"] if other else ""
    if other is row:
        return "the same"
    said = [f"${row[part][0]}$"] if part in row else []
    if other:
        said.append(f"${sign}$ for {other['means']}")
    return " and ".join(said)


@functools.cache
def used(tex: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The symbols in a formula, the longest sought first; one that goes on with an index or a prime is another symbol.

    An index l, n or k of a symbol stands for any index of one sign, unless there is a symbol with that very index.
    """
    by_length, pattern = _pattern(known)
    found = pattern.finditer("\n".join(signs(tex)))
    return tuple(dict.fromkeys(by_length[match.lastindex - 1] for match in found))


@functools.cache
def _pattern(known: tuple[str, ...]) -> tuple[list[str], re.Pattern]:
    """The symbols in the order in which they are looked for, and a pattern with a group for each, one sign per line."""
    exact = {sign: "\n".join(map(re.escape, signs(sign))) for sign in known}
    loose = {sign: re.sub(r"(?<=_\n)[lnk]$", r"\\w", text, flags=re.MULTILINE) for sign, text in exact.items()}
    order = sorted(known, key=lambda sign: (-exact[sign].count("\n"), loose[sign] != exact[sign]))
    groups = "|".join(f"({loose[sign]})" for sign in order)
    return order, re.compile(rf"^(?:{groups})$(?!\n[_']$)", re.MULTILINE)


def mark(site: Path, rows: list[dict]) -> None:
    """Note at each formula of the parts and of the synthesis its symbols, and on each page what they mean there."""
    for folder in (*PARTS, "synthesis"):
        for page in sorted((site / "chapters" / folder).glob("*.html")):
            text = _marked(page.read_text(encoding="utf8"), meanings(rows, f"{folder}/{page.stem}"))
            page.write_text(text, encoding="utf8")


def _marked(text: str, known: dict[str, str]) -> str:
    """A page whose formulas have the numbers of their symbols, with what these mean as JSON at its end."""
    names, told = tuple(known), {}

    def numbered(match) -> str:
        here = used(html.unescape(match[3]), names)
        told.update({names.index(sign): known[sign] for sign in here})
        numbers = " ".join(str(names.index(sign)) for sign in here)
        attribute = f' data-symbols="{numbers}"' if here else ""
        return f"{match[1]}{attribute}>{match[2]}{match[3]}"

    text = _FORMULA.sub(numbered, text)
    data = json.dumps(told, ensure_ascii=False).replace("</", "<\\/")
    return text.replace("</article>", f'<script type="application/json" id="symbols">{data}</script></article>', 1)


def _tex(text: str) -> str:
    """A text with formulas between dollar signs, as HTML that MathJax typesets."""
    return re.sub(r"\$(.+?)\$", r"\\(\1\\)", html.escape(text, quote=False))
