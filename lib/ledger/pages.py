"""Judged claims as HTML: the table of one claim under its cell, and the page of all of them.

The templates are beside this file and escape what is put into them. What they make has no blank lines, which would end
a block of HTML within Markdown.
"""

from __future__ import annotations

import re
from collections import Counter

import jinja2
from markupsafe import Markup, escape

from lib.ledger import declarations
from lib.ledger.declarations import KINDS, PAPERS, is_number
from lib.ledger.verdict import VERDICTS, met


def claim(record: dict, links: bool = True) -> str:
    """The table of one judged claim: what is expected, what was measured, and whether they agree.

    links: with links to the ledger and errata pages, as the published page wants them.
    """
    declared = declarations.read()
    declaration, shown = declared.claims[record["id"]], declared.errata_of(record["id"])
    up = "../" * record["chapter"].count("/")
    return _fill("claim.html", record=record, declaration=declaration, errata=shown, links=links, up=up)


def ledger(records: list[dict], recorded: dict[str, dict] | None = None) -> str:
    """The page of all declared claims, for the marker in chapters/back/ledger.md.

    records: the judged ones of the executed chapters. recorded: {id: record} of the `paper` profile, as
    `lib.book.records.read` finds them; without any, their column is left out.
    """
    declared, live = declarations.read(), {record["id"]: record for record in records}
    rows = []
    for name, entry in declared.claims.items():
        verdict = live[name]["verdict"] if name in live else "not run"
        rows.append({"claim": entry, "verdict": verdict, "record": live.get(name), "errata": declared.errata_of(name)})
    found = Counter(row["verdict"] for row in rows)
    counts = {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}
    return _fill("ledger.html", rows=rows, counts=counts, recorded=recorded or {})


def linked_verdict(name: str, record: dict | None) -> str:
    """The claim's name, linked from a page beside it to the cell that measures it or else to its row in the ledger, and
    its verdict."""
    parts = _TEMPLATES.get_template("parts.html").module
    return f"{parts.claim_link(name, record, '../')} {parts.badge(record['verdict'] if record else 'not run')}"


def _fill(template: str, **values) -> str:
    lines = _TEMPLATES.get_template(template).render(values).splitlines()
    return "\n".join(line.strip() for line in lines if line.strip())


# How values and statements are set ------------------------------------------------------------------------------------


def _number(value, digits=6):
    """A value as a reader wants it: a few significant digits, a true minus sign, no long lists."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        shown = ", ".join(_number(item, digits) for item in value[:6])
        return shown if len(value) <= 6 else f"{shown}, … ({len(value)} values)"
    if not isinstance(value, int | float):
        return value
    mantissa, _, exponent = (f"{value:.{digits}g}" if isinstance(value, float) else str(value)).partition("e")
    if exponent:
        mantissa += "\u00a0×\u00a010" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return mantissa.replace("-", "−")


def _digits(expectation):
    """How many digits of a measured value are worth showing: more where there is a number to compare them with."""
    return 6 if {"value", "printed"} & set(expectation or ()) else 4


def _indexed(text):
    """A statement as HTML, with x_i and n^L (or x_{i,j}, n^{L-1}) as indices and exponents."""
    text = str(escape(text))
    for mark, tag in (("_", "sub"), (r"\^", "sup")):
        braced = rf"(?<=[^\s(]){mark}(?:\{{([^{{}}]*)\}}|([^\W_²³]+))"
        text = re.sub(braced, lambda found, tag=tag: f"<{tag}>{found[1] or found[2]}</{tag}>", text)
    return Markup(text)


def _words(expectation):
    """What is printed or expected, in words."""
    for relation in ("printed", "value", "equals"):
        if relation in expectation:
            return _number(expectation[relation])
    for relation in ("below", "above"):
        if relation in expectation:
            return f"{relation} {_number(expectation[relation])}"
    return "{} to {}".format(*map(_number, expectation["between"])) if "between" in expectation else "—"


def _difference(expectation, value):
    """Measured minus printed, where the print is a number."""
    printed = expectation.get("printed", expectation.get("value"))
    if not (is_number(printed) and is_number(value)):
        return "—"
    return _number(float(f"{float(value) - printed:.2g}"))


_LOADER = jinja2.PackageLoader("lib.ledger")
_TEMPLATES = jinja2.Environment(loader=_LOADER, autoescape=True, trim_blocks=True, lstrip_blocks=True)
_TEMPLATES.globals.update(VERDICTS=VERDICTS, PAPERS=PAPERS, KINDS=KINDS, met=met)
_TEMPLATES.filters.update(number=_number, digits=_digits, indexed=_indexed, zip=zip)
_TEMPLATES.filters.update(words=_words, difference=_difference)
