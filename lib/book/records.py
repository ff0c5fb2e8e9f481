"""What the chapters measured at `paper` or `night`, kept with its provenance: recorded/<part>/<chapter>.json.

`python -m lib.book record` takes it from the executed notebooks. A record also holds the hashes of the code that
measured it, which show whether it is outdated, and a checksum of itself, which shows whether somebody has edited it.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from pathlib import Path

from lib.book import inputs
from lib.book.atomic import atomically
from lib.book.execute import checksum, executed_notebook, noted
from lib.book.folders import ROOT
from lib.book.ledger import claims, declarations
from lib.book.ledger.tables import PARTS, table
from lib.book.page import BadInput, Page, chapters
from lib.checks import nearest

FORMAT = 1
RECORDED = ("night", "paper")
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
    keys = {page: noted(page).get("key", {"parameters": {}}) for page in selected if page.path in measuring}
    profiles = {page: key["parameters"].get("profile") for page, key in keys.items()}
    others, records = [], []
    for page, profile in profiles.items():
        if profile not in RECORDED:
            others.append(f"{page.short}: " + (f"profile {profile!r}" if profile else "never executed"))
        elif better := _better(taken := take(page), page, root):
            others.append(f"{page.short}: its record was made {better}, and this does not replace it")
        else:
            records.append(taken)
    if not {*profiles.values()} & {*RECORDED}:
        reason = "".join(f"\n  {line}" for line in others) or " (none of the selected chapters measures a claim)"
        raise BadInput(f"nothing to record: no chapter was executed with profile 'paper' or 'night'{reason}")
    for taken in records:
        with atomically(_path(taken["chapter"], root)) as partial:
            content = json.dumps(taken, sort_keys=True, indent=1, ensure_ascii=False)
            partial.write_text(content + "\n", encoding="utf8")
    for line in others:
        announce(f"not recorded: {line}")
    return records


def _better(taken: dict, page: Page, root: Path) -> str:
    """How the chapter's record was made, if it still holds and is of a larger profile, or of the same profile but on a
    GPU instead of a CPU."""
    try:
        kept = _load(_path(page.short, root))
    except ValueError:  # absent or damaged: to be made anew
        return ""
    old, new = ((RECORDED.index(one["profile"]), one["machine"]["device"] != "cpu") for one in (kept, taken))
    better = old > new and not inputs.differences(
        kept["hashes"], inputs.hashes(page, kept["profile"], kept["hashes"]["files"])
    )
    return f"at {kept['profile']} on {kept['machine']['name']}" if better else ""


def take(page: Page) -> dict:
    """The record of a chapter as it was last executed. Raises BadInput with the reason if it cannot be recorded."""
    about = noted(page)
    profile = about["key"]["parameters"]["profile"]
    hashes = {part: about["key"][part] for part in ("code", "lib", "files")}
    if reasons := inputs.differences(hashes, inputs.hashes(page, profile, hashes["files"])):
        raise BadInput(f"{page.name}.md is stale, execute it again: {'; '.join(reasons)}")
    try:
        measured = [claims.judge(shown[claims.MIME]) for shown in claims.collect(executed_notebook(page))]
    except ValueError as error:
        raise BadInput(f"{page.name}.md: {error}; execute the chapter again") from error
    for claim in measured:
        if claim["profile"] != profile:
            raise BadInput(f"{page.name}.md: claim {claim['id']!r} was measured with profile {claim['profile']!r}")
    taken = {
        "format": FORMAT,
        "chapter": page.short,
        "profile": profile,
        **{name: about[name] for name in ("finished", "seconds", "machine", "data")},
        "parameters": about["key"]["parameters"],
        "hashes": hashes,
        "claims": [{name: claim[name] for name in (*CLAIM, "reason") if name in claim} for claim in measured],
    }
    return {**taken, "checksum": checksum(taken)}


def _path(chapter: str, root: Path) -> Path:
    return root / "recorded" / f"{chapter}.json"


# ----------------------------------------------------------------------------------------------------------- reading


def read(root: Path = ROOT) -> dict[str, dict]:
    """The recorded claims, {id: record}: each with its chapter, when and on what it was measured, and `outdated`.

    `outdated` lists in words what changed since; it is empty for a record that a new run would make again. Verdicts
    follow the current declarations, unless their quantities are no longer those measured. ValueError as in `check`.
    """
    known, found = {page.short: page for page in chapters(root)}, {}
    for kept in check(root):
        reasons = ["its chapter is not in the book any more"]
        if page := known.get(kept["chapter"]):
            reasons = inputs.differences(kept["hashes"], inputs.hashes(page, kept["profile"], kept["hashes"]["files"]))
        about = {part: kept[part] for part in ("chapter", "profile", "finished", "machine")}
        for claim in kept["claims"]:
            record = {**claim, **about, "outdated": [*reasons]}
            try:
                record = claims.judge(record)
            except ValueError:  # the declared quantities are no longer those measured: the verdict stays what it was
                record["outdated"].append("its declaration changed")
            found[claim["id"]] = record
    return found


def check(root: Path = ROOT) -> list[dict]:
    """All records as they are in their files.

    ValueError, naming the file, for a record that is damaged or was edited, for a claim that is not declared, and for
    a claim that two files hold.
    """
    declared, places = declarations.read().claims, {}
    # a hidden file is what a killed process left
    records = {path: _load(path) for path in sorted((root / "recorded").rglob("[!.]*.json"))}
    for path, kept in records.items():
        for claim in kept["claims"]:
            name, again = claim["id"], f"record {kept['chapter']} anew, or delete its file"
            if name not in declared:
                raise ValueError(f"{path}: claim {name!r} is not declared{nearest(name, declared)}; {again}")
            if name in places:
                raise ValueError(f"claim {name!r} is recorded twice: {places[name]} and {path}; {again}")
            places[name] = path
    return list(records.values())


def _load(path: Path) -> dict:
    try:
        kept = json.loads(path.read_text(encoding="utf8"))
        if kept["format"] == FORMAT and kept["checksum"] == checksum(kept):
            return kept
        reason = f"its checksum is not that of its contents, or its format is not {FORMAT}"
    except (OSError, ValueError, LookupError, TypeError) as error:  # no JSON, no record, or no right to read it
        reason = repr(error)
    raise ValueError(
        f"{path}: the record was damaged or edited ({reason}); nothing is recorded by hand: restore the file, or "
        "delete it and make the record anew (make record)"
    )


# ---------------------------------------------------------------------------------------------------------- the page


def overview(kept: dict[str, dict], live: dict[str, dict], root: Path = ROOT) -> str:
    """What has been measured at paper scale and what has not, as Markdown, for chapters/back/paper-profile.md.

    kept: what `read` found. live: {id: record} of this build, to whose tables the claims are linked. One table for
    each paper; claims of one chapter that are in the same state share a row.
    """
    declared = declarations.read().claims
    everything = chapters(root)
    places = claims.check_sources(everything)
    current = [claim for claim in kept.values() if claim["measured"] and not claim["outdated"]]
    of = Counter(claim["profile"] for claim in current)
    cards = sum(claim["machine"]["device"] == "cuda" for claim in current)
    parts = [
        f"{of['paper']} of the {len(declared)} claims have a current record of the `paper` profile and {of['night']} "
        f"one of `night`, {cards} of them of a run on a GPU. The other {len(declared) - len(current)} are judged by "
        "the build at hand alone."
    ]
    for paper, title in declarations.NAMES.items():
        rows: dict[tuple[Page, str], list[str]] = {}
        for page, name in ((page, name) for page in everything for name in places if places[name] == page.path):
            if declared[name]["paper"] == paper:
                rows.setdefault((page, _state(kept.get(name))), []).append(name)
        if rows:
            lines = []
            for (page, state), names in rows.items():
                linked = ", ".join(PARTS.claim_link(name, live.get(name), "../") for name in names)
                lines.append((f"[{page.title}](../{page.short}.md)", linked, state))
            shown = table(("chapter", "claims", "state"), lines)
            parts += [f"### {title}", '<div class="overview">', shown, "</div>"]
    return "\n\n".join(parts)


def _state(claim: dict | None) -> str:
    if claim is None:
        return "never run at paper scale"
    machine = claim["machine"]
    where = f"a CPU, {machine['name']}" if machine["device"] == "cpu" else machine["name"]
    when = f'<span class="claim-record">{claim["finished"][:10]} on {html.escape(where)}</span>'
    if claim["outdated"]:
        return f"outdated: {html.escape('; '.join(claim['outdated']))} (recorded {when})"
    if not claim["measured"]:
        return f"not measured: {html.escape(claim['reason'].rstrip('.'))} ({when})"
    return f"recorded {when}" if claim["profile"] == "paper" else f"recorded at {claim['profile']} {when}"
