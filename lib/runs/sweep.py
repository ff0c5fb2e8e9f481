"""Many runs of one function, here or on a cluster, that survive a lost process.

joblib makes the runs on this machine, Dask on a cluster. This module adds the record: each finished run is one small
JSON file in a results folder, so that it is never computed again::

    results = sweep.run(
        train_one,
        [{"eta": eta, "seed": seed} for eta in (0, 0.2) for seed in range(3)],
        "results",
    )

A cluster is a scheduler, `PYTHONPATH=. dask scheduler --host 127.0.0.1` in the book's folder, and workers that it
knows, one per processor or GPU: `PYTHONPATH=. dask worker tcp://127.0.0.1:8786 --host 127.0.0.1 --nthreads 1`
likewise. Whoever reaches one of them can run code: on several machines they need TLS, see chapters/back/building.md.
After an edit of `lib` workers have to be restarted: they compute with what they have imported.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError
from pathlib import Path

import joblib

from lib.book.inputs import program
from lib.book.kernel.devices import one_thread
from lib.runs import store
from lib.runs.processes import side_by_side

_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 10  # seconds after which a scheduler that does not answer, or has no worker, is given up


def run(
    function: Callable,
    configurations: Sequence[Mapping],
    folder: str | Path,
    asked: bool = True,
    jobs: int | None = None,
    version: str = "",
) -> list:
    """`[function(**configuration) for configuration in configurations]`, each computed once and kept.

    A run that `folder` holds is read, not computed. The others are computed in parallel, each on one thread, so that a
    result does not depend on what else is running. Only this process writes, each run as soon as it is done; workers
    need no access to the folder. A file is whole or absent (:mod:`lib.runs.store`).
    This call may be killed at any time and repeated; only runs that were under way are lost. The runs are made
    on this machine, or on the cluster whose Dask scheduler the environment variable SCHEDULER names.

    Parameters
    ----------
    function
        Takes a configuration as keyword arguments, returns a value that JSON can hold. Random numbers come from a
        seed in the configuration: a run whose worker dies is made again on another.
    configurations
        Mappings of names to plain JSON values: numbers, text, None, lists, dictionaries of these. No two are the same.
    folder
        For the results, made if absent: one file `<key>.json` per run, with `key`, `function`, `configuration`,
        `version`, `result`, `seconds` and `checksum`. The key is a hash of the function's name, configuration and
        version.
    asked
        Whether to compute what `folder` does not hold. If not, nothing is computed or written, and the folder need not
        exist.
    jobs
        Processes on this machine, by default one per core; 1 computes in this process.
    version
        Says which code computes, for example `version_of(function)`: the results of another version are not read.

    Returns
    -------
    list
        The results in the order of the configurations, as JSON gives them back (a tuple becomes a list); None for
        what is not there and not asked for.

    Raises
    ------
    ValueError
        Before any work, for a configuration that is not as above or that occurs twice, and for a folder in which
        nothing can be written.
    ConnectionError
        If no scheduler with a worker answers at the address, or it is lost during the runs.
    RuntimeError
        If runs fail: the others are finished first and kept, then the error names the configurations that failed. Also
        if a process on this machine dies (from lack of memory, say).

    Warns
    -----
    UserWarning
        Of a damaged file, by its name; its run is made again.

    Examples
    --------
    >>> import tempfile
    >>> powers = [{"base": 2, "exp": 5}, {"base": 3, "exp": 2}]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run(pow, powers, folder, jobs=1)
    ...     run(pow, [*powers, {"base": 10, "exp": 2}], folder, asked=False)
    [32, 9]
    [32, 9, None]
    """
    if "<lambda>" in function.__qualname__:  # two lambdas could not be told apart
        raise ValueError(f"function = {function!r}: a function with a name is needed")
    jobs = joblib.cpu_count() if jobs is None else jobs
    keys = store.keys(([_name(function), one, version] for one in configurations), "configurations")
    records, failures = store.finished(folder, keys), []
    todo = {key: dict(c) for key, c in zip(keys, configurations, strict=True) if asked and key not in records}
    folder = store.writable(folder) if todo else folder
    scheduler = os.environ.get("SCHEDULER")
    try:
        for key, outcome in _on_cluster(function, todo, scheduler) if scheduler else _here(function, todo, jobs):
            if "error" in outcome:
                failures.append((todo[key], outcome))
            else:
                asked = {"function": _name(function), "configuration": todo[key], "version": version}
                records[key] = store.keep(folder, key, asked | outcome)
    except (BrokenExecutor, ConnectionError) as error:
        kind = ConnectionError if isinstance(error, ConnectionError) else RuntimeError
        done = f"{len(records)} of {len(keys)} runs are kept in {folder}; the same call goes on there"
        raise kind(f"{error}. {done}") from error
    if failures:
        named = "\n".join(f"  {json.dumps(configuration)}: {outcome['error']}" for configuration, outcome in failures)
        raise RuntimeError(
            f"{len(failures)} of {len(keys)} runs failed, the others are kept in {folder}:\n{named}\n"
            f"The first one:\n{failures[0][1]['traceback']}"
        )
    return [records[key]["result"] if key in records else None for key in keys]


def asked_for() -> bool:
    """Whether the environment asks for sweeps of the papers' size, with COLLAPSE_SWEEP set to `run`.

    >>> asked_for()
    False
    """
    return os.environ.get("COLLAPSE_SWEEP") == "run"


def results_folder(name: str) -> Path:
    """Where a chapter keeps costly results: in the folder COLLAPSE_RESULTS, otherwise below the book's build folder."""
    build = Path(os.environ.get("BOOK_BUILD") or _ROOT / "_build")
    return Path(os.path.expanduser(os.environ.get("COLLAPSE_RESULTS") or build / "results")).absolute() / name


def version_of(*code) -> str:
    """A hash of what modules and functions do: other code is another version; another docstring or comment is not.

    >>> version_of(run) == version_of(run), version_of(run) == version_of(run, asked_for)
    (True, False)
    """
    return hashlib.sha256("\0".join(program(inspect.getsource(part)) for part in code).encode()).hexdigest()[:16]


# ------------------------------------------------------------------------------------------------------ where runs run


def _name(function) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _execute(key, function, configuration) -> tuple[str, dict]:
    """One run, in any process: its result as JSON gives it back, or its error as text."""
    began = time.perf_counter()
    try:
        if isinstance(function, bytes):
            function = pickle.loads(function)
        with one_thread():
            result = json.loads(json.dumps(function(**configuration), allow_nan=False))
    except Exception as error:
        return key, {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return key, {"result": result, "seconds": time.perf_counter() - began}


def _here(function, todo, jobs) -> Iterator[tuple[str, dict]]:
    calls = [joblib.delayed(_execute)(key, function, configuration) for key, configuration in todo.items()]
    return side_by_side(calls, min(jobs, max(1, len(todo))))


def _on_cluster(function, todo, scheduler) -> Iterator[tuple[str, dict]]:
    """Results from Dask, which repeats the runs of a dead worker on another."""
    if not todo:
        return
    import cloudpickle
    import distributed

    pickled = cloudpickle.dumps(function)  # opened by the workers alone: a scheduler would import all that it needs
    with _connected(distributed, scheduler) as client:
        futures = client.map(_execute, list(todo), [pickled] * len(todo), list(todo.values()), key=list(todo))
        for future in distributed.as_completed(futures, loop=client.loop):
            try:
                yield future.result()
            except CancelledError as error:
                raise ConnectionError(f"the scheduler at {scheduler} was lost") from error
            except Exception as error:  # not the run's own: `_execute` has caught that
                what = f"{type(error).__name__}: {error}"
                yield future.key, {"error": what, "traceback": "".join(traceback.format_exception(error))}
            future.release()


def _connected(distributed, address):
    """A client of a scheduler that answers and has a worker."""
    try:
        client = distributed.Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:  # TypeError for an invalid address
        start = "`PYTHONPATH=. dask scheduler --host 127.0.0.1`"
        hint = f"start one with {start}, or leave SCHEDULER empty to run on this machine"
        raise ConnectionError(f"no Dask scheduler answers at {address} ({error}); {hint}") from error
    try:
        client.wait_for_workers(1, timeout=_PATIENCE)
    except TimeoutError as error:
        client.close()
        hint = f"start one in the book's folder: `PYTHONPATH=. dask worker {address} --nthreads 1`"
        raise ConnectionError(f"the Dask scheduler at {address} has no worker after {_PATIENCE} s; {hint}") from error
    return client
