"""What a chapter reports to the build that executes it: facts for the record, one JSON line each."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path


def note(kind: str, **facts) -> None:
    """Append `{"kind": kind, **facts}` as a JSON line to the file that COLLAPSE_NOTES names; without that, do nothing.

    `lib.book.run` sets the variable for each chapter and reads the file when the chapter has finished. Raises
    TypeError for a fact that JSON cannot hold.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("r") as file:
    ...     os.environ["COLLAPSE_NOTES"] = file.name
    ...     note("device", device="cpu")
    ...     file.read()
    '{"kind": "device", "device": "cpu"}\\n'
    >>> del os.environ["COLLAPSE_NOTES"]
    """
    with open(os.environ.get("COLLAPSE_NOTES") or os.devnull, "a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": kind, **facts}) + "\n")


def read(path: str | os.PathLike) -> dict[str, list[dict]]:
    """What :func:`note` wrote to a file, by kind and in order; empty if there is no file.

    A line that a dying process left incomplete is skipped.
    """
    by_kind: dict[str, list[dict]] = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else ():
        with contextlib.suppress(ValueError):
            fact = json.loads(line)
            by_kind.setdefault(fact["kind"], []).append(fact)
    return by_kind
