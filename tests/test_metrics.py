"""Measures of collapse against plain loops, on collapsed configurations and beside them."""

from math import acos, cos, hypot, pi, sin, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import metrics

quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 10**6)


def cloud(seed, n=12, d=4, K=3):
    """Random features with class means away from zero; every class has a sample."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.r_[np.arange(K), rng.integers(K, size=n - K)])
    centres = 3 * rng.standard_normal((K, d))
    return torch.from_numpy(centres[y] + rng.standard_normal((n, d))), torch.from_numpy(y)


def rotation(seed, d):
    return torch.from_numpy(np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0])


def means_by_hand(rows, labels):
    means = []
    for k in range(max(labels) + 1):
        own = [row for row, label in zip(rows, labels, strict=True) if label == k]
        means.append([sum(column) / len(own) for column in zip(*own, strict=True)])
    return means


def cosine(a, b):
    return sum(p * q for p, q in zip(a, b, strict=True)) / hypot(*a) / hypot(*b)


# Against loops --------------------------------------------------------------------------------------------------------


@quick
@given(seeds, st.integers(1, 4), st.integers(1, 5))
def test_class_means_are_means(seed, K, d):
    H, y = cloud(seed, K=K, d=d)
    means, global_mean = metrics.class_means(H, y)
    np.testing.assert_allclose(means.numpy(), means_by_hand(H.tolist(), y.tolist()), atol=1e-13)
    np.testing.assert_allclose(global_mean.numpy(), [sum(c) / len(c) for c in H.T.tolist()], atol=1e-13)


@quick
@given(seeds)
def test_relative_spread_is_distance_to_the_mean_over_length_of_the_mean(seed):
    H, y = cloud(seed)
    means, within, size = means_by_hand(H.tolist(), y.tolist()), 0.0, 0.0
    for row, k in zip(H.tolist(), y.tolist(), strict=True):
        within += sum((a - b) ** 2 for a, b in zip(row, means[k], strict=True))
        size += sum(b**2 for b in means[k])
    assert metrics.relative_spread(H, y) == pytest.approx(sqrt(within / size), rel=1e-12)


@quick
@given(seeds)
def test_directional_spread_is_the_root_mean_square_angle_to_the_mean_direction(seed):
    H, y = cloud(seed)
    directions = [[entry / hypot(*row) for entry in row] for row in H.tolist()]
    means = means_by_hand(directions, y.tolist())
    angles = [acos(min(1.0, cosine(row, means[k]))) for row, k in zip(H.tolist(), y.tolist(), strict=True)]
    expected = sqrt(sum(angle**2 for angle in angles) / len(angles))
    assert metrics.directional_spread(H, y) == pytest.approx(expected, abs=1e-7)


@quick
@given(st.floats(1e-9, 1.5))
def test_two_features_at_an_angle_are_half_of_it_from_their_mean_direction(angle):
    H = torch.tensor([[1.0, 0.0], [5 * cos(angle), 5 * sin(angle)]], dtype=torch.float64)
    assert metrics.directional_spread(H, torch.tensor([0, 0])) == pytest.approx(angle / 2, rel=1e-6)


@quick
@given(seeds, st.integers(2, 5))
def test_equiangularity_is_the_worst_cosine(seed, K):
    means = np.random.default_rng(seed).standard_normal((K, 4))
    worst = max(abs(cosine(means[a], means[b]) + 1 / (K - 1)) for a in range(K) for b in range(K) if a != b)
    assert metrics.equiangularity(torch.from_numpy(means)) == pytest.approx(worst, rel=1e-11)


@quick
@given(seeds)
def test_squared_singular_values_are_those_of_the_covariance_and_the_norm_of_the_centred_cloud(seed):
    H, _ = cloud(seed)
    found = metrics.principal_singular_values(H).numpy()
    covariance = np.cov(H.numpy().T, bias=True)
    np.testing.assert_allclose(found**2 / len(H), np.linalg.eigvalsh(covariance)[::-1], atol=1e-11)
    assert list(found) == sorted(found, reverse=True)


# Zero on collapse, and only there -------------------------------------------------------------------------------------


@quick
@given(seeds)
def test_spreads_of_a_collapsed_cloud_are_zero_and_see_one_feature_that_moved(seed):
    """Whole numbers and four samples per class, so that means are exact; a power of two keeps them so."""
    rng = np.random.default_rng(seed)
    points = torch.from_numpy(rng.integers(-50, 50, size=(3, 4)) + 0.5)
    y = torch.arange(3).repeat(4)
    H = points[y]
    assert metrics.relative_spread(H, y) == 0 and metrics.directional_spread(H, y) < 1e-15
    H[5] += 1e-3 * torch.from_numpy(rng.standard_normal(4))
    assert metrics.relative_spread(H, y) > 1e-7 and metrics.directional_spread(H, y) > 1e-7


@quick
@given(seeds)
def test_features_of_one_direction_and_many_lengths_have_spread_but_no_directional_spread(seed):
    rng = np.random.default_rng(seed)
    points, y = torch.from_numpy(rng.standard_normal((3, 4))), torch.arange(3).repeat(4)
    H = points[y] * torch.from_numpy(rng.uniform(0.1, 10, (12, 1)))
    assert metrics.directional_spread(H, y) < 1e-14
    assert metrics.relative_spread(H, y) > 1e-2


def test_a_tiny_angle_is_not_rounded_away():
    H = torch.tensor([[1.0, 0.0], [1.0, 2e-10]], dtype=torch.float64)
    assert metrics.directional_spread(H, torch.tensor([0, 0])) == pytest.approx(1e-10, rel=1e-4)


@quick
@given(st.integers(2, 6), st.floats(0.1, 10), seeds)
def test_corners_of_a_regular_simplex_are_equiangular_and_a_turned_one_is_seen(K, length, seed):
    corners = length * (K * torch.eye(K, dtype=torch.float64) - 1)
    assert metrics.equiangularity(corners @ rotation(seed, K)) < 1e-13
    corners[0, -1] += length
    assert metrics.equiangularity(corners) > 1e-2 or K == 2  # two corners are told apart by their line only
    assert metrics.equiangularity(torch.eye(K, dtype=torch.float64)) == pytest.approx(1 / (K - 1))


def test_three_vectors_at_120_degrees():
    angles = torch.tensor([0, 2 * pi / 3, 4 * pi / 3], dtype=torch.float64)
    means = torch.stack([angles.cos(), angles.sin()], 1)
    assert metrics.equiangularity(means) < 1e-15
    means[0] = torch.tensor([cos(0.1), sin(0.1)], dtype=torch.float64)
    assert metrics.equiangularity(means) == pytest.approx(cos(2 * pi / 3 - 0.1) + 0.5, rel=1e-9)


def test_a_flat_cloud_has_as_many_singular_values_as_dimensions_it_fills():
    rng = np.random.default_rng(0)
    H = torch.from_numpy(rng.standard_normal((20, 2)) @ rng.standard_normal((2, 7)) + 5)
    found = metrics.principal_singular_values(H)
    assert found.shape == (7,) and (found[:2] > 0.1).all() and found[2:].max() < 1e-13 * found[0]


# Invariance -----------------------------------------------------------------------------------------------------------


@quick
@given(seeds, st.floats(-6, 6))
def test_measures_see_neither_rotation_nor_scale_nor_order(seed, exponent):
    H, y = cloud(seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
    turned = 10**exponent * (H @ rotation(seed, 4))[order]
    for measure in (metrics.relative_spread, metrics.directional_spread):
        assert measure(turned, y[order]) == pytest.approx(measure(H, y), rel=1e-9)
        assert measure(turned, 2 - y[order]) == pytest.approx(measure(H, y), rel=1e-9)
    means, turned_means = metrics.class_means(H, y)[0], metrics.class_means(turned, y[order])[0]
    assert metrics.equiangularity(turned_means) == pytest.approx(metrics.equiangularity(means), rel=1e-9)


@quick
@given(seeds, st.floats(0.1, 10))
def test_singular_values_scale_with_the_cloud_and_do_not_see_where_it_lies(seed, factor):
    H, _ = cloud(seed)
    expected = factor * metrics.principal_singular_values(H)
    moved = factor * H @ rotation(seed, 4) + torch.arange(4)
    torch.testing.assert_close(metrics.principal_singular_values(moved), expected)


@quick
@given(seeds)
def test_lengths_of_single_features_do_not_change_the_directional_spread(seed):
    H, y = cloud(seed)
    lengths = torch.from_numpy(np.random.default_rng(seed).uniform(0.01, 100, (len(y), 1)))
    assert metrics.directional_spread(lengths * H, y) == pytest.approx(metrics.directional_spread(H, y), rel=1e-10)


def test_results_follow_the_dtype():
    H, y = cloud(0)
    assert metrics.class_means(H.float(), y)[0].dtype == torch.float32
    assert metrics.principal_singular_values(H.float()).dtype == torch.float32
    assert metrics.relative_spread(H.float(), y) == pytest.approx(metrics.relative_spread(H, y), rel=1e-5)


# Bad input ------------------------------------------------------------------------------------------------------------

H, y = torch.ones(4, 2), torch.tensor([0, 1, 1, 0])


@pytest.mark.parametrize("measure", [metrics.class_means, metrics.relative_spread, metrics.directional_spread])
@pytest.mark.parametrize(
    "features, labels, message",
    [
        (torch.tensor([[1.0, float("nan")], [1.0, float("inf")]]), torch.tensor([0, 1]), "2 entries"),
        (H, torch.tensor([0, 2, 2, 0]), "class 1 has no sample"),
        (H, torch.tensor([0, -1, 1, 0]), "label -1"),
        (H, y[:3], r"\(4, 2\).*\(3,\)"),
        (H, y[:, None], r"\(4, 2\).*\(4, 1\)"),
        (H[:, 0], y, r"\(4,\).*\(4,\)"),
        (H[:0], y[:0], r"\(0, 2\)"),
    ],
)
def test_bad_clouds_are_refused(measure, features, labels, message):
    with pytest.raises(ValueError, match=message):
        measure(features, labels)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: metrics.directional_spread(torch.eye(2, 3) * torch.tensor([1, 0, 0]), y[:2] * 0), "1 features"),
        (lambda: metrics.equiangularity(torch.ones(1, 3)), "1 rows"),
    ],
)
def test_what_has_no_angle_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
