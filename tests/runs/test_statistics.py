"""Lines through averages and bootstrap intervals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lib.runs.statistics import bootstrap, fit_line


@given(
    slope=st.floats(-50, 50),
    intercept=st.floats(-50, 50),
    points=st.lists(st.integers(-1000, 1000), min_size=2, max_size=12, unique=True),
)
def test_points_on_a_line_give_that_line(slope, intercept, points):
    x = np.array(points, dtype=float)
    line = fit_line(x, slope * x + intercept)
    assert line.slope == pytest.approx(slope, abs=1e-9)
    assert line.intercept == pytest.approx(intercept, abs=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_the_line_through_scattered_points_is_that_of_scipy(seed):
    x, y = np.random.default_rng(seed).normal(size=(2, 9))
    line, expected = fit_line(x, y), stats.linregress(x, y)
    np.testing.assert_allclose(line, (expected.slope, expected.intercept, expected.rvalue**2), rtol=1e-10)


def test_leading_dimensions_are_separate_lines():
    x, y = np.random.default_rng(0).normal(size=(2, 3, 4, 7))
    lines = fit_line(x, y)
    assert lines.slope.shape == lines.intercept.shape == lines.r2.shape == (3, 4)
    for i, j in np.ndindex(3, 4):
        np.testing.assert_allclose([part[i, j] for part in lines], fit_line(x[i, j], y[i, j]), rtol=1e-13)


def test_a_level_line_is_explained_and_a_vertical_one_does_not_exist():
    assert fit_line([0, 1, 2], [5, 5, 5]) == (0, 5, 1)
    assert np.isnan(fit_line([0.3, 0.3, 0.3], [1, 2, 3])).all()


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [([1, 2], [1, 2, 3], "y"), ([1], [1], "x"), ([1, np.nan], [1, 2], "x"), (1, 2, "x")],
)
def test_points_that_give_no_line_are_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        fit_line(x, y)


@given(st.integers(2, 6), st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_the_resampled_means_have_the_variance_of_the_mean(repetitions, seed):
    """The standard error from the unbiased variance, also for two repetitions."""
    group = np.random.default_rng(seed).normal(size=(repetitions, 1))
    found = []

    def remember(means):
        found.append(means[..., 0, 0])
        return means[..., 0, 0]

    bootstrap(remember, [group], resamples=40_000)
    drawn = next(values for values in found if values.ndim == 1)
    assert drawn.var() == pytest.approx(group.var(ddof=1) / repetitions, rel=0.05)
    assert drawn.mean() == pytest.approx(group.mean(), abs=0.03)


def test_the_interval_covers_the_slope_about_as_often_as_it_says():
    """Five levels of five repetitions with a known slope; few repetitions make the interval a little short."""
    levels, rng, covered = np.arange(5.0), np.random.default_rng(1), 0
    for trial in range(300):
        y = 2 * levels[:, None] + rng.normal(size=(5, 5))
        found = bootstrap(
            lambda means: fit_line(np.broadcast_to(levels, means.shape[:-1]), means[..., 0]).slope,
            y[..., None], resamples=400, seed=trial,
        )  # fmt: skip
        covered += found.low <= 2 <= found.high
    assert 0.88 <= covered / 300 <= 0.98


def test_quantities_of_one_repetition_stay_together():
    """A difference that is the same in every repetition has no width, however much the repetitions scatter."""
    common = np.random.default_rng(2).normal(size=(6, 4, 1)) * 100
    groups = np.concatenate([common, common + 3], axis=-1)
    found = bootstrap(lambda means: (means[..., 1] - means[..., 0]).mean(-1), groups)
    np.testing.assert_allclose(found, 3, atol=1e-10)


def test_groups_may_differ_in_size_and_the_seed_decides():
    rng = np.random.default_rng(3)
    groups = [rng.normal(size=(n, 2)) for n in (2, 5, 9)]

    def total(means):
        return means.sum((-2, -1))

    assert bootstrap(total, groups, seed=1) == bootstrap(total, groups, seed=1) != bootstrap(total, groups, seed=2)
    assert bootstrap(total, groups).value == pytest.approx(sum(group.mean(0).sum() for group in groups))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[[1.0]]], "group 0"),
        ([[[1.0], [2.0]], [1.0, 2.0]], "group 1"),
        ([[[1.0], [np.nan]]], "group 0"),
    ],
)
def test_bad_groups_are_named(groups, message):
    with pytest.raises(ValueError, match=message):
        bootstrap(lambda means: means.sum((-2, -1)), groups)
