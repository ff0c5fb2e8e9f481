"""Runs in parts: what is kept of them, what is taken up again, and what happens when the memory does not suffice."""

import base64
import gc
import io
import json
import os
import time
import weakref
from collections import namedtuple
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from lib.book import atomic as files
from lib.runs import kept, store


class Work:
    """Squares, with a record of the parts that were asked for; `obstacle` is called with each part first."""

    def __init__(self, obstacle=lambda part: None):
        self.parts, self.obstacle = [], obstacle

    def __call__(self, part):
        self.parts.append(list(part))
        self.obstacle(part)
        return [torch.tensor(float(item)) ** 2 for item in part]


@pytest.fixture
def build(tmp_path, monkeypatch):
    """The folder that a build gives to a chapter."""
    monkeypatch.setenv("COLLAPSE_UNFINISHED", str(tmp_path / "unfinished"))
    return tmp_path / "unfinished"


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    for name in ("COLLAPSE_UNFINISHED", "COLLAPSE_NOTES"):
        monkeypatch.delenv(name, raising=False)


def again(*arguments, **options):
    """`kept.run` in the kernel of the next build."""
    kept._returned.clear()
    return kept.run(*arguments, **options)


def squares(numbers):
    return [number**2 for number in numbers]


# ------------------------------------------------------------------------------------------------------------- the runs


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, [[3, 1, 2, 5, 4]]),
        ({"at_once": 1}, [[3], [1], [2], [5], [4]]),
        ({"at_once": 3}, [[3, 1, 2], [5, 4]]),
        ({"at_once": 9, "alike": lambda item: item % 2}, [[3, 1, 5], [2, 4]]),
        ({"at_once": 2, "alike": lambda item: item % 2}, [[3, 1], [5], [2, 4]]),
    ],
)
def test_results_are_in_the_order_of_the_items_whatever_the_parts(options, parts):
    work = Work()
    assert kept.run(work, [3, 1, 2, 5, 4], "squares", **options) == [9, 1, 4, 25, 16]
    assert work.parts == parts


@pytest.mark.parametrize("options", [{}, {"at_once": 1}, {"alike": lambda item: item % 2}])
def test_results_are_in_the_order_of_the_items_wherever_they_are_made(build, options):
    assert kept.run(squares, [3, 1, 2, 5, 4], "squares", jobs=2, **options) == [9, 1, 4, 25, 16]
    assert again(work := Work(), [3, 1, 2, 5, 4], "squares") == [9, 1, 4, 25, 16] and not work.parts


def test_parts_are_computed_side_by_side_in_processes_with_one_thread_of_torch_each(tmp_path):
    def function(part):
        (tmp_path / f"{os.getpid()}").touch()
        while len(list(tmp_path.iterdir())) < 2:  # nobody goes on alone
            time.sleep(0.01)
        return [torch.get_num_threads() for _ in part]

    assert kept.run(function, [1, 2, 3], "processes", jobs=2) == [1, 1, 1]
    assert not (tmp_path / f"{os.getpid()}").exists()


def test_jobs_are_as_many_as_cores_and_a_card_has_one(monkeypatch):
    monkeypatch.setattr(kept.joblib, "cpu_count", lambda: 2)
    for card, processes in ((False, 2), (True, 1)):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda card=card: card)
        parts = kept.run(lambda part: [len(part)] * len(part), [1, 2, 3, 4], "parts", jobs=None)
        assert parts == [4 // processes] * 4


def test_no_items_are_no_work():
    work = Work()
    assert kept.run(work, [], "squares") == [] and work.parts == []


def test_the_rows_of_one_tensor_are_results_with_memory_of_their_own():
    large = torch.arange(12.0, requires_grad=True).view(4, 3)
    results = kept.run(lambda part: large[part], [0, 3], "rows")
    assert [result.tolist() for result in results] == [[0, 1, 2], [9, 10, 11]]
    assert all(result.untyped_storage().nbytes() == 3 * 4 and not result.requires_grad for result in results)


@pytest.mark.parametrize(
    ("items", "name"),
    [([1, 2, 1], r"items\[2\].*items\[0\]"), ([0, float("nan")], r"items\[1\]"), ([0, torch.ones(1)], r"items\[1\]")],
)
def test_what_cannot_be_told_apart_is_refused_before_any_work(items, name):
    work = Work()
    with pytest.raises(ValueError, match=name):
        kept.run(work, items, "odd")
    assert work.parts == []


@pytest.mark.parametrize("returned", [[1], [1, object()], [1, [np.array([object()])]], [1, torch.eye(2).to_sparse()]])
def test_what_is_no_sequence_of_results_that_can_be_kept_is_refused(returned):
    with pytest.raises(ValueError, match="a result holds|argument 2 is shorter"):
        kept.run(lambda part: returned, [1, 2], "odd")


# --------------------------------------------------------------------------------------------------------- what is kept


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), KeyboardInterrupt(), RuntimeError("shapes do not fit")])
def test_what_was_finished_before_an_error_is_not_computed_again(build, capsys, error):
    with pytest.raises(type(error)):
        kept.run(Work(Mock(side_effect=[None, None, error])), [0, 1, 2, 3, 4], "squares", at_once=2)
    work = Work()
    assert again(work, [0, 1, 2, 3, 4], "squares", at_once=3) == squares([0, 1, 2, 3, 4])
    assert len(work.parts) == 1 and 1 <= len(work.parts[0]) <= 2
    assert f"squares: {5 - len(work.parts[0])} of 5 runs are taken up from a build before" in capsys.readouterr().out
    assert again(work, [3, 9, 0], "squares") == squares([3, 9, 0]) and work.parts[1:] == [[9]]


def test_what_other_processes_finished_before_an_error_is_not_computed_again(build):
    def function(part):
        if part == [3]:
            time.sleep(2)  # what ends in the moment of the error may be lost
            raise ZeroDivisionError
        return squares(part)

    with pytest.raises(ZeroDivisionError):
        kept.run(function, [0, 1, 2, 3], "squares", at_once=1, jobs=2)
    assert again(work := Work(), [0, 1, 2, 3], "squares") == squares([0, 1, 2, 3]) and work.parts == [[3]]


def test_what_is_taken_up_is_noted_with_the_seconds_that_it_took(build, tmp_path, monkeypatch):
    clock = iter([0, 60, 100, 130])
    with monkeypatch.context() as patched:
        patched.setattr(kept.time, "perf_counter", lambda: next(clock))
        kept.run(Work(), [0, 1, 2], "squares", at_once=2)
    monkeypatch.setenv("COLLAPSE_NOTES", str(tmp_path / "notes"))
    again(Work(), [1, 2, 3], "squares")
    noted = json.loads((tmp_path / "notes").read_text())
    assert noted == {"kind": "resumed", "name": "squares", "runs": 2, "seconds": 60 / 2 + 30}


RESULTS = {
    "tensors": [torch.arange(6, dtype=torch.float64).view(2, 3), torch.tensor([1.5, -2], dtype=torch.bfloat16)],
    "views": [torch.arange(6).view(2, 3).T, torch.empty(0, 3)],
    "arrays": [np.arange(6, dtype=np.uint16).reshape(3, 2), np.array(["a", "bcd"]), np.empty((2, 0))],
    "scalar": np.float32(0.1),
    "numbers": [1, 2.5, True, None, "text", float("inf"), 10**30, 1j],
    "nested": {"a": (1, [torch.ones(2), (np.zeros(1),)]), 3: {}, None: []},
}


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS.keys())
def test_a_result_comes_back_as_it_was_made(build, result):
    (made,) = kept.run(lambda part: [result], ["item"], "kinds")
    (read,) = again(Work(), ["item"], "kinds")
    assert repr(made) == repr(result) == repr(read)


def test_a_named_tuple_comes_back_as_a_tuple_taken_up_or_not(build):
    pair = namedtuple("Pair", "first second")(1, "b")
    made = kept.run(lambda part: [pair], [0], "pairs")
    assert made == again(Work(), [0], "pairs") == [(1, "b")]
    assert type(made[0]) is tuple


def test_a_kept_file_runs_no_code_and_is_named_and_made_again(build, capsys):
    class Intruder:
        def __reduce__(self):
            return print, ("intruder",)

    kept.run(Work(), [0], "squares")
    (path,) = build.iterdir()
    torch.save(Intruder(), content := io.BytesIO())
    text = base64.b64encode(content.getvalue()).decode()
    store.keep(build, path.stem, {"result": text, "seconds": 0})
    with pytest.warns(UserWarning, match=f"{path.name} cannot be read back"):
        assert again(Work(), [0], "squares") == [0]
    said = capsys.readouterr().out
    assert "intruder" not in said and "taken up" not in said


def test_a_half_written_file_is_as_good_as_none(build, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(files.os, "replace", killed)
        kept.run(Work(), [1, 2], "squares")
    work = Work()
    assert again(work, [1, 2], "squares") == [1, 4] and work.parts == [[1, 2]]


def test_computations_of_other_names_are_kept_apart_and_a_name_serves_once(build):
    kept.run(lambda part: part, [1, 2], "the numbers")
    assert kept.run(squares, [1, 2], "their squares") == [1, 4]
    with pytest.raises(ValueError, match="name = 'the numbers'"):
        kept.run(squares, [2, 3], "the numbers")


def test_what_a_machine_without_a_card_began_is_not_taken_up_by_one_with_a_card(build, monkeypatch):
    work = Work()
    for gpu in (False, True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        again(work, [1, 2], "squares")
    assert work.parts == [[1, 2], [1, 2]]


def test_outside_a_build_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    work = Work()
    for _ in range(2):
        kept.run(work, [1, 2], "squares")
    assert len(work.parts) == 2 and not list(tmp_path.iterdir())


def test_where_nothing_can_be_kept_the_computation_goes_on(build, capsys):
    build.write_text("a file, where the folder should be")
    assert kept.run(Work(), [1, 2], "squares", at_once=1) == [1, 4]
    assert "1 finished runs cannot be kept for a later build" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------------- out of memory


def by_the_card(part):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB. If reserved but unallocated ...")


def by_the_processor(part):
    torch.empty(2**60, dtype=torch.uint8)


def by_numpy(part):
    np.empty(2**60, np.uint8)


def by_a_library(part):
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def while_a_graph_is_recorded(part):
    try:
        by_the_card(part)
    finally:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.mark.parametrize("lack", [by_the_card, by_the_processor, by_numpy, by_a_library, while_a_graph_is_recorded])
def test_parts_that_do_not_fit_into_memory_are_halved_until_they_do(capsys, lack):
    work = Work(lambda part: lack(part) if len(part) > 3 else None)
    assert kept.run(work, list(range(11)), "squares") == squares(range(11))
    assert [len(part) for part in work.parts] == [11, 5, 2, 2, 1, 2, 2, 2]
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("squares: 11 runs at once do not fit into memory, now 5 at a time (")
    assert second.startswith("squares: 5 runs at once do not fit into memory, now 2 at a time (")
    assert "If reserved" not in first


@pytest.mark.parametrize(("lack", "size"), [(by_the_card, "3.00 GiB"), (by_the_processor, 2**60), (by_numpy, "EiB")])
def test_a_run_that_does_not_fit_alone_fails_with_the_size_that_it_needed(build, lack, size):
    work = Work(lambda part: lack(part) if 3 in part else None)
    with pytest.raises(RuntimeError, match=f"squares: the run 3 alone .*{size}"):
        kept.run(work, [1, 2, 3, 4], "squares", at_once=2)
    assert work.parts == [[1, 2], [3, 4], [3]]
    again(work := Work(), [1, 2, 3, 4], "squares")
    assert work.parts == [[3, 4]], "what was finished is kept"


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
        kept.run(function, [1, 2, 3, 4], "large")
    finally:
        gc.enable()
    assert alive[:3] == [[], [False], [False, False]]
