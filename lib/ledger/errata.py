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

from lib.checks import nearest
from lib.ledger import declarations
from lib.ledger.declarations import PAPERS
from lib.ledger.pages import linked_verdict, place_of

_MARKER = re.compile(r"^<!-- (erratum|consequence) (\S+) -->[ \t]*$", re.MULTILINE)
_FENCE = re.compile(r"^(`{3,}|~{3,})(\{code-cell\})?.*\n(?:.*\n)*?\1[`~]*[ \t]*$", re.MULTILINE)
_SLIPS = "Slips and remarks"
_OUTLINE = re.compile(r"\(erratum-(\S+)\)=|##? .*|<!-- (?:erratum|consequence) (\S+) -->|<!-- cell -->")


def check(chapter_files: Iterable[str | os.PathLike]) -> None:
    """ValueError, listing every problem, when a section is missing, duplicate, misplaced, incomplete or unknown."""
    _, problems = sections(chapter_files)
    if problems:
        raise ValueError("\n".join(problems))


def sections(chapter_files: Iterable[str | os.PathLike]) -> tuple[dict[str, str], list[str]]:
    """The heading of each erratum that has its section, {id: Markdown}, and the list of all problems."""
    known, problems, headings, outlines = declarations.read().errata, [], {}, {}
    for path in sorted(map(Path, chapter_files)):
        found = _outline(path.read_text(encoding="utf-8"))
        outlines[path] = "\n".join(line[0] for line in found) + "\n"
        for name in dict.fromkeys(line[1] or line[2] for line in found if line[1] or line[2]):
            if name not in known:
                problems.append(f"{path}: erratum {name!r} is not in {declarations.ERRATA.name}{nearest(name, known)}")
            elif path != _home(known[name]):
                problems.append(f"{path}: erratum {name!r} belongs to {_home(known[name])}")
    for name, erratum in known.items():
        anchor, outline = f"(erratum-{name})=", outlines.get(_home(erratum), "")
        marked = f"<!-- erratum {name} -->\n(?:<!-- cell -->\n)+<!-- consequence {name} -->\n(?:[#(]|$)"
        section = re.search(f"^{re.escape(anchor)}\n## (.*)\n{marked}", outline, re.MULTILINE)
        if section and outline.count(anchor) == 1:
            headings[name] = section[1]
        else:
            problems.append(
                f"{_home(erratum)}: erratum {name!r} has no section, or not one of {anchor}, '## ...', "
                f"'<!-- erratum {name} -->', at least one code cell and '<!-- consequence {name} -->', in this order"
            )
    return headings, problems


def _home(erratum: dict) -> Path:
    return declarations.ERRATA.with_suffix("") / f"{erratum['paper']}.md"


def _outline(text: str) -> list[re.Match]:
    """The lines of a page that are an anchor, a marker or the heading of a section, and one for each code cell."""
    text = _FENCE.sub(lambda fence: "<!-- cell -->" if fence[2] else "", text)
    return [found for line in text.splitlines() if (found := _OUTLINE.fullmatch(line.rstrip()))]


def expand(text: str, records: dict[str, dict], statements: dict[str, str]) -> str:
    """The Markdown of an errata page with its markers replaced by what errata.yml says; other text stays as it is.

    records: {id of a claim: its judged record}; the claim that shows an erratum is linked, with its verdict, and so is
    the statement that the claim is about. statements: {label: address}, as `lib.ledger.pages.places` finds them. The
    markers are `<!-- erratum ID -->` (printed, corrected, how it is decided) and `<!-- consequence ID -->`.
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
    rows: dict[str, list[str]] = {}
    for name, erratum in declarations.read().errata.items():
        paper, claim, slip = erratum["paper"], erratum["shown_by"], erratum["kind"] == "slip"
        link = f'<a href="../errata/{paper}.html#erratum-{name}">{headings.get(name) or name}</a>'
        place = f"{PAPERS[paper]}, {erratum['place']}" if slip else erratum["place"]
        cells = link, place, *(() if slip else (erratum["kind"],)), linked_verdict(claim, records.get(claim))
        row = "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
        rows.setdefault(_SLIPS if slip else PAPERS[paper], []).append(row)
    parts = []
    for title in (*PAPERS.values(), _SLIPS):
        if title in rows:
            names = ["finding", "place in the paper", *(() if title == _SLIPS else ("kind",)), "measured by"]
            head = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
            table = "\n".join([*head, *rows[title]])
            parts.append(f'## {title}\n\n<div class="overview">\n\n{table}\n\n</div>')
    return "\n\n".join(parts)
