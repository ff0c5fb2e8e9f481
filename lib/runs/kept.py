"""Many runs of one computation, as many at once as the memory holds; what is finished survives a killed build.

A chapter puts each computation that takes minutes through :func:`run`. Inside a build a finished part of the runs lies
on the disk until the chapter has finished, so that a build that is killed goes on from there. Where the memory of the
device does not suffice, the part is halved, and a line says so.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from lib.checks import positive_integers
from lib.ledger.notes import note
from lib.runs import devices

# How memory runs out without torch.OutOfMemoryError: in the CPU's allocator, in the driver, in the libraries
_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "_STATUS_ALLOC_FAILED")
_PLAIN = (bool, int, float, complex, str, type(None))
_DAMAGED = (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError)

_finished: set[str] = set()  # keys of the runs that this process has returned


def run(function: Callable, items: Sequence, name: str, at_once: int | None = None) -> list:
    """`function(items)`, in parts of at most `at_once` items, each finished part kept until the chapter has finished.

    Inside a build (`lib.book` sets COLLAPSE_UNFINISHED, a folder that belongs to one state of code, parameters,
    versions and data) a finished part is written beside its place and then renamed, so that it is whole or absent. When
    the chapter is executed again after the build was killed or the chapter failed, only what is not there is computed,
    in other parts than before; one line says how much was taken up. Elsewhere nothing is kept.

    Where a part does not fit into the memory of the device, its memory is freed, `at_once` is halved for this part and
    those after it, and one line says so.

    Parameters
    ----------
    function
        Takes a list of items, returns a sequence with one result for each. A result depends on its item alone: random
        numbers come from a seed in the item or from a generator that it makes, and nothing that comes later may depend
        on what else it does, for where the result is taken up it is not called.
    items
        What JSON can write (numbers, text, None, lists, dictionaries of these), no two the same.
    name
        Of the computation, one for each call in a chapter.
    at_once
        How many items go into one part; None for all.

    Returns
    -------
    list
        One result per item, in the order of `items`: tensors on the CPU (detached, each with memory of its own), numpy
        arrays and scalars, numbers, text, None, and lists, tuples and dictionaries of these. A NamedTuple comes back
        as a tuple, taken up or not.

    Raises
    ------
    ValueError
        Before any work, for items that JSON cannot write or that are there twice, and for an `at_once` that is no
        positive integer. For a result of another kind, or another number of results than of items. For a run that
        was asked for before under the same name, inside a build.
    RuntimeError
        If one run alone does not fit: it names the size that was asked for and what the device has. What `function`
        raises otherwise passes through; the parts that were finished before are kept.

    Examples
    --------
    >>> run(lambda part: torch.tensor(part) ** 2, [1, 2, 3], "squares", at_once=2)
    [tensor(1), tensor(4), tensor(9)]
    """
    keys = _keys(items, name)
    size = len(items) if at_once is None else at_once
    if items:
        positive_integers(at_once=size)
    folder = _folder(name)
    results: dict[str, object] = {}
    if folder:
        again = next((item for item, key in zip(items, keys, strict=True) if key in _finished), None)
        if again is not None:
            raise ValueError(f"name = {name!r}: the run {again!r} was made before under this name; each call needs one")
        results, seconds = _taken_up(folder, set(keys))
        if results:
            print(f"{name}: {len(results)} of {len(keys)} runs are taken up from a build before ({seconds:.0f} s)")
            note("resumed", name=name, runs=len(results), seconds=seconds)
    todo = [(item, key) for item, key in zip(items, keys, strict=True) if key not in results]
    while todo:
        part = todo[:size]
        began = time.perf_counter()
        made, lack = _attempt(function, [item for item, _ in part])
        if lack:
            _free()
            if len(part) == 1:
                raise RuntimeError(f"{name}: the run {part[0][0]!r} alone does not fit into memory: {lack}; {_has()}")
            size = len(part) // 2
            print(f"{name}: {len(part)} runs at once do not fit into memory, now {size} at a time ({lack})")
            continue
        made = dict(zip([key for _, key in part], made, strict=True))
        results |= made
        todo = todo[size:]
        if folder:
            _keep(folder, made, time.perf_counter() - began)
    if folder:
        _finished.update(keys)
    return [results[key] for key in keys]


def _attempt(function, part) -> tuple[list, str]:
    """The results, or why they did not fit. The error, whose traceback holds the memory of its frames, ends here."""
    try:
        made = function(part)
        if isinstance(made, (str, dict)) or not hasattr(made, "__len__"):
            raise ValueError(f"the function returned a {type(made).__name__}: a sequence of results is needed")
        if len(made) != len(part):
            raise ValueError(f"the function returned {len(made)} results for {len(part)} items")
        return [_plain(result) for result in made], ""
    except (RuntimeError, MemoryError) as error:
        lack = _lack(error)
        if not lack:
            raise
        return [], lack


def _lack(error: BaseException | None) -> str:
    """What did not fit, where that is what the error is about; a recording of a graph that fails names it as cause."""
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


def _has() -> str:
    device = "cuda" if torch.cuda.is_initialized() else "cpu"
    free, total = (size / 2**30 for size in devices.memory(device))
    what = devices.name("cuda") if device == "cuda" else "this machine"
    return f"{what} has {total:.1f} GiB, of which {free:.1f} GiB are free"


# --------------------------------------------------------------------------------------------------------- what is kept


def _keys(items, name) -> list[str]:
    """A hash for each item. Whether there is a GPU counts: what a CPU began is not mixed with what a GPU makes."""
    keys: dict[str, int] = {}
    gpu = torch.cuda.is_available()
    for i, item in enumerate(items):
        try:
            text = json.dumps([name, gpu, item], sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"items[{i}] = {item!r}: JSON cannot write it ({error})") from None
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        if key in keys:
            raise ValueError(f"items[{i}] = {item!r}: the same as items[{keys[key]}]")
        keys[key] = i
    return list(keys)


def _folder(name: str) -> Path | None:
    unfinished = os.environ.get("COLLAPSE_UNFINISHED")
    return Path(unfinished) / hashlib.sha256(name.encode()).hexdigest()[:16] if unfinished else None


def _taken_up(folder: Path, wanted: set[str]) -> tuple[dict, float]:
    """The kept results among the wanted ones, and the seconds that computing them took."""
    results, seconds = {}, 0.0
    for path in sorted(folder.glob("*.part")):
        try:
            record = _read(path)
        except _DAMAGED as error:
            print(f"{path} is damaged ({error}); its runs are made again")
            path.unlink(missing_ok=True)
            continue
        found = {key: _decoded(value) for key, value in record["results"].items() if key in wanted}
        results |= found
        seconds += record["seconds"] * len(found) / len(record["results"])
    return results, seconds


def _keep(folder: Path, made: dict, seconds: float) -> None:
    """Write a finished part, named after its runs. A disk that is full ends no computation."""
    path = folder / f"{hashlib.sha256(' '.join(made).encode()).hexdigest()[:32]}.part"
    partial = path.with_suffix(f".{os.getpid()}.partial")
    content = io.BytesIO()
    torch.save({"seconds": seconds, "results": {key: _encoded(result) for key, result in made.items()}}, content)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(hashlib.sha256(content.getbuffer()).digest() + content.getbuffer())
        os.replace(partial, path)
    except OSError as error:
        print(f"{len(made)} finished runs cannot be kept for a later build: {error}")
        with contextlib.suppress(OSError):
            partial.unlink()


def _read(path: Path) -> dict:
    content = path.read_bytes()
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        raise ValueError("its checksum does not fit")
    return torch.load(io.BytesIO(content[32:]), weights_only=True)


def _plain(value):
    """A result on the CPU with memory of its own; ValueError for what cannot be kept."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized:
        return value.detach().to("cpu", copy=True).contiguous()
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcSU":
        return value.copy()
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, tuple):
        return tuple(_plain(part) for part in value)
    if type(value) is dict and all(type(key) in _PLAIN for key in value):
        return {key: _plain(part) for key, part in value.items()}
    raise ValueError(
        f"a result holds a {type(value).__name__}; tensors, numpy arrays, numbers, text, None and lists, tuples and "
        "dictionaries of these can be kept"
    )


def _encoded(value):
    """As what torch.load reads without trust: arrays as bytes with type and shape; containers are told apart."""
    if isinstance(value, (np.ndarray, np.generic)):
        content = torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.nbytes else torch.empty(0)
        return ["array" if isinstance(value, np.ndarray) else "scalar", content, value.dtype.str, list(value.shape)]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(_encoded, value)]
    if isinstance(value, dict):
        return {key: _encoded(part) for key, part in value.items()}
    return value


def _decoded(value):
    if isinstance(value, dict):
        return {key: _decoded(part) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    kind, *parts = value
    if kind in ("array", "scalar"):
        content, dtype, shape = parts
        array = np.frombuffer(content.numpy().tobytes(), dtype).reshape(shape).copy()
        return array if kind == "array" else array[()]
    return (list if kind == "list" else tuple)(map(_decoded, parts))
