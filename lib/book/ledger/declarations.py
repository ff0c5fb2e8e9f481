"""What is claimed: `chapters/papers.yml`, `claims.yml` and `errata.yml`, whose headers explain the format.

`schema.yml` beside this file says what they may hold; an error is reported with its file and the entry's id.
"""

from __future__ import annotations

import functools
import math
import reprlib
from pathlib import Path
from typing import NamedTuple

import jsonschema
import yaml

from lib.book.folders import ROOT
from lib.checks import nearest

CLAIMS = ROOT / "chapters" / "claims.yml"
ERRATA = ROOT / "chapters" / "errata.yml"
#: The papers by their keys, in the order of their parts: the entries of `chapters/papers.yml`.
PAPERS = {one["key"]: one for one in yaml.safe_load((ROOT / "chapters" / "papers.yml").read_text(encoding="utf-8"))}
#: What the ledger calls each paper, and the book's own statements.
NAMES = {key: paper["short"] for key, paper in PAPERS.items()} | {"beyond": "Beyond the papers"}
_SCHEMA = yaml.safe_load(Path(__file__).with_name("schema.yml").read_text(encoding="utf-8"))
_SCHEMA["$defs"]["paper"]["enum"] = [*NAMES]
KINDS = tuple(_SCHEMA["$defs"]["kind"]["enum"])
#: What can be wrong with a printed statement, the gravest first; a slip of wording or index is none of these.
FINDINGS = tuple(finding for finding in _SCHEMA["$defs"]["finding"]["enum"] if finding != "slip")


class Declared(NamedTuple):
    """All claims and all errata by their ids, in the order of the files."""

    claims: dict[str, dict]
    errata: dict[str, dict]

    def errata_of(self, name: str) -> list[dict]:
        """The errata that a claim shows."""
        return [erratum for erratum in self.errata.values() if erratum["shown_by"] == name]


def stated(claim: dict) -> list[str]:
    """The labels of the statements and sections that a claim is about, the first before all others."""
    return claim.get("stated", "").split()


def read() -> Declared:
    """Both files, read and checked as a whole.

    ValueError, with a line for everything that is wrong with a file: its entry and what is allowed.
    """
    return _read(CLAIMS, ERRATA, CLAIMS.stat().st_mtime_ns, ERRATA.stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _read(claims_path: Path, errata_path: Path, *_stamps) -> Declared:
    claims, errata = _entries(claims_path, "claims"), _entries(errata_path, "errata")
    for name, erratum in errata.items():
        place, shown = f"{errata_path}: erratum {name!r} is shown by {erratum['shown_by']!r}", erratum["shown_by"]
        if shown not in claims:
            raise ValueError(f"{place}, which is not declared{nearest(shown, claims)}")
        if claims[shown]["paper"] != erratum["paper"]:
            raise ValueError(f"{place}, a claim of {claims[shown]['paper']}")
    return Declared(claims, errata)


def _entries(path: Path, key: str) -> dict[str, dict]:
    """The entries of one file by their ids."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {error}") from None
    errors = jsonschema.Draft202012Validator({"$ref": f"#/{key}", **_SCHEMA}).iter_errors(document)
    problems = [f"{path}: {_place(document, error.absolute_path)}{_problem(error)}" for error in errors]
    if problems:
        raise ValueError("\n".join(problems))
    entries = {}
    for entry in document[key]:
        if entry["id"] in entries:
            raise ValueError(f"{path}: {entry['id']!r} is there twice")
        entries[entry["id"]] = entry
    return entries


def _place(document, keys) -> str:
    """The names on the way to an entry, with the id of a claim or an erratum in place of its number."""
    names = []
    for key in keys:
        document = document[key]
        names.append(document.get("id", key) if isinstance(key, int) and isinstance(document, dict) else key)
    return "".join(f"{name}: " for name in names)


def _problem(error: jsonschema.ValidationError) -> str:
    known = error.schema
    if error.validator == "enum":
        return error.message + nearest(error.instance, known["enum"])
    if error.validator == "additionalProperties":
        unknown = next(key for key in error.instance if key not in known["properties"])
        return f"unknown key {unknown!r}{nearest(unknown, known['properties'])}"
    if error.validator in ("required", "dependentRequired"):
        return error.message
    return f"{reprlib.repr(error.instance)}: {known['description']} is needed"


def is_number(value: object) -> bool:
    """Whether a value is a finite number, and not a truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
