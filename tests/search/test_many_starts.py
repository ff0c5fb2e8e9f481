"""The search with bounds, and what it refuses."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lib.search.many_starts import multistart


@settings(max_examples=10, deadline=None)
@given(st.floats(-2, 2), st.floats(-2, 2), st.integers(0, 10**6))
def test_a_bound_is_respected_and_a_free_parameter_is_not_touched_by_it(a, b, seed):
    assume(abs(a) > 1e-3)
    found = multistart(lambda x, z: ((x - a) ** 2).sum() + ((z - b) ** 2).sum(), [(2,), (3,)], 5, seed, lower=[0, None])
    expected = [torch.full((5, 2), max(a, 0.0), dtype=torch.float64), torch.full((5, 3), b, dtype=torch.float64)]
    torch.testing.assert_close(found.parameters, expected, atol=1e-9, rtol=0)
    assert (found.parameters[0] >= 0).all()


def test_bounded_starts_lie_strictly_above_the_bound():
    found = multistart(lambda x: -x.sum() * 0, [(40,)], 3, 0, lower=[1.0], max_iter=1)
    assert (found.parameters[0] > 1).all()


@pytest.mark.parametrize("wrong", [{"starts": 0}, {"lower": [0.0, 0.0]}])
def test_starts_are_positive_and_bounds_are_as_many_as_parameters(wrong):
    with pytest.raises(ValueError):
        multistart(lambda x: x.sum(), [(1,)], **{"starts": 1, "seed": 0} | wrong)
