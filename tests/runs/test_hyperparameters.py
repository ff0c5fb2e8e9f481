"""A search on a shared journal: what workers share, and what a killed one leaves behind."""

import json
import time
from collections import Counter

import optuna
import pytest

from lib.runs import hyperparameters
from lib.runs.hyperparameters import search
from sweep_tasks import __file__ as tasks
from sweep_tasks import objective
from waiting import wait_for

FINISHED = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)


@pytest.fixture
def journal(tmp_path):
    return tmp_path / "journal.log"


def finished(study):
    return study.get_trials(deepcopy=False, states=FINISHED)


def test_a_search_finds_the_maximum_prunes_on_the_way_and_makes_as_many_trials_as_asked(journal):
    study = search(objective, journal, 30, 9)
    assert abs(study.best_params["x"] - 0.3) < 0.1
    states = Counter(trial.state.name for trial in study.trials)
    assert states["COMPLETE"] + states["PRUNED"] == 30 and states["PRUNED"] > 5


def test_a_search_that_goes_on_finds_what_it_would_have_found(tmp_path):
    def values(study):
        return [(trial.params, trial.value, trial.state) for trial in study.trials]

    whole = search(objective, tmp_path / "whole.log", 25, 9, seed=3)
    search(objective, tmp_path / "parts.log", 14, 9, seed=3)
    assert values(search(objective, tmp_path / "parts.log", 25, 9, seed=3)) == values(whole)
    assert values(search(objective, tmp_path / "other.log", 25, 9, seed=4)) != values(whole)


def test_workers_share_the_trials_and_what_a_killed_one_leaves_others_finish(journal, start):
    call = json.dumps({"journal": str(journal), "trials": 16, "resource": 9})
    victim = start(tasks, "search", call, seconds=30)
    wait_for(lambda: journal.exists() and '"param_name":"x"' in journal.read_text(), "the first trial")
    time.sleep(0.3)  # it may still hold the lock of the journal; then it sleeps
    victim.kill()
    victim.wait()
    assert [worker.wait(60) for worker in (start(tasks, "search", call, seconds=0.06) for _ in range(2))] == [0, 0]
    study = search(objective, journal, 1, 9)
    assert 16 <= len(finished(study)) <= 17, "each made what the other had made already"
    assert 18 <= len(finished(study := search(objective, journal, 18, 9))) <= 19  # this process joins, and goes on
    assert len({trial.params["x"] for trial in study.trials}) == len(study.trials), "two drew the same"
    assert [trial.state.name for trial in study.trials].count("RUNNING") == 1


def test_the_lock_of_a_worker_that_died_over_it_is_taken_away(journal, monkeypatch):
    search(objective, journal, 1, 9)
    journal.with_name("journal.log.lock").symlink_to(journal)
    monkeypatch.setattr(hyperparameters, "_GRACE", 1)
    assert len(finished(search(objective, journal, 2, 9))) == 2


def test_a_half_written_last_line_of_the_journal_is_cut_off(journal):
    search(objective, journal, 3, 9)
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole.splitlines()[-1][:20])
    with pytest.warns(UserWarning, match="journal.log"):
        assert len(finished(search(objective, journal, 5, 9))) == 5
    assert len(finished(search(objective, journal, 6, 9))) == 6


def test_a_trial_that_fails_is_named_with_its_parameters_and_the_journal_stays_usable(journal):
    def failing(trial):
        raise FloatingPointError(f"blew up at {trial.suggest_float('x', 0, 1):.1f}")

    with pytest.raises(RuntimeError, match=r"trial 0 with \{'x': .*\} failed: FloatingPointError: blew up"):
        search(failing, journal, 2, 9)
    assert len(finished(search(objective, journal, 2, 9))) == 2


@pytest.mark.parametrize("name, value", [("trials", 0), ("resource", 2.0), ("journal", "/dev/null/journal.log")])
def test_a_search_that_cannot_be_made_is_refused(journal, name, value):
    with pytest.raises(ValueError, match="folder" if name == "journal" else name):
        search(objective, **{"journal": journal, "trials": 1, "resource": 9} | {name: value})
