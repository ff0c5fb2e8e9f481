"""Halves and other sets of points: closed forms against matrices, bounds against what is evaluated."""

import math
from itertools import combinations, product

import numpy as np
import pytest
import torch

from lib.models.unconstrained import labels, objective
from lib.theory import halves, low_rank


def matrices(r):
    return low_rank.incidence(combinations(range(r), 2)), halves.rows(halves.half_signs(r))


@pytest.mark.parametrize(("K", "L"), [(6, 2), (7, 3), (15, 2), (15, 4), (17, 2), (17, 3), (28, 3), (31, 5)])
def test_the_loss_is_that_of_the_matrices_and_the_least_over_their_scale(K, L):
    rng = np.random.default_rng(K + L)
    for strength in (1e-5, 0.1, 0.9):
        n, shares = int(rng.integers(1, 4)), np.exp(rng.uniform(-1, 1, L + 1))
        product = strength * (L - 1) ** (L - 1) / L ** (2 * L) / K ** (L + 1)
        decays = ((product / (n * shares.prod())) ** (1 / (L + 1)) * shares).tolist()
        H, Ws = halves.solution(*matrices(halves.points(K)), L, decays, n, K)
        below, value, above = (
            objective(s * H, [s * W for W in Ws], labels(K, n), decays[1:], decays[0], relu=True).item()
            for s in (0.99, 1, 1.01)
        )
        assert value == pytest.approx(halves.loss(K, L, decays, n), abs=1e-13)
        assert value < min(below, above)


@pytest.mark.parametrize("L", [2, 3, 5])
@pytest.mark.parametrize("r", [4, 6, 8, 10])
def test_the_price_at_weak_decay_is_that_of_the_matrices(r, L):
    assert halves.limit(r, L) == pytest.approx(halves.price(*matrices(r), L), rel=1e-10)
    K = math.comb(r, 2)
    lam = 1e-9
    assert halves.loss(K, L, lam, 1) == pytest.approx((L + 1) / 2 * lam * halves.limit(r, L) ** (1 / (L + 1)), rel=1e-2)


@pytest.mark.parametrize("L", [2, 3, 4])
def test_beyond_the_strength_at_which_collapse_ends_the_least_loss_is_that_of_zero(L):
    end = (L - 1) ** (L - 1) / L ** (2 * L)
    assert halves.least(L, 0.999 * end) < 0.5 == halves.least(L, 1.001 * end)
    u = np.geomspace(1e-3, 1e3, 200_001)
    for x in (1e-6 * end, 0.5 * end):
        assert halves.least(L, x) == pytest.approx((0.5 / (1 + u**L) + L / 2 * x ** (1 / L) * u).min(), abs=1e-8)


@pytest.mark.parametrize(("k", "r", "K"), [(2, 5, 9), (3, 6, 20), (3, 7, 11), (4, 6, 15)])
def test_sets_with_all_signs_fire_for_the_sets_without_a_minus_and_keep_below_the_bound(k, r, K):
    signs = torch.tensor(list(product([1.0, -1.0], repeat=r)), dtype=torch.float64)
    sets = list(combinations(range(r), k))
    T = low_rank.incidence([sets[i] for i in np.random.default_rng(0).permutation(len(sets))[:K]], r)
    before = halves.rows(signs, k) @ T
    assert torch.allclose(before, 1 - (signs < 0).double() @ T)
    gram = before.clamp(min=0).T @ before.clamp(min=0)
    assert torch.linalg.eigvalsh(gram)[0] >= 2 ** (r - 2 * k) - 1e-9
    for L in (2, 3, 4):
        constant = halves.bound_factor(math.comb(r, k), L, k)
        assert halves.price(T, halves.rows(signs, k), L) <= constant * K**2


def test_an_array_of_strength_four_has_the_gram_matrices_of_all_signs():
    signs = halves.array_signs(3)
    T = low_rank.incidence(combinations(range(7), 2))
    every = torch.tensor(list(product([1.0, -1.0], repeat=7)), dtype=torch.float64)
    thin, thick = ((halves.rows(s) @ T).clamp(min=0) for s in (signs, every))
    assert torch.allclose(thin.T @ thin, thick.T @ thick / 2)
