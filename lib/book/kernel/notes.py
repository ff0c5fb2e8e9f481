"""What a chapter reports to the build that executes it: facts for the record, one JSON line each."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from pathlib import Path

from lib.book.folders import ROOT

_CHAPTERS = ROOT / "chapters"


def note(kind: str, **facts) -> None:
    """Append `{"kind": kind, **facts}` as a JSON line to the file that COLLAPSE_NOTES names; without that, do nothing.

    `lib.book.execute` sets the variable for each chapter and reads the file when the chapter has finished. Raises
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


def data_folder() -> Path:
    """The folder that the environment variable COLLAPSE_DATA names, else `~/.cache/collapse-book`."""
    return Path(os.path.expanduser(os.environ.get("COLLAPSE_DATA") or "~/.cache/collapse-book"))


@functools.cache
def watch() -> None:
    """From now on, note what this process reads that a result may depend on; called again, it does nothing.

    Files and listed folders below `chapters/`, but for the pages and declarations there, are noted as
    `{"file": path in the repository}`, each folder in the data folder of which anything is read as `{"data": name}`.
    Python tells of every file that is opened and every folder that is listed, so no reader can forget to say so.
    """
    data = data_folder().absolute()
    sys.addaudithook(lambda event, arguments: _read(event, arguments, data))


def _read(event: str, arguments: tuple, data: Path) -> None:
    if event not in ("open", "os.listdir", "os.scandir") or isinstance(arguments[0], int | None):
        return
    path = Path(os.path.abspath(os.fsdecode(arguments[0])))
    if path.is_relative_to(data) and path != data:
        _note_once("data", path.relative_to(data).parts[0])
    elif path.is_relative_to(_CHAPTERS) and path.suffix != ".md" and path.parent != _CHAPTERS:
        _note_once("file", path.relative_to(_CHAPTERS.parent).as_posix())


@functools.cache
def _note_once(what: str, name: str) -> None:
    note("read", **{what: name})
