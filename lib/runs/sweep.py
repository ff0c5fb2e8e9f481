"""Many runs of one function, here or on a cluster, that survive a lost process; and a search that workers share.

joblib runs them on this machine, Dask on a cluster, and Optuna searches. What is added is the record: each finished run
is one small JSON file in a results folder, so that what was finished is never computed again::

    results = sweep.run(
        train_one,
        [{"eta": eta, "seed": seed} for eta in (0, 0.2) for seed in range(3)],
        "results",
    )

A cluster is a scheduler, `PYTHONPATH=. dask scheduler` in the book's folder, and workers that it knows, once per
processor or GPU: `PYTHONPATH=. dask worker tcp://host:8786 --nthreads 1` likewise.
After an edit of `lib` workers have to be started anew: they compute with what they have imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import inspect
import json
import os
import pickle
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError
from pathlib import Path

import joblib

from lib.checks import positive_integers, program

_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUTS = (TimeoutError, asyncio.TimeoutError)  # one class from Python 3.11 on
_PATIENCE = 10  # seconds until a scheduler that does not answer, or has no worker, is given up
_GRACE = 10  # seconds until the lock of a journal counts as that of a dead worker; a write takes milliseconds


def run(
    function: Callable,
    configurations: Sequence[Mapping],
    folder: str | Path,
    scheduler: str | None = None,
    jobs: int | None = None,
    version: str = "",
) -> list:
    """`[function(**configuration) for configuration in configurations]`, each computed once and kept.

    A run that `folder` holds is read and not computed. The others are computed in parallel, each on one thread, so that
    a result does not depend on what runs beside it. This process alone writes, each run as soon as it is there; workers
    need no access to the folder. A file is written beside its place and then renamed, so that it is whole or absent.
    This call may be killed at any time and made again, and only runs that were under way are lost.

    Parameters
    ----------
    function
        Takes a configuration as keyword arguments, returns what JSON can hold. Random numbers come from a seed in the
        configuration: a run whose worker dies is made again on another.
    configurations
        Mappings of names to plain JSON values: numbers, text, None, lists, dictionaries of these. No two are the same.
    folder
        Of the results, made if absent: one file `<key>.json` per run, with `key`, `function`, `configuration`,
        `version`, `result`, `seconds` and `checksum`. The key is a hash of function's name, configuration and version.
    scheduler
        Address of a Dask scheduler; by default what the environment variable SCHEDULER says. Where neither names one,
        and with `""`, the runs are made on this machine.
    jobs
        Processes on this machine, by default one per core; 1 computes in this process.
    version
        Says which code computes, for example `version_of(function)`: the results of another version are not read.

    Returns
    -------
    list
        The results in the order of the configurations, as JSON gives them back (a tuple becomes a list).

    Raises
    ------
    ValueError
        Before any work, for a configuration that is not as above or stands there twice, and for a folder in which
        nothing can be written.
    ConnectionError
        If no scheduler with a worker answers at the address, or it is lost on the way.
    RuntimeError
        If runs fail: the others are finished first and kept, then the error names the configurations that failed. Also
        if a process of this machine dies (of a lack of memory, say).

    Warns
    -----
    UserWarning
        Of a file that is damaged, by its name; that run is made again.

    Examples
    --------
    >>> powers = [{"base": 2, "exp": 5}, {"base": 3, "exp": 2}]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run(pow, powers, folder, scheduler="", jobs=1)
    ...     kept(pow, [*powers, {"base": 10, "exp": 2}], folder)
    [32, 9]
    [32, 9, None]
    """
    keys = _keys(function, configurations, version)
    if jobs is not None and (not isinstance(jobs, int) or jobs < 1):
        raise ValueError(f"jobs = {jobs!r}: a positive number of processes is needed, or None for one per core")
    folder = _writable(folder)
    scheduler = os.environ.get("SCHEDULER", "") if scheduler is None else scheduler

    records = {key: _read(folder / f"{key}.json") for key in keys if (folder / f"{key}.json").exists()}
    todo = {key: dict(c) for key, c in zip(keys, configurations, strict=True) if not records.get(key)}
    failures = []
    if todo:
        runs = (
            _on_cluster(function, todo, scheduler) if scheduler else _here(function, todo, jobs or joblib.cpu_count())
        )
        try:
            for key, outcome in runs:
                if "error" in outcome:
                    failures.append((todo[key], outcome))
                    continue
                records[key] = {"key": key, "function": _name(function), "configuration": todo[key], "version": version}
                _write(folder / f"{key}.json", records[key] | outcome)
                records[key] |= outcome
        except (BrokenExecutor, ConnectionError) as error:
            done = sum(bool(records.get(key)) for key in keys)
            kind = ConnectionError if isinstance(error, ConnectionError) else RuntimeError
            raise kind(
                f"{error}. {done} of {len(keys)} runs are kept in {folder}; the same call goes on there"
            ) from error
    if failures:
        named = "\n".join(f"  {_canonical(configuration)}: {outcome['error']}" for configuration, outcome in failures)
        raise RuntimeError(
            f"{len(failures)} of {len(keys)} runs failed, the others are kept in {folder}:\n{named}\n"
            f"The first one:\n{failures[0][1]['traceback']}"
        )
    return [records[key]["result"] for key in keys]


def asked_for() -> bool:
    """Whether the environment asks for sweeps of the papers' size: COLLAPSE_SWEEP is `run`.

    >>> asked_for()
    False
    """
    return os.environ.get("COLLAPSE_SWEEP") == "run"


def results(
    function: Callable,
    configurations: Sequence[Mapping],
    folder: str | Path,
    asked: bool,
    jobs: int | None = None,
    version: str = "",
) -> list:
    """:func:`run` where it is `asked`, otherwise :func:`kept`: what the folder holds, and None for what it does not.

    Arguments and errors are those of the two.
    """
    if asked:
        return run(function, configurations, folder, jobs=jobs, version=version)
    return kept(function, configurations, folder, version)


def kept(function: Callable, configurations: Sequence[Mapping], folder: str | Path, version: str = "") -> list:
    """What :func:`run` would not have to compute: the result of each run, and None for one that `folder` does not hold.

    Arguments and errors are those of :func:`run`; the folder need not exist, and nothing is computed or written.
    """
    paths = [Path(folder) / f"{key}.json" for key in _keys(function, configurations, version)]
    records = [_read(path) if path.exists() else None for path in paths]
    return [record and record["result"] for record in records]


def load(folder: str | Path) -> list[dict]:
    """The records of all finished runs in a results folder, in the order of their keys; nothing is computed.

    A folder that is not there has none. Warns (UserWarning) of damaged files, and leaves them out.
    """
    records = [_read(path) for path in sorted(Path(folder).glob("*.json"))]
    return [record for record in records if record]


def results_folder(name: str) -> Path:
    """Where a chapter keeps what took long: in the folder COLLAPSE_RESULTS, otherwise below the book's build folder."""
    build = Path(os.environ.get("BOOK_BUILD") or _ROOT / "_build")
    return Path(os.environ.get("COLLAPSE_RESULTS") or build / "results").expanduser().absolute() / name


def version_of(*code) -> str:
    """A hash of what modules and functions do: other code is another version, another docstring or comment is not.

    >>> version_of(run) == version_of(run), version_of(run) == version_of(run, load)
    (True, False)
    """
    return hashlib.sha256("\0".join(program(inspect.getsource(part)) for part in code).encode()).hexdigest()[:16]


def search(
    objective: Callable,
    journal: str | Path,
    trials: int,
    resource: int,
    seed: int = 0,
    direction: str = "maximize",
    stale_after: float | None = None,
):
    """Optuna's TPE sampler under its Hyperband pruner, on a journal that any number of workers may share.

    Every process that makes the same call joins the search; each stops once the journal holds `trials` trials that are
    complete or pruned. Those under way are finished then, so that `n` workers may make up to `n - 1` trials more.
    The random numbers of a trial depend on `seed` and its number in the journal: a single worker that is
    interrupted between trials and goes on finds what it would have found, and workers do not draw the same.

    A killed worker leaves a trial that looks as if it still ran. It counts for nothing and hinders nobody: another is
    made in its stead. Whoever joins later marks such a trial as failed, if its process was one of this machine and is
    gone, or if it began more than `stale_after` seconds ago. A half-written last line of the journal is cut off, with
    a warning. A lock that a killed worker held is taken away by Optuna after 10 s.

    Parameters
    ----------
    objective
        Takes an :class:`optuna.Trial`, returns a number. It may report on the way, after 1 to `resource` epochs, with
        `trial.report(value, epoch)`, and end with :class:`optuna.TrialPruned` where `trial.should_prune()`.
    journal
        A file, made if absent.
    trials, resource
        How many are needed, and the last epoch that is reported.
    seed, direction
        Of the sampler; `"maximize"` or `"minimize"`.
    stale_after
        Longer than any trial takes; None leaves the trials of other machines alone.

    Returns
    -------
    optuna.Study
        With `best_params`, `best_value`, `trials`.

    Raises
    ------
    ValueError
        For numbers out of range, another direction than the journal's, and a journal that cannot be written.
    RuntimeError
        If a trial fails; it names the trial's parameters. The journal stays usable.
    """
    positive_integers(trials=trials, resource=resource)
    if direction not in ("maximize", "minimize"):
        raise ValueError(f"direction = {direction!r}: 'maximize' or 'minimize' is needed")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # Optuna's progress bar, which is not shown
        optuna = _import("optuna", "a search for hyper-parameters")
    journal = _writable(Path(journal).parent) / Path(journal).name
    if journal.is_dir():
        raise ValueError(f"journal = {journal}: a file is needed, this is a folder")
    finished = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)

    def numbered(trial):
        digest = hashlib.sha256(f"{seed} {trial.number}".encode()).digest()
        trial.study.sampler = optuna.samplers.TPESampler(seed=int.from_bytes(digest[:4], "big"))
        trial.set_user_attr("worker", [socket.gethostname(), os.getpid()])
        try:
            return objective(trial)
        except optuna.TrialPruned:
            raise
        except Exception as error:
            what = f"trial {trial.number} with {trial.params} failed: {type(error).__name__}: {error}"
            raise RuntimeError(what) from error

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            lock = optuna.storages.journal.JournalFileSymlinkLock(str(journal), _GRACE)
            backend = optuna.storages.journal.JournalFileBackend(str(journal), lock)
            _mend(journal, lock)
            study = optuna.create_study(
                storage=optuna.storages.JournalStorage(backend), study_name="search", load_if_exists=True,
                direction=direction, pruner=optuna.pruners.HyperbandPruner(1, resource),
            )  # fmt: skip
        if study.direction.name.lower() != direction:
            raise ValueError(f"direction = {direction!r}: {journal} holds a search that does not {direction}")
        _fail_stale(study, stale_after, optuna)
        if len(study.get_trials(deepcopy=False, states=finished)) < trials:
            study.optimize(numbered, callbacks=[optuna.study.MaxTrialsCallback(trials, states=finished)])
    finally:
        optuna.logging.set_verbosity(verbosity)
    return study


# ------------------------------------------------------------------------------------------------------ where runs run


def _execute(function, configuration) -> dict:
    """One run in whatever process: its result as JSON gives it back, or its error as text."""
    began = time.perf_counter()
    try:
        if isinstance(function, bytes):
            function = pickle.loads(function)
        with _one_thread():
            result = json.loads(json.dumps(function(**configuration), allow_nan=False))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return {"result": result, "seconds": time.perf_counter() - began}


def _keyed(key, function, configuration):
    return key, _execute(function, configuration)


@contextlib.contextmanager
def _one_thread():
    torch = sys.modules.get("torch")  # a function that computes with it came with it
    before = torch and torch.get_num_threads()
    if torch:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch:
            torch.set_num_threads(before)


def _here(function, todo, jobs) -> Iterator[tuple[str, dict]]:
    calls = [joblib.delayed(_keyed)(key, function, configuration) for key, configuration in todo.items()]
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        parallel = joblib.Parallel(n_jobs=min(jobs, len(todo)), batch_size=1, return_as="generator_unordered")
        try:
            yield from parallel(calls)
        except BrokenExecutor as error:
            reason = str(error).split(".")[0]
            raise BrokenExecutor(f"a process of this machine died ({type(error).__name__}: {reason})") from error


def _on_cluster(function, todo, scheduler) -> Iterator[tuple[str, dict]]:
    """Dask makes the runs of a worker that dies again on another."""
    distributed = _import("distributed", f"a sweep on the cluster {scheduler}")
    # opened by the workers alone: a scheduler would import all that it needs, torch say
    pickled = _import("cloudpickle", f"a sweep on the cluster {scheduler}").dumps(function)
    with _client(distributed, scheduler) as client:
        futures = client.map(_execute, [pickled] * len(todo), list(todo.values()), key=list(todo))
        for future in distributed.as_completed(futures, loop=client.loop):
            try:
                yield future.key, future.result()
            except CancelledError as error:
                raise ConnectionError(f"the scheduler at {scheduler} was lost") from error
            except Exception as error:  # not the run's own: `_execute` has caught that
                what = f"{type(error).__name__}: {error}"
                yield future.key, {"error": what, "traceback": "".join(traceback.format_exception(error))}
            future.release()


@contextlib.contextmanager
def _client(distributed, address):
    tried = f"tried distributed.Client({address!r}, timeout={_PATIENCE})"
    hint = "start one with `PYTHONPATH=. dask scheduler`, or leave SCHEDULER empty to run on this machine"
    try:
        client = distributed.Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError, *_TIMEOUTS) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConnectionError(f"no Dask scheduler answers at {address}: {tried} ({reason}); {hint}") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_PATIENCE)
        except _TIMEOUTS as error:
            hint = f"start one in the book's folder with `PYTHONPATH=. dask worker {address} --nthreads 1`"
            raise ConnectionError(
                f"the Dask scheduler at {address} has no worker: waited {_PATIENCE} s for one; {hint}"
            ) from error
        yield client


# ----------------------------------------------------------------------------------------------------------- the files


def _name(function) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _canonical(value) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _keys(function, configurations, version) -> list[str]:
    """One key per configuration; refuses what could not be kept, called or told apart."""
    if not callable(function) or "<lambda>" in getattr(function, "__qualname__", "<lambda>"):
        raise ValueError(f"function = {function!r}: a function with a name is needed")
    if not isinstance(version, str):
        raise ValueError(f"version = {version!r}: text is needed")
    keys: dict[str, int] = {}
    for i, configuration in enumerate(configurations):
        place = f"configurations[{i}] = {configuration!r}"
        try:
            plain = dict(configuration)
            faithful = json.loads(json.dumps(plain, allow_nan=False)) == plain
        except (TypeError, ValueError) as error:
            raise ValueError(f"{place}: a mapping of names to plain JSON values is needed ({error})") from None
        if not faithful:
            raise ValueError(f"{place}: JSON does not give it back; names are text, and sequences are lists")
        try:
            inspect.signature(function).bind(**plain)
        except TypeError as error:
            raise ValueError(f"{place}: {_name(function)} cannot be called with it ({error})") from None
        key = hashlib.sha256(_canonical([_name(function), plain, version]).encode()).hexdigest()[:32]
        if key in keys:
            raise ValueError(f"{place}: the same as configurations[{keys[key]}]")
        keys[key] = i
    return list(keys)


def _writable(folder: str | Path) -> Path:
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe"):
            pass
    except OSError as error:
        raise ValueError(f"folder = {folder}: results cannot be written there ({error.strerror})") from error
    return folder


def _checksum(record: Mapping) -> str:
    kept = {name: value for name, value in record.items() if name != "checksum"}
    return hashlib.sha256(_canonical(kept).encode()).hexdigest()


def _write(path: Path, record: Mapping) -> None:
    partial = path.with_name(f".{path.stem}.{socket.gethostname()}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            json.dump({**record, "checksum": _checksum(record)}, file, ensure_ascii=False, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _read(path: Path) -> dict | None:
    """The record in a file; None, with a warning, where it is not whole."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["key"] == path.stem and record["checksum"] == _checksum(record):
            return record
        reason = "its checksum or its key does not fit"
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    warnings.warn(f"{path} is no whole result ({reason}) and counts as not run", stacklevel=3)
    return None


def _mend(journal: Path, lock) -> None:
    """Cut off a line that a worker died over, for nothing could be read behind it."""
    lock.acquire()
    try:
        content = journal.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(journal, whole)
            warnings.warn(f"{journal}: its last line was half-written and is cut off", stacklevel=3)
    finally:
        lock.release()


def _fail_stale(study, stale_after, optuna) -> None:
    now = time.time()
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        host, process = trial.user_attrs.get("worker", (None, None))
        old = stale_after is not None and now - trial.datetime_start.timestamp() > stale_after
        if old or (host == socket.gethostname() and not _alive(process)):
            with contextlib.suppress(ValueError, RuntimeError):  # it finished, or another has marked it, by now
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _import(name: str, purpose: str):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{purpose} needs the package {name!r}, which is not installed: pip install {name}"
        ) from error
