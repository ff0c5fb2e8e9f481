"""Many runs of one computation, as many at once as the memory holds; finished runs survive a killed build.

A chapter puts each computation that takes minutes through :func:`run`. joblib does the running: in this process, in
processes of this machine, or on the Dask cluster whose scheduler the environment variable BOOK_SCHEDULER names. This
module adds the store: each finished run is one file, found by a hash of what was asked for.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import math
import os
import pickle
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import joblib
import numpy as np
import torch

from lib.book.atomic import atomically
from lib.book.kernel.notes import note

# Signs of memory running out without torch.OutOfMemoryError: in the CPU's allocator, in the driver, in the libraries
_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "_STATUS_ALLOC_FAILED")
_PLAIN = (bool, int, float, complex, str, type(None))
# What a file of arrays names beside tensors; reading refuses all else, which might run code
_RESTORE = [bytes, np.ndarray, np.dtype, np.empty(0).__reduce__()[0], np.float64(0).__reduce__()[0]]
_DTYPES = [getattr(np.dtypes, name) for name in np.dtypes.__all__]

_returned: set[tuple[Path, str]] = set()  # folder and key of the runs that this process has returned


def run(
    function: Callable,
    items: Sequence,
    name: str,
    at_once: int | None = None,
    jobs: int | None = 1,
    alike: Callable | None = None,
    folder: str | Path | None = None,
    asked: bool = True,
) -> list:
    """`function(items)`, in parts, each of which is kept, once finished, until the chapter has finished.

    Inside a build (`lib.book` sets COLLAPSE_UNFINISHED, a folder that belongs to one state of code, parameters,
    versions and data) finished runs are written to files that are whole or absent. When the chapter is executed again
    after the build was killed or the chapter failed, only what is missing is computed; one line says how many runs
    were reused. Outside a build nothing is kept, unless `folder` says where.

    Where a part does not fit into the memory of the device, its memory is freed, it is halved, other parts are cut to
    at most that half, and one line says so. A worker of a cluster that dies loses nothing: Dask makes its part again.

    Parameters
    ----------
    function
        Takes a list of items, returns a sequence with one result for each. A result depends on its item alone: random
        numbers come from a seed in the item or from a generator that it makes, and nothing that comes later may depend
        on its side effects, for where the result is reused it is not called.
    items
        Values that JSON can write (numbers, text, None, lists, dictionaries of these).
    name
        Of the computation, a different one for each call in a chapter.
    at_once
        How many items, at most, go into one part; None for an equal share for each job. Parts are evenly sized.
    jobs
        How many parts are computed side by side, those of the first items first; if more than one, each in a process
        of its own, in which torch has one thread. None: one for each core, and a single one where a GPU is in use. On
        a cluster there are as many as its workers have threads.
    alike
        A function of an item; only items for which it returns the same go into one part.
    folder
        For results that outlast the chapter: they are read whatever has changed since, so that a version of the code
        belongs into the items.
    asked
        Whether to compute what there is not yet.

    Returns
    -------
    list
        One result per item, in the order of `items`: tensors on the CPU (detached, each with memory of its own), numpy
        arrays and scalars, numbers, text, None, and lists, tuples and dictionaries of these. A NamedTuple comes back
        as a tuple, whether reused or not. None for what is not there and not asked for.

    Raises
    ------
    RuntimeError
        If runs fail, also because one alone does not fit, or because its result is of another kind: the others are
        finished first and kept, then the error names the items of those that failed.
    ValueError
        For a run that was asked for before under the same name, and for a file that cannot be read.
    OSError
        If no scheduler answers at the address, or it has no worker.

    Examples
    --------
    >>> run(lambda part: torch.tensor(part) ** 2, [1, 2, 3], "squares", at_once=2)
    [tensor(1), tensor(4), tensor(9)]
    """
    keys = [_key(name, item) for item in items]
    results = {}
    folder = folder or os.environ.get("COLLAPSE_UNFINISHED")
    if folder:
        folder = Path(folder)
        if not _returned.isdisjoint((folder, key) for key in keys):
            raise ValueError(f"name = {name!r}: runs were made before under this name; each call needs one")
        results = _taken_up(folder, keys, name)
    todo = {key: item for key, item in zip(keys, items, strict=True) if key not in results}
    if todo and asked:
        for made, seconds in _computed(function, todo, name, at_once, jobs, alike):
            results |= made
            for key in made if folder else ():
                record = {"name": name, "item": todo[key], "result": made[key], "seconds": seconds / len(made)}
                with atomically(folder / f"{key}.pt") as partial:
                    torch.save(record, partial)
    _returned.update((folder, key) for key in keys if folder)
    return [results.get(key) for key in keys]


def each(function: Callable, items: Sequence, name: str, jobs: int | None = 1, **options) -> list:
    """`[function(item) for item in items]`, kept as by :func:`run`, each finished item by itself.

    >>> each(lambda x: x * x, [1, 2, 3], "squares")
    [1, 4, 9]
    """

    def one_by_one(part):
        return [function(item) for item in part]

    return run(one_by_one, items, name, at_once=1, jobs=jobs, **options)


# ------------------------------------------------------------------------------------------------------- the computing


def _computed(function, todo: dict, name, at_once, jobs, alike) -> Iterator[tuple[dict, float]]:
    """The results of each part by their keys, and the seconds that it took; in the end the error of those that failed.

    todo: the items by their keys.
    """
    failures, most = [], len(todo)
    with _workers(jobs) as (parallel, number):
        waiting = deque(_parts(todo, at_once, number, alike))
        if os.environ.get("BOOK_SCHEDULER"):  # opened by the workers alone: the scheduler need not have a GPU, say
            import cloudpickle

            function = cloudpickle.dumps(function)

        def calls():  # asked for one by one, so that what has been learnt about the memory counts
            while waiting:
                part = waiting.popleft()
                if len(part) > most:
                    waiting.appendleft(part[most:])
                yield joblib.delayed(_attempt)(function, {key: todo[key] for key in part[:most]})

        while waiting:
            for keys, made, lack, error, seconds in parallel(calls()):
                if made:
                    yield made, seconds
                elif lack and len(keys) > 1:
                    most = min(most, len(keys) // 2)
                    print(f"{name}: {len(keys)} runs at once do not fit into memory, now {most} at a time ({lack})")
                    waiting.appendleft(keys)
                else:
                    what = f"alone it does not fit into memory: {lack}" if lack else error
                    failures.append(f"{', '.join(repr(todo[key]) for key in keys)}: {what}")
    if failures:
        raise RuntimeError(f"{name}: these runs failed, the others are finished\n" + "\n".join(failures))


@contextlib.contextmanager
def _workers(jobs: int | None) -> Iterator[tuple[joblib.Parallel, int]]:
    """What makes calls side by side, and how many at a time."""
    options = {"batch_size": 1, "return_as": "generator_unordered"}
    if scheduler := os.environ.get("BOOK_SCHEDULER"):
        from distributed import Client

        client = Client(scheduler, timeout=10, set_as_default=False)
        with client, joblib.parallel_config("dask", client=client):
            yield joblib.Parallel(pre_dispatch="all", **options), joblib.effective_n_jobs()
    else:
        if jobs is None:
            jobs = 1 if torch.cuda.is_initialized() else joblib.cpu_count()
        with joblib.parallel_config("loky", inner_max_num_threads=1):
            yield joblib.Parallel(jobs, **options), jobs


def _parts(todo: dict, at_once: int | None, number: int, alike: Callable | None) -> list[list[str]]:
    """The keys of the items, divided."""
    groups: dict = {}
    for key, item in todo.items():
        groups.setdefault(alike(item) if alike else None, []).append(key)
    parts = []
    for group in groups.values():
        share = math.ceil(len(group) / at_once) if at_once else min(number, len(group))
        parts += [part.tolist() for part in np.array_split(group, share)]
    return parts


def _attempt(function, part: dict) -> tuple[list, dict, str, str, float]:
    """The keys of a part, its results by key, or why they did not fit, or the error; and the seconds."""
    began, made, lack, failure = time.perf_counter(), {}, "", ""
    try:
        if isinstance(function, bytes):
            function = pickle.loads(function)
        results = function([*part.values()])
        made = {key: _plain(result) for key, result in zip(part, results, strict=True)}
    except Exception as error:
        lack = _lack(error)
        failure = traceback.format_exc()
    if lack:  # now that the error is gone, whose traceback held the memory of its frames
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    return [*part], made, lack, failure, time.perf_counter() - began


def _lack(error: BaseException | None) -> str:
    """What did not fit, if the error is about that; a failed recording of a graph has such an error as its cause."""
    while isinstance(error, (RuntimeError, MemoryError)):
        text = str(error)
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(sign in text for sign in _SIGNS):
            return " ".join(text.split(" If reserved but")[0].splitlines()[:1]) or type(error).__name__
        error = error.__cause__ or error.__context__
    return ""


# ----------------------------------------------------------------------------------------------------------- the store


def _key(name: str, item) -> str:
    """Whether there is a GPU matters: results of a CPU are not mixed with those of a GPU."""
    asked = {"of": name, "item": item, "gpu": torch.cuda.is_available()}
    return hashlib.sha256(json.dumps(asked, sort_keys=True, allow_nan=False).encode()).hexdigest()[:32]


def _taken_up(folder: Path, keys: list[str], name: str) -> dict:
    """The results that the folder holds."""
    found, seconds = {}, 0.0
    for path in (folder / f"{key}.pt" for key in keys):
        if path.exists():
            try:
                with torch.serialization.safe_globals(_RESTORE + _DTYPES):
                    record = torch.load(path, weights_only=True)
            except Exception as error:
                raise ValueError(f"{path} cannot be read; without this file its run is made again") from error
            found[path.stem] = record["result"]
            seconds += record["seconds"]
    if found:
        print(f"{name}: {len(found)} of {len(keys)} runs are taken up from a build before ({seconds:.0f} s)")
        note("resumed", name=name, runs=len(found), seconds=seconds)
    return found


def _plain(value):
    """A result as it is kept: on the CPU, with memory of its own; a NamedTuple as a tuple."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True).contiguous()
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcSU":
        return value.copy()
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, tuple):
        return tuple(_plain(part) for part in value)
    if type(value) is dict:
        return {key: _plain(part) for key, part in value.items()}
    raise ValueError(
        f"a result holds a {type(value).__name__}; tensors, numpy arrays, numbers, text, None and lists, tuples and "
        "dictionaries of these can be kept"
    )
