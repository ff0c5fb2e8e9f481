"""The ledger of a chapter: the chapter measures claims that are declared once, and a rule judges them.

    ledger = claims.Ledger("feature-collapse", profile=profile, device=device)
    ledger.check("fc-thm1-constant", measured={"K=1000": c1000, "K=50": c50})

`check` shows a table and leaves a record in the cell's output. When the book is published, the records are taken
from the executed notebooks and judged anew, so that an edit of a declaration needs no new run.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from lib.book.folders import ROOT
from lib.book.kernel import notes
from lib.book.kernel.profiles import PROFILES
from lib.book.ledger import declarations, tables
from lib.book.ledger.verdict import unmeasured, verdict
from lib.checks import nearest, one_of

#: The MIME type under which a cell's output holds the record of a claim.
MIME = "application/vnd.collapse.claim+json"


class Ledger:
    """The claims that one chapter measures.

    paper: a key of `declarations.NAMES`. profile: one of `PROFILES`. device: recorded as it is. dataset: the name of
    the data set, None where the claims need none. Both declaration files are checked as a whole first; ValueError
    for an unknown paper or profile, and for a damaged file.
    """

    def __init__(self, paper: str, profile: str = "laptop", device: object = "cpu", dataset: str | None = None):
        one_of(declarations.NAMES, paper=paper)
        one_of(PROFILES, profile=profile)
        self.paper = paper
        self.about = {"profile": profile, "device": str(device), "dataset": dataset}
        self.declared = declarations.read().claims
        self.checked = set()
        self._last = _clock()

    def check(self, name: str, measured: dict[str, object]) -> None:
        """Judge the claim `name` by measured = {quantity: value}, show the table, and leave the record.

        Values are numbers, truth values, text, or lists, arrays and tensors of them. ValueError for a claim that is
        undeclared, of another paper or checked before, and for quantities that are not the declared ones.
        """
        self._show(name, measured=_plain(measured))

    def skip(self, name: str, reason: str) -> None:
        """The claim is not measured in this profile: verdict `not run`, with the reason.

        ValueError as in :meth:`check`.
        """
        self._show(name, measured={}, reason=reason)

    def _show(self, name, **found):
        from IPython.display import display  # not needed by the command line, which reads records

        if name in self.checked:
            raise ValueError(f"claim {name!r} is checked twice in one ledger (open it anew to measure anew)")
        now = _clock()
        seconds = round(now - self._last, 1)
        record = judge({"id": name, **found, **self.about, "seconds": seconds})
        if (paper := self.declared[name]["paper"]) != self.paper:
            raise ValueError(f"claim {name!r} is one of {paper}, this ledger is that of {self.paper}")
        self.checked.add(name)
        self._last = now
        table = tables.claim(record, links=False)
        display({MIME: record, "text/html": table, "text/plain": f"{name}: {record['verdict']}"}, raw=True)


def record_files(root: Path = ROOT) -> list[Path]:
    """The files of `recorded/`; a hidden one is what a killed process left."""
    return sorted((root / "recorded").rglob("[!.]*.json"))


def recorded(name: str, root: Path = ROOT) -> dict[str, object]:
    """What the recorded run of a claim's chapter at `night` or `paper` measured, {quantity: value}; empty if none is.

    A page quotes a larger run with it. A chapter does not become stale when a record changes: its next execution
    shows the new numbers.
    """
    for path in record_files(root):
        for claim in json.loads(path.read_text(encoding="utf8"))["claims"]:
            if claim["id"] == name:
                return claim["measured"]
    return {}


def _clock():
    """Seconds, including those of the runs that this chapter has taken up from an earlier build (`book.resume`)."""
    noted = notes.read(os.environ.get("COLLAPSE_NOTES") or os.devnull)
    return time.perf_counter() + sum(fact["seconds"] for fact in noted.get("resumed", ()))


def _plain(measured):
    """What JSON can hold: arrays and tensors become lists and numbers, and what is not finite becomes text."""
    text = json.dumps(measured, default=lambda value: value.tolist())
    return json.loads(text, parse_constant=lambda word: str(float(word)))


def judge(record: dict) -> dict:
    """A record with the expectation and the verdict that the current declarations give it.

    ValueError when the claim is not declared, or its quantities are not those that were measured (the chapter has to
    run again).
    """
    declared, name = declarations.read(), record["id"]
    if name not in declared.claims:
        raise ValueError(f"claim {name!r} is not declared in claims.yml{nearest(name, declared.claims)}")
    declaration = declared.claims[name]
    record = {**record, "expected": declaration["expect"]}
    if record.get("reason") and not record["measured"]:  # it was skipped
        return record | {"verdict": "not run"}
    about = record["profile"], record["dataset"], declared.errata_of(name)
    record["verdict"] = verdict(declaration, record["measured"], *about)
    if record["profile"] == "smoke":
        record["reason"] = "the smoke profile only checks that everything runs"
    elif missing := unmeasured(declaration, record["measured"]):
        what = ", ".join(f"{key} = {record['measured'][key]}" for key in missing)
        record["reason"] = f"the book failed to measure a number ({what})"
    return record


def collect(notebook: dict) -> list[dict]:
    """The claims that an executed notebook shows, in order: mappings with the record under `MIME`, and its table."""
    outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", ()))
    return [output["data"] for output in outputs if MIME in output.get("data", {})]


def check_sources(pages: Iterable) -> dict[str, Path]:
    """Which chapter measures which claim: {id: path}, read from the code cells of these pages (`lib.book.page`).

    ValueError, listing every problem, when a declared claim is checked nowhere or in two places, when a checked or
    skipped one is undeclared, or when an id is not written out. A chapter may skip under one profile what it checks
    under another.
    """
    declared, checked, skipped, problems = declarations.read().claims, {}, {}, []
    for page in pages:
        for action, name in _calls(page):
            if not name:
                problems.append(f"{page.path}: ledger.{action} without the claim's id written out")
            elif name not in declared:
                problems.append(f"{page.path}: claim {name!r} is not declared{nearest(name, declared)}")
            elif action == "skip":
                skipped[name] = page.path
            elif name in checked:
                problems.append(f"claim {name!r} is checked in two places: {checked[name]} and {page.path}")
            else:
                checked[name] = page.path
    for name, path in skipped.items():
        if checked.get(name, path) != path:
            problems.append(f"claim {name!r} is checked in {checked[name]} and skipped in {path}")
    problems += [f"claim {name!r} is declared and checked nowhere" for name in declared if name not in checked]
    if problems:
        raise ValueError("\n".join(problems))
    return checked


def data_sets(pages: Iterable) -> list[str]:
    """The names of the data sets that the claims which these pages check are about, sorted."""
    declared, names = declarations.read().claims, set()
    for page in pages:
        for action, name in _calls(page):
            if action == "check" and name in declared:
                names.update(declared[name].get("data", ()))
    return sorted(names)


def _calls(page) -> list[tuple[str, str]]:
    """The calls of `ledger.check` and `ledger.skip` in a page's code cells, each with the claim's id if it is there."""
    code = re.sub(r"(?m)^\s*#.*", "", "\n".join(cell.source for cell in page.code))
    calls = re.findall(r"\bledger\.(check|skip)\(\s*(?:name\s*=\s*)?([\"'][^\"']*[\"'])?", code)
    return [(action, quoted[1:-1]) for action, quoted in calls]
