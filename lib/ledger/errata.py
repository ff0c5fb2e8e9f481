"""The errata: their sections on the pages of their papers, what stands in these, and the overview of all.

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
from collections.abc import Iterable, Iterator
from pathlib import Path

from lib.checks import nearest
from lib.ledger import declarations
from lib.ledger.declarations import PAPERS
from lib.ledger.pages import linked_verdict, place_of

_MARKER = re.compile(r"^<!--[ \t]*(erratum|consequence)[ \t]+(\S+)[ \t]*-->[ \t]*$", re.MULTILINE)
_FENCE = re.compile(r"^(`{3,}|~{3,})(\{code-cell\})?.*\n(?:.*\n)*?\1[`~]*[ \t]*$", re.MULTILINE)
_EVENT = re.compile(
    r"^(?:\(erratum-([^)\s]+)\)=|(#+)[ \t]+(.*?)|<!--[ \t]*(erratum|consequence|cell)[ \t]+(\S+)[ \t]*-->)[ \t]*$",
    re.MULTILINE,
)


def check(chapter_files: Iterable[str | os.PathLike]) -> None:
    """ValueError, listing every problem, when a section is missing, double, elsewhere, incomplete or unknown."""
    _, problems = sections(chapter_files)
    if problems:
        raise ValueError("\n".join(problems))


def sections(chapter_files: Iterable[str | os.PathLike]) -> tuple[dict[str, str], list[str]]:
    """The heading of each erratum's section as far as it is there, {id: Markdown}, and the list of all problems."""
    known, problems, headings = declarations.read().errata, [], {}
    for path in sorted(map(Path, chapter_files)):
        events = list(_events(path.read_text(encoding="utf-8")))
        for number, (kind, name) in enumerate(events):
            if kind not in ("anchor", "erratum", "consequence"):
                continue
            if name not in known:
                file = declarations.ERRATA.name
                problems.append(f"{path}: erratum {name!r} is not in {file}{nearest(name, known)}")
            elif path != (home := _home(known[name])):
                problems.append(f"{path}: erratum {name!r} belongs to {home}")
            elif kind == "anchor":
                if name in headings:
                    problems.append(f"{path}: erratum {name!r} has two sections")
                heading, *rest = events[number + 1 :] or [("", "")]
                headings[name] = heading[1] if heading[0] == "h2" else ""
                if not headings[name]:
                    problems.append(f"{path}: erratum {name!r} has no heading '## ...' right after its anchor")
                if not _complete(name, rest):
                    problems.append(
                        f"{path}: the section of erratum {name!r} has to hold '<!-- erratum {name} -->', "
                        f"at least one code cell and '<!-- consequence {name} -->', in this order and once each"
                    )
    missing = [erratum for name, erratum in known.items() if name not in headings]
    for name, home in ((erratum["id"], _home(erratum)) for erratum in missing):
        problems.append(f"{home}: erratum {name!r} has no section, or no anchor (erratum-{name})=")
    return headings, problems


def _complete(name: str, events: list[tuple[str, str]]) -> bool:
    """Whether what follows a heading is the section of an erratum: marker, code cells, marker."""
    section = []
    for event in events:
        if event[0] in ("anchor", "h1", "h2"):
            break
        if event[0][0] != "h":
            section.append(event)
    cells = section[1:-1]
    return section == [("erratum", name), *cells, ("consequence", name)] and set(cells) == {("cell", "\0")}


def _home(erratum: dict) -> Path:
    return declarations.ERRATA.with_suffix("") / f"{erratum['paper']}.md"


def _events(text: str) -> Iterator[tuple[str, str]]:
    """What a Markdown page has outside of its fences: (kind, name) for anchors, headings, markers and code cells."""
    text = _FENCE.sub(lambda fence: "<!-- cell \0 -->" if fence[2] else "", text)
    for anchor, level, heading, kind, name in _EVENT.findall(text):
        yield ("anchor", anchor) if anchor else (f"h{len(level)}", heading) if level else (kind, name)


def expand(text: str, records: dict[str, dict], statements: dict[str, str]) -> str:
    """The Markdown of an errata page with its markers replaced by what errata.yml says; other text is as it was.

    records: {id of a claim: its judged record}; the claim that shows an erratum is linked and its verdict shown, and so
    is the statement that the claim is about. statements: {label: address}, as `lib.ledger.pages.places` finds them. The
    markers are `<!-- erratum ID -->` (printed, corrected, how it is decided) and `<!-- consequence ID -->`.
    """

    def shown(found):
        erratum = declarations.read().errata.get(found[2])
        if erratum is None:
            return found[0]
        if found[1] == "erratum":
            quoted = f"**As printed** ({erratum['place']}; *{erratum['kind']}*): {erratum['printed'].strip()}"
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
        rows.setdefault("Slips" if slip else PAPERS[paper], []).append(row)
    parts = []
    for title in (*PAPERS.values(), "Slips"):
        if title in rows:
            names = ["finding", "place in the paper", *(() if title == "Slips" else ("kind",)), "measured by"]
            head = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
            table = "\n".join([*head, *rows[title]])
            parts.append(f'## {title}\n\n<div class="overview">\n\n{table}\n\n</div>')
    return "\n\n".join(parts) or "No erratum has been found so far."
