"""What the chapters measured at `paper` or `night`, kept with its provenance: recorded/<part>/<chapter>.json.

`python -m lib.book record` takes it from the executed notebooks. A record also holds the hashes of the code that
measured it, which show whether it is outdated.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from pathlib import Path

from lib.book import inputs
from lib.book.atomic import atomically
from lib.book.execute import executed_notebook, noted
from lib.book.folders import ROOT
from lib.book.ledger import claims, declarations
from lib.book.ledger.tables import PARTS, table
from lib.book.page import BadInput, Page, chapters
from lib.checks import nearest

FORMAT = 1
RECORDED = ("night", "paper")
STATES = ("current, paper", "current, night", "outdated", "not measured", "none")  # of the record of a claim
CLAIM = ("id", "verdict", "measured", "expected", "dataset", "seconds")


# ------------------------------------------------------------------------------------------------------------ making


def record(selected: list[Page], root: Path = ROOT, announce=print) -> list[dict]:
    """Record the claims of the selected chapters that were executed at `paper` or `night`; returns the records.

    Nothing is written unless all of them can be recorded. Chapters without claims are passed over; so are, each with
    a line through `announce`, those of another profile and runs where a better one is on record and not outdated
    (`paper` before `night`, then a GPU before a CPU). Raises BadInput if no chapter was executed in these profiles, and
    if one is stale or its claims cannot be judged.
    """
    measuring = set(claims.check_sources(chapters(root)).values())
    executed, others, taken = 0, [], []
    for page in selected:
        if page.path not in measuring:
            continue
        profile = noted(page)["key"]["parameters"]["profile"] if noted(page) else None
        if profile not in RECORDED:
            others.append(f"{page.short}: " + (f"profile {profile!r}" if profile else "never executed"))
            continue
        executed += 1
        new = take(page)
        if better := _better(new, page, root):
            others.append(f"{page.short}: its record was made {better}, and this does not replace it")
        else:
            taken.append(new)
    if not executed:
        reason = "".join(f"\n  {line}" for line in others) or " (none of the selected chapters measures a claim)"
        raise BadInput(f"nothing to record: no chapter was executed with profile 'paper' or 'night'{reason}")
    for new in taken:
        with atomically(_path(new["chapter"], root)) as partial:
            content = json.dumps(new, sort_keys=True, indent=1, ensure_ascii=False)
            partial.write_text(content + "\n", encoding="utf8")
    for line in others:
        announce(f"not recorded: {line}")
    return taken


def take(page: Page) -> dict:
    """The record of a chapter as it was last executed. Raises BadInput with the reason if it cannot be recorded."""
    about = noted(page)
    profile = about["key"]["parameters"]["profile"]
    hashes = {part: about["key"][part] for part in ("code", "lib", "files")}
    if reasons := _changes(page, profile, hashes):
        raise BadInput(f"{page.name}.md is stale, execute it again: {'; '.join(reasons)}")
    try:
        judged = [claims.judge(shown[claims.MIME]) for shown in claims.collect(executed_notebook(page))]
    except ValueError as error:
        raise BadInput(f"{page.name}.md: {error}; execute the chapter again") from error
    for claim in judged:
        if claim["profile"] != profile:
            raise BadInput(f"{page.name}.md: claim {claim['id']!r} was measured with profile {claim['profile']!r}")
    return {
        "format": FORMAT,
        "chapter": page.short,
        "profile": profile,
        **{name: about[name] for name in ("finished", "seconds", "machine", "data")},
        "parameters": about["key"]["parameters"],
        "hashes": hashes,
        "claims": [{name: claim[name] for name in (*CLAIM, "reason") if name in claim} for claim in judged],
    }


def _changes(page: Page, profile: str, hashes: dict) -> list[str]:
    """What of the code changed since it had these hashes, in words."""
    return inputs.differences(hashes, inputs.hashes(page, profile, hashes["files"]))


def _better(new: dict, page: Page, root: Path) -> str:
    """How the chapter's record was made, if it still holds and is of a larger profile, or of the same profile but on a
    GPU instead of a CPU."""
    path = _path(page.short, root)
    if not path.exists():
        return ""
    old = _load(path)
    if _rank(old) <= _rank(new) or _changes(page, old["profile"], old["hashes"]):
        return ""
    return f"at {old['profile']} on {old['machine']['name']}"


def _rank(record: dict) -> tuple[int, bool]:
    return RECORDED.index(record["profile"]), record["machine"]["device"] != "cpu"


def _path(chapter: str, root: Path) -> Path:
    return root / "recorded" / f"{chapter}.json"


# ----------------------------------------------------------------------------------------------------------- reading


def read(root: Path = ROOT) -> dict[str, dict]:
    """The recorded claims, {id: claim}: each with its chapter, when and on what it was measured, and `outdated`.

    `outdated` lists in words what changed since; it is empty for a record that a new run would make again. Verdicts
    follow the current declarations, unless their quantities are no longer those measured. ValueError as in `load`.
    """
    pages, found = {page.short: page for page in chapters(root)}, {}
    for record in load(root):
        reasons = ["its chapter is not in the book any more"]
        if page := pages.get(record["chapter"]):
            reasons = _changes(page, record["profile"], record["hashes"])
        about = {part: record[part] for part in ("chapter", "profile", "finished", "machine")}
        for measured in record["claims"]:
            claim = {**measured, **about, "outdated": [*reasons]}
            try:
                claim = claims.judge(claim)
            except ValueError:  # the declared quantities are no longer those measured: the verdict stays what it was
                claim["outdated"].append("its declaration changed")
            found[claim["id"]] = claim
    return found


def load(root: Path = ROOT) -> list[dict]:
    """All records as they are in their files.

    ValueError, naming the file, for what is no record, for a claim that is not declared, and for a claim that two
    files hold.
    """
    declared, places, records = declarations.read().claims, {}, []
    for path in claims.record_files(root):
        records.append(_load(path))
        for claim in records[-1]["claims"]:
            name, again = claim["id"], f"record {records[-1]['chapter']} anew, or delete its file"
            if name not in declared:
                raise ValueError(f"{path}: claim {name!r} is not declared{nearest(name, declared)}; {again}")
            if name in places:
                raise ValueError(f"claim {name!r} is recorded twice: {places[name]} and {path}; {again}")
            places[name] = path
    return records


def seconds(root: Path = ROOT) -> dict[str, float]:
    """How long the recorded chapters took, {chapter: seconds}."""
    return {record["chapter"]: record["seconds"] for record in load(root)}


def _load(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf8"))
    except ValueError as error:
        raise ValueError(f"{path} is no record ({error}): restore the file, or delete it and `make record`") from error


# ---------------------------------------------------------------------------------------------------------- the page


def overview(recorded: dict[str, dict], live: dict[str, dict], root: Path = ROOT) -> str:
    """What has been measured at paper scale and what has not, as Markdown, for chapters/back/paper-profile.md.

    recorded: what `read` found. live: {id: record} of this build, to whose tables the claims are linked. Counts first;
    then, in a fold, a table for each paper, in which claims of one chapter whose records are alike share a row.
    """
    declared, pages = declarations.read().claims, {page.path: page for page in chapters(root)}
    places = claims.check_sources(pages.values())  # in the order of the pages
    counts, details = {}, []
    for paper, title in declarations.NAMES.items():
        count, rows, lines = Counter(), {}, []
        for name, path in places.items():
            if declared[name]["paper"] == paper:
                state, words = _state(recorded.get(name))
                count[state] += 1
                rows.setdefault((pages[path], words), []).append(name)
        for (page, words), names in rows.items():
            linked = ", ".join(PARTS.claim_link(name, live.get(name), "../") for name in names)
            changes = {reason for name in names for reason in recorded.get(name, {}).get("outdated", ())}
            words += f"; changes since: {len(changes)}" if changes else ""
            lines.append((f"[{page.title}](../{page.short}.md)", linked, words))
        if rows:
            counts[title] = count
            shown = table(("chapter", "claims", "record"), lines)
            details += [f"**{title}**", '<div class="overview">', shown, "</div>"]
    counts["all claims"] = sum(counts.values(), Counter())
    numbers = ((title, *(str(count[state]) for state in STATES)) for title, count in counts.items())
    folded = '<details class="aside"><summary>The record of every claim</summary>'
    return "\n\n".join([table(("claims of", *STATES), numbers), folded, *details, "</details>"])


def _state(claim: dict | None) -> tuple[str, str]:
    """One of `STATES`, and the same in more words."""
    if claim is None:
        return "none", "none"
    where = "CPU" if claim["machine"]["device"] == "cpu" else html.escape(claim["machine"]["name"])
    made = f"`{claim['profile']}`, {where}, {claim['finished'][:10]}"
    if claim["outdated"]:
        return "outdated", f"outdated: {made}"
    if not claim["measured"]:
        return "not measured", f"not measured ({html.escape(claim['reason'].rstrip('.'))}): {made}"
    return f"current, {claim['profile']}", f"current: {made}"
