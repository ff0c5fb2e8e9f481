"""Random problems have the strength that was asked for, and a sharpened end lies where the gradient vanishes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.models.unconstrained import labels, objective
from lib.search.many_starts import multistart
from lib.search.trials import random_problem, relative_error, sharpened
from lib.theory import extended_ufm as theory


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.01, 3), st.integers(2, 6))
def test_random_decays_have_the_strength_that_was_asked_for(seed, c, most):
    rng = np.random.default_rng(seed)
    for factors, minimum in ((2, theory.bias_free), (3, theory.two_layer)):
        K, n, d, decays = random_problem(rng, c, factors, most)
        assert 2 <= K <= most and 1 <= n <= 4 and K <= d <= K + 2
        assert minimum(K, n, *decays).c == pytest.approx(c, rel=1e-12)


def test_a_sharpened_end_is_an_orthogonal_frame_to_rounding_and_a_rough_one_is_not():
    K, n, d, (lam_w, lam_h) = random_problem(np.random.default_rng(1), 0.4, 2)

    def risk(W, H):
        return objective(H, [W], labels(K, n), lam_w, lam_h)

    rough = multistart(risk, [(K, d), (d, K * n)], starts=3, seed=0, scales=(0.5,), max_iter=40)
    (_, H), value = sharpened(risk, rough)
    minimum = theory.bias_free(K, n, lam_w, lam_h)
    gram = minimum.rho * torch.kron(torch.eye(K), torch.ones(n, n)).double()
    before = rough.parameters[1][rough.values.argmin()]
    assert relative_error(before.T @ before, gram) > 1e-9 > 1e-13 > relative_error(H.T @ H, gram)
    assert value == pytest.approx(minimum.objective, abs=1e-14)


@pytest.mark.parametrize(("name", "arguments"), [("c", (0.0, 2)), ("most", (0.5, 2, 1))])
def test_wrong_arguments_are_named(name, arguments):
    with pytest.raises(ValueError, match=name):
        random_problem(np.random.default_rng(0), *arguments)
