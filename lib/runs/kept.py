"""Many runs of one computation, as many at once as the memory holds; finished runs survive a killed build.

A chapter puts each computation that takes minutes through :func:`run`. Inside a build a finished run stays on disk
until the chapter has finished, so that a killed build resumes from there. Where the memory of the device does
not suffice, a part of the runs is halved, and a line of output says so.
"""

from __future__ import annotations

import base64
import codecs
import gc
import io
import math
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import joblib
import numpy as np
import torch

from lib.book.kernel.notes import note
from lib.runs import store
from lib.runs.processes import side_by_side

# Signs of memory running out without torch.OutOfMemoryError: in the CPU's allocator, in the driver, in the libraries
_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "_STATUS_ALLOC_FAILED")
_PLAIN = (bool, int, float, complex, str, type(None))
# What a pickle of such results names beside tensors; reading refuses any other, for unpickling can run code
_ARRAYS = [np.ndarray, np.dtype, *(getattr(np.dtypes, name) for name in np.dtypes.__all__)]
_RESTORE = [np.empty(0).__reduce__()[0], np.float64(0).__reduce__()[0], codecs.encode, bytes, complex]

_returned: set[tuple[Path, str]] = set()  # folder and key of the runs that this process has returned


def run(
    function: Callable,
    items: Sequence,
    name: str,
    at_once: int | None = None,
    jobs: int | None = 1,
    alike: Callable | None = None,
) -> list:
    """`function(items)`, in parts, each of which is kept, once finished, until the chapter has finished.

    Inside a build (`lib.book` sets COLLAPSE_UNFINISHED, a folder that belongs to one state of code, parameters,
    versions and data) finished runs are written to files that are whole or absent. When the chapter is executed again
    after the build was killed or the chapter failed, only what is missing is computed; one line says how many runs
    were reused. Outside a build nothing is kept.

    Where a part does not fit into the memory of the device, its memory is freed, it is halved, other parts are cut to
    at most that half, and one line says so.

    Parameters
    ----------
    function
        Takes a list of items, returns a sequence with one result for each. A result depends on its item alone: random
        numbers come from a seed in the item or from a generator that it makes, and nothing that comes later may depend
        on its side effects, for where the result is reused it is not called.
    items
        Values that JSON can write (numbers, text, None, lists, dictionaries of these), no two the same.
    name
        Of the computation, a different one for each call in a chapter.
    at_once
        How many items, at most, go into one part; None for an equal share for each job. Parts are evenly sized.
    jobs
        How many parts are computed side by side, those of the first items first; if more than one, each in a process
        of its own, in which torch has one thread. None: one for each core, and a single one where a GPU is in use.
    alike
        A function of an item; only items for which it returns the same go into one part.

    Returns
    -------
    list
        One result per item, in the order of `items`: tensors on the CPU (detached, each with memory of its own), numpy
        arrays and scalars, numbers, text, None, and lists, tuples and dictionaries of these. A NamedTuple comes back
        as a tuple, whether reused or not.

    Raises
    ------
    ValueError
        Before any work, for items that JSON cannot write or that occur twice. For a result of another kind, or a number
        of results other than that of items. Inside a build, for a run that was asked for before under the same name.
    RuntimeError
        If one run alone does not fit: it names the size that was asked for. Other errors of `function` pass
        through; the parts finished before are kept.

    Examples
    --------
    >>> run(lambda part: torch.tensor(part) ** 2, [1, 2, 3], "squares", at_once=2)
    [tensor(1), tensor(4), tensor(9)]
    """
    if jobs is None:
        jobs = 1 if torch.cuda.is_initialized() else joblib.cpu_count()
    # whether there is a GPU matters: results of a CPU are not mixed with those of a GPU
    keys = store.keys(({"item": item, "of": name, "gpu": torch.cuda.is_available()} for item in items), "items")
    unfinished = os.environ.get("COLLAPSE_UNFINISHED")
    folder, results = Path(unfinished) if unfinished else None, {}
    if folder:
        if not _returned.isdisjoint((folder, key) for key in keys):
            raise ValueError(f"name = {name!r}: runs were made before under this name; each call needs one")
        results = _taken_up(folder, keys, name)
    todo = [(item, key) for item, key in zip(items, keys, strict=True) if key not in results]
    waiting, most = deque(_parts(todo, at_once, jobs, alike)), len(items)
    while waiting:
        parts = []  # all waiting parts, or the first where only one is computed at a time
        while waiting and (jobs > 1 or not parts):
            part = waiting.popleft()
            if len(part) > most:
                waiting.appendleft(part[most:])
            parts.append(part[:most])
        for number, made, lack, seconds in _computed(function, parts, jobs):
            part = parts[number]
            if lack:
                _free()
                if len(part) == 1:
                    raise RuntimeError(f"{name}: the run {part[0][0]!r} alone does not fit into memory: {lack}")
                most = min(most, len(part) // 2)
                print(f"{name}: {len(part)} runs at once do not fit into memory, now {most} at a time ({lack})")
                waiting.appendleft(part)
                continue
            found = dict(zip([key for _, key in part], made, strict=True))
            results.update(found)
            if folder:
                _keep(folder, found, seconds / len(part))
    _returned.update((folder, key) for key in keys if folder)
    return [results[key] for key in keys]


def each(function: Callable, items: Sequence, name: str, jobs: int | None = 1) -> list:
    """`[function(item) for item in items]`, kept as by :func:`run`, each finished item by itself.

    >>> each(lambda x: x * x, [1, 2, 3], "squares")
    [1, 4, 9]
    """
    return run(lambda part: [function(item) for item in part], items, name, at_once=1, jobs=jobs)


def _parts(todo: list, at_once: int | None, jobs: int, alike: Callable | None) -> list[list]:
    groups: dict = {}
    for item, key in todo:
        groups.setdefault(alike(item) if alike else None, []).append((item, key))
    parts = []
    for group in groups.values():
        number = min(jobs, len(group)) if at_once is None else math.ceil(len(group) / at_once)
        parts += [[group[i] for i in share] for share in np.array_split(np.arange(len(group)), number)]
    return parts


def _computed(function, parts, jobs) -> Iterator[tuple[int, list, str, float]]:
    """What :func:`_attempt` returns for each part."""
    asked = [(number, function, [item for item, _ in part]) for number, part in enumerate(parts)]
    if jobs > 1:
        return side_by_side((joblib.delayed(_attempt)(*each) for each in asked), jobs)
    return (_attempt(*each) for each in asked)


def _attempt(number, function, items) -> tuple[int, list, str, float]:
    """The number of the part, the results, or why they did not fit, and the seconds. An error for lack of memory,
    whose traceback holds the memory of its frames, ends here."""
    began = time.perf_counter()
    try:
        made, lack = [_plain(result) for result in function(items)], ""
    except (RuntimeError, MemoryError) as error:
        made, lack = [], _lack(error)
        if not lack:
            raise
    return number, made, lack, time.perf_counter() - began


def _lack(error: BaseException | None) -> str:
    """What did not fit, if the error is about that; a failed recording of a graph has such an error as its cause."""
    while isinstance(error, (RuntimeError, MemoryError)):
        text = str(error)
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(sign in text for sign in _SIGNS):
            return " ".join(text.split(" If reserved but")[0].splitlines()[:1]) or type(error).__name__
        error = error.__cause__ or error.__context__
    return ""


def _free() -> None:
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


# --------------------------------------------------------------------------------------------------------- what is kept


def _taken_up(folder: Path, keys: list[str], name: str) -> dict:
    found = {}
    with torch.serialization.safe_globals(_ARRAYS + _RESTORE):
        for key, record in store.finished(folder, keys).items():
            try:
                found[key] = torch.load(io.BytesIO(base64.b64decode(record["result"]))), record["seconds"]
            except Exception as error:  # a result of another version, or of code that kept other results
                what = f"{type(error).__name__}: {error}".splitlines()[0]
                warnings.warn(f"{folder / key}.json cannot be read back ({what}); its run is made again", stacklevel=3)
    if found:
        seconds = sum(seconds for _, seconds in found.values())
        print(f"{name}: {len(found)} of {len(keys)} runs are taken up from a build before ({seconds:.0f} s)")
        note("resumed", name=name, runs=len(found), seconds=seconds)
    return {key: result for key, (result, _) in found.items()}


def _keep(folder: Path, made: dict, seconds: float) -> None:
    """Write results to the folder; a full disk ends no computation."""
    try:
        for key, result in made.items():
            torch.save(result, content := io.BytesIO())
            text = base64.b64encode(content.getbuffer()).decode()
            store.keep(folder, key, {"result": text, "seconds": seconds})
    except OSError as error:
        print(f"{len(made)} finished runs cannot be kept for a later build: {error}")


def _plain(value):
    """A result on the CPU with memory of its own; ValueError for what cannot be kept."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized:
        return value.detach().to("cpu", copy=True).contiguous()
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcSU":
        return value.copy()
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(map(_plain, value))
    if type(value) is dict:
        return {key: _plain(part) for key, part in value.items()}
    raise ValueError(
        f"a result holds a {type(value).__name__}; tensors, numpy arrays, numbers, text, None and lists, tuples and "
        "dictionaries of these can be kept"
    )
