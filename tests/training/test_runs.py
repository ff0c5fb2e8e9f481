"""Results of runs, stacked and taken apart."""

import numpy as np
import pytest
import torch

from lib.training.runs import stack, unstack


def results(seed):
    """What a run might have measured."""
    generator = torch.Generator().manual_seed(seed)
    layers = [torch.rand(3, width, generator=generator) for width in (2, 5)]
    return {
        "loss": torch.rand((), generator=generator),
        "shape": "axes",
        "at": {0: layers, 10: layers[::-1]},
        "n": seed,
    }


def same(one, two):
    assert type(one) is type(two) or not isinstance(one, (dict, list))
    if isinstance(one, (dict, list)):
        assert list(one) == list(two) if isinstance(one, dict) else len(one) == len(two)
        keys = one if isinstance(one, dict) else range(len(one))
        return all(same(one[key], two[key]) for key in keys)
    return np.array_equal(one, two)


@pytest.mark.parametrize("dim", [0, -1])
def test_stacked_runs_are_taken_apart_into_what_they_were(dim):
    runs = [results(seed) for seed in range(4)]
    stacked = stack(runs, dim)
    assert stacked["at"][10][0].shape == ((4, 3, 5) if dim == 0 else (3, 5, 4))
    again = unstack(stacked, dim)
    assert len(again) == 4 and all(same(one, two) for one, two in zip(runs, again, strict=True))


def test_one_run_of_many_has_its_own_part_of_every_tensor():
    losses, features = torch.arange(3.0), torch.rand(3, 4, 2)
    second = unstack({"loss": losses, "levels": (features, 2 * features)})[1]
    assert second["loss"] == 1 and torch.equal(second["levels"][1], 2 * features[1])


def test_runs_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match="no run"):
        stack([])
    with pytest.raises(ValueError):
        stack([[torch.zeros(2)], [torch.zeros(2), torch.zeros(2)]])
    with pytest.raises(ValueError):
        unstack({"loss": torch.zeros(2), "steps": torch.zeros(3)})
