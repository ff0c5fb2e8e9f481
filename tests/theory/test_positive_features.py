"""The layer-peeled model with non-negative features: closed forms against objective and sums, in float64."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.models.unconstrained import labels, layer_peeled
from lib.search.many_starts import multistart
from lib.theory import positive_features as theory

quick = settings(max_examples=40, deadline=None)
slow = settings(max_examples=5, deadline=None)

sizes = st.tuples(st.integers(2, 6), st.integers(1, 4), st.integers(0, 3))  # N, K, M - N
seeds = st.integers(0, 10**6)
shares = st.floats(-1.5, 1.5)  # how a product of weight decays is shared out
smoothing = st.sampled_from([0.0, 0.1, 0.5])
inside = st.floats(0.05, 0.95)  # where beta + 2 kappa lies between beta and the bound (N - 1)/N


def decays(N, alpha, fraction, share):
    """lam_w and lam_h with alpha (N - 1)/N + 2 sqrt(N (N - 1) lam_w lam_h) = beta + fraction ((N - 1)/N - beta)."""
    kappa = fraction * (N - 1) / N * (1 - alpha) / 2
    root = kappa / math.sqrt(N * (N - 1))
    return root * math.exp(share), root * math.exp(-share)


def search(N, K, M, lam_w, lam_h, alpha, seed=0, starts=6):
    y, shapes = labels(N, K), [(N, M), (M, N * K)]
    risk = partial(layer_peeled, y=y, lam_w=lam_w, lam_h=lam_h, alpha=alpha)
    return multistart(risk, shapes, starts, seed, (0.3, 1.0), lower=[None, 0.0])


# The minimum ----------------------------------------------------------------------------------------------------------


@slow
@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 2), smoothing, inside, shares, seeds)
def test_a_search_with_bounds_ends_at_the_stated_minimum_in_a_configuration(N, K, extra, alpha, fraction, share, seed):
    lams = decays(N, alpha, fraction, share)
    # a start may lose classes: with M = N = 4, six of them miss the minimum one time in nine
    found = search(N, K, N + extra, *lams, alpha, seed=seed, starts=40)
    best = found.values.argmin()
    optimum = theory.optimal_norms(N, K, *lams, alpha)
    assert found.values[best].item() == pytest.approx(optimum.objective, abs=1e-10)
    W, H = (part[best] for part in found.parameters)
    assert W.square().sum().item() == pytest.approx(optimum.W2, rel=1e-3)
    assert H.square().sum().item() == pytest.approx(optimum.H2, rel=1e-3)
    distance = theory.nc_distance(W, H, labels(N, K))
    assert max(distance[:3]) < 2e-3
    assert distance.factor == pytest.approx(optimum.alignment, rel=1e-3)


@slow
@given(st.integers(2, 4), st.integers(1, 3), smoothing, st.floats(1.05, 5.0), shares)
def test_beyond_the_condition_a_search_ends_at_zero(N, K, alpha, fraction, share):
    lams = decays(N, alpha, fraction, share)
    found, zero = search(N, K, N, *lams, alpha), theory.optimal_norms(N, K, *lams, alpha)
    assert (zero.W2, zero.H2, zero.score) == (0, 0, 0)
    assert zero.objective == pytest.approx(math.log(N), abs=1e-12)
    assert found.values.min().item() == pytest.approx(math.log(N), abs=1e-12)
    assert max(part.abs().max().item() for part in found.parameters) < 1e-4


@quick
@given(sizes, smoothing, inside, shares, seeds)
def test_a_drawn_configuration_satisfies_the_optimality_conditions(size, alpha, fraction, share, seed):
    N, K, extra = size
    lams = decays(N, alpha, fraction, share)
    W, H = (part.requires_grad_() for part in theory.nc_configuration(N, K, N + extra, *lams, alpha, seed))
    value = layer_peeled(W, H, labels(N, K), *lams, alpha)
    of_W, of_H = torch.autograd.grad(value, (W, H))
    size = max(lams[0] * W.abs().max().item(), lams[1] * H.abs().max().item())
    assert of_W.abs().max() < 1e-12 * max(size, 1)
    assert of_H[H > 0].abs().max() < 1e-12 * max(size, 1)
    assert (of_H[H == 0] > -1e-14).all()
    optimum = theory.optimal_norms(N, K, *lams, alpha)
    assert value.item() == pytest.approx(optimum.objective, rel=1e-12)
    assert W.square().sum().item() == pytest.approx(optimum.W2, rel=1e-12)
    assert H.square().sum().item() == pytest.approx(optimum.H2, rel=1e-12)
    margins = (W @ H).T[torch.arange(N * K), labels(N, K)][:, None] - (W @ H).T
    assert margins.max().item() == pytest.approx(optimum.score, rel=1e-10)
    assert max(theory.nc_distance(W.detach(), H.detach(), labels(N, K))[:3]) < 1e-13


@quick
@given(st.integers(2, 9), smoothing, st.sampled_from([1e-7, 1e-3, 0.5]), shares)
def test_the_norms_vanish_continuously_at_the_threshold(N, alpha, gap, share):
    below, beyond = decays(N, alpha, 1 - gap, share), decays(N, alpha, 1 + gap, share)
    assert theory.is_nonzero(N, *below, alpha) and not theory.is_nonzero(N, *beyond, alpha)
    score = theory.optimal_norms(N, 2, *below, alpha).score
    assert score > 0 and (gap > 1e-7 or score < 1e-6)
    assert theory.optimal_norms(N, 2, *beyond, alpha).score == 0


@pytest.mark.parametrize("lam", [1e-200, 1e-160, 1e160, 1e200])
def test_decays_whose_product_is_no_float_have_a_minimum_as_well(lam):
    """A product of decays that underflows to zero, or overflows, is no zero and no infinite decay."""
    optimum = theory.optimal_norms(3, 2, lam, lam)
    assert all(math.isfinite(value) for value in optimum)
    assert theory.is_nonzero(3, lam, lam) == (optimum.score > 0) == (lam < 1)
    if lam < 1:  # s = log(2 / (2 kappa)) to first order, kappa = sqrt(6) lam
        assert optimum.score == pytest.approx(-math.log(math.sqrt(6)) - math.log(lam), rel=1e-12)
        per_score = optimum.H2 / optimum.score  # K kappa / lam_h
        assert per_score == pytest.approx(2 * math.sqrt(6), rel=1e-12)


# Distances ------------------------------------------------------------------------------------------------------------


def test_the_distance_sees_each_condition_of_definition_31():
    y, (W, H) = labels(3, 2), theory.nc_configuration(3, 2, 5, 0.01, 0.01, seed=3)
    scattered = H.clone()
    scattered[:, 0] *= 1.1
    scattered[:, 1] *= 0.9
    assert theory.nc_distance(W, scattered, y).within > 0.05
    longer = H * torch.tensor([1.3, 1.3, 1, 1, 1, 1], dtype=torch.float64)
    assert theory.nc_distance(W, longer, y).frame > 0.1
    assert theory.nc_distance(W, H + 0.05, y).frame > 0.01
    assert theory.nc_distance(W.roll(1, 0), H, y).duality > 0.1
    assert theory.nc_distance(-W, H, y).factor < 0
