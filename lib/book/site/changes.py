"""What changed between the claims of two builds."""

from __future__ import annotations

import json
import math
from pathlib import Path

from lib.book.ledger import declarations
from lib.book.ledger.tables import table
from lib.book.page import BadInput

RELEASE = Path("docs", "claims.json")  # of the laptop profile with the papers' image sets, at the last release


def changes(old: Path, new: Path) -> list[str]:
    """The lines to print about two claims.json files: claims added, removed, or with another verdict or other values.

    A claim has a line, each quantity that differs an indented one; numbers that differ by a millionth or by 1e-9 are
    equal, and so are those that differ by less than the rounding that their declaration allows. The last line gives the
    counts. BadInput for a file that cannot be read or is not from a build.
    """
    declared = declarations.read().claims
    before, after = _rows(old), _rows(new)
    removed = [f"removed: {name} ({row['verdict']})" for name, row in before.items() if name not in after]
    added = [f"added: {name} ({row['verdict']})" for name, row in after.items() if name not in before]
    changed, lines = 0, []
    for name in (name for name in after if name in before):
        verdicts = list(dict.fromkeys(rows[name]["verdict"] for rows in (before, after)))
        values = [rows[name]["measured"] for rows in (before, after)]
        expect = declared[name]["expect"] if name in declared else {}
        slack = {key: _slack(expect.get(key, {})) for key in {**values[0], **values[1]}}
        differ = [key for key in slack if not _same(*(each.get(key) for each in values), slack[key])]
        if len(verdicts) > 1 or differ:
            shown = {key: [json.dumps(each.get(key), ensure_ascii=False) for each in values] for key in differ}
            lines += [f"{name}: {' -> '.join(verdicts)}", *(f"    {key}: {' -> '.join(shown[key])}" for key in differ)]
            changed += 1
    counts = f"{changed} of {len(after)} claims changed, {len(added)} added, {len(removed)} removed"
    return [*removed, *lines, *added, counts]


def page(root: Path, measured: dict[str, dict]) -> str:
    """The verdicts of a build that differ from those of the last release, and the list of changes, in Markdown."""
    before = _rows(root / RELEASE)
    judged = {name: row["verdict"] for name, row in measured.items() if row["verdict"] != "not run"}
    released = {name: before[name]["verdict"] if name in before else "not there" for name in judged}
    rows = [(f"`{name}`", released[name], now) for name, now in judged.items() if released[name] != now]
    said = f"Of the {len(judged)} claims that this build judges, {len(rows)} have another verdict than the release."
    _, _, log = (root / "CHANGELOG.md").read_text(encoding="utf8").partition("\n## ")
    shown = [table(("claim", "release", "this build"), rows)] if rows else []
    return "\n\n".join([said, *shown, f"## {log}"])


def _rows(path: Path) -> dict[str, dict]:
    """The claims of a file by their names."""
    try:
        rows = json.loads(path.read_bytes())
        return {row["id"]: {part: row[part] for part in ("verdict", "measured")} for row in rows}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BadInput(f"{path} is not the claims.json of a build: {error}") from error


def _slack(expectation: dict) -> float:
    """By how much two values may differ and be equal: a declared tolerance for rounding, a millionth at most."""
    bound = expectation.get("abs", expectation.get("below", 0))
    return max(bound, 1e-9) if bound <= 1e-6 else 1e-9


def _same(old, new, slack: float) -> bool:
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(_same(one, other, slack) for one, other in zip(old, new, strict=True))
    if {type(old), type(new)} <= {int, float}:
        return math.isclose(old, new, rel_tol=1e-6, abs_tol=slack)
    return type(old) is type(new) and old == new
