"""The closed forms of the extended unconstrained features models against the objective that they claim to minimise."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.models.unconstrained import labels, objective
from lib.search.many_starts import multistart
from lib.theory import extended_ufm as theory

quick = settings(max_examples=40, deadline=None)
slow = settings(max_examples=6, deadline=None)

sizes = st.tuples(st.integers(2, 6), st.integers(1, 6), st.integers(0, 2))  # K, n, d - K
logs = st.floats(-2.0, 2.0)  # how a product of weight decays is shared out among them
below_one = st.floats(0.02, 0.98)
beyond_one = st.floats(1.02, 5.0)
THRESHOLD = 0.5 ** (4 / 3)  # where the two-layer model's minimiser becomes zero
LAST_ROOT = 0.75 * 0.25 ** (1 / 3)  # up to where its quartic has positive roots


def one_layer_decays(K, n, c, share):
    """lam_w and lam_h with K sqrt(n lam_h lam_w) = c."""
    product = (c / K) ** 2 / n
    return math.sqrt(product) * math.exp(share), math.sqrt(product) * math.exp(-share)


def two_layer_decays(K, n, c, share, other):
    """lam_w2, lam_w1, lam_h1 with K (n lam_w2 lam_w1 lam_h1)^(1/3) = c."""
    geometric = c / K / n ** (1 / 3)
    return geometric * math.exp(share), geometric * math.exp(other), geometric * math.exp(-share - other)


def centred(K):
    return torch.eye(K, dtype=torch.float64) - 1 / K


def gradient(risk, *parameters):
    parameters = [q.clone().requires_grad_() for q in parameters]
    return max(g.abs().max().item() for g in torch.autograd.grad(risk(*parameters), parameters))


def one_layer_minimum(K, n, lam_w, lam_h, lam_b):
    """`lam_b`: None for no bias, 0 for a free one."""
    if lam_b is None:
        return theory.bias_free(K, n, lam_w, lam_h)
    return theory.regularised_bias(K, n, lam_w, lam_h, lam_b) if lam_b else theory.free_bias(K, n, lam_w, lam_h)


def one_layer_risk(K, n, lam_w, lam_h, lam_b):
    y = labels(K, n)
    return lambda W, H, b=None: objective(H, [W], y, lam_w, lam_h, b, lam_b or 0.0)


def two_layer_risk(K, n, decays, relu=False):
    y, (lam_w2, lam_w1, lam_h1) = labels(K, n), decays
    return lambda W2, W1, H: objective(H, [W1, W2], y, [lam_w1, lam_w2], lam_h1, relu=relu)


def one_layer_weights(minimum, K, n, d):
    """Weights, features and bias as a closed form describes them, from its result alone."""
    frame, centre = minimum.gram
    root = math.sqrt(frame) * centred(K) + math.sqrt(centre) / K
    means = theory.orthogonal_frame(d, K) @ root
    b = torch.full((K,), minimum.bias, dtype=torch.float64)
    return minimum.alignment * means.T, means.repeat_interleave(n, dim=1), b


# --- one layer ---


@quick
@given(sizes, st.floats(0.02, 3.0), logs, st.sampled_from([None, 0.0, 0.01, 0.1, 0.5, 1.0, 3.0, 1e9]))
def test_the_described_weights_attain_the_minimum_and_are_stationary(size, c, share, lam_b):
    K, n, extra = size
    lam_w, lam_h = one_layer_decays(K, n, c, share)
    minimum = one_layer_minimum(K, n, lam_w, lam_h, lam_b)
    W, H, b = one_layer_weights(minimum, K, n, K + extra)
    risk, parameters = one_layer_risk(K, n, lam_w, lam_h, lam_b), (W, H) if lam_b is None else (W, H, b)
    assert minimum.c == pytest.approx(c, rel=1e-12)
    assert lam_b is not None or (minimum.bias == 0 and (minimum.rho == 0) == (minimum.c >= 1))
    assert abs(risk(*parameters).item() - minimum.objective) < 1e-12
    assert gradient(risk, *parameters) < 1e-12
    assert H[:, 0].square().sum().item() == pytest.approx(minimum.rho, rel=1e-10, abs=1e-12)


@slow
@given(sizes, st.one_of(below_one, beyond_one), logs, st.sampled_from([None, 0.0, 1.0]))
def test_no_search_finds_less_and_what_it_finds_is_the_predicted_frame(size, c, share, at):
    """`at`: no bias, a free one, for which K - 1 dimensions are enough, or one whose decay lies around c / (1 - c)."""
    K, n, extra = size
    d, (lam_w, lam_h) = K + extra - (at == 0), one_layer_decays(K, n, c, share)
    lam_b = at and math.exp(share) * c / abs(1 - c)
    minimum = one_layer_minimum(K, n, lam_w, lam_h, lam_b)
    shapes = [(K, d), (d, K * n), (K,)]
    risk = one_layer_risk(K, n, lam_w, lam_h, lam_b)
    found = multistart(risk, shapes[:2] if lam_b is None else shapes, 6, 0, (0.3, 1.0))
    W, H = (q[found.values.argmin()] for q in found.parameters[:2])
    assert abs(found.values.min().item() - minimum.objective) < 1e-9
    frame, centre = minimum.gram
    gram = H.T @ H
    expected = torch.kron(frame * centred(K) + centre / K, torch.ones(n, n, dtype=torch.float64))
    size_of_means = max(minimum.rho, math.sqrt(lam_w / (n * lam_h)) * 1e-3)
    if abs(c - 1) > 0.05:  # next to the threshold the minimum is flat and a search stops early
        assert (gram - expected).abs().max() < 1e-4 * size_of_means
        assert (W - minimum.alignment * H[:, ::n].T).abs().max() < 1e-4 * minimum.alignment * math.sqrt(size_of_means)


# --- two layers ---


@quick
@given(sizes, st.one_of(st.floats(0.005, 1.5), st.floats(0.39, 0.404), st.floats(0.46, 0.48)), logs, logs)
def test_two_layers_have_the_minimum_of_one_singular_value(size, c, share, other):
    K, n, _ = size
    decays = two_layer_decays(K, n, c, share, other)
    minimum = theory.two_layer(K, n, *decays)
    x = np.linspace(0, 1.1, 200_001)
    cost = (1 - x**3) ** 2 / 2 + 1.5 * c * x**2
    assert minimum.c == pytest.approx(c, rel=1e-12)
    assert 0 <= cost.min() - minimum.objective + 1e-14 < 1e-9
    if abs(c - THRESHOLD) > 1e-6:
        assert minimum.score == pytest.approx(x[cost.argmin()] ** 3, abs=1e-4)
        assert (minimum.score > 0) == (c < THRESHOLD)


@quick
@given(sizes, st.floats(0.005, 0.99 * THRESHOLD), logs, logs, st.booleans())
def test_the_described_two_layer_weights_attain_the_minimum_and_are_stationary(size, c, share, other, relu):
    K, n, extra = size
    decays = two_layer_decays(K, n, c, share, other)
    minimum, d, risk = theory.two_layer(K, n, *decays), K + extra, two_layer_risk(K, n, decays, relu)
    R = torch.eye(d, K, dtype=torch.float64) if relu else theory.orthogonal_frame(d, K, seed=1)
    R_1 = theory.orthogonal_frame(d, K, seed=2)
    W2, W1 = minimum.sigma_w2 * R.T, minimum.sigma_w1 * R @ R_1.T
    H = (minimum.sigma_h1 * R_1).repeat_interleave(n, dim=1)
    assert abs(risk(W2, W1, H).item() - minimum.objective) < 1e-12
    scale = max(q.abs().max().item() for q in (W2, W1, H))
    assert relu or gradient(risk, W2, W1, H) < 1e-12 * max(1.0, scale)
    torch.testing.assert_close(W2 @ W1 @ H[:, ::n], minimum.score * torch.eye(K).double(), rtol=0, atol=1e-12)
    terms = [decays[0] * minimum.sigma_w2**2, decays[1] * minimum.sigma_w1**2, n * decays[2] * minimum.sigma_h1**2]
    assert np.allclose(terms, terms[0], rtol=1e-12)


@slow
@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 2), st.floats(0.05, 0.6), logs, logs, st.booleans())
def test_no_search_over_two_layers_finds_less(K, n, extra, c, share, other, relu):
    decays, d = two_layer_decays(K, n, c, share / 2, other / 2), K + extra
    risk = two_layer_risk(K, n, decays, relu)
    found = multistart(risk, [(K, d), (d, d), (d, K * n)], 8, 0, (0.05, 1.0, 2.0, 3.0), max_iter=800)
    assert found.values.min().item() > theory.two_layer(K, n, *decays).objective - 1e-9


def test_a_search_over_two_layers_finds_the_predicted_frames():
    K, n, d, decays = 3, 2, 4, (0.03, 0.02, 0.01)
    found = multistart(two_layer_risk(K, n, decays), [(K, d), (d, d), (d, K * n)], 12, 0, (1.0, 2.0, 3.0))
    W2, W1, H = (q[found.values.argmin()] for q in found.parameters)
    minimum, eye = theory.two_layer(K, n, *decays), torch.eye(K, dtype=torch.float64)
    assert abs(found.values.min().item() - minimum.objective) < 1e-12
    for gram, sigma in ((W2 @ W2.T, minimum.sigma_w2), (H[:, ::n].T @ H[:, ::n], minimum.sigma_h1)):
        torch.testing.assert_close(gram, sigma**2 * eye, rtol=0, atol=1e-6 * sigma**2)
    torch.testing.assert_close(torch.linalg.svdvals(W1)[:K], minimum.sigma_w1 * torch.ones(K).double())


@quick
@given(st.floats(1e-6, LAST_ROOT - 1e-9))
def test_the_larger_root_is_the_local_minimum_of_the_scalar_function(c):
    x = theory.larger_root(c)
    assert abs(x**4 - x + c) < 1e-14
    assert 15 * x**4 - 6 * x + 3 * c >= -1e-7  # the curvature of (1 - x^3)^2 / 2 + 3 c x^2 / 2, by hand


# --- noise ---


@quick
@given(st.integers(2, 6), st.floats(0.05, 0.9), logs, st.floats(0.0, 3.0))
def test_noise_of_given_covariance_shrinks_the_ridge_solution_by_the_factor(K, c, share, sigma):
    lam_w, lam_h = one_layer_decays(K, 1, c, share)
    d, size = K + 1, math.sqrt((1 - c) * math.sqrt(lam_w / lam_h))
    means = size * theory.orthogonal_frame(d, K, seed=3)

    def solve(variance):
        second_moments = means @ means.T / K + (variance + lam_w) * torch.eye(d, dtype=torch.float64)
        return torch.linalg.solve(second_moments, means / K)

    factor = theory.noisy_classifier_factor(K, lam_w, lam_h, sigma)
    torch.testing.assert_close(solve(sigma**2), factor * solve(0.0), rtol=1e-9, atol=1e-12)
