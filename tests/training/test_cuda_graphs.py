"""Recorded steps: exactly as many as were asked for, whatever a graph holds, and none of them made by the recording."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_card import installed

from lib.training import cuda_graphs

many = settings(max_examples=60, deadline=None)
unrolls = st.integers(1, 30)


@many
@given(st.lists(st.integers(0, 70), min_size=1, max_size=5), unrolls)
def test_on_a_card_exactly_the_steps_asked_for_are_made(calls, unroll):
    with installed() as card:
        made = torch.zeros((), dtype=torch.int64)
        advance = cuda_graphs.recorded(lambda: made.add_(1), "cuda", unroll)
        for number, steps in enumerate(calls, 1):
            advance(steps)
            assert made == sum(calls[:number])
        assert card.recordings == any(steps >= unroll + 2 for steps in calls)


@many
@given(st.integers(0, 200), unrolls)
def test_all_but_the_warm_up_and_the_rest_are_replays(steps, unroll):
    with installed() as card:
        made = torch.zeros((), dtype=torch.int64)
        cuda_graphs.repeat(lambda: made.add_(1), steps, "cuda", unroll)
        assert made == steps
        assert card.replays == ((steps - 2) // unroll if steps >= unroll + 2 else 0)


def test_a_step_of_several_operations_goes_through_the_same_memory():
    def run(device):
        x, root = torch.ones(3, dtype=torch.float64), torch.empty(3, dtype=torch.float64)

        def step():
            torch.sqrt(x + 1, out=root)
            x.mul_(0.5).add_(root.roll(1)[:2].sum())

        cuda_graphs.repeat(step, 41, device, unroll=4)
        return x

    with installed():
        assert torch.equal(run("cuda"), run("cpu"))


def test_what_a_recording_has_read_on_the_processor_it_keeps():
    """The reason for the rule that whatever changes lies on the device."""
    with installed():
        numbers, total = iter(range(1000)), torch.zeros((), dtype=torch.int64)
        cuda_graphs.repeat(lambda: total.add_(next(numbers)), 12, "cuda", unroll=2)
        assert total == 0 + 1 + 5 * (2 + 3)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x.add_(x.sum().item()),
        lambda x: x.add_(torch.tensor([1.0])),
        lambda x: x.add_(len(x.unique())),
        lambda x: x.add_(x[x >= 0].sum()),
        lambda x: x.add_(1) if x.sum() > 0 else None,
    ],
    ids=["item", "from the processor", "unique", "mask", "branch"],
)
def test_the_card_of_these_tests_notices_a_step_that_waits(step):
    with installed(), pytest.raises(AssertionError, match="in a recorded step"):
        cuda_graphs.repeat(lambda: step(torch.zeros(2)), 50, "cuda")


def test_a_thread_keeps_its_stream_and_nobody_warms_up_while_another_records(monkeypatch):
    """PyTorch hands out the same few streams again and again: two threads may have one."""
    with installed():
        streams, locked, stream = [], [], torch.cuda.Stream
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: streams.append(stream(device)) or streams[-1])
        for _ in range(40):
            cuda_graphs.repeat(lambda: locked.append(cuda_graphs._RECORDING.locked()), 3, "cuda", unroll=1)
    assert len(streams) == 1
    assert locked == [True] * 3 * 40, "two steps of warming up, and a recorded one"


def test_an_error_in_a_step_leaves_the_lock_free():
    calls = []

    def step():
        calls.append(1)
        if len(calls) == 4:
            raise torch.OutOfMemoryError

    with installed(), pytest.raises(torch.OutOfMemoryError):
        cuda_graphs.repeat(step, 50, "cuda")
    assert len(calls) == 4 and not cuda_graphs._RECORDING.locked()


@pytest.mark.parametrize("steps", [0, 1, 25])
def test_a_processor_calls_the_step(steps, monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", None)  # not to be called
    made = []
    cuda_graphs.repeat(lambda: made.append(1), steps, "cpu")
    assert len(made) == steps


def test_a_graph_of_no_step_is_refused():
    with pytest.raises(ValueError, match="unroll = 0"):
        cuda_graphs.recorded(print, "cpu", unroll=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("steps", [1, 11, 12, 13, 100, 107])
def test_a_gpu_makes_exactly_the_steps_asked_for(steps):
    total, product = torch.zeros((), device="cuda"), torch.eye(4, device="cuda")
    turn = torch.eye(4, device="cuda").roll(1, 0)

    def step():
        total.add_(1)
        product.copy_(turn @ product)  # a library's kernel, which needs a workspace

    advance = cuda_graphs.recorded(step, "cuda", unroll=10)
    advance(steps)
    advance(steps)
    assert total.item() == 2 * steps
    assert torch.equal(product.cpu(), torch.eye(4).roll(2 * steps % 4, 0))
