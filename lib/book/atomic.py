"""Files that appear either whole or not at all."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomically(path: Path | str) -> Iterator[Path]:
    """A place to write to, which takes the name `path` once the block has ended without an error.

    A reader sees the old file or the new one, never half of one. Missing folders above `path` are created; what an
    error leaves behind is removed. Raises OSError where the file system does.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomically(Path(folder) / "a" / "b.txt") as partial:
    ...         _ = partial.write_text("whole")
    ...     (Path(folder) / "a" / "b.txt").read_text()
    'whole'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.stem}.{socket.gethostname()}.{os.getpid()}{path.suffix}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
