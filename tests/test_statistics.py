"""Lines through averages and bootstrap intervals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lib.statistics import bootstrap, fit_line, prediction


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
