import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.models.losses import label_relaxation, label_smoothing, one_hot_error, squared_error

quick = settings(deadline=None)


def random_scores(N, K, seed, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(N, K, dtype=torch.float64, generator=generator)
    return scores, torch.randint(K, (N,), generator=generator)


def nearest(p, label, alpha):
    """The distribution with at least 1 - alpha on the label that is nearest to p, from its description."""
    if p[label] >= 1 - alpha:
        return list(p)
    rest = sum(q for k, q in enumerate(p) if k != label)
    return [1 - alpha if k == label else alpha * q / rest for k, q in enumerate(p)]


def divergence(q, p):
    return sum(a * math.log(a / b) for a, b in zip(q, p, strict=True) if a > 0)


@quick
@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 2**31))
def test_both_squared_errors_are_squared_distances_to_the_one_hot_target_averaged_over_samples(N, K, seed):
    scores, y = random_scores(N, K, seed)
    total = sum((scores[i, k].item() - (k == y[i].item())) ** 2 for i in range(N) for k in range(K))
    assert squared_error(scores, y).item() == pytest.approx(total / (2 * N), rel=1e-12)
    assert one_hot_error(scores, y).item() == pytest.approx(total / (N * K), rel=1e-12)


@quick
@given(st.integers(1, 9), st.integers(2, 6), st.floats(0, 0.999), st.integers(0, 2**31))
def test_label_smoothing_is_the_cross_entropy_against_mixed_targets(N, K, alpha, seed):
    scores, y = random_scores(N, K, seed)
    total = 0.0
    for row, label in zip(scores.tolist(), y.tolist(), strict=True):
        log_total = math.log(sum(map(math.exp, row)))
        for k in range(K):
            total -= ((1 - alpha) * (k == label) + alpha / K) * (row[k] - log_total)
    assert label_smoothing(scores, y, alpha).item() == pytest.approx(total / N, rel=1e-10, abs=1e-12)


@quick
@given(st.integers(1, 9), st.integers(2, 6), st.floats(0.001, 0.999), st.integers(0, 2**31))
def test_label_relaxation_is_the_divergence_from_the_nearest_distribution_that_is_sure_enough(N, K, alpha, seed):
    scores, y = random_scores(N, K, seed)
    total = 0.0
    for row, label in zip(scores.tolist(), y.tolist(), strict=True):
        p = [math.exp(s) / sum(map(math.exp, row)) for s in row]
        total += divergence(nearest(p, label, alpha), p)
    assert label_relaxation(scores, y, alpha).item() == pytest.approx(total / N, rel=1e-9, abs=1e-12)


@quick
@given(st.integers(2, 6), st.floats(0.01, 0.9), st.integers(0, 2**31))
def test_no_distribution_that_is_sure_enough_is_nearer_than_label_relaxation_says(K, alpha, seed):
    scores, y = random_scores(1, K, seed)
    value, p, label = label_relaxation(scores, y, alpha).item(), scores.softmax(1)[0].tolist(), y.item()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20):
        share = alpha * torch.rand((), dtype=torch.float64, generator=generator).item()
        others = torch.rand(K, dtype=torch.float64, generator=generator)
        others[label] = 0
        q = (share * others / others.sum()).tolist()
        q[label] = 1 - share
        assert divergence(q, p) >= value - 1e-12


@quick
@given(st.integers(1, 9), st.integers(2, 6), st.floats(0.01, 0.9), st.integers(0, 2**31))
def test_the_gradient_of_label_relaxation_is_the_distance_to_that_distribution_held_fixed(N, K, alpha, seed):
    scores, y = random_scores(N, K, seed)
    scores.requires_grad_()
    (gradient,) = torch.autograd.grad(label_relaxation(scores, y, alpha), scores)
    p = scores.detach().softmax(1)
    fixed = [nearest(row, label, alpha) for row, label in zip(p.tolist(), y.tolist(), strict=True)]
    expected = (p - torch.tensor(fixed, dtype=torch.float64)) / N
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_label_relaxation_of_huge_scores_is_finite_with_a_finite_gradient(dtype):
    scores = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [0.0, 0.0, 0.0]], dtype=dtype, requires_grad=True)
    value = label_relaxation(scores, torch.zeros(3, dtype=torch.long), 0.1)
    (gradient,) = torch.autograd.grad(value, scores)
    assert value.item() == pytest.approx(0.9 * 2e4 / 3, rel=1e-3)
    assert gradient[0].eq(0).all() and gradient.isfinite().all()
    torch.testing.assert_close(gradient[1], torch.tensor([-0.3, 0.3, 0.0], dtype=dtype))


@pytest.mark.parametrize("loss, alphas", [(label_smoothing, (-0.1, 1.0)), (label_relaxation, (0.0, 1.0, math.nan))])
def test_an_alpha_out_of_its_range_is_refused(loss, alphas):
    for alpha in alphas:
        with pytest.raises(ValueError, match="alpha"):
            loss(torch.zeros(2, 3), torch.tensor([0, 1]), alpha)


@pytest.mark.parametrize("loss", [squared_error, one_hot_error, label_smoothing, label_relaxation])
@pytest.mark.parametrize("shape, y", [((2, 3), [0, 3]), ((2, 3), [0, -1]), ((2, 3), [0.0, 1.0]), ((2,), [0, 1])])
def test_labels_and_shapes_that_do_not_fit_are_refused(loss, shape, y):
    with pytest.raises(ValueError, match=r"\by\b"):
        loss(torch.zeros(shape), torch.tensor(y))
    with pytest.raises(ValueError, match="scores"):
        label_relaxation(torch.zeros(2, 1), torch.tensor([0, 0]))  # of one class
