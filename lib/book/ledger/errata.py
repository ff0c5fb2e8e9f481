"""The errata: their sections on the pages of their papers, what these sections say, and the overview of all.

An erratum has one section on the page of its paper, chapters/errata/<paper>.md:

    (erratum-ID)=
    ## What was found
    <!-- erratum ID -->       becomes the printed and the corrected statement
    at least one code cell that decides it
    <!-- consequence ID -->
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from lib.book.ledger import declarations
from lib.book.ledger.declarations import NAMES
from lib.book.ledger.tables import linked_verdict, place_of, table
from lib.checks import nearest

_MARKER = re.compile(r"^<!-- (erratum|consequence) (\S+) -->[ \t]*$", re.MULTILINE)
_NAMED = re.compile(r"^(?:\(erratum-|<!-- erratum |<!-- consequence )([^\s)]+)", re.MULTILINE)
_SLIPS = "Slips and remarks"


def check_sections(chapter_files: Iterable[str | os.PathLike]) -> None:
    """ValueError, listing every problem, when a section is missing, duplicate, incomplete or unknown."""
    _, problems = sections(chapter_files)
    if problems:
        raise ValueError("\n".join(problems))


def sections(chapter_files: Iterable[str | os.PathLike]) -> tuple[dict[str, str], list[str]]:
    """The heading of each erratum that has its section, {id: Markdown}, and the list of all problems."""
    known, problems, headings = declarations.read().errata, [], {}
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(map(Path, chapter_files))}
    for path, text in texts.items():
        for name in dict.fromkeys(_NAMED.findall(text)):
            if name not in known:
                problems.append(f"{path}: erratum {name!r} is not in {declarations.ERRATA.name}{nearest(name, known)}")
    for name, erratum in known.items():
        home = declarations.ERRATA.with_suffix("") / f"{erratum['paper']}.md"
        anchor, text = f"(erratum-{name})=", texts.get(home, "")
        words = r"(?:(?!\(erratum-).*\n)*?"  # lines of this section
        marked = f"<!-- erratum {name} -->\n{words}```+{{code-cell}}.*\n{words}<!-- consequence {name} -->$"
        section = re.search(f"^{re.escape(anchor)}\n## (.*)\n{words}{marked}", text, re.MULTILINE)
        if section and text.count(anchor) == 1:
            headings[name] = section[1]
        else:
            problems.append(
                f"{home}: erratum {name!r} has no section, or not one of {anchor}, '## ...', "
                f"'<!-- erratum {name} -->', at least one code cell and '<!-- consequence {name} -->', in this order"
            )
    return headings, problems


def expand(text: str, records: dict[str, dict], statements: dict[str, str]) -> str:
    """The Markdown of an errata page with its markers replaced by what errata.yml says; other text stays as it is.

    records: {id of a claim: its judged record}; the claim that shows an erratum is linked, with its verdict, and so is
    the statement that the claim is about. statements: {label: address}, as `tables.places` finds them. The markers are
    `<!-- erratum ID -->` (printed, corrected, how it is decided) and `<!-- consequence ID -->`.
    """

    def shown(found):
        erratum = declarations.read().errata.get(found[2])
        if erratum is None:
            return found[0]
        if found[1] == "erratum":
            kind = "slip or remark" if erratum["kind"] == "slip" else erratum["kind"]
            quoted = f"**As printed** ({erratum['place']}; *{kind}*): {erratum['printed'].strip()}"
            quoted += f"\n\n**Corrected.** {erratum['corrected'].strip()}"
            quoted = "\n".join(f"> {line}".rstrip() for line in quoted.splitlines())
            return f"{quoted}\n\n**How it is decided.** {erratum['how'].strip()}"
        claim = erratum["shown_by"]
        place = place_of(declarations.read().claims[claim], statements)
        about = f', about <a href="../{place}">this statement</a>' if place else ""
        return (
            f"**Consequence.** {erratum['consequence'].strip()}\n\n"
            f"**Not a slip of the transcription.** {erratum['transcription'].strip()}\n\n"
            f"**Claim that measures it:** {linked_verdict(claim, records.get(claim))}{about}."
        )

    return _MARKER.sub(shown, text)


def page(records: dict[str, dict], headings: dict[str, str]) -> str:
    """The overview of the errata as Markdown, a table for each paper, for the marker in chapters/back/errata.md.

    records: {id of a claim: its judged record}. headings: {id of an erratum: heading of its section}, from `sections`.
    """
    rows: dict[str, list[tuple]] = {}
    for name, erratum in declarations.read().errata.items():
        paper, claim, slip = erratum["paper"], erratum["shown_by"], erratum["kind"] == "slip"
        link = f'<a href="../errata/{paper}.html#erratum-{name}">{headings.get(name) or name}</a>'
        place = f"{NAMES[paper]}, {erratum['place']}" if slip else erratum["place"]
        cells = link, place, *(() if slip else (erratum["kind"],)), linked_verdict(claim, records.get(claim))
        rows.setdefault(_SLIPS if slip else NAMES[paper], []).append(cells)
    parts = []
    for title in (*NAMES.values(), _SLIPS):
        if title in rows:
            kind = () if title == _SLIPS else ("kind",)
            shown = table(("finding", "place in the paper", *kind, "measured by"), rows[title])
            parts.append(f'## {title}\n\n<div class="overview">\n\n{shown}\n\n</div>')
    return "\n\n".join(parts)
