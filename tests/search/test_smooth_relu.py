"""The smooth ReLU of Definition 7, the model with it, and the search for its minimisers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.models.unconstrained import labels, objective, one_hot
from lib.search.best_known.descent import relu_around
from lib.search.smooth_relu import levels, minimise, slope, smooth_relu, value_and_gradient
from lib.theory import low_rank

EPS = st.floats(1e-3, 10)
quick = settings(max_examples=20, deadline=None)


def random_point(seed, K=3, n=2, L=4, d=4, runs=5):
    rng = np.random.default_rng(seed)
    shapes = [(d, K * n), *[(d, d)] * (L - 1), (K, d)]
    return [torch.from_numpy(rng.standard_normal((runs, *shape))) for shape in shapes], rng


def with_eps(eps):
    return lambda _, z: (smooth_relu(z, eps), slope(z, eps))


@given(EPS, st.floats(1e-3, 1 - 1e-3))
def test_it_lies_between_zero_and_the_relu_with_a_positive_bounded_slope_which_is_its_derivative(eps, s):
    z = torch.tensor(s * eps, dtype=torch.float64, requires_grad=True)
    value, written = smooth_relu(z, eps), slope(z.detach(), eps)
    assert 0 < value < z and 0 < written <= 4 / 3 + 1e-12
    assert abs(torch.autograd.grad(value, z)[0] - written) < 1e-12


@given(EPS, st.floats(1, 100))
def test_it_is_the_relu_outside_the_interval_and_meets_it_with_its_slope(eps, factor):
    z = torch.tensor([-factor * eps, 0.0, eps, factor * eps], dtype=torch.float64)
    assert torch.allclose(smooth_relu(z, eps), z.clamp(min=0), rtol=1e-14, atol=0)
    assert torch.allclose(slope(z, eps), torch.tensor([0.0, 0.0, 1.0, 1.0]).double(), atol=1e-14)


@quick
@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from(["mse", "ce"]))
def test_with_the_relu_the_value_is_the_models_objective_and_the_gradient_its_gradient(seed, L, loss):
    factors, rng = random_point(seed, L=L)
    decays = np.exp(rng.uniform(-4, -1, L + 1))
    factors = [q.requires_grad_() for q in factors]
    expected = objective(factors[0], factors[1:], labels(3, 2), decays[1:], decays[0], relu=True, loss=loss)
    lam, Y = torch.full((5,), decays[0], dtype=torch.float64), one_hot(labels(3, 2), 3)
    value, gradient, _ = value_and_gradient(factors, Y, lam, with_eps(0.0), loss, decays / decays[0])
    assert torch.allclose(value, expected, rtol=1e-13)
    for written, automatic in zip(gradient, torch.autograd.grad(expected.sum(), factors), strict=True):
        assert torch.allclose(written, automatic, atol=1e-12)


@quick
@given(st.integers(0, 10**6), st.sampled_from(["mse", "ce", "exact"]), st.sampled_from(["Definition 7", "around"]))
def test_the_written_gradient_is_the_automatic_one_for_either_smoothing(seed, loss, smoothing):
    factors, rng = random_point(seed, n=1, L=3, d=12)
    factors = [q.requires_grad_() for q in (factors[:-1] if loss == "exact" else factors)]
    slopes = [torch.from_numpy(rng.uniform(0, 1, (5, 12, 3))) for _ in range(2)]
    relu = with_eps(0.3) if smoothing == "Definition 7" else relu_around(slopes, 0.5)
    lam = torch.from_numpy(rng.uniform(0.01, 0.1, 5))
    value, gradient, _ = value_and_gradient(factors, torch.eye(3).double(), lam, relu, loss)
    for written, automatic in zip(gradient, torch.autograd.grad(value.sum(), factors), strict=True):
        assert torch.allclose(written, automatic, rtol=1e-6, atol=1e-8 * float(automatic.abs().max()))


def test_with_the_right_slopes_the_smoothed_value_is_that_of_the_relu_and_the_slopes_stay():
    factors, _ = random_point(0, n=1)
    lam, Y = torch.full((5,), 0.03).double(), torch.eye(3).double()
    value, gradient, slopes = value_and_gradient(factors, Y, lam, with_eps(0.0))
    smoothed, smoothed_gradient, after = value_and_gradient(factors, Y, lam, relu_around(slopes, 1e-3))
    torch.testing.assert_close(smoothed, value, rtol=0, atol=1e-12)
    torch.testing.assert_close([*smoothed_gradient, *after], [*gradient, *slopes], rtol=0, atol=1e-12)


def test_the_exact_fit_is_the_least_last_layer_that_gives_the_identity():
    factors = random_point(0, n=1, L=3, d=12, runs=1)[0][:-1]
    top = levels(factors[0], [*factors[1:], torch.zeros(1, 3, 12)])[-1]
    last = torch.linalg.pinv(top)
    torch.testing.assert_close(last @ top, torch.eye(3).double()[None], rtol=0, atol=1e-9)
    value, _, _ = value_and_gradient(factors, torch.eye(3), torch.ones(1).double(), with_eps(0.0), "exact")
    assert value.item() == pytest.approx(0.5 * sum(q.square().sum().item() for q in [*factors, last]), rel=1e-6)


@pytest.mark.parametrize("signs", [None, torch.ones(6, dtype=torch.float64)])
def test_a_search_ends_at_the_collapsed_loss_of_two_classes(signs):
    factors, _ = random_point(0, K=2, n=3 if signs is None else 1, L=2, d=3, runs=12)
    lam = [0.02, 0.03, 0.04]
    values, H, Ws = minimise(factors, lam, 3, (0.1, 0.001, 0.0), signs)
    assert abs(values.min() - low_rank.dnc_loss(2, 2, lam, 3)) < 1e-9
    assert torch.allclose(values, objective(H, Ws, labels(2, 3), lam[1:], lam[0], relu=True), rtol=1e-12)


def test_with_mixed_signs_a_search_ends_where_the_derivative_by_the_single_columns_vanishes():
    factors, rng = random_point(1, n=1, L=3)
    n, lam, signs, eps = 2, [0.01, 0.02, 0.02, 0.03], torch.tensor([1, -1, 1, 1, 1, -1]).double(), 0.3
    values, H, Ws = minimise(factors, lam, n, (eps,), signs, iterations=2000)
    assert torch.equal(H[..., 0], -H[..., 1]) and torch.equal(H[..., 2], H[..., 3])
    columns, Ws = H[..., ::n].clone().requires_grad_(), [W.requires_grad_() for W in Ws]
    total = 0.0  # one run, class and sample after the other
    for k in range(len(H)):
        total = total + sum(x / 2 * W[k].square().sum() for x, W in zip(lam[1:], Ws, strict=True))
        for i, sign in enumerate(signs):
            h = sign * columns[k, :, i // n]
            total = total + lam[0] / 2 * h.square().sum()
            for W in Ws[:-1]:
                z = W[k] @ h
                h = torch.where(z <= 0, 0.0, torch.where(z < eps, z**2 * (2 * eps - z) / eps**2, z))
            total = total + (Ws[-1][k] @ h - torch.eye(3, dtype=h.dtype)[i // n]).square().sum() / (2 * 3 * n)
    assert abs(values.sum() - total) < 1e-11 * total
    assert all(g.abs().max() < 1e-7 for g in torch.autograd.grad(total, [columns, *Ws]))


@pytest.mark.parametrize(
    ("name", "change"), [("y", {"n": 3}), ("lam", {"lam": [0.1] * 4}), ("eps", {"schedule": [-1.0]})]
)
def test_wrong_arguments_are_named(name, change):
    factors, _ = random_point(0)
    with pytest.raises(ValueError, match=name):
        minimise(factors, **{"lam": [0.1] * 5, "n": 2} | change)
