"""Measures of collapse against plain loops, on collapsed configurations and beside them."""

from fractions import Fraction
from itertools import combinations
from math import acos, hypot, inf, isnan, log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import collapsemetrics as metrics
from collapsemetrics import ClassStatistics, formulas

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


def means_by_hand(H, y):
    H, y = H.numpy(), y.numpy()
    return np.array([sum(H[y == k]) / sum(y == k) for k in range(max(y) + 1)])


def cosine(a, b):
    return sum(a * b) / hypot(*a) / hypot(*b)


# Against loops --------------------------------------------------------------------------------------------------------


@quick
@given(seeds, st.integers(1, 4), st.integers(1, 5))
def test_class_means_relative_spread_and_memorization_are_those_of_their_sums(seed, K, d):
    H, y = cloud(seed, K=K, d=d)
    means, global_mean = metrics.class_means(H, y)
    np.testing.assert_allclose(means, means_by_hand(H, y), atol=1e-13)
    np.testing.assert_allclose(global_mean, sum(H.numpy()) / len(H), atol=1e-13)
    own = means_by_hand(H, y)[y]
    expected = sqrt(((H.numpy() - own) ** 2).sum() / (own**2).sum())
    assert metrics.relative_spread(H, y) == pytest.approx(expected, rel=1e-12)
    test_means = torch.from_numpy(np.random.default_rng(seed).standard_normal((K, d)))
    expected = sum(hypot(*(row - mean)) for row, mean in zip(H.numpy(), test_means[y].numpy(), strict=True))
    assert metrics.memorization(H, y, test_means).item() == pytest.approx(expected, rel=1e-12)
    assert metrics.memorization(H[:0], y[:0], test_means) == 0


@quick
@given(seeds)
def test_directional_spread_is_the_root_mean_square_angle_to_the_mean_direction(seed):
    H, y = cloud(seed)
    means = means_by_hand(H / H.norm(dim=1, keepdim=True), y)[y]
    angles = [acos(min(1.0, cosine(row, mean))) for row, mean in zip(H.numpy(), means, strict=True)]
    expected = sqrt(sum(angle**2 for angle in angles) / len(angles))
    assert metrics.directional_spread(H, y) == pytest.approx(expected, abs=1e-7)


@quick
@given(seeds)
def test_squared_singular_values_are_those_of_the_covariance_and_the_norm_of_the_centred_cloud(seed):
    H, _ = cloud(seed)
    found = metrics.principal_singular_values(H).numpy()
    covariance = np.cov(H.numpy().T, bias=True)
    np.testing.assert_allclose(found**2 / len(H), np.linalg.eigvalsh(covariance)[::-1], atol=1e-11)
    assert list(found) == sorted(found, reverse=True)


def nc1_by_hand(H, y, of_classes=False):
    """The definition, term by term; samples, or else classes, make the global mean."""
    means, H = means_by_hand(H, y), H.numpy()
    centre = means.mean(0) if of_classes else H.mean(0)
    within = sum(np.outer(row - mean, row - mean) for row, mean in zip(H, means[y], strict=True)) / len(H)
    between = sum(np.outer(mean - centre, mean - centre) for mean in means) / len(means)
    return np.trace(within @ np.linalg.pinv(between, rcond=1e-10)) / len(means)


@quick
@given(seeds, st.integers(2, 5), st.integers(1, 7), st.booleans())
def test_nc1_is_the_trace_of_within_times_the_pseudo_inverse_of_between(seed, K, d, balanced):
    H, y = cloud(seed, n=4 * K, K=K, d=d)
    if balanced:
        H, y = H[y.argsort()], torch.arange(K).repeat_interleave(4)
        H += 2 * torch.from_numpy(np.random.default_rng(seed).standard_normal((K, d)))[y]
    assert metrics.nc1(H, y).item() == pytest.approx(nc1_by_hand(H, y), rel=1e-10)
    assert metrics.dilation(H, y).item() == pytest.approx(nc1_by_hand(H, y, of_classes=True), rel=1e-10)


def gram_by_hand(means):
    gram = np.array([[sum(a * b) for b in means] for a in means])
    return gram / sqrt((gram**2).sum())


@quick
@given(seeds, st.integers(2, 6), st.integers(1, 7))
def test_nc2_and_nc3_are_distances_of_what_is_divided_by_its_norm_and_equiangularity_is_the_worst_cosine(seed, K, d):
    M, W = np.random.default_rng(seed).standard_normal((2, K, d))
    simplex = np.array([[(a == b) - 1 / K for b in range(K)] for a in range(K)]) / sqrt(K - 1)
    etf = sqrt(((gram_by_hand(M) - simplex) ** 2).sum())
    of = sqrt(((gram_by_hand(M) - np.diag([1 / sqrt(K)] * K)) ** 2).sum())
    aligned = sqrt(((W / sqrt((W**2).sum()) - M / sqrt((M**2).sum())) ** 2).sum())
    worst = max(abs(cosine(M[a], M[b]) + 1 / (K - 1)) for a in range(K) for b in range(K) if a != b)
    M, W = torch.from_numpy(M), torch.from_numpy(W)
    assert metrics.equiangularity(M) == pytest.approx(worst, rel=1e-11)
    assert metrics.nc2_etf(M).item() == pytest.approx(etf, rel=1e-10)
    assert metrics.nc2_of(M).item() == pytest.approx(of, rel=1e-10)
    assert metrics.nc3(W, M).item() == pytest.approx(aligned, rel=1e-10)


@quick
@given(seeds, st.integers(2, 9), st.integers(2, 4), st.integers(1, 50))
def test_cdnv_and_uniformity_are_means_over_pairs_of_classes_however_many_are_in_memory_at_a_time(seed, K, d, tile):
    H, y = cloud(seed, n=4 * K, K=K, d=d)
    means, H_of = means_by_hand(H, y), [H[y == k].numpy() for k in range(K)]
    variances = [((rows - mean) ** 2).sum() / len(rows) for rows, mean in zip(H_of, means, strict=True)]
    directions = [mean / hypot(*mean) for mean in means]
    ratios, logs = [], []
    for k, other in combinations(range(K), 2):
        ratios.append((variances[k] + variances[other]) / 2 / sum((means[k] - means[other]) ** 2))
        logs.append(-log(hypot(*(directions[k] - directions[other]))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formulas, "TILE", tile)
        assert metrics.cdnv(H, y).item() == pytest.approx(sum(ratios) / len(ratios), rel=1e-9)
        found = metrics.uniformity(torch.from_numpy(means)).item()
    assert found == pytest.approx(sum(logs) / len(logs), rel=1e-9, abs=1e-12)


def test_uniformity_of_many_classes_can_be_descended():
    points = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    before = metrics.uniformity(points)
    (gradient,) = torch.autograd.grad(before, points)
    assert metrics.uniformity(points - 1e-3 * gradient) < before


@pytest.mark.parametrize("dtype, rel", [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_nc1_of_many_classes_sees_every_direction_that_the_dtype_resolves(dtype, rel):
    """Coordinates in units that span four decades: the definition does not depend on the units."""
    generator = torch.Generator().manual_seed(0)
    units, y = torch.logspace(0, -4, 16, dtype=torch.float64), torch.arange(4000) % 2000
    H = torch.randn(2000, 16, generator=generator, dtype=torch.float64)[y]
    H += 0.3 * torch.randn(4000, 16, generator=generator, dtype=torch.float64)
    means = H.view(2, 2000, 16).mean(0)
    within, between = (part.T @ part / len(part) for part in (H - means[y], means - means.mean(0)))
    expected = torch.linalg.solve(between, within).trace().item() / 2000
    assert metrics.nc1((H * units).to(dtype), y).item() == pytest.approx(expected, rel=rel)
    statistics = ClassStatistics(2000, 16)
    statistics.update((H * units).to(dtype), y)
    assert statistics.nc1() == pytest.approx(expected, rel=rel) and statistics.left_out() == 0


@quick
@given(seeds, st.booleans())
def test_nc4_counts_samples_whose_largest_score_is_not_that_of_the_nearest_mean(seed, biased):
    H, y = cloud(seed, n=20)
    rng = np.random.default_rng(seed)
    W, b = torch.from_numpy(rng.standard_normal((3, 4))), torch.from_numpy(rng.standard_normal(3))
    means, wrong = metrics.class_means(H, y)[0], 0
    for row in H.numpy():
        scores = [sum(w * row) + biased * bias for w, bias in zip(W.numpy(), b.numpy(), strict=True)]
        distances = [hypot(*(row - mean)) for mean in means.numpy()]
        wrong += scores.index(max(scores)) != distances.index(min(distances))
    assert metrics.nc4(H, W, b if biased else None, means).item() == pytest.approx(wrong / 20, abs=1e-15)


@quick
@given(seeds, st.lists(st.floats(-5, 1), min_size=2, max_size=5))
def test_rank_and_condition_number_of_a_matrix_with_known_singular_values(seed, exponents):
    values = 10.0 ** np.array(sorted(exponents, reverse=True))
    n = len(values)
    M = rotation(seed, n) @ torch.diag(torch.from_numpy(values)) @ rotation(seed + 1, n + 2)[:n]
    assert metrics.condition_number(M).item() == pytest.approx(values[0] / values[-1], rel=1e-8)
    assert metrics.condition_number(M, rank=2).item() == pytest.approx(values[0] / values[1], rel=1e-8)
    rank = metrics.numerical_rank(M)
    assert (values > 1.001e-3 * values[0]).sum() <= rank <= (values > 0.999e-3 * values[0]).sum()


# Many runs at once ----------------------------------------------------------------------------------------------------


def every(H, y, W, b):
    """The measures of features, of their class means, and of these and a classifier."""
    M = metrics.class_means(H, y)[0]
    of_features = metrics.relative_spread, metrics.directional_spread, metrics.nc1, metrics.trace_ratio, metrics.cdnv
    of_means = metrics.nc2_etf, metrics.nc2_of, metrics.uniformity, metrics.numerical_rank, metrics.condition_number
    found = {measure.__name__: measure(H, y) for measure in of_features}
    found |= {measure.__name__: measure(M) for measure in of_means}
    found |= {measure.__name__: measure(W, M) for measure in (metrics.nc3, metrics.duality)}
    found |= {"nc4": metrics.nc4(H, W, b, M), "memorization": metrics.memorization(H, y, M)}
    return {name: torch.as_tensor(value, dtype=H.dtype) for name, value in found.items()}


def test_a_batch_of_runs_gives_what_each_run_gives():
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.permutation(np.r_[np.arange(3), rng.integers(3, size=9)]))
    H = torch.from_numpy(rng.standard_normal((2, 5, 12, 4))) + 3 * torch.from_numpy(rng.standard_normal((3, 4)))[y]
    W, b = torch.from_numpy(rng.standard_normal((2, 5, 3, 4))), torch.from_numpy(rng.standard_normal((2, 5, 3)))
    assert [part.shape for part in metrics.class_means(H, y)] == [(2, 5, 3, 4), (2, 5, 4)]
    alone = [[every(H[i, j], y, W[i, j], b[i, j]) for j in range(5)] for i in range(2)]
    for name, together in every(H, y, W, b).items():
        expected = [[run[name] for run in row] for row in alone]
        np.testing.assert_allclose(together, expected, rtol=1e-10, err_msg=name)


# Zero on collapse, and only there -------------------------------------------------------------------------------------


@quick
@given(seeds)
def test_measures_vanish_on_collapse_and_see_features_that_moved(seed):
    """Whole numbers and four samples per class, so that means are exact."""
    rng = np.random.default_rng(seed)
    points = torch.from_numpy(rng.integers(-50, 50, size=(3, 4)) + 0.5) + 100 * torch.eye(3, 4, dtype=torch.float64)
    y = torch.arange(3).repeat(4)
    H = points[y]
    W, b = points, -points.square().sum(1) / 2  # this classifier asks for the nearest of the points
    assert metrics.nc1(H, y) == metrics.relative_spread(H, y) == metrics.nc4(H, W, b, points) == 0
    assert metrics.directional_spread(H, y) < 1e-15
    assert metrics.nc4(H, W.roll(1, 0), b.roll(1), points) == 1
    moved = H.clone()
    moved[5] += 1e-3 * (points[0] - points[1])
    assert metrics.nc1(moved, y) > 1e-8
    assert metrics.relative_spread(moved, y) > 1e-7 and metrics.directional_spread(moved, y) > 1e-7
    moved[5] = points[0]
    assert metrics.nc4(moved, W, b, points) == 0 and metrics.memorization(moved, y, points) > 1


def test_nc1_does_not_see_deviations_across_the_span_of_the_centred_means_and_the_spread_does():
    y = torch.arange(3).repeat(4)
    H = torch.eye(3, 4, dtype=torch.float64)[y]
    H[:3, 3] = 5
    assert metrics.nc1(H, y) < 1e-15 and metrics.relative_spread(H, y) > 1


def test_of_equal_scores_and_of_equally_near_means_the_first_counts():
    H, means = torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert metrics.nc4(H, means, None, means) == 0
    assert metrics.nc4(H, means, torch.tensor([0.0, 1.0]), means) == 1


@quick
@given(seeds, st.sampled_from([1e-6, 1e-9, 1e-12]))
def test_nc1_of_features_collapsed_to_the_last_digits_is_exact(seed, size):
    """Two classes on a line, in rational arithmetic: NC1 is the variance over twice the between-class variance."""
    rng = np.random.default_rng(seed)
    y = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    h = 3.0 * y.numpy() + 1 + size * rng.standard_normal(7)
    exact = [Fraction(value) for value in h.tolist()]
    means = [sum(exact[:3]) / 3, sum(exact[3:]) / 4]
    middle = sum(exact) / 7
    within = sum((value - means[k]) ** 2 for value, k in zip(exact, y.tolist(), strict=True)) / 7
    between = sum((mean - middle) ** 2 for mean in means) / 2
    turned = torch.from_numpy(h)[:, None] * torch.tensor([[1.0, 0.0, -2.0]], dtype=torch.float64)
    assert metrics.nc1(turned, y).item() == pytest.approx(float(within / between / 2), rel=1e-9)


def test_nc1_where_all_class_means_coincide_is_nan_though_rounding_tells_them_apart():
    y = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2])
    H = torch.full((8, 3), 0.1, dtype=torch.float64)
    runs = torch.stack([H, 0 * H, torch.arange(24.0).double().reshape(8, 3)])
    assert metrics.nc1(runs, y).isnan().tolist() == [True, True, False] and isnan(metrics.nc1(H.float(), y))
    statistics = ClassStatistics(3, 3)
    statistics.update(H, y)
    assert isnan(statistics.nc1())


def test_at_zero_what_has_no_direction_is_nan_and_the_rank_is_zero():
    zero, means = torch.zeros(3, 4), torch.eye(3, 4)
    values = metrics.nc3(zero, means), metrics.nc2_etf(zero), metrics.nc2_of(zero), metrics.condition_number(zero)
    assert all(isnan(value) for value in values) and metrics.numerical_rank(zero) == 0
    assert metrics.condition_number(torch.diag(torch.tensor([4.0, 2.0, 0.0]))) == inf


@pytest.mark.parametrize("size", [1e-13, 1e13])
def test_cosines_of_vectors_of_any_length_are_those_of_their_directions(size):
    W, means = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
    for measure, *vectors in ((metrics.duality, W, means), (metrics.uniformity, means), (metrics.nc5, means, W[0])):
        assert measure(*(size * part for part in vectors)) == pytest.approx(measure(*vectors).item(), rel=1e-5)
    assert metrics.nc4(W, W[:1], None, means[:1]) == 0, "there is one class only"


# Invariance -----------------------------------------------------------------------------------------------------------


@quick
@given(seeds, st.floats(-6, 6))
def test_measures_see_neither_rotation_nor_scale_nor_order(seed, exponent):
    (H, y), scale, turn = cloud(seed), 10**exponent, rotation(seed, 4)
    rng = np.random.default_rng(seed)
    order, W, b = rng.permutation(len(y)), torch.from_numpy(rng.standard_normal((3, 4))), torch.zeros(3)
    turned, labels = scale * (H @ turn)[order], 2 - y[order]  # classes in another order, too
    found, expected = every(turned, labels, (W @ turn).flip(0), b), every(H, y, W, b)
    expected["memorization"] *= scale
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)
    for measure in (metrics.nc1, metrics.trace_ratio, metrics.cdnv):
        assert measure(turned + scale, labels).item() == pytest.approx(measure(H, y).item(), rel=1e-8)
    M, turned_M = metrics.class_means(H, y)[0], metrics.class_means(turned, labels)[0]
    assert metrics.equiangularity(turned_M) == pytest.approx(metrics.equiangularity(M), rel=1e-8)


def test_results_follow_the_dtype():
    H, y = cloud(0)
    assert metrics.relative_spread(H.float(), y) == pytest.approx(metrics.relative_spread(H, y), rel=1e-5)
    means = metrics.class_means(H, y)[0]
    for features, dtype, tolerance in ((H.float(), torch.float32, 1e-4), (H.bfloat16(), torch.float32, 0.2)):
        assert metrics.nc1(features, y).dtype == metrics.nc2_of(means.to(features)).dtype == dtype
        assert metrics.nc1(features, y).item() == pytest.approx(metrics.nc1(H, y).item(), rel=tolerance)
    assert metrics.nc1(H, y.int()) == metrics.nc1(H, y.to(torch.uint8)) == metrics.nc1(H, y)


# Bad input ------------------------------------------------------------------------------------------------------------

H, y = torch.ones(4, 2), torch.tensor([0, 1, 1, 0])
nan_row = torch.tensor([[1.0, float("nan")], [1.0, 2.0]])


@pytest.mark.parametrize(
    "measure", [metrics.class_means, metrics.relative_spread, metrics.directional_spread, metrics.nc1]
)
def test_bad_clouds_are_refused(measure):
    no_labels = y[:3], torch.eye(2)[y], y + 1, y - 1, y * 10**12, y + 0.5
    no_features = nan_row[[0, 1, 0, 1]], H[:, 0], H[:0], H.long()
    refused = [(H, bad, "^y") for bad in no_labels] + [(bad, y, "^[Hy]") for bad in no_features]
    for features, labels, named in refused:
        with pytest.raises(ValueError, match=named):
            measure(features, labels)


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: metrics.directional_spread(torch.eye(2, 3) * torch.tensor([1, 0, 0]), y[:2] * 0), "1 features"),
        (lambda: metrics.nc1(H, 0 * y), "K"),
        (lambda: metrics.nc2_etf(nan_row), "means"),
        (lambda: metrics.nc3(H, H[:2]), "W .* means"),
        (lambda: metrics.nc4(H, H[:2], None, H[:3]), "H .* W .* means"),
        (lambda: metrics.nc4(H, H[:2], torch.ones(3), H[:2]), "b"),
        (lambda: metrics.memorization(H, y + 1, H[:2]), "y"),
        (lambda: metrics.numerical_rank(H, rtol=1), "rtol"),
        (lambda: ClassStatistics(2, 2).means, "class 0"),
        (lambda: ClassStatistics(2, 3).update(H, y), "H"),
    ],
)
def test_what_does_not_fit_is_refused(call, named):
    with pytest.raises(ValueError, match=f"^{named} "):
        call()
