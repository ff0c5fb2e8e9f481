r"""Lines through averages, and what chance does to them: for experiments that repeat every setting a few times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

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
    drawn = [
        group[generator.integers(len(group), size=(resamples, len(group) - 1))].mean(axis=1) for group in groups
    ]  # fmt: skip
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
