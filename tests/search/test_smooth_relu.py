"""The smooth ReLU of Definition 7, the model with it, and the search for its minimisers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.search.smooth_relu import descend, levels, slope, smooth_relu, value_and_gradient
from lib.theory import low_rank

EPS = st.floats(1e-3, 10)


def random_point(seed, K=3, n=2, L=4, d=4, runs=5):
    rng = np.random.default_rng(seed)
    shapes = [(d, K * n), *[(d, d)] * (L - 1), (K, d)]
    H, *Ws = (torch.from_numpy(rng.standard_normal((runs, *shape))) for shape in shapes)
    return H, Ws, list(np.exp(rng.uniform(-4, -1, L + 1)))


@given(EPS, st.floats(1e-3, 1 - 1e-3))
def test_it_lies_between_zero_and_the_relu_with_a_positive_bounded_slope(eps, s):
    z = torch.tensor(s * eps, dtype=torch.float64)
    assert 0 < smooth_relu(z, eps) < z
    assert 0 < slope(z, eps) <= 4 / 3 + 1e-12


@given(EPS, st.floats(1, 100))
def test_it_is_the_relu_outside_the_interval_and_meets_it_with_its_slope(eps, factor):
    z = torch.tensor([-factor * eps, 0.0, eps, factor * eps], dtype=torch.float64)
    assert torch.allclose(smooth_relu(z, eps), z.clamp(min=0), rtol=1e-14, atol=0)
    assert torch.allclose(slope(z, eps), torch.tensor([0.0, 0.0, 1.0, 1.0]).double(), atol=1e-14)


@given(EPS, st.floats(-1.5, 2.5))
def test_the_slope_is_its_derivative(eps, s):
    z = torch.tensor(s * eps, dtype=torch.float64, requires_grad=True)
    (derivative,) = torch.autograd.grad(smooth_relu(z, eps), z)
    assert abs(derivative - slope(z.detach(), eps)) < 1e-12


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_without_eps_the_value_is_the_models_objective(seed, L):
    H, Ws, lam = random_point(seed, L=L)
    Y = torch.eye(3, dtype=torch.float64).repeat_interleave(2, 1)
    value, _ = value_and_gradient(H, Ws, lam, 2)
    assert torch.allclose(value, low_rank.objective(H, Ws, Y, lam, 2), rtol=1e-13)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from([0.0, 0.3, 2.0]))
def test_the_written_gradient_is_the_automatic_one(seed, L, eps):
    H, Ws, lam = random_point(seed, L=L)
    parts = [q.requires_grad_() for q in (H, *Ws)]
    value, gradients = value_and_gradient(H, Ws, lam, 2, eps)
    for written, automatic in zip(gradients, torch.autograd.grad(value.sum(), parts), strict=True):
        assert torch.allclose(written, automatic, atol=1e-12)


def test_a_search_ends_at_the_collapsed_loss_of_two_classes():
    H, Ws, _ = random_point(0, K=2, n=3, L=2, d=3, runs=12)
    lam = [0.02, 0.03, 0.04]
    values, H, Ws = descend([H, *Ws], lam, 3, (0.1, 0.001, 0.0))
    assert abs(values.min() - low_rank.dnc_loss(2, 2, lam, 3)) < 1e-9
    assert torch.allclose(values, value_and_gradient(H, Ws, lam, 3)[0])


def test_with_signs_the_samples_of_a_class_are_plus_or_minus_its_column():
    H, Ws, lam = random_point(1, n=1, L=3)
    signs = torch.tensor([1, -1, 1, 1, 1, 1]).double()
    _, H, _ = descend([H, *Ws], lam, 2, (0.1,), signs, evaluations=5)
    assert torch.equal(H[..., 0], -H[..., 1]) and torch.equal(H[..., 2], H[..., 3])


def test_with_signs_all_plus_a_search_ends_at_the_collapsed_loss_too():
    H, Ws, _ = random_point(0, K=2, n=1, L=2, d=3, runs=12)
    lam, signs = [0.02, 0.03, 0.04], torch.ones(6, dtype=torch.float64)
    values, _, _ = descend([H, *Ws], lam, 3, (0.1, 0.001, 0.0), signs)
    assert abs(values.min() - low_rank.dnc_loss(2, 2, lam, 3)) < 1e-9


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([0.0, 0.3]))
def test_with_mixed_signs_the_gradient_by_the_single_columns_is_the_automatic_one(seed, L, eps):
    n, runs = 3, 4
    columns, Ws, lam = random_point(seed, n=1, L=L, runs=runs)
    signs = torch.from_numpy(np.random.default_rng(seed).choice([-1.0, 1.0], 3 * n))
    parts = [q.requires_grad_() for q in (columns, *Ws)]
    total = 0.0  # one run, class and sample after the other
    for k in range(runs):
        total = total + sum(x / 2 * W[k].square().sum() for x, W in zip(lam[1:], Ws, strict=True))
        for c in range(3):
            for i in range(n):
                h = signs[c * n + i] * columns[k, :, c]
                total = total + lam[0] / 2 * h.square().sum()
                for W in Ws[:-1]:
                    z = W[k] @ h
                    inside = z**2 * (2 * eps - z) / eps**2 if eps else torch.zeros_like(z)
                    h = torch.where(z <= 0, 0.0, torch.where(z < eps, inside, z))
                total = total + (Ws[-1][k] @ h - torch.eye(3, dtype=h.dtype)[c]).square().sum() / (2 * 3 * n)
    value, gradients = value_and_gradient(columns, Ws, lam, n, eps, signs)
    assert abs(value.sum() - total) < 1e-11 * total
    for written, automatic in zip(gradients, torch.autograd.grad(total, parts), strict=True):
        assert torch.allclose(written, automatic, rtol=1e-10, atol=1e-10)


def test_levels_start_with_the_features_and_are_not_negative_after():
    H, Ws, _ = random_point(2)
    first, *deeper = levels(H, Ws, 0.1)
    assert first is H and len(deeper) == 3 and all((A >= 0).all() for A in deeper)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda H, Ws, lam: smooth_relu(H, -1.0), "eps=-1.0"),
        (lambda H, Ws, lam: value_and_gradient(H, Ws, lam, 3), "H has 6 columns"),
        (lambda H, Ws, lam: value_and_gradient(H, Ws, lam[1:], 2), "lam has 4 entries"),
        (lambda H, Ws, lam: value_and_gradient(H, Ws, lam, 2, signs=torch.ones(5)), "signs has shape"),
    ],
)
def test_wrong_arguments_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call(*random_point(0))
