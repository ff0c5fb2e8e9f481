"""Sweeps with real processes on the loopback address, some of which are killed on the way."""

import json
import re
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

import sweep_tasks as tasks
from lib.runs import sweep
from waiting import wait_for


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch):
    monkeypatch.delenv("SCHEDULER", raising=False)
    monkeypatch.setattr(sweep, "_PATIENCE", 20)  # the machine may be busy


@pytest.fixture
def cluster(start, monkeypatch):
    """Start a scheduler, which the environment names, and so many workers of one thread each."""

    def cluster(workers, seconds=0.0):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        address = f"tcp://127.0.0.1:{port}"
        monkeypatch.setenv("SCHEDULER", address)
        common = ("--no-dashboard", "--host", "127.0.0.1")
        scheduler = start("-m", "dask", "scheduler", *common, "--port", port, "--no-show")
        options = (*common, "--nthreads", 1, "--no-nanny", "--death-timeout", 60)
        return scheduler, [start("-m", "dask", "worker", address, *options, seconds=seconds) for _ in range(workers)]

    return cluster


def grid(n, log):
    log.mkdir(exist_ok=True)
    return [{"x": i // 4, "seed": i % 4, "log": str(log)} for i in range(n)]


def marks(log, kind):
    """Which runs were begun, or done, by which process."""
    return {tuple(path.name.split(".")[:2]) for path in Path(log).glob(f"*.{kind}")}


def times_done(log):
    return Counter(path.name.split(".")[0] for path in Path(log).glob("*.done"))


def kept(folder):
    return [json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")]


# ------------------------------------------------------------------------------------------------------ on this machine


def test_each_run_is_one_file_that_says_what_was_computed(tmp_path):
    sweep.run(tasks.compute, [{"x": 1, "seed": 2}], tmp_path, jobs=1, version="v1")
    (path,) = tmp_path.iterdir()
    (record,) = kept(tmp_path)
    assert path.name == f"{record['key']}.json"
    assert set(record) == {"key", "function", "configuration", "version", "result", "seconds", "checksum"}
    assert record["configuration"] == {"x": 1, "seed": 2} and record["version"] == "v1"
    assert record["function"] == "sweep_tasks.compute" and record["result"] == tasks.compute(1, 2)


def test_another_version_or_function_is_another_run(tmp_path):
    configurations = [{"x": 2}]
    assert sweep.run(tasks.reciprocal, configurations, tmp_path, jobs=1) == [0.5]
    sweep.run(tasks.reciprocal, configurations, tmp_path, jobs=1, version="v2")
    sweep.run(tasks.dies, configurations, tmp_path, jobs=1)
    assert len(kept(tmp_path)) == 3
    assert sweep.version_of(tasks.reciprocal) != sweep.version_of(tasks.compute)


def test_what_is_not_asked_for_is_not_computed_and_what_there_is_is_shown(tmp_path, monkeypatch):
    configurations, folder = grid(3, tmp_path / "log"), tmp_path / "results"
    assert sweep.run(tasks.compute, configurations, folder, asked=False) == [None] * 3 and not folder.exists()
    made = sweep.run(tasks.compute, configurations[:2], folder, jobs=1, version="v1")
    assert sweep.run(tasks.compute, configurations, folder, asked=False, version="v1") == [*made, None]
    assert sweep.run(tasks.compute, configurations, folder, asked=False) == [None] * 3
    assert len(times_done(tmp_path / "log")) == 2
    for value, asked in (("run", True), ("", False)):
        monkeypatch.setenv("COLLAPSE_SWEEP", value)
        assert sweep.asked_for() is asked


@pytest.fixture
def two_threads():
    """For torch in this process."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_run_has_one_thread_and_the_caller_keeps_its_own(tmp_path, jobs, two_threads):
    assert sweep.run(tasks.threads, [{"x": x} for x in range(3)], tmp_path, jobs=jobs) == [1] * 3
    assert torch.get_num_threads() == 2


def test_a_sweep_that_was_killed_resumes_recomputes_nothing_and_gives_the_results_in_order(tmp_path, start):
    log, folder = tmp_path / "log", tmp_path / "results"
    call = {"configurations": grid(12, log), "folder": str(folder), "jobs": 2}
    process = start(tasks.__file__, "run", json.dumps(call), seconds=0.3)
    wait_for(lambda: len(list(folder.glob("*.json"))) >= 4, "four results")
    process.kill()  # -9, the parent alone
    process.wait()
    before = [f"{r['configuration']['x']}-{r['configuration']['seed']}" for r in kept(folder)]
    assert 4 <= len(before) < 12
    reordered = [dict(reversed(configuration.items())) for configuration in call["configurations"]]
    results = sweep.run(tasks.compute, **call | {"configurations": reordered})
    assert results == [tasks.compute(c["x"], c["seed"]) for c in call["configurations"]]
    done = times_done(log)
    assert len(done) == len(kept(folder)) == 12 and all(done[run] == 1 for run in before)


def test_a_damaged_result_is_reported_by_its_name_and_computed_again(tmp_path):
    configurations = [{"x": x, "seed": 0} for x in range(3)]
    results = sweep.run(tasks.compute, configurations, tmp_path, jobs=1)
    path, other = sorted(tmp_path.glob("*.json"))[:2]
    whole = path.read_bytes()
    # truncated, empty, changed, no record, another's
    damages = whole[: len(whole) // 2], b"", whole.replace(b'"value": ', b'"value": 1'), b"[1, 2]", other.read_bytes()
    for damaged in damages:
        path.write_bytes(damaged)
        with pytest.warns(UserWarning, match=path.name):
            assert sweep.run(tasks.compute, configurations, tmp_path, asked=False).count(None) == 1
        with pytest.warns(UserWarning, match=path.name):
            assert sweep.run(tasks.compute, configurations, tmp_path, jobs=1) == results
        assert sweep.run(tasks.compute, configurations, tmp_path, asked=False) == results


@pytest.mark.parametrize(
    ("wrong", "error"), [({"x": 0}, "ZeroDivision"), ({"x": "unkeepable"}, "Type"), ({"X": 1}, "Type")]
)
def test_runs_that_fail_are_named_and_the_others_are_kept(tmp_path, wrong, error):
    with pytest.raises(RuntimeError, match=rf"(?s)1 of 3 runs failed.*{json.dumps(wrong)}: {error}Error.*Traceback"):
        sweep.run(tasks.reciprocal, [{"x": 2}, wrong, {"x": 4}], tmp_path, jobs=1)
    assert sorted(record["result"] for record in kept(tmp_path)) == [0.25, 0.5]


def test_the_death_of_a_local_process_is_one_clear_error_and_the_finished_runs_stay(tmp_path):
    with pytest.raises(RuntimeError, match="a process of this machine died .* runs are kept in"):
        sweep.run(tasks.dies, [{"x": x} for x in range(6)], tmp_path, jobs=2)
    assert {record["result"] for record in kept(tmp_path)} >= {0, 1, 2}


# --------------------------------------------------------------------------------------------------------- on a cluster


def test_a_cluster_that_loses_a_worker_finishes_every_run_once_and_one_that_loses_its_scheduler_says_so(
    tmp_path, cluster
):
    log, folder = tmp_path / "log", tmp_path / "cluster"
    configurations = grid(24, log)
    scheduler, workers = cluster(2, seconds=0.1)

    def stopped_in_a_run():
        workers[0].send_signal(signal.SIGSTOP)
        time.sleep(0.02)
        if str(workers[0].pid) in {process for _, process in marks(log, "begun") - marks(log, "done")}:
            return True
        workers[0].send_signal(signal.SIGCONT)

    def kill_half_way():
        wait_for(lambda: len(list(folder.glob("*.json"))) >= 12, "half of the results")
        wait_for(stopped_in_a_run, "a worker to be stopped in a run")
        workers[0].kill()  # SIGKILL, with a run under way

    killer = threading.Thread(target=kill_half_way)
    killer.start()
    results = sweep.run(tasks.compute, configurations, folder)
    killer.join()
    ((lost, process),) = marks(log, "begun") - marks(log, "done")
    assert process == str(workers[0].pid)
    assert lost in times_done(log) and len(times_done(log)) == len(kept(folder)) == 24  # the lost one too, elsewhere
    assert results == [tasks.compute(c["x"], c["seed"]) for c in configurations]

    offset = 5

    def shifted(x):  # workers need not be able to import what a notebook defines
        return x + offset

    assert sweep.run(shifted, [{"x": 2}, {"x": 1}], tmp_path / "other") == [7, 6]
    with pytest.raises(RuntimeError, match=r'(?s)1 of 2 runs failed.*{"x": 0}: ZeroDivisionError'):
        sweep.run(tasks.reciprocal, [{"x": 0}, {"x": 4}], tmp_path / "other")

    def kill():
        wait_for(lambda: len(list(folder.glob("*.json"))) >= 26, "some more results")
        scheduler.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(ConnectionError, match="the scheduler at tcp.* was lost.*of 40 runs are kept in"):
        sweep.run(tasks.compute, grid(40, log), folder)
    killer.join()
    assert 26 <= len(kept(folder)) < 40


def test_a_scheduler_that_is_shown_listens_to_this_machine_alone_or_asks_for_certificates():
    root = Path(sweep.__file__).parents[2]
    texts = [path.read_text() for path in (*root.glob("chapters/**/*.md"), *root.glob("lib/**/*.py"))]
    shown = [line for text in texts for line in re.findall(r"PYTHONPATH=. dask (?:scheduler|worker [^{]).*", text)]
    assert len(shown) >= 6
    assert [line for line in shown if not re.search("--host 127.0.0.1|--protocol tls|tls://", line)] == []


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense"])
def test_an_unreachable_scheduler_is_named(tmp_path, address, monkeypatch):
    monkeypatch.setattr(sweep, "_PATIENCE", 1)
    monkeypatch.setenv("SCHEDULER", address)
    with pytest.raises(ConnectionError, match=f"no Dask scheduler answers at {address}"):
        sweep.run(tasks.reciprocal, [{"x": 1}], tmp_path)


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"configurations": [{"x": 1}, {"x": 2}, {"x": 1}]}, r"configurations\[2\]"),
        ({"configurations": [{"x": {1}}]}, r"configurations\[0\]"),
        ({"function": lambda x: x}, "function"),
        ({"folder": "/dev/null/results"}, "folder"),
    ],
)
def test_what_cannot_be_run_or_kept_is_refused_before_any_work(tmp_path, changes, name):
    call = {"function": tasks.reciprocal, "configurations": [{"x": 1}], "folder": tmp_path / "results", "jobs": 1}
    with pytest.raises(ValueError, match=name):
        sweep.run(**call | changes)
    assert not (tmp_path / "results").exists()


def test_results_lie_below_the_build_folder_unless_the_reader_names_another(tmp_path, monkeypatch):
    monkeypatch.setenv("BOOK_BUILD", str(tmp_path / "build"))
    monkeypatch.delenv("COLLAPSE_RESULTS", raising=False)
    assert sweep.results_folder("table") == tmp_path / "build" / "results" / "table"
    monkeypatch.setenv("COLLAPSE_RESULTS", str(tmp_path / "kept"))
    assert sweep.results_folder("table") == tmp_path / "kept" / "table"
