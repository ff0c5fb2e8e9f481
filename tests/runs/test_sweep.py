"""Sweeps with real processes on the loopback address, some of which are killed on the way."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import optuna
import pytest

from lib.runs import sweep

ROOT = Path(__file__).resolve().parents[1]
TESTS = str(Path(__file__).resolve().parent)
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)

import sweep_tasks as tasks  # noqa: E402  # the name under which the workers import it

FINISHED = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch):
    monkeypatch.delenv("SCHEDULER", raising=False)
    monkeypatch.setattr(sweep, "_PATIENCE", 20)  # the machine may be busy


@pytest.fixture
def start():
    """Start Python processes that can import lib and the tasks; whatever is left of them is killed afterwards."""
    started = []

    def process(*arguments, seconds=0.0):
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}", "SWEEP_TASK_SECONDS": str(seconds)}
        started.append(
            subprocess.Popen(
                [sys.executable, *map(str, arguments)], env=environment, cwd=ROOT, start_new_session=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip
        return started[-1]

    yield process
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        one.wait()


@pytest.fixture
def cluster(start):
    """Start a scheduler and so many workers of one thread each: (address, workers)."""

    def cluster(workers, seconds=0.0):
        port = free_port()
        address = f"tcp://127.0.0.1:{port}"
        start("-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard", "--no-show")
        options = ("--nthreads", 1, "--no-nanny", "--no-dashboard", "--host", "127.0.0.1", "--death-timeout", 60)
        return address, [start("-m", "dask", "worker", address, *options, seconds=seconds) for _ in range(workers)]

    return cluster


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def answers(address):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) == 0


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
    return found


def grid(n, log):
    log.mkdir(exist_ok=True)
    return [{"x": i // 4, "seed": i % 4, "log": str(log)} for i in range(n)]


def marks(log, kind):
    """How often each run was begun, or done: {(run, process): times}."""
    return Counter(tuple(path.name.split(".")[:2]) for path in Path(log).glob(f"*.{kind}"))


def times_done(log):
    return Counter(run for run, _ in marks(log, "done").elements())


# ------------------------------------------------------------------------------------------------------ on this machine


def test_results_come_in_the_order_of_the_configurations_and_are_what_the_function_returns(tmp_path):
    configurations = [{"x": x, "seed": seed} for x in (3, 1, 2) for seed in range(4)]
    expected = [tasks.compute(**configuration) for configuration in configurations]
    for jobs in (1, 2, None):
        assert sweep.run(tasks.compute, configurations, tmp_path / str(jobs), jobs=jobs) == expected


def test_each_run_is_one_file_that_says_what_was_computed(tmp_path):
    sweep.run(tasks.compute, [{"x": 1, "seed": 2}], tmp_path, jobs=1, version="v1")
    (path,) = tmp_path.iterdir()
    record = json.loads(path.read_text(encoding="utf-8"))
    assert path.name == f"{record['key']}.json"
    assert set(record) == {"key", "function", "configuration", "version", "result", "seconds", "checksum"}
    assert record["configuration"] == {"x": 1, "seed": 2} and record["version"] == "v1"
    assert record["function"] == "sweep_tasks.compute" and record["result"] == tasks.compute(1, 2)
    assert sweep.load(tmp_path) == [record]


def test_a_finished_run_is_not_computed_again_whatever_the_order_of_its_names(tmp_path):
    log = tmp_path / "log"
    configurations = grid(6, log)
    first = sweep.run(tasks.compute, configurations[:4], tmp_path, jobs=1)
    reordered = [dict(reversed(configuration.items())) for configuration in configurations]
    assert sweep.run(tasks.compute, reordered, tmp_path, jobs=1)[:4] == first
    assert set(times_done(log).values()) == {1} and len(times_done(log)) == 6


def test_another_version_or_function_is_another_run(tmp_path):
    configurations = [{"x": 2}]
    assert sweep.run(tasks.reciprocal, configurations, tmp_path, jobs=1) == [0.5]
    sweep.run(tasks.reciprocal, configurations, tmp_path, jobs=1, version="v2")
    sweep.run(tasks.dies, configurations, tmp_path, jobs=1)
    assert len(sweep.load(tmp_path)) == 3
    assert sweep.version_of(tasks.reciprocal, sweep) == sweep.version_of(tasks.reciprocal, sweep)
    assert sweep.version_of(tasks.reciprocal) != sweep.version_of(tasks.compute)


def test_what_is_kept_can_be_asked_for_without_computing(tmp_path):
    configurations = [{"x": x} for x in (1, 2, 4)]
    assert sweep.kept(tasks.reciprocal, configurations, tmp_path / "nothing") == [None] * 3
    sweep.run(tasks.reciprocal, configurations[1:], tmp_path, jobs=1, version="v1")
    assert sweep.kept(tasks.reciprocal, configurations, tmp_path, "v1") == [None, 0.5, 0.25]
    assert sweep.kept(tasks.reciprocal, configurations, tmp_path, "v2") == [None] * 3
    assert not (tmp_path / "nothing").exists() and len(sweep.load(tmp_path)) == 2


def test_a_sweep_is_made_where_it_is_asked_for_and_else_shows_what_there_is(tmp_path, monkeypatch):
    log, configurations = tmp_path / "log", grid(3, tmp_path / "log")
    assert sweep.results(tasks.compute, configurations, tmp_path, asked=False) == [None] * 3
    made = sweep.results(tasks.compute, configurations[:2], tmp_path, asked=True, jobs=1, version="v1")
    assert len(times_done(log)) == 2 and None not in made
    assert sweep.results(tasks.compute, configurations, tmp_path, asked=False, version="v1") == [*made, None]
    assert sweep.results(tasks.compute, configurations, tmp_path, asked=False) == [None] * 3
    for value, asked in (("run", True), ("", False), ("1", False)):
        monkeypatch.setenv("COLLAPSE_SWEEP", value)
        assert sweep.asked_for() is asked


def test_every_run_has_one_thread_and_the_caller_keeps_its_own(tmp_path):
    import torch

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for jobs in (1, 2):
            assert sweep.run(tasks.threads, [{"x": x} for x in range(3)], tmp_path / str(jobs), jobs=jobs) == [1] * 3
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_sweep_that_was_killed_resumes_and_recomputes_nothing_that_was_finished(tmp_path, start):
    log, folder = tmp_path / "log", tmp_path / "results"
    call = {"configurations": grid(12, log), "folder": str(folder), "jobs": 2}
    process = start(tasks.__file__, "run", json.dumps(call), seconds=0.3)
    wait_for(lambda: len(list(folder.glob("*.json"))) >= 4)
    process.kill()  # -9, the parent alone
    process.wait()
    kept = {f"{r['configuration']['x']}-{r['configuration']['seed']}": r for r in sweep.load(folder)}
    assert 4 <= len(kept) < 12
    results = sweep.run(tasks.compute, **call)
    assert results == [tasks.compute(c["x"], c["seed"]) for c in call["configurations"]]
    done = times_done(log)
    assert len(done) == 12 and all(done[run] == 1 for run in kept)
    assert len(sweep.load(folder)) == 12
    assert [path.name for path in folder.iterdir() if path.suffix != ".json"] == []


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed", "no record", "another's"])
def test_a_damaged_result_is_reported_by_its_name_and_computed_again(tmp_path, damage):
    configurations = [{"x": x, "seed": 0} for x in range(3)]
    results = sweep.run(tasks.compute, configurations, tmp_path, jobs=1)
    path, other = sorted(tmp_path.glob("*.json"))[:2]
    whole = path.read_bytes()
    damaged = {
        "truncated": whole[: len(whole) // 2],
        "empty": b"",
        "changed": whole.replace(b'"value": ', b'"value": 1'),
        "no record": b"[1, 2]",
        "another's": other.read_bytes(),
    }
    path.write_bytes(damaged[damage])
    with pytest.warns(UserWarning, match=path.name):
        assert len(sweep.load(tmp_path)) == 2
    with pytest.warns(UserWarning, match=f"{path.name} is no whole result"):
        assert sweep.run(tasks.compute, configurations, tmp_path, jobs=1) == results
    assert len(sweep.load(tmp_path)) == 3


def test_runs_that_fail_are_named_and_the_others_are_kept(tmp_path):
    configurations = [{"x": x} for x in (2, 0, 4, 0.0)]
    configurations[3]["note"] = "floating"
    with pytest.raises(RuntimeError, match="2 of 4 runs failed") as error:
        sweep.run(tasks.reciprocal, configurations, tmp_path, jobs=2)
    assert '{"x":0}: ZeroDivisionError' in str(error.value) and '"note":"floating"' in str(error.value)
    assert "in reciprocal" in str(error.value)  # the traceback leads to the line
    assert sorted(record["result"] for record in sweep.load(tmp_path)) == [0.25, 0.5]


def test_a_result_that_json_cannot_hold_is_a_failure_of_its_run(tmp_path):
    with pytest.raises(RuntimeError, match=r'(?s)1 of 3 runs failed.*\{"x":2\}: TypeError'):
        sweep.run(tasks.unkeepable, [{"x": x} for x in range(1, 4)], tmp_path, jobs=1)
    assert len(sweep.load(tmp_path)) == 2


def test_the_death_of_a_local_process_is_one_clear_error_and_the_finished_runs_stay(tmp_path):
    with pytest.raises(RuntimeError, match="a process of this machine died .* runs are kept in"):
        sweep.run(tasks.dies, [{"x": x} for x in range(6)], tmp_path, jobs=2)
    assert {record["result"] for record in sweep.load(tmp_path)} >= {0, 1, 2}


# --------------------------------------------------------------------------------------------------------- on a cluster


def test_a_cluster_that_loses_a_worker_finishes_every_run_once_with_the_local_results(tmp_path, cluster):
    log, folder = tmp_path / "log", tmp_path / "cluster"
    configurations = grid(24, log)
    address, workers = cluster(2, seconds=0.15)

    def under_way():
        return {mark for mark in set(marks(log, "begun")) - set(marks(log, "done")) if mark[1] == str(workers[0].pid)}

    def stopped_in_a_run():
        workers[0].send_signal(signal.SIGSTOP)
        time.sleep(0.02)
        if not under_way():
            workers[0].send_signal(signal.SIGCONT)
        return under_way()

    def kill_half_way():
        wait_for(lambda: len(list(folder.glob("*.json"))) >= 12, seconds=60)
        wait_for(stopped_in_a_run)
        workers[0].kill()  # SIGKILL, with a run under way

    killer = threading.Thread(target=kill_half_way)
    killer.start()
    results = sweep.run(tasks.compute, configurations, folder, scheduler=address)
    killer.join()
    assert workers[0].wait(10) == -signal.SIGKILL
    lost = set(marks(log, "begun")) - set(marks(log, "done"))
    assert len(lost) == 1 and {process for _, process in lost} == {str(workers[0].pid)}
    assert set(times_done(log)) == {f"{c['x']}-{c['seed']}" for c in configurations}  # the lost one too, elsewhere
    records = sweep.load(folder)
    assert len(records) == 24 == len(list(folder.iterdir()))
    local = sweep.run(tasks.compute, configurations, tmp_path / "local", scheduler="", jobs=2)
    assert results == local
    assert {r["key"]: r["result"] for r in records} == {r["key"]: r["result"] for r in sweep.load(tmp_path / "local")}


def test_the_scheduler_of_the_environment_is_used_and_failing_runs_are_named(tmp_path, cluster, monkeypatch):
    address, workers = cluster(1)
    monkeypatch.setenv("SCHEDULER", address)
    log = tmp_path / "log"
    sweep.run(tasks.compute, grid(3, log), tmp_path)
    assert {process for _, process in marks(log, "done")} == {str(workers[0].pid)}
    offset = 5

    def shifted(x):  # workers need not be able to import what a notebook defines
        return x + offset

    assert sweep.run(shifted, [{"x": 2}, {"x": 1}], tmp_path) == [7, 6]
    with pytest.raises(RuntimeError, match=r'(?s)1 of 2 runs failed.*\{"x":0\}: ZeroDivisionError'):
        sweep.run(tasks.reciprocal, [{"x": 0}, {"x": 4}], tmp_path)


def test_a_scheduler_that_is_lost_on_the_way_is_named_and_the_finished_runs_stay(tmp_path, start):
    port, log = free_port(), tmp_path / "log"
    address = f"tcp://127.0.0.1:{port}"
    scheduler = start("-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard", "--no-show")
    start("-m", "dask", "worker", address, "--nthreads", 1, "--no-nanny", "--no-dashboard", seconds=0.1)
    folder = tmp_path / "results"
    configurations = grid(40, log)

    def kill():
        wait_for(lambda: len(list(folder.glob("*.json"))) >= 2, seconds=60)
        scheduler.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(ConnectionError, match=rf"the scheduler at {address} was lost.*of 40 runs are kept in"):
        sweep.run(tasks.compute, configurations, folder, scheduler=address)
    killer.join()
    assert 2 <= len(sweep.load(folder)) < 40


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense"])
def test_an_unreachable_scheduler_is_named_with_what_was_tried(tmp_path, address, monkeypatch):
    monkeypatch.setattr(sweep, "_PATIENCE", 1)
    with pytest.raises(ConnectionError, match=rf"no Dask scheduler answers at {address}: tried distributed\.Client"):
        sweep.run(tasks.reciprocal, [{"x": 1}], tmp_path, scheduler=address)


def test_a_scheduler_without_workers_is_no_reason_to_wait_for_ever(tmp_path, cluster, monkeypatch):
    address, _ = cluster(0)
    wait_for(lambda: answers(address))
    monkeypatch.setattr(sweep, "_PATIENCE", 3)
    with pytest.raises(ConnectionError, match=rf"the Dask scheduler at {address} has no worker.*dask worker {address}"):
        sweep.run(tasks.reciprocal, [{"x": 1}], tmp_path, scheduler=address)


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("below", ["/dev/null/results", "a file", "a file/results"])
def test_a_folder_that_cannot_be_written_is_named_before_any_work(tmp_path, below):
    (tmp_path / "a file").touch()
    folder = Path(below) if below.startswith("/") else tmp_path / below
    log = tmp_path / "log"
    with pytest.raises(ValueError, match=f"folder = {folder}: results cannot be written there"):
        sweep.run(tasks.compute, grid(2, log), folder, jobs=1)
    assert not times_done(log)
    with pytest.raises(ValueError, match="results cannot be written there"):
        sweep.search(tasks.objective, folder / "journal.log", 2, 9)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"configurations": [{"x": 1}, {"x": 2}, {"x": 1}]}, r"configurations\[2\] .* the same as configurations\[0\]"),
        ({"configurations": [{"x": 1}, 7]}, r"configurations\[1\] = 7: a mapping"),
        ({"configurations": [{"x": float("nan")}]}, r"configurations\[0\] .*plain JSON values"),
        ({"configurations": [{"x": {1}}]}, r"configurations\[0\] .*plain JSON values"),
        ({"configurations": [{"x": (1, 2)}]}, "sequences are lists"),
        ({"configurations": [{"x": {1: 2}}]}, "names are text"),
        ({"configurations": [{"y": 1}]}, "sweep_tasks.reciprocal cannot be called with it"),
        ({"jobs": 0}, "jobs = 0"),
        ({"jobs": 1.5}, "jobs = 1.5"),
        ({"version": 3}, "version = 3: text is needed"),
        ({"function": "reciprocal"}, "function = 'reciprocal'"),
        ({"function": lambda x: x}, "a function with a name is needed"),
    ],
)
def test_what_cannot_be_run_or_kept_is_refused_before_any_work(tmp_path, changes, message):
    call = {"function": tasks.reciprocal, "configurations": [{"x": 1}], "folder": tmp_path / "results", "jobs": 1}
    with pytest.raises(ValueError, match=message):
        sweep.run(**call | changes)
    assert not (tmp_path / "results").exists()


def test_a_folder_that_is_not_there_holds_no_runs(tmp_path):
    assert sweep.load(tmp_path / "nothing") == []


def test_results_lie_below_the_build_folder_unless_the_reader_names_another(tmp_path, monkeypatch):
    monkeypatch.setenv("BOOK_BUILD", str(tmp_path / "build"))
    monkeypatch.delenv("COLLAPSE_RESULTS", raising=False)
    assert sweep.results_folder("table") == tmp_path / "build" / "results" / "table"
    monkeypatch.setenv("COLLAPSE_RESULTS", str(tmp_path / "kept"))
    assert sweep.results_folder("table") == tmp_path / "kept" / "table"


@pytest.mark.parametrize("package", ["distributed", "optuna"])
def test_a_package_that_is_not_installed_is_named(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert sweep.run(tasks.reciprocal, [{"x": 2}], tmp_path, jobs=1) == [0.5]  # needs neither
    with pytest.raises(ImportError, match=f"needs the package '{package}', which is not installed"):
        if package == "optuna":
            sweep.search(tasks.objective, tmp_path / "journal.log", 2, 9)
        else:
            sweep.run(tasks.reciprocal, [{"x": 3}], tmp_path, scheduler="tcp://127.0.0.1:1")


# ----------------------------------------------------------------------------------------------------------- the search


def finished(study):
    return study.get_trials(deepcopy=False, states=FINISHED)


def workers_of(study):
    return Counter(trial.user_attrs["worker"][1] for trial in finished(study))


def test_a_search_finds_the_maximum_prunes_on_the_way_and_makes_as_many_trials_as_asked(tmp_path):
    study = sweep.search(tasks.objective, tmp_path / "journal.log", 30, 9)
    assert abs(study.best_params["x"] - 0.3) < 0.1
    states = Counter(trial.state.name for trial in study.trials)
    assert states["COMPLETE"] + states["PRUNED"] == 30 and states["PRUNED"] > 5


def test_a_search_that_goes_on_finds_what_it_would_have_found(tmp_path):
    def values(study):
        return [(trial.params, trial.value, trial.state) for trial in study.trials]

    whole = sweep.search(tasks.objective, tmp_path / "whole.log", 25, 9, seed=3)
    sweep.search(tasks.objective, tmp_path / "parts.log", 14, 9, seed=3)
    assert values(sweep.search(tasks.objective, tmp_path / "parts.log", 25, 9, seed=3)) == values(whole)
    other = sweep.search(tasks.objective, tmp_path / "other.log", 25, 9, seed=4)
    assert values(other) != values(whole)


def test_two_workers_on_one_journal_share_the_trials(tmp_path, start):
    call = {"journal": str(tmp_path / "journal.log"), "trials": 16, "resource": 9}
    workers = [start(tasks.__file__, "search", json.dumps(call), seconds=0.06) for _ in range(2)]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    study = sweep.search(tasks.objective, **call)
    assert 16 <= len(study.trials) <= 17 and len(finished(study)) == len(study.trials)
    assert set(workers_of(study)) == {worker.pid for worker in workers} and min(workers_of(study).values()) >= 2
    assert len({trial.params["x"] for trial in study.trials}) == len(study.trials)  # nobody drew the same


def test_a_killed_worker_leaves_a_search_that_others_finish(tmp_path, start):
    journal = tmp_path / "journal.log"
    call = {"journal": str(journal), "trials": 10, "resource": 9}
    victim, other = (start(tasks.__file__, "search", json.dumps(call), seconds=s) for s in (30, 0.03))
    marked = f'"worker":["{socket.gethostname()}",{victim.pid}]'
    wait_for(lambda: journal.exists() and marked in journal.read_text())
    time.sleep(0.3)  # it may still hold the lock of the journal; then it sleeps
    victim.kill()
    victim.wait()
    assert other.wait(60) == 0
    study = sweep.search(tasks.objective, journal, 12, 9)  # this process joins, and goes on
    assert len(finished(study)) == 12 and victim.pid not in workers_of(study)
    (lost,) = [trial for trial in study.trials if trial.user_attrs["worker"][1] == victim.pid]
    assert lost.state == optuna.trial.TrialState.FAIL
    assert study.best_value == max(trial.value for trial in finished(study) if trial.value is not None)


def test_trials_of_another_machine_are_given_up_only_after_the_time_that_is_named(tmp_path):
    journal = tmp_path / "journal.log"
    study = sweep.search(tasks.objective, journal, 1, 9)
    study.ask().set_user_attr("worker", ["another machine", 1])
    states = [
        sweep.search(tasks.objective, journal, 2, 9, stale_after=s).trials[1].state.name for s in (None, 60, 1e-3)
    ]
    assert states == ["RUNNING", "RUNNING", "FAIL"]


def test_the_lock_of_a_worker_that_died_over_it_is_taken_away(tmp_path, monkeypatch):
    journal = tmp_path / "journal.log"
    sweep.search(tasks.objective, journal, 1, 9)
    journal.with_name("journal.log.lock").symlink_to(journal)
    monkeypatch.setattr(sweep, "_GRACE", 3)
    assert len(finished(sweep.search(tasks.objective, journal, 2, 9))) == 2


def test_a_half_written_last_line_of_the_journal_is_cut_off(tmp_path):
    journal = tmp_path / "journal.log"
    sweep.search(tasks.objective, journal, 3, 9)
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole.splitlines()[-1][:20])
    with pytest.warns(UserWarning, match=r"journal\.log: its last line was half-written"):
        study = sweep.search(tasks.objective, journal, 5, 9)
    assert len(finished(study)) == 5
    assert len(finished(sweep.search(tasks.objective, journal, 6, 9))) == 6


def test_a_trial_that_fails_is_named_with_its_parameters_and_the_journal_stays_usable(tmp_path):
    def failing(trial):
        raise FloatingPointError(f"blew up at {trial.suggest_float('x', 0, 1):.1f}")

    with pytest.raises(RuntimeError, match=r"trial 0 with \{'x': .*\} failed: FloatingPointError: blew up"):
        sweep.search(failing, tmp_path / "journal.log", 2, 9)
    assert len(finished(sweep.search(tasks.objective, tmp_path / "journal.log", 2, 9))) == 2


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"trials": 0}, "trials = 0"),
        ({"trials": 2.0}, "trials = 2.0"),
        ({"resource": 0}, "resource = 0"),
        ({"direction": "up"}, "direction = 'up'"),
        ({"direction": "minimize"}, "holds a search that does not minimize"),
        ({"journal": "."}, "a file is needed, this is a folder"),
    ],
)
def test_a_search_that_cannot_be_made_is_refused(tmp_path, changes, message):
    call = {"journal": tmp_path / "journal.log", "trials": 1, "resource": 9}
    sweep.search(tasks.objective, **call)
    if "journal" in changes:
        changes = {"journal": tmp_path}
    with pytest.raises(ValueError, match=message):
        sweep.search(tasks.objective, **call | changes)
