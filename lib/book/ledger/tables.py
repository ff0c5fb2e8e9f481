"""Judged claims as HTML: the table of one claim under its cell, and the page of all of them.

The templates are beside this file and escape what is put into them. Their output has no blank lines, which would end
a block of HTML within Markdown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

from lib.book.kernel.profiles import PROFILES
from lib.book.ledger import declarations
from lib.book.ledger.declarations import KINDS, NAMES, is_number
from lib.book.ledger.verdict import VERDICTS, met

_LABEL = re.compile(r"^(?::label: ([a-z0-9-]+)|\(([a-z0-9-]+)\)=)[ \t]*$", re.MULTILINE)


def claim(record: dict, links: bool = True) -> str:
    """The table of one judged claim: what is expected, what was measured, and whether they agree.

    links: whether to link to the ledger and errata pages, as the published page does; its record names its chapter.
    """
    declared = declarations.read()
    declaration, shown = declared.claims[record["id"]], declared.errata_of(record["id"])
    up = "../" * record["chapter"].count("/") if links else ""
    return _fill("claim.html", record=record, declaration=declaration, errata=shown, links=links, up=up)


def evidence(records: dict[str, dict], recorded: dict[str, dict]) -> dict[str, dict]:
    """The best current evidence on each claim, {id: judged record}: that of the larger profile.

    records: {id: judged record} of the executed chapters. recorded: the same of larger profiles, as
    `lib.book.records.read` finds them; of these, what is outdated or was not run is no evidence.
    """
    best = dict(records)
    for name, kept in recorded.items():
        stands = kept["verdict"] != "not run" and not kept["outdated"]
        if stands and (name not in best or _rank(kept) > _rank(best[name])):
            best[name] = kept
    return best


def _rank(record: dict) -> int:
    return -1 if record["verdict"] == "not run" else PROFILES.index(record["profile"])


def ledger(records: dict[str, dict], recorded: dict[str, dict], statements: dict[str, str]) -> str:
    """The page of all declared claims, for the marker in chapters/back/ledger.md: one verdict for each claim.

    records, recorded: as in :func:`evidence`. statements: {label: address}, as `places` finds them, to which the place
    in the paper links.
    """
    best = evidence(records, recorded)
    counts = _counts(best)
    about = {"declared": declarations.read(), "best": best, "records": records, "recorded": recorded}
    choices = list(dict.fromkeys(part for verdict in counts for part in (verdict.partition(":")[0], verdict)))
    return _fill("ledger.html", counts=counts, choices=choices, statements=statements, **about)


def tally(records: dict[str, dict]) -> str:
    """How many declared claims have each verdict, with links to the ledger, for a page beside the introduction.

    records: {id: judged record}, from :func:`evidence`.
    """
    return _without_blank_lines(PARTS.tally(_counts(records), "back/ledger.html"))


def _counts(records: dict[str, dict]) -> dict[str, int]:
    """{verdict: how many declared claims have it}, in the order of `VERDICTS`, without those that do not occur."""
    found = Counter(records[name]["verdict"] if name in records else "not run" for name in declarations.read().claims)
    return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}


def linked_verdict(name: str, record: dict | None, in_box: bool = False) -> str:
    """What the claim is about and its verdict; from a page beside it, the words link to the cell that measures the
    claim, or else to its row in the ledger. In the box of a statement, which is right, what is contradicted is the
    paper's version."""
    declared, badge = declarations.read().claims[name], PARTS.badge("not run")
    if record:
        badge = PARTS.badge(record["verdict"], record["dataset"], declared.get("settings"), in_box)
    return f"{PARTS.claim_link(declared['about'], record, '../', name)} {badge}"


def places(texts: dict[str, str]) -> dict[str, str]:
    """Where the statements of claims stand, {label: address relative to the folder of the chapters}.

    texts: {name of a page: its Markdown}. A statement is a directive with the label, or a section with it as anchor.
    """
    labels = [(name, "".join(label)) for name, text in texts.items() for label in _LABEL.findall(text)]
    wanted = {label for claim in declarations.read().claims.values() for label in declarations.stated(claim)}
    return {label: f"{name}.html#{label}" for name, label in labels if label in wanted}


def place_of(claim: dict, statements: dict[str, str]) -> str | None:
    """The address of the first statement that a claim is about. statements: what `places` found."""
    return next((statements[label] for label in declarations.stated(claim) if label in statements), None)


def measured_by(text: str, records: dict[str, dict]) -> str:
    """A page's Markdown with lines on what measures its statements: claims and their verdicts.

    In a directive the line is the last one in its box, in a section it stands below the heading, else above the label.
    """
    declared = declarations.read().claims
    for found in reversed([*_LABEL.finditer(text)]):  # from the end, so that what was found stays where it is
        label = found[1] or found[2]
        about = [name for name in declared if label in declarations.stated(declared[name])]
        if about:
            if found[1]:
                fences = re.findall(r"^(:{3,}|`{3,})\{", text[: found.start()], re.MULTILINE)
                end = re.compile(rf"^(?={fences[-1]}[ \t]*$)", re.MULTILINE).search(text, found.end()).end()
            else:
                heading = re.compile(r"\s*#.*").match(text, found.end())
                end = heading.end() if heading else found.start()
            linked = (linked_verdict(name, records.get(name), in_box=True) for name in about)
            text = f'{text[:end]}\n\n<p class="claim-note"><b>Checked</b>: {"; ".join(linked)}</p>\n\n{text[end:]}'
    return text


def table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown, with these headings and rows of cells."""
    head, *lines = ("| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in (heads, *rows))
    return "\n".join([head, "|---" * len(heads) + "|", *lines])


def _fill(template: str, **values) -> str:
    return _without_blank_lines(_TEMPLATES.get_template(template).render(values))


def _without_blank_lines(html: str) -> str:
    return "\n".join(line.strip() for line in html.splitlines() if line.strip())


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
    return 6 if {"value", "printed", "rounds_to", "predicts"} & expectation.keys() else 4


def _rounded(value, expectation):
    """A measured value for a reader who compares: three digits, or one more than is printed."""
    tolerance = expectation.get("abs", expectation.get("below", expectation.get("above", 1)))
    if is_number(value) and abs(tolerance) <= 1e-6 and 0 < abs(value - expectation.get("value", 0)) <= 1e-12:
        return "exact to rounding"
    printed = expectation.get("rounds_to") or expectation.get("predicts") or ""
    digits = max(3, len(re.sub(r"^[-0.]*|\.", "", printed)) + 1)
    if "predicts" in expectation and isinstance(value, list):
        return " to ".join(_number(end, digits) for end in value)
    if is_number(value) and abs(value) < 1e6:
        digits = max(digits, len(f"{abs(value):.0f}"))  # 1235 rather than 1.23 × 10³
    return _number(value, digits)


def _disagrees(verdict, other):
    """Does one of two verdicts speak for the claim and the other against it?"""
    said = {re.sub("^not |^contradicted.*", "", each) != each for each in (verdict, other)}
    return len(said) > 1 and "not run" not in (verdict, other)


def _indexed(text):
    """A statement as HTML, with x_i and n^L (or x_{i,j}, n^{L-1}) as indices and exponents."""
    text = str(escape(text))
    for mark, tag in (("_", "sub"), (r"\^", "sup")):
        braced = rf"(?<=[^\s(]){mark}(?:\{{([^{{}}]*)\}}|([^\W_²³]+))"
        text = re.sub(braced, lambda found, tag=tag: f"<{tag}>{found[1] or found[2]}</{tag}>", text)
    return Markup(text)


def _words(expectation):
    """What is printed or expected, in words."""
    for relation in ("printed", "rounds_to", "predicts", "value", "equals", "below", "above"):
        if relation in expectation:
            bound = f"{relation} " if relation in ("below", "above") else ""
            return f"{bound}{_number(expectation[relation])}"
    return "{} to {}".format(*map(_number, expectation["between"])) if "between" in expectation else "—"


def _part(expect, part):
    """The quantities of a claim that are its `headline`, those that are `ours`, or the `rest`."""
    parts = {key: next((name for name in ("ours", "headline") if name in expect[key]), "rest") for key in expect}
    return {key: expect[key] for key in expect if parts[key] == part}


def _telling(record, expect):
    """The quantities that explain a verdict: those that decide against the claim (the first two), else the headline."""
    judged = {key: each for key, each in expect.items() if not each.get("ours") and key in record["measured"]}
    failing = [key for key in judged if met(judged[key], record["measured"][key]) is False]
    return {key: expect[key] for key in failing[:2]} or _part(expect, "headline")


def _stated(expectation):
    """What stands in the paper beside a measured value, empty if nothing does."""
    found = next((expectation[key] for key in ("printed", "rounds_to", "predicts") if key in expectation), None)
    return "" if found is None else f"; paper: {_number(found)}"


def _kind(verdict):
    """The kind of a verdict, which decides its colour."""
    return "reduced" if "seen at" in verdict else verdict.partition(":")[0].replace(" ", "-")


_TEMPLATES = Environment(loader=PackageLoader("lib.book.ledger"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
_TEMPLATES.globals.update(VERDICTS=VERDICTS, NAMES=NAMES, KINDS=KINDS, met=met, place_of=place_of)
_TEMPLATES.filters.update(number=_number, digits=_digits, indexed=_indexed, zip=zip)
_TEMPLATES.filters.update(words=_words, part=_part, kind=_kind, rounded=_rounded, telling=_telling, stated=_stated)
_TEMPLATES.tests.update(disagreeing=_disagrees)
PARTS = _TEMPLATES.get_template("parts.html").module  # the macros that other tables share, as functions
