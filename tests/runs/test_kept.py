"""Runs in parts: what is kept of them, what is taken up again, and what happens when the memory does not suffice."""

import gc
import itertools
import json
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import torch

from lib.runs import kept


class Work:
    """Squares, with a record of the parts that were asked for; `obstacle` is called with each part first."""

    def __init__(self, obstacle=lambda part: None):
        self.parts, self.obstacle = [], obstacle

    def __call__(self, part):
        self.parts.append(list(part))
        self.obstacle(part)
        return [torch.tensor(float(item)) ** 2 for item in part]


class Build:
    """A build that gives the chapter a folder; `again` is the kernel of the next build."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder / "unfinished"
        monkeypatch.setenv("COLLAPSE_UNFINISHED", str(self.folder))
        monkeypatch.setattr(kept, "_finished", set())

    def again(self):
        kept._finished.clear()

    def files(self):
        return sorted(path for path in self.folder.rglob("*") if path.is_file())


@pytest.fixture
def build(tmp_path, monkeypatch):
    return Build(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    for name in ("COLLAPSE_UNFINISHED", "COLLAPSE_NOTES"):
        monkeypatch.delenv(name, raising=False)


def squares(numbers):
    return [number**2 for number in numbers]


# ------------------------------------------------------------------------------------------------------------- the runs


@pytest.mark.parametrize(
    ("at_once", "parts"), [(None, [[3, 1, 2]]), (1, [[3], [1], [2]]), (2, [[3, 1], [2]]), (7, [[3, 1, 2]])]
)
def test_results_are_in_the_order_of_the_items_in_parts_of_the_size_asked_for(at_once, parts):
    work = Work()
    assert kept.run(work, [3, 1, 2], "squares", at_once) == [9, 1, 4]
    assert work.parts == parts


def test_no_items_are_no_work():
    work = Work()
    assert kept.run(work, [], "squares") == [] and work.parts == []


def test_the_rows_of_one_tensor_are_results_with_memory_of_their_own():
    large = torch.arange(12.0, requires_grad=True).view(4, 3)
    results = kept.run(lambda part: large[part], [0, 3], "rows")
    assert [result.tolist() for result in results] == [[0, 1, 2], [9, 10, 11]]
    assert all(result.untyped_storage().nbytes() == 3 * 4 and not result.requires_grad for result in results)


@pytest.mark.parametrize("items", [[1, 2, 1], [{"a": 1, "b": 2}, {"b": 2, "a": 1}], [(1, 2), [1, 2]]])
def test_an_item_that_is_there_twice_is_refused(items):
    work = Work()
    with pytest.raises(ValueError, match=rf"items\[{len(items) - 1}\] = .*the same as items\[0\]"):
        kept.run(work, items, "twice")
    assert work.parts == []


@pytest.mark.parametrize("item", [{1, 2}, float("nan"), np.float32(1), torch.ones(1)])
def test_an_item_that_json_cannot_write_is_refused(item):
    work = Work()
    with pytest.raises(ValueError, match=r"items\[1\] = .*JSON cannot write it"):
        kept.run(work, [0, item], "odd")
    assert work.parts == []


@pytest.mark.parametrize("at_once", [0, -1, 1.5])
def test_parts_of_no_size_are_refused(at_once):
    with pytest.raises(ValueError, match=f"at_once = {at_once}: a positive integer"):
        kept.run(Work(), [1], "squares", at_once)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1], "returned 1 results for 2 items"),
        ({"a": 1, "b": 2}, "returned a dict"),
        ("ab", "returned a str"),
        ((i for i in range(2)), "returned a generator"),
        ([1, object()], "holds a object"),
        ([1, {(1, 2): 3}], "holds a dict"),
        ([1, [np.array([object()])]], "holds a ndarray"),
        ([1, torch.eye(2).to_sparse()], "holds a Tensor"),
    ],
)
def test_what_is_no_sequence_of_results_that_can_be_kept_is_refused(returned, message):
    with pytest.raises(ValueError, match=message):
        kept.run(lambda part: returned, [1, 2], "odd")


# --------------------------------------------------------------------------------------------------------- what is kept


def interrupted(after, error):
    """An obstacle that raises the error once so many parts are made."""
    count = itertools.count()

    def obstacle(part):
        if next(count) == after:
            raise error

    return obstacle


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), KeyboardInterrupt(), RuntimeError("shapes do not fit")])
def test_what_was_finished_before_an_error_is_not_computed_again(build, capsys, error):
    work = Work(interrupted(2, error))
    with pytest.raises(type(error)):
        kept.run(work, [0, 1, 2, 3, 4], "squares", at_once=2)
    build.again()
    work = Work()
    assert kept.run(work, [0, 1, 2, 3, 4], "squares", at_once=3) == squares([0, 1, 2, 3, 4])
    assert work.parts == [[4]]
    assert "squares: 4 of 5 runs are taken up from a build before" in capsys.readouterr().out
    build.again()
    assert kept.run(work, [3, 9, 0], "squares") == squares([3, 9, 0]) and work.parts[1:] == [[9]]


def test_what_is_taken_up_is_noted_with_the_seconds_that_it_took(build, tmp_path, monkeypatch):
    clock = iter([0, 60, 100, 130])
    with monkeypatch.context() as patched:
        patched.setattr(kept.time, "perf_counter", lambda: next(clock))
        kept.run(Work(), [0, 1, 2], "squares", at_once=2)
    build.again()
    monkeypatch.setenv("COLLAPSE_NOTES", str(tmp_path / "notes"))
    kept.run(Work(), [1, 2, 3], "squares")
    noted = json.loads((tmp_path / "notes").read_text())
    assert noted == {"kind": "resumed", "name": "squares", "runs": 2, "seconds": 60 / 2 + 30}


class Pair(NamedTuple):
    first: object
    second: object


RESULTS = {
    "tensor": torch.arange(6, dtype=torch.float64).view(2, 3),
    "half": torch.tensor([1.5, -2], dtype=torch.bfloat16),
    "transposed": torch.arange(6).view(2, 3).T,
    "empty": torch.empty(0, 3),
    "array": np.arange(6, dtype=np.uint16).reshape(3, 2),
    "big-endian": np.array([1.0, 2.0], ">f4"),
    "complex": np.array([1 + 2j]),
    "words": np.array(["a", "bcd"]),
    "empty array": np.empty((2, 0), np.float32),
    "scalar": np.float32(0.1),
    "numbers": [1, 2.5, True, None, "text", float("inf"), 10**30, 1j],
    "nested": {"a": (1, [torch.ones(2), (np.zeros(1),)]), 3: {}, None: [], "array": ["array", 1]},
}


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and (a == b).all()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS.keys())
def test_a_result_comes_back_as_it_was_made(build, result):
    (made,) = kept.run(lambda part: [result], ["item"], "kinds")
    build.again()
    (kept,) = kept.run(Work(), ["item"], "kinds")
    assert same(made, result) and same(kept, result)


def test_a_named_tuple_comes_back_as_a_tuple_taken_up_or_not(build):
    made = kept.run(lambda part: [Pair(1, "b")], [0], "pairs")
    build.again()
    assert made == kept.run(Work(), [0], "pairs") == [(1, "b")]
    assert type(made[0]) is tuple


def halved(content):
    return content[: len(content) // 2]


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [halved, flipped, lambda content: b"", lambda content: b"no such thing" * 100])
def test_a_damaged_file_is_named_and_its_runs_are_made_again(build, capsys, damage):
    kept.run(Work(), [0, 1, 2, 3], "squares", at_once=2)
    damaged, _ = build.files()
    damaged.write_bytes(damage(damaged.read_bytes()))
    build.again()
    work = Work()
    assert kept.run(work, [0, 1, 2, 3], "squares", at_once=4) == squares([0, 1, 2, 3])
    assert len(work.parts) == 1 and len(work.parts[0]) == 2
    assert f"{damaged} is damaged" in capsys.readouterr().out
    build.again()
    kept.run(work, [0, 1, 2, 3], "squares")
    assert len(work.parts) == 1, "the runs made again are kept as well"


def test_a_half_written_part_is_as_good_as_none(build, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(kept.os, "replace", killed)
        kept.run(Work(), [1, 2], "squares")
    assert len(build.files()) == 1
    work = Work()
    assert kept.run(work, [1, 2], "squares") == [1, 4] and work.parts == [[1, 2]]


def test_computations_of_other_names_are_kept_apart(build):
    kept.run(lambda part: part, [1, 2], "the numbers")
    assert kept.run(lambda part: squares(part), [1, 2], "their squares") == [1, 4]


def test_what_a_machine_without_a_card_began_is_not_taken_up_by_one_with_a_card(build, monkeypatch):
    work = Work()
    for gpu in (False, True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        build.again()
        kept.run(work, [1, 2], "squares")
    assert work.parts == [[1, 2], [1, 2]]


def test_a_name_that_is_used_twice_is_refused_where_the_first_results_would_pass_for_the_second(build):
    kept.run(lambda part: part, [1, 2], "numbers")
    with pytest.raises(ValueError, match="name = 'numbers': the run 2 was made before under this name"):
        kept.run(lambda part: squares(part), [2, 3], "numbers")


def test_outside_a_build_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    work = Work()
    for _ in range(2):
        kept.run(work, [1, 2], "squares")
    assert len(work.parts) == 2 and not list(tmp_path.iterdir())


def test_where_nothing_can_be_kept_the_computation_goes_on(build, capsys):
    build.folder.write_text("a file, where the folder should be")
    assert kept.run(Work(), [1, 2], "squares", at_once=1) == [1, 4]
    assert "1 finished runs cannot be kept for a later build" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------------- out of memory


def by_the_card(part):
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 139.81 GiB. If reserved but"
        " unallocated memory is large try setting PYTORCH_ALLOC_CONF"
    )


def by_the_processor(part):
    torch.empty(2**60, dtype=torch.uint8)


def by_numpy(part):
    np.empty(2**60, np.uint8)


def by_a_library(part):
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def by_the_driver(part):
    raise RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` ...")


def while_a_graph_is_recorded(part):
    try:
        by_the_card(part)
    finally:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


LACKS = [by_the_card, by_the_processor, by_numpy, by_a_library, by_the_driver, while_a_graph_is_recorded]


def above(most, lack):
    return lambda part: lack(part) if len(part) > most else None


@pytest.mark.parametrize("lack", LACKS)
def test_parts_that_do_not_fit_into_memory_are_halved_until_they_do(capsys, lack):
    work = Work(above(3, lack))
    assert kept.run(work, list(range(11)), "squares", at_once=9) == squares(range(11))
    assert [len(part) for part in work.parts] == [9, 4, 2, 2, 2, 2, 2, 1]
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("squares: 9 runs at once do not fit into memory, now 4 at a time (")
    assert second.startswith("squares: 4 runs at once do not fit into memory, now 2 at a time (")
    assert "If reserved" not in first


@pytest.mark.parametrize(
    ("lack", "size"), [(by_the_card, "Tried to allocate 3.00 GiB"), (by_the_processor, str(2**60)), (by_numpy, "EiB")]
)
def test_a_run_that_does_not_fit_alone_fails_with_the_size_that_it_needed_and_the_one_that_is_there(lack, size):
    work = Work(lack)
    with pytest.raises(RuntimeError, match=r"squares: the run 5 alone does not fit into memory") as failure:
        kept.run(work, [5, 6], "squares")
    assert size in str(failure.value) and "GiB are free" in str(failure.value)
    assert work.parts == [[5, 6], [5]]


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), KeyError("memory")])
def test_other_errors_pass_through_at_once(error):
    work = Work(interrupted(0, error))
    with pytest.raises(type(error)) as raised:
        kept.run(work, [1, 2, 3], "squares")
    assert raised.value is error and len(work.parts) == 1


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


def test_finished_runs_are_kept_when_a_later_one_does_not_fit(build):
    def obstacle(part):
        if 3 in part:
            by_the_card(part)

    with pytest.raises(RuntimeError, match="the run 3 alone"):
        kept.run(Work(obstacle), [1, 2, 3, 4], "squares", at_once=2)
    build.again()
    work = Work()
    kept.run(work, [1, 2, 3, 4], "squares")
    assert work.parts == [[3, 4]]
