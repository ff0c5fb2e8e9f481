"""Lines through averages and bootstrap intervals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lib.statistics import (
    bootstrap,
    bootstrap_mean,
    compare_curves,
    correlation_within,
    fit_line,
    further_line,
    mean_difference,
    mean_interval,
    prediction,
    slope_interval,
)


@pytest.mark.parametrize("points", [2, 3, 9])
def test_lines_through_scattered_points_are_those_of_scipy_and_leading_dimensions_are_separate_lines(points):
    x, noise = np.random.default_rng(points).normal(size=(2, 3, 4, points))
    y = 2 * x + noise
    lines = fit_line(x, y)
    assert lines.slope.shape == lines.intercept.shape == lines.r2.shape == (3, 4)
    for i, j in np.ndindex(3, 4):
        expected = stats.linregress(x[i, j], y[i, j])
        wanted = expected.slope, expected.intercept, expected.rvalue**2
        np.testing.assert_allclose([part[i, j] for part in lines], wanted, rtol=1e-10)


def test_a_level_line_is_explained_and_a_vertical_one_does_not_exist():
    assert fit_line([0, 1, 2], [5, 5, 5]) == (0, 5, 1)
    assert np.isnan(fit_line([0.3, 0.3, 0.3], [1, 2, 3])).all()


@given(st.integers(2, 6), st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_the_resampled_means_have_the_variance_of_the_mean(repetitions, seed):
    """The standard error from the unbiased variance, also for two repetitions."""
    group = np.random.default_rng(seed).normal(size=(repetitions, 1))
    found = []

    def remember(means):
        found.append(means[..., 0, 0])
        return found[-1]

    bootstrap(remember, [group], resamples=40_000)
    drawn = max(found, key=np.size)
    assert drawn.var() == pytest.approx(group.var(ddof=1) / repetitions, rel=0.05)
    assert drawn.mean() == pytest.approx(group.mean(), abs=0.03)


def test_the_interval_covers_the_slope_about_as_often_as_it_says():
    """Five levels of five repetitions with a known slope; few repetitions make the interval a little short."""
    levels, rng, covered = np.arange(5.0), np.random.default_rng(1), 0

    def slope(means):
        return fit_line(np.broadcast_to(levels, means.shape[:-1]), means[..., 0]).slope

    for trial in range(300):
        y = 2 * levels[:, None] + rng.normal(size=(5, 5))
        found = bootstrap(slope, y[..., None], resamples=400, seed=trial)
        covered += found.low <= 2 <= found.high
    assert 0.88 <= covered / 300 <= 0.98


def test_quantities_of_one_repetition_stay_together():
    """A difference that is the same in every repetition has no width, however much the repetitions scatter."""
    common = np.random.default_rng(2).normal(size=(6, 4, 1)) * 100
    groups = np.concatenate([common, common + 3], axis=-1)
    found = bootstrap(lambda means: (means[..., 1] - means[..., 0]).mean(-1), groups)
    np.testing.assert_allclose(found, 3, atol=1e-10)


def total(means):
    return means.sum((-2, -1))


def test_groups_may_differ_in_size_and_the_seed_decides():
    rng = np.random.default_rng(3)
    groups = [rng.normal(size=(n, 2)) for n in (2, 5, 9)]
    assert bootstrap(total, groups, seed=1) == bootstrap(total, groups, seed=1) != bootstrap(total, groups, seed=2)
    assert bootstrap(total, groups).value == pytest.approx(sum(group.mean(0).sum() for group in groups))


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (fit_line, ([1, 2], [1, 2, 3]), "the same shape"),
        (fit_line, ([1, np.nan], [1, 2]), "not finite"),
        (bootstrap, (total, [[[1.0], [2.0]], [[1.0]]]), "group 1"),
        (prediction, ([1.0],), "two or more"),
    ],
)
def test_what_gives_no_line_or_no_interval_is_refused(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


@given(st.integers(3, 20), st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_the_intervals_of_means_and_slopes_are_those_of_scipy(n, seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(3, 2, size=n)
    expected = stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values))
    np.testing.assert_allclose(mean_interval(values), (expected[0], values.mean(), expected[1]), rtol=1e-9)

    groups = {place: rng.normal(place, 1, size=rng.integers(1, 5)) for place in (-1.0, 0.5, *rng.uniform(1, 9, n))}
    x = [place for place, own in groups.items() for _ in own]
    line = stats.linregress(x, np.concatenate(list(groups.values())))
    half = stats.t.ppf(0.975, len(x) - 2) * line.stderr
    np.testing.assert_allclose(slope_interval(groups), (line.slope - half, line.slope, line.slope + half), rtol=1e-8)


def test_a_slope_has_no_interval_where_two_points_or_equal_values_say_nothing_about_the_variance():
    for groups, slope in (({0: [1.0], 1: [3.0]}, 2), ({0: [1.0, 1.0], 1: [1.0]}, 0), ({1: [1.0, 2.0, 4.0]}, np.nan)):
        np.testing.assert_equal(slope_interval(groups), (np.nan, slope, np.nan))


def test_a_mean_leaves_out_what_is_not_finite_and_needs_two_values():
    assert bootstrap_mean([1.0, np.nan, 2.0, np.inf, 4.0]) == bootstrap_mean([1.0, 2.0, 4.0])
    assert np.isnan(bootstrap_mean([1.0, np.nan])).all() and np.isnan(mean_interval([1.0])).all()


def pairs_at_levels(curves=2, levels=4, repetitions=6, seed=0):
    """x and y of curves that are no line, `(curves, levels, repetitions)`, and a mask of the pairs that count."""
    rng = np.random.default_rng(seed)
    x = np.arange(1.0, levels + 1)[:, None] + rng.uniform(-0.4, 0.4, (curves, levels, repetitions))
    factors = rng.uniform(0.5, 3, (curves, 1, 1))
    y = factors * x + rng.uniform(-0.3, 0.3, x.shape) + 0.5
    counts = rng.random((levels, repetitions)) < 0.8
    counts[0] = np.arange(repetitions) < 1  # a level with a single pair
    return x, y, counts


def averages(values, counts):
    """Level by level, of what counts, where that is two pairs or more."""
    return np.array([own[use].mean() for own, use in zip(values, counts, strict=True) if use.sum() > 1])


def lines_by_hand(x, y, counts):
    """Slope of each curve, and its height where all x of its comparison with the first have their mean."""
    fits = [
        stats.linregress(averages(own_x, counts), averages(own_y, counts)) for own_x, own_y in zip(x, y, strict=True)
    ]
    middles = [np.mean([averages(x[0], counts), averages(own, counts)]) for own in x]
    heights = []
    for line, m in zip(fits, middles, strict=True):
        heights.append((line.intercept + line.slope * m) / (fits[0].intercept + fits[0].slope * m))
    return [line.slope for line in fits], heights


@pytest.mark.parametrize("seed", range(5))
def test_the_comparison_of_two_curves_is_that_of_its_definition(seed):
    x, y, counts = pairs_at_levels(seed=seed)
    found = compare_curves(x, y, counts)
    slopes, heights = lines_by_hand(x, y, counts)
    assert found.pairs == counts.sum()
    np.testing.assert_allclose([line.slope for line in found.lines], slopes)
    np.testing.assert_allclose([slope.value for slope in found.slopes], slopes)
    assert found.slope_ratio.value == pytest.approx(slopes[1] / slopes[0])
    assert found.height_ratio.value == pytest.approx(heights[1])
    assert found.x_ratio.value == pytest.approx(stats.gmean((x[1] / x[0])[counts]))
    assert found.y_ratio.value == pytest.approx(stats.gmean((y[1] / y[0])[counts]))
    at_level = [np.log(averages(y[1], counts) / averages(y[0], counts)).mean(), np.log(heights[1])]
    assert found.nearer.value == pytest.approx(abs(at_level[0]) - abs(at_level[1]))
    assert mean_difference(*y, counts).value == pytest.approx((averages(y[1], counts) - averages(y[0], counts)).mean())
    for interval in (*found.slopes, *found[3:], mean_difference(*y, counts)):
        assert interval.low < interval.value < interval.high


def test_one_curve_measured_twice_is_one_line_and_a_multiple_is_not():
    x, y, counts = pairs_at_levels()
    same = compare_curves([x[0], x[0]], [y[0], y[0]], counts)
    np.testing.assert_allclose(same[3:5] + same[6:], 1)
    np.testing.assert_allclose(same.nearer, 0, atol=1e-12)
    moved = compare_curves([x[0], 3 * x[0]], [y[0], 3 * y[0]], counts)
    np.testing.assert_allclose([moved.slope_ratio, moved.x_ratio, moved.y_ratio], [[1] * 3, [3] * 3, [3] * 3])


def test_two_curves_on_one_line_are_nearer_at_equal_x_than_at_equal_level():
    x, _, counts = pairs_at_levels()
    x[1] *= 2
    assert compare_curves(x, 1 + x, counts).nearer.low > 0
    x[1] /= 2
    assert compare_curves(x, np.stack([1 + x[0], 9 + x[1]]), counts).nearer.value == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_how_much_further_a_third_line_lies_is_the_difference_of_two_distances(seed):
    x, y, counts = pairs_at_levels(curves=3, seed=seed)
    slopes, heights = lines_by_hand(x, y, counts)
    distances = [max(abs(np.log(slopes[i] / slopes[0])), abs(np.log(heights[i]))) for i in (1, 2)]
    found = further_line(x, y, counts)
    assert found.value == pytest.approx(distances[1] - distances[0])
    swapped = further_line(x[[0, 2, 1]], y[[0, 2, 1]], counts)
    np.testing.assert_allclose(swapped, [-found.high, -found.value, -found.low])


def test_a_line_that_falls_is_far_from_one_that_rises():
    x, _, counts = pairs_at_levels(curves=3)
    assert further_line(x, [x[0], 3 * x[1], 9 - x[2]], counts).low > np.log(1e5)


def test_where_fewer_than_two_levels_have_two_pairs_there_are_no_lines():
    x, y, counts = pairs_at_levels(curves=3)
    counts[:, 1:] = False
    counts[2] = True
    found = compare_curves(x[:2], y[:2], counts)
    assert found.pairs == counts.sum() and np.isnan(np.concatenate([*found.lines, *found.slopes, *found[3:]])).all()
    assert np.isnan(further_line(x, y, counts)).all() and np.isnan(mean_difference(*y[:2], counts)).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_correlation_at_equal_level_is_that_of_the_residuals_of_the_level(seed):
    """The partial correlation: a regression on indicators of the levels, and x, gives the same p value."""
    (x, _), (y, _), counts = pairs_at_levels(seed=seed)
    y = y + 5 * np.arange(4)[:, None]  # what the levels have in common does not count
    found = correlation_within(x, y, counts)
    levels, _ = np.nonzero(counts[1:])  # the first has a single pair
    design = np.column_stack([np.eye(3)[levels], x[1:][counts[1:]]])
    target = y[1:][counts[1:]]
    (*_, slope), rest, *_ = np.linalg.lstsq(design, target)
    free = len(target) - 4
    error = np.sqrt(rest[0] / free * np.linalg.inv(design.T @ design)[-1, -1])
    t = slope / error
    assert found.value == pytest.approx(t / np.sqrt(free + t * t))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(t), free))


def test_the_correlation_within_a_single_level_is_scipys():
    (x, _), (y, _), _ = pairs_at_levels(levels=1, repetitions=9)
    found, expected = correlation_within(x, y, np.ones((1, 9), dtype=bool)), stats.pearsonr(x[0], y[0])
    assert (found.value, found.p) == pytest.approx((expected.statistic, expected.pvalue))
    np.testing.assert_allclose((found.low, found.high), expected.confidence_interval(), rtol=1e-4)


def test_a_handful_of_values_has_no_correlation_at_equal_level():
    assert np.isnan(correlation_within(np.eye(2), np.eye(2), np.ones((2, 2), dtype=bool))).all()
