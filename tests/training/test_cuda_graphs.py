"""Recorded steps: exactly as many as were asked for, whatever a graph holds, and none of them made by the recording."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.training import cuda_graphs
from without_gpu import recording

needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 70), min_size=1, max_size=5), st.integers(1, 30))
def test_exactly_the_steps_asked_for_are_made_and_all_but_the_first_and_the_rest_are_replays(calls, unroll):
    made, replays = [], []

    def record(step, unroll, device):
        made.extend([1] * cuda_graphs._WARM_UP)
        return SimpleNamespace(replay=lambda: replays.append(1) or made.extend([1] * unroll))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graphs, "_record", record)
        advance = cuda_graphs.recorded(lambda: made.append(1), "cuda", unroll)
        for number, steps in enumerate(calls, 1):
            advance(steps)
            assert len(made) == sum(calls[:number])
    first = next((i for i, steps in enumerate(calls) if steps >= unroll + 2), len(calls))
    lengths = [steps - 2 * (i == first) for i, steps in enumerate(calls)][first:]
    assert len(replays) == sum(steps // unroll for steps in lengths)


# ------------------------------------------------------------------------------------- the recordings of these tests


@pytest.mark.parametrize("wait", [lambda x: x.sum().item(), lambda x: torch.tensor([1.0]), lambda x: x[x >= 0].sum()])
def test_a_step_that_waits_is_noticed(wait):
    """Which the tests of other modules rely on."""
    x = torch.zeros(2)
    with pytest.raises(AssertionError, match="in a recorded step"), recording(cuda_graphs):
        cuda_graphs.recorded(lambda: x.add_(wait(x)), "cuda", unroll=2)(50)


# ------------------------------------------------------------------------------------------------------------- a GPU


@needs_a_gpu
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
