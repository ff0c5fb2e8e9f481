"""Finished runs in a folder: one file of JSON for each, whole or absent, found by a hash of what was asked for.

:mod:`lib.runs.kept` and :mod:`lib.runs.sweep` keep their runs here.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

from lib.book.atomic import atomically


def keys(asked: Iterable, what: str) -> list[str]:
    """A key for each thing that is asked for, 32 hex digits; equal things have equal keys.

    Raises ValueError, in which `what` names the things, for one that JSON cannot write or that occurs twice.

    >>> keys([{"a": 1, "b": 2}], "items") == keys([{"b": 2, "a": 1}], "items")
    True
    """
    found: dict[str, int] = {}
    for i, one in enumerate(asked):
        try:
            key = _hash(one)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{what}[{i}] = {one!r}: JSON cannot write it ({error})") from None
        if key in found:
            raise ValueError(f"{what}[{i}] = {one!r}: the same as {what}[{found[key]}]")
        found[key] = i
    return list(found)


def writable(folder: str | Path) -> Path:
    """The folder, made if absent; ValueError where nothing can be written in it."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"folder = {folder}: results cannot be written there ({error.strerror})") from error
    return folder


def keep(folder: Path, key: str, record: Mapping) -> dict:
    """Write the record of a finished run, with its key and a checksum, to `<key>.json`; returns it with its key."""
    record = {"key": key, **record}
    with atomically(folder / f"{key}.json") as partial:
        text = json.dumps(record | {"checksum": _hash(record)}, ensure_ascii=False, indent=1)
        partial.write_text(text, encoding="utf-8")
    return record


def finished(folder: str | Path, keys: Iterable[str]) -> dict[str, dict]:
    """The records that the folder, which need not exist, holds under the keys.

    Warns (UserWarning, no ValueError) of a damaged file, naming it; its run counts as not made.
    """
    found = {}
    for key in keys:
        path = Path(folder) / f"{key}.json"
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            checksum = record.pop("checksum")
            if record["key"] != key or checksum != _hash(record):
                raise ValueError("its checksum or its key does not fit")
            found[key] = record
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            warnings.warn(f"{path} is damaged ({error}); its run is made again", stacklevel=3)
    return found


def _hash(value) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()[:32]
