"""Runs in parts: what is kept of them, what is taken up again, what a cluster loses, and what memory does not hold."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import namedtuple

import numpy as np
import pytest
import torch

from lib.book import resume
from lib.book.folders import ROOT
from waiting import wait_for


class Work:
    """Squares, with a record of the parts that were asked for; `obstacle` is called with each part first."""

    def __init__(self, obstacle=lambda part: None):
        self.parts, self.obstacle = [], obstacle

    def __call__(self, part):
        self.parts.append(list(part))
        self.obstacle(part)
        return [torch.tensor(float(item)) ** 2 for item in part]


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    for name in ("COLLAPSE_UNFINISHED", "COLLAPSE_NOTES", "BOOK_SCHEDULER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def build(tmp_path, monkeypatch):
    """The folder that a build gives to a chapter."""
    monkeypatch.setenv("COLLAPSE_UNFINISHED", str(tmp_path / "unfinished"))
    return tmp_path / "unfinished"


def again(*arguments, **options):
    """`resume.run` in the kernel of the next build."""
    resume._returned.clear()
    return resume.run(*arguments, **options)


def squares(numbers):
    return [number**2 for number in numbers]


def fails_at(value, error):
    def obstacle(part):
        if value in part:
            raise error

    return obstacle


# ------------------------------------------------------------------------------------------------------------- the runs


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, [[3, 1, 2, 5, 4]]),
        ({"at_once": 3}, [[3, 1, 2], [5, 4]]),
        ({"at_once": 2, "alike": lambda item: item % 2}, [[3, 1], [5], [2, 4]]),
    ],
)
def test_results_are_in_the_order_of_the_items_whatever_the_parts(options, parts):
    work = Work()
    assert resume.run(work, [3, 1, 2, 5, 4], "squares", **options) == [9, 1, 4, 25, 16]
    assert work.parts == parts


def test_parts_are_computed_side_by_side_in_processes_with_one_thread_of_torch_each(tmp_path):
    def function(part):
        (tmp_path / f"{os.getpid()}").touch()
        while len(list(tmp_path.iterdir())) < 2:  # nobody goes on alone
            time.sleep(0.01)
        return [(item, torch.get_num_threads()) for item in part]

    assert resume.run(function, [3, 1, 2], "processes", jobs=2) == [(3, 1), (1, 1), (2, 1)]
    assert not (tmp_path / f"{os.getpid()}").exists()


def test_the_rows_of_one_tensor_are_results_with_memory_of_their_own():
    large = torch.arange(12.0, requires_grad=True).view(4, 3)
    results = resume.run(lambda part: large[part], [0, 3], "rows")
    assert [result.tolist() for result in results] == [[0, 1, 2], [9, 10, 11]]
    assert all(result.untyped_storage().nbytes() == 3 * 4 and not result.requires_grad for result in results)


@pytest.mark.parametrize("returned", [[1], [1, object()], [1, np.array([object()])]])
def test_what_is_no_sequence_of_results_that_can_be_kept_is_refused(returned):
    with pytest.raises(RuntimeError, match="a result holds|argument 2 is shorter"):
        resume.run(lambda part: returned, [1, 2], "odd")


# --------------------------------------------------------------------------------------------------------- what is kept


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_is_named_and_the_others_are_finished_and_kept(build, capsys, jobs):
    work = Work(fails_at(3, ZeroDivisionError("by nought")))
    with pytest.raises(RuntimeError, match=r"(?s)squares: these runs failed.*\n3: Traceback.*: by nought"):
        resume.run(work, [0, 1, 2, 3, 4], "squares", at_once=1, jobs=jobs)
    assert again(work := Work(), [0, 1, 2, 3, 4], "squares") == [0, 1, 4, 9, 16] and work.parts == [[3]]
    assert "squares: 4 of 5 runs are taken up from a build before" in capsys.readouterr().out


def test_what_was_finished_before_an_interruption_is_not_computed_again(build):
    with pytest.raises(KeyboardInterrupt):
        resume.run(Work(fails_at(4, KeyboardInterrupt())), [0, 1, 2, 3, 4], "squares", at_once=2)
    work = Work()
    assert again(work, [0, 1, 2, 3, 4], "squares") == [0, 1, 4, 9, 16] and work.parts == [[4]]
    assert again(work, [3, 9, 0], "squares") == [9, 81, 0] and work.parts[1:] == [[9]], "other items are other runs"


KILLED = """import sys, time
from lib.book import resume
def wait_at_3(item):
    time.sleep(600 * (item == 3))
    return item
resume.each(wait_at_3, [0, 1, 2, 3, 4], "numbers", folder=sys.argv[1])"""


def test_a_killed_process_leaves_its_finished_runs(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path / "kept"], cwd=ROOT)
    try:
        wait_for(lambda: len([*tmp_path.glob("kept/*.pt")]) == 3, "three runs")
    finally:
        process.kill()
        process.wait()
    work = Work()
    assert again(work, [0, 1, 2, 3, 4], "numbers", folder=tmp_path / "kept") == [0, 1, 2, 9, 16]
    assert work.parts == [[3, 4]]


def test_what_is_taken_up_is_noted_with_the_seconds_that_it_took(build, tmp_path, monkeypatch):
    clock = iter([0, 60, 100, 130])
    with monkeypatch.context() as patched:
        patched.setattr(resume.time, "perf_counter", lambda: next(clock))
        resume.run(Work(), [0, 1, 2], "squares", at_once=2)
    monkeypatch.setenv("COLLAPSE_NOTES", str(tmp_path / "notes"))
    again(Work(), [1, 2, 3], "squares")
    noted = json.loads((tmp_path / "notes").read_text())
    assert noted == {"kind": "resumed", "name": "squares", "runs": 2, "seconds": 60 / 2 + 30}


RESULTS = {
    "tensors": [torch.arange(6, dtype=torch.float64).view(2, 3), torch.tensor([1.5, -2], dtype=torch.bfloat16)],
    "views": [torch.arange(6).view(2, 3).T, torch.empty(0, 3)],
    "arrays": [np.arange(6, dtype=np.uint16).reshape(3, 2), np.array(["a", "bcd"]), np.empty((2, 0)), np.float32(0.1)],
    "numbers": [1, 2.5, True, None, "text", float("inf"), 10**30, 1j],
    "nested": {"a": (1, [torch.ones(2), (np.zeros(1),)]), 3: {}, None: []},
}


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS.keys())
def test_a_result_comes_back_as_it_was_made(build, result):
    (made,) = resume.run(lambda part: [result], ["item"], "kinds")
    (read,) = again(Work(), ["item"], "kinds")
    assert repr(made) == repr(result) == repr(read)


def test_a_named_tuple_comes_back_as_a_tuple_taken_up_or_not(build):
    pair = namedtuple("Pair", "first second")(1, "b")
    made = resume.run(lambda part: [pair], [0], "pairs")
    assert made == again(Work(), [0], "pairs") == [(1, "b")]
    assert type(made[0]) is tuple


def test_a_kept_file_runs_no_code_and_is_named(build, capsys):
    class Intruder:
        def __reduce__(self):
            return print, ("intruder",)

    resume.run(Work(), [0], "squares")
    (path,) = build.iterdir()
    torch.save({"result": Intruder(), "seconds": 0}, path)
    with pytest.raises(ValueError, match=f"{path.name} cannot be read"):
        again(Work(), [0], "squares")
    assert "intruder" not in capsys.readouterr().out


def test_runs_that_differ_only_in_their_seed_are_kept_apart(build):
    runs = [["label smoothing", 0.1, seed] for seed in (1, 2)]
    assert resume.run(lambda part: [seed for *_, seed in part], runs, "seeds") == [1, 2]
    assert again(lambda part: [], runs[::-1], "seeds") == [2, 1]


def test_computations_of_other_names_are_kept_apart_and_a_name_serves_once(build):
    resume.run(lambda part: part, [1, 2], "the numbers")
    assert resume.run(squares, [1, 2], "their squares") == [1, 4]
    with pytest.raises(ValueError, match="name = 'the numbers'"):
        resume.run(squares, [2, 3], "the numbers")


def test_what_a_machine_without_a_card_began_is_not_taken_up_by_one_with_a_card(build, monkeypatch):
    work = Work()
    for gpu in (False, True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        again(work, [1, 2], "squares")
    assert work.parts == [[1, 2], [1, 2]]


def test_outside_a_build_nothing_is_kept_and_what_is_not_asked_for_is_not_computed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    work = Work()
    assert resume.run(work, [1, 2], "squares") == resume.run(work, [1, 2], "squares") and len(work.parts) == 2
    assert not list(tmp_path.iterdir())
    again(work, [2], "squares", folder="kept")
    assert again(work, [1, 2], "squares", folder="kept", asked=False) == [None, 4] and len(work.parts) == 3


# ------------------------------------------------------------------------------------------------------- on a cluster


def test_a_cluster_makes_the_runs_of_a_chapter_and_a_killed_worker_loses_nothing(build, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    exponent = 2
    log = tmp_path / "log"
    log.mkdir()

    def power(part):
        results = []
        for item in part:
            (log / f"{item} {os.getpid()} begun").touch()
            time.sleep(0.2)
            results.append({"power": torch.tensor(item) ** exponent, "threads": torch.get_num_threads()})
            (log / f"{item} {os.getpid()} done").touch()
        return results

    def fails(part):
        raise ZeroDivisionError("by nought")

    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, silence_logs=50
    ) as cluster:
        monkeypatch.setenv("BOOK_SCHEDULER", cluster.scheduler_address)
        victim, other = (worker.pid for worker in cluster.workers.values())

        def kill():
            wait_for(lambda: len([*build.glob("*.pt")]) >= 6 and [*log.glob(f"* {victim} begun")], "some results")
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        found = resume.run(power, list(range(20)), "powers", at_once=1)
        killer.join()
        assert {path.name.split()[1] for path in log.iterdir()} >= {str(victim), str(other)}
        assert str(os.getpid()) not in {path.name.split()[1] for path in log.iterdir()}
        assert [one["power"] for one in found] == squares(range(20)) and {one["threads"] for one in found} == {1}
        assert len([*build.glob("*.pt")]) == 20
        with pytest.raises(RuntimeError, match="(?s)\n5: .*by nought"):
            resume.run(fails, [5], "fails")
    assert again(Work(), list(range(20)), "powers") == found, "what a cluster made is taken up without it"


# ------------------------------------------------------------------------------------------------------- out of memory


def by_the_card(part):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB. If reserved but unallocated ...")


def by_the_processor(part):
    torch.empty(2**60, dtype=torch.uint8)


def by_numpy(part):
    np.empty(2**60, dtype=np.uint8)


def while_a_graph_is_recorded(part):
    try:
        by_the_card(part)
    finally:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.mark.parametrize("lack", [by_the_card, by_the_processor, by_numpy, while_a_graph_is_recorded])
def test_parts_that_do_not_fit_into_memory_are_halved_until_they_do(capsys, lack):
    work = Work(lambda part: lack(part) if len(part) > 3 else None)
    assert resume.run(work, list(range(11)), "squares") == squares(range(11))
    assert [len(part) for part in work.parts] == [11, 5, 2, 2, 1, 2, 2, 2]
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("squares: 11 runs at once do not fit into memory, now 5 at a time (")
    assert second.startswith("squares: 5 runs at once do not fit into memory, now 2 at a time (")
    assert "If reserved" not in first


def test_a_run_that_does_not_fit_alone_fails_with_the_size_that_it_needed(build):
    work = Work(lambda part: by_the_card(part) if 3 in part else None)
    with pytest.raises(RuntimeError, match="3: alone it does not fit .*3.00 GiB"):
        resume.run(work, [1, 2, 3, 4], "squares", at_once=2)
    assert work.parts == [[1, 2], [3, 4], [3], [4]]
    again(work := Work(), [1, 2, 3, 4], "squares")
    assert work.parts == [[3]], "what was finished is kept"


def test_the_memory_of_a_part_that_did_not_fit_is_free_before_the_next_begins():
    held, alive = [], []

    class Large:
        pass

    def function(part):
        alive.append([reference() is not None for reference in held])
        large = Large()
        large.itself = large  # only the collector finds it
        held.append(weakref.ref(large))
        if len(part) > 1:
            raise torch.OutOfMemoryError("not enough")
        return part

    gc.disable()
    try:
        resume.run(function, [1, 2, 3, 4], "large")
    finally:
        gc.enable()
    assert alive[:3] == [[], [False], [False, False]]
