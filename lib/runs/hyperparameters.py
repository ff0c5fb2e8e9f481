"""A search for hyper-parameters that workers share and that survives the loss of any of them: Optuna on a journal."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path

from lib.checks import positive_integers
from lib.runs import store

_GRACE = 10  # seconds after which the lock of a journal counts as a dead worker's; a write takes milliseconds


def search(objective: Callable, journal: str | Path, trials: int, resource: int, seed: int = 0):
    """The maximum of an objective: Optuna's TPE sampler under its Hyperband pruner, on a journal that workers share.

    Every process that makes the same call joins the search; each stops once the journal holds `trials` trials that are
    complete or pruned. Trials under way then still run to their end, so that `n` workers may make up to `n - 1` more.
    The random numbers of a trial depend on `seed` and its number in the journal: a single worker that is
    interrupted between trials and resumed finds what it would have found, and workers do not draw the same numbers.

    A killed worker leaves a trial that looks as if it were running. It does not count and blocks nobody: another is
    made in its place. A half-written last line of the journal is cut off, with a warning. Optuna removes the lock of a
    killed worker after 10 s.

    Parameters
    ----------
    objective
        Takes an :class:`optuna.Trial`, returns a number. It may report intermediate values, after 1 to `resource`
        epochs, with `trial.report(value, epoch)`, and end with :class:`optuna.TrialPruned` where
        `trial.should_prune()`.
    journal
        A file, made if absent.
    trials, resource
        How many trials are needed, and the last epoch that is reported.
    seed
        Seed of the sampler.

    Returns
    -------
    optuna.Study
        With `best_params`, `best_value`, `trials`.

    Raises
    ------
    ValueError
        For numbers out of range, and a journal that cannot be written.
    RuntimeError
        If a trial fails; it names the trial's parameters. The journal stays usable.
    """
    positive_integers(trials=trials, resource=resource)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # Optuna's progress bar, which is not shown
        import optuna
    journal = store.writable(Path(journal).parent) / Path(journal).name
    finished = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)

    def numbered(trial):
        digest = hashlib.sha256(f"{seed} {trial.number}".encode()).digest()
        trial.study.sampler = optuna.samplers.TPESampler(seed=int.from_bytes(digest[:4], "big"))
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
                direction="maximize", pruner=optuna.pruners.HyperbandPruner(1, resource),
            )  # fmt: skip
        if len(study.get_trials(deepcopy=False, states=finished)) < trials:
            study.optimize(numbered, callbacks=[optuna.study.MaxTrialsCallback(trials, states=finished)])
    finally:
        optuna.logging.set_verbosity(verbosity)
    return study


def _mend(journal: Path, lock) -> None:
    """Cut off a line that a worker died writing, for nothing after it could be read."""
    lock.acquire()
    try:
        content = journal.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(journal, whole)
            warnings.warn(f"{journal}: its last line was half-written and is cut off", stacklevel=3)
    finally:
        lock.release()
