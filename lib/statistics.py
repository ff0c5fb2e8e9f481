r"""Lines through averages, and what chance does to them: for experiments that repeat every setting a few times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

#: Probability that an interval of :func:`bootstrap` is meant to cover.
LEVEL = 0.95


class Line(NamedTuple):
    r"""The least-squares line :math:`y = \mathtt{slope}\, x + \mathtt{intercept}` and the variance it explains, `r2`.

    Each is a number, or an array with one entry per line.

    >>> line = Line(slope=2.0, intercept=1.0, r2=1.0)
    >>> line.slope * 3 + line.intercept
    7.0
    """

    slope: np.ndarray | float
    intercept: np.ndarray | float
    r2: np.ndarray | float


class Interval(NamedTuple):
    """An estimate between the ends of its confidence interval."""

    low: float
    value: float
    high: float


def ends(interval: Interval) -> list[float]:
    """`[low, high]` of an interval, as a claim states it.

    >>> ends(Interval(0.9, 1.0, 1.2))
    [0.9, 1.2]
    """
    return [interval.low, interval.high]


class Correlation(NamedTuple):
    """A correlation `value`, its 95% interval and the two-sided `p` value of no correlation."""

    low: float
    value: float
    high: float
    p: float


class Comparison(NamedTuple):
    """What :func:`compare_curves` finds; every ratio is that of the second curve over the first."""

    pairs: int  #: that count
    lines: tuple[Line, Line]  #: through the averages of the levels
    slopes: tuple[Interval, Interval]
    slope_ratio: Interval
    height_ratio: Interval  #: in the middle of both lines
    nearer: Interval  #: by how much the curves are nearer in y at equal x than at equal level, in logarithms
    x_ratio: Interval  #: geometric mean over the pairs, at equal level
    y_ratio: Interval


#: Where there is too little for an interval.
NOTHING = Interval(np.nan, np.nan, np.nan)


def fit_line(x: ArrayLike, y: ArrayLike) -> Line:
    r"""Least-squares lines through points.

    .. math::
        \mathtt{slope} = \frac{\sum_i (x_i - \bar x)(y_i - \bar y)}{\sum_i (x_i - \bar x)^2}, \qquad
        r^2 = 1 - \frac{\sum_i (y_i - \mathtt{slope}\, x_i - \mathtt{intercept})^2}{\sum_i (y_i - \bar y)^2}

    Where all y are equal, the line explains them and :math:`r^2 = 1`; where all x are equal, there is no line and all
    three are nan.

    Parameters
    ----------
    x, y
        `(..., points)`, the same shape; leading dimensions are separate lines. No units are changed.

    Raises
    ------
    ValueError
        If the shapes differ, there are fewer than two points, or an entry is not finite.

    Examples
    --------
    >>> line = fit_line([0, 1, 2, 3], [1, 3, 5, 7])
    >>> print(line.slope, line.intercept, line.r2)
    2.0 1.0 1.0
    >>> # two lines
    >>> fit_line([[0, 1, 2], [0, 1, 2]], [[0, 1, 2], [0, 2, 4]]).slope.tolist()
    [1.0, 2.0]
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if x.shape != y.shape or x.ndim == 0 or x.shape[-1] < 2:
        raise ValueError(f"x has shape {x.shape}, y {y.shape}: the same shape (..., points), with two points or more")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("x or y has entries that are not finite")
    mean_x, mean_y = x.mean(-1, keepdims=True), y.mean(-1, keepdims=True)
    dx, dy = x - mean_x, y - mean_y
    scale = np.abs(x).max(-1) * np.finfo(float).eps * 4
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.where(np.abs(dx).max(-1) > scale, (dx * dx).sum(-1), np.nan)
        slope = (dx * dy).sum(-1) / spread
        rest, total = ((dy - slope[..., None] * dx) ** 2).sum(-1), (dy * dy).sum(-1)
        level = np.abs(dy).max(-1) <= np.abs(y).max(-1) * np.finfo(float).eps * 4
        r2 = np.where(~level, 1 - rest / total, np.where(np.isnan(slope), np.nan, 1.0))
    return Line(*(value[()] for value in (slope, mean_y[..., 0] - slope * mean_x[..., 0], r2)))


def bootstrap(
    statistic: Callable[[np.ndarray], np.ndarray], groups: Sequence[ArrayLike], resamples: int = 4000, seed: int = 0
) -> Interval:
    r"""A statistic of group means, with the 95% percentile interval of the bootstrap within groups.

    From a group of n repetitions n - 1 are drawn with replacement, independently for each group. Over the draws,
    the mean of n - 1 has the variance :math:`s^2/n` with the unbiased :math:`s^2`; that of n draws would be
    too small by the factor :math:`(n-1)/n`, which matters for a handful of repetitions (Rao & Wu, 1988). Quantities
    measured on one repetition stay together, so that those that share their seeds are compared in pairs.

    The repetitions of a group have to be independent of one another and of those of the other groups. With three to
    five of them the interval is rough and, on average, a little too short.

    Parameters
    ----------
    statistic
        Takes `(..., groups, quantities)`, the means of every group, and returns `(...)`.
    groups
        For each group an array `(repetitions, quantities)` of at least two repetitions; their number may differ.

    Raises
    ------
    ValueError
        If a group has the wrong shape, fewer than two repetitions or an entry that is not finite.

    Examples
    --------
    >>> # four repetitions of one quantity
    >>> losses = np.array([[1.0], [1.2], [1.1], [1.3]])
    >>> interval = bootstrap(lambda means: means[..., 0, 0], [losses])
    >>> [round(end, 2) for end in interval]
    [1.03, 1.15, 1.27]
    """
    groups = [np.asarray(group, dtype=float) for group in groups]
    for position, group in enumerate(groups):
        if group.ndim != 2 or len(group) < 2 or not np.isfinite(group).all():
            what = f"group {position} of shape {group.shape}"
            raise ValueError(f"{what}: (repetitions, quantities), two repetitions or more, finite, are needed")
    generator = np.random.default_rng(seed)
    drawn = [group[generator.integers(len(group), size=(resamples, len(group) - 1))].mean(axis=1) for group in groups]
    value = np.asarray(statistic(np.stack([group.mean(axis=0) for group in groups])))
    low, high = np.quantile(statistic(np.stack(drawn, axis=1)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(value), float(high))


def prediction(draws: ArrayLike) -> list[float]:
    r"""The interval `[low, high]` in which one more draw of a normal quantity falls with probability 0.95.

    .. math:: \bar x \pm t_{0.975,\,n-1}\, s\, \sqrt{1 + 1/n}

    with the mean, the unbiased standard deviation s and the number n of the draws. A number that depends on its random
    draw agrees with repeated draws if this interval holds it: a true replicate passes in 95 % of the cases, however
    many draws there are.

    Parameters
    ----------
    draws
        `(n,)`, two or more independent draws. The interval has their units.

    Raises
    ------
    ValueError
        If there are fewer than two draws, or one of them is not finite.

    Examples
    --------
    >>> [round(end, 2) for end in prediction([1.0, 1.2, 1.1, 1.3])]
    [0.69, 1.61]
    """
    x = np.asarray(draws, dtype=float)
    if x.ndim != 1 or len(x) < 2 or not np.isfinite(x).all():
        raise ValueError(f"draws = {draws!r}: two or more finite numbers in one list are needed")
    half = stdtrit(len(x) - 1, (1 + LEVEL) / 2) * x.std(ddof=1) * np.sqrt(1 + 1 / len(x))
    return [float(x.mean() - half), float(x.mean() + half)]


def bootstrap_mean(values: ArrayLike) -> Interval:
    """The mean of the finite ones among independent values, with its interval by :func:`bootstrap`.

    All three are nan with fewer than two finite values.

    >>> [round(end, 2) for end in bootstrap_mean([1.0, 1.2, 1.1, 1.3, np.nan])]
    [1.03, 1.15, 1.27]
    """
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    return bootstrap(_first, [values[:, None]]) if len(values) > 1 else NOTHING


def mean_interval(values: ArrayLike) -> Interval:
    r"""The mean of independent draws of a normal quantity, with its 95% interval.

    .. math:: \bar x \pm t_{0.975,\,n-1}\, s / \sqrt n

    with the unbiased standard deviation s of the n draws `(n,)`; all three are nan for fewer than two draws.

    >>> [round(end, 2) for end in mean_interval([1.0, 1.2, 1.1, 1.3])]
    [0.94, 1.15, 1.36]
    """
    x = np.asarray(values, dtype=float)
    if len(x) < 2:
        return NOTHING
    half = stdtrit(len(x) - 1, (1 + LEVEL) / 2) * x.std(ddof=1) / np.sqrt(len(x))
    return Interval(float(x.mean() - half), float(x.mean()), float(x.mean() + half))


def slope_interval(groups: Mapping[float, ArrayLike]) -> Interval:
    r"""The slope of the least-squares line through all values of `{x: values}`, with its 95% interval.

    .. math::
        \mathtt{slope} \pm t_{0.975,\,n-2}\, \sqrt{\frac{\sum_i (y_i - \mathtt{slope}\, x_i - \mathtt{intercept})^2}
        {(n - 2) \sum_i (x_i - \bar x)^2}}

    for n points with independent normal deviations of one variance. The ends are nan for two points and where all
    values are equal, which says nothing about their variance; all three are nan where all x are equal. ValueError as
    for :func:`fit_line`.

    >>> [round(end, 2) for end in slope_interval({0: [1.0, 1.2], 1: [2.0, 2.4], 2: [3.1, 2.9]})]
    [0.68, 0.95, 1.22]
    """
    x = np.concatenate([np.full(len(values), float(place)) for place, values in groups.items()])
    y = np.concatenate([np.asarray(values, dtype=float) for values in groups.values()])
    line, free = fit_line(x, y), len(x) - 2
    if np.ptp(y) == 0:
        return Interval(np.nan, float(line.slope), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        rest = np.square(y - line.slope * x - line.intercept).sum()
        half = stdtrit(free, (1 + LEVEL) / 2) * np.sqrt(rest / free / np.square(x - x.mean()).sum())
    return Interval(float(line.slope - half), float(line.slope), float(line.slope + half))


def correlation_within(x: ArrayLike, y: ArrayLike, counts: ArrayLike) -> Correlation:
    r"""How x and y go together at equal level: their correlation once each level's averages are taken off.

    Levels with fewer than two values that count are left out. With L levels and n values that are left there are
    :math:`f = n - L - 1` degrees of freedom, since each average costs one; the p value is that of Student's t
    :math:`r \sqrt{f / (1 - r^2)}`, and the interval is Fisher's. All four are nan where f is below 3.

    .. math:: \tanh\big(\operatorname{artanh} r \pm 1.96 / \sqrt{f - 1}\big)

    Parameters
    ----------
    x, y
        `(levels, repetitions)`.
    counts
        The mask, of the same shape, of the values that count.

    Examples
    --------
    >>> x = np.array([[1.0, 2.0, 3.0], [11.0, 13.0, 12.0]])
    >>> found = correlation_within(x, -x, np.ones((2, 3), dtype=bool))
    >>> round(found.value, 6)
    -1.0
    """
    rows = [
        (of_x[use] - of_x[use].mean(), of_y[use] - of_y[use].mean())
        for of_x, of_y, use in zip(x, y, counts, strict=True)
        if use.sum() >= 2
    ]
    free = sum(len(dx) for dx, _ in rows) - len(rows) - 1
    if free < 3:
        return Correlation(*NOTHING, np.nan)
    r = np.corrcoef(*np.concatenate(rows, axis=1))[0, 1]
    with np.errstate(divide="ignore"):
        p = 2 * stdtr(free, -abs(r) * np.sqrt(free / (1 - r * r)))
        half = 1.96 / np.sqrt(free - 1)
        low, high = np.tanh(np.arctanh(r) - half), np.tanh(np.arctanh(r) + half)
    return Correlation(float(low), float(r), float(high), float(p))


def compare_curves(x: ArrayLike, y: ArrayLike, counts: ArrayLike) -> Comparison:
    r"""Are two curves y(x), measured in pairs at several levels of something third, one line?

    Lines go through the averages of the levels, their height is taken in the middle of both, and all intervals are
    those of :func:`bootstrap` over pairs: within their level for lines, from all levels together for the ratios at
    equal level. `nearer` is :math:`|\overline{\log y_2 / y_1}|`, averaged over the levels, minus :math:`|\log|` of the
    ratio of heights: where it is positive, the curves are nearer to one another at equal x than at equal level.

    Parameters
    ----------
    x, y
        `(2, levels, repetitions)`: of the first curve and of the second, positive where a pair counts. A pair has one
        place in both; pairs are independent of one another.
    counts
        `(levels, repetitions)`, the mask of the pairs that count. A level with a single pair counts in `pairs` and in
        the ratios at equal level only. With fewer than two levels of two pairs or more, everything but `pairs` is nan.

    Examples
    --------
    >>> level, noise = np.arange(1.0, 4)[:, None], np.random.default_rng(0).normal(size=(3, 5)) / 100
    >>> x = np.stack([level + noise, level + noise])
    >>> found = compare_curves(x, np.stack([x[0], 2 * x[0]]), np.ones((3, 5), dtype=bool))
    >>> [round(ratio.value, 3) for ratio in (found.slope_ratio, found.height_ratio, found.x_ratio, found.y_ratio)]
    [2.0, 2.0, 1.0, 2.0]
    """
    points = np.stack([*x, *y], axis=-1)  # of a pair: both x, both y
    groups, pairs = _by_level(points, counts), int(np.sum(counts))
    if len(groups) < 2:
        nowhere = Line(*NOTHING)
        return Comparison(pairs, (nowhere, nowhere), (NOTHING, NOTHING), *[NOTHING] * 5)

    def line(means: np.ndarray, which: int) -> Line:
        return fit_line(means[..., which], means[..., 2 + which])

    def nearer(means: np.ndarray) -> np.ndarray:
        at_equal_level = np.abs(np.log(means[..., 3] / means[..., 2]).mean(-1))
        return at_equal_level - _log_size(_line_ratios(means, 1)[1])

    averages = np.stack([group.mean(0) for group in groups])
    logs = np.log(points[np.asarray(counts)])
    ratios = logs[:, 1::2] - logs[:, ::2]
    return Comparison(
        pairs,
        lines=(line(averages, 0), line(averages, 1)),
        slopes=(bootstrap(lambda m: line(m, 0).slope, groups), bootstrap(lambda m: line(m, 1).slope, groups)),
        slope_ratio=bootstrap(lambda m: _line_ratios(m, 1)[0], groups),
        height_ratio=bootstrap(lambda m: _line_ratios(m, 1)[1], groups),
        nearer=bootstrap(nearer, groups),
        x_ratio=Interval(*np.exp(bootstrap(_first, [ratios[:, :1]])).tolist()),
        y_ratio=Interval(*np.exp(bootstrap(_first, [ratios[:, 1:]])).tolist()),
    )


def mean_difference(one: ArrayLike, two: ArrayLike, counts: ArrayLike) -> Interval:
    """How much larger the second of each pair is, averaged over the levels, with the interval of :func:`bootstrap`.

    Shapes, pairs and levels as for :func:`compare_curves`: `one`, `two` and `counts` are `(levels, repetitions)`.

    >>> one = np.array([[1.0, 2.0], [3.0, 5.0]])
    >>> mean_difference(one, one + 1, np.ones((2, 2), dtype=bool)).value
    1.0
    """
    groups = _by_level(np.stack([one, two], axis=-1), counts)
    return bootstrap(lambda m: (m[..., 1] - m[..., 0]).mean(-1), groups) if len(groups) > 1 else NOTHING


def further_line(x: ArrayLike, y: ArrayLike, counts: ArrayLike) -> Interval:
    r"""How much further the line of a third curve lies from that of the first than the line of the second does.

    The distance of two lines is the larger :math:`|\log|` of the ratios of their slopes and of their heights, as in
    :func:`compare_curves`; x and y are `(3, levels, repetitions)`. A ratio that is not positive counts as
    :math:`10^{-6}`, so that a line that falls is far from one that rises.

    >>> level, noise = np.arange(1.0, 4)[:, None], np.random.default_rng(0).normal(size=(3, 5)) / 100
    >>> x = np.stack([level + noise] * 3)
    >>> y = np.stack([x[0], 2 * x[0], 8 * x[0]])
    >>> round(further_line(x, y, np.ones((3, 5), dtype=bool)).value / np.log(2).item(), 3)  # 8 against 2
    2.0
    """
    groups = _by_level(np.stack([*x, *y], axis=-1), counts)

    def distance(means: np.ndarray, which: int) -> np.ndarray:
        slopes, heights = _line_ratios(means, which)
        return np.maximum(_log_size(slopes), _log_size(heights))

    return bootstrap(lambda m: distance(m, 2) - distance(m, 1), groups) if len(groups) > 1 else NOTHING


def _first(means: np.ndarray) -> np.ndarray:
    """The mean of the only quantity of the only group."""
    return means[..., 0, 0]


def _by_level(points: np.ndarray, counts: ArrayLike) -> list[np.ndarray]:
    """For each level with two pairs or more what counts of its points `(pairs, quantities)`."""
    return [of_level[use] for of_level, use in zip(points, counts, strict=True) if use.sum() >= 2]


def _line_ratios(means: np.ndarray, which: int) -> tuple[np.ndarray, np.ndarray]:
    """Slope and height of a line over those of the first, from means `(..., levels, quantities)`: all x, then all y."""
    curves = means.shape[-1] // 2
    one = fit_line(means[..., 0], means[..., curves])
    other = fit_line(means[..., which], means[..., curves + which])
    middle = means[..., [0, which]].mean((-2, -1))
    heights = (other.slope * middle + other.intercept) / (one.slope * middle + one.intercept)
    return other.slope / one.slope, heights


def _log_size(ratio: np.ndarray) -> np.ndarray:
    return np.abs(np.log(np.maximum(ratio, 1e-6)))
