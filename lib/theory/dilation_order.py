r"""Which of two losses dilates more, for every distribution at once: the inequality that the order rests on.

The proof that cross-entropy dilates more than label smoothing for :math:`\sqrt{2\eta}D^{CE} \le C_{MD}`, if the cloud
affects both losses alike (*What it costs to memorise a wrong label*), ends in an inequality in three numbers,
the margin :math:`s`, :math:`k \in [0, \frac12]` and :math:`x \in [0, 1]`. The chapter shows it for :math:`s \ge 16`.
Here it is shown for :math:`s \le 16`, by bounds on boxes. With

.. math::
    \delta = \int_x^1 \sigma'(sv)\,dv, \quad \psi = \frac{\delta}{1 - 2k}, \quad
    \beta = 2\psi\frac{1 - kx}{1 + x}, \quad \kappa = k\psi, \quad \tau = \tfrac12\Big(1 + \frac{s}{\sinh s}\Big)

(all of the chapter's :math:`\psi, \beta, \kappa, T` are divided by :math:`s`), the inequality says that the *excess*

.. math::
    \frac{1 + k}{1 - kx}\bigg(\frac12 + \frac{\sigma'(sx)\frac{1 - x}2 + \sigma'(s)}{\psi\frac{1 + 2k + 2k^2}{1 + k} +
    \sigma'(sx)\frac{k^2(1 + x)}{(1 + k)^2}}\bigg) - 1 - \frac{T}{\max(\beta, T/\tau + \kappa)}

is positive wherever :math:`x(1 + 2k) \le 1`, :math:`\beta - \kappa \le \frac14` and
:math:`s\kappa \le \frac12\sigma(-s)`. One may take :math:`T = \max\big(\frac{4 - V^2}{(4 + V^2)^2},
\frac{2V^3}{s(4 + V^2)^2} + \sigma'(s)\big)` with any :math:`V \in [0, 2]`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lib.checks import positive

#: Arrays of float64, of any shape.
Array = NDArray[np.float64]

#: The margin from which on the chapter proves the inequality by hand.
TOP = 16.0
_SAFE = 1e-9  # far above every rounding error: a box is void only if it misses a condition by this share


class Cover(NamedTuple):
    r"""Boxes in (s, k, x) that fill :math:`[0, 16] \times [0, \frac12] \times [0, 1]`; see :func:`cover`.

    low, high
        Corners `(3, n)`.
    bound
        A lower bound of the excess on each box, `(n,)`; infinite if no point of the box satisfies the conditions.
    """

    low: Array
    high: Array
    bound: Array


def cover(least: float) -> Cover:
    """Boxes, each with an excess of at least `least`, by bisection of the whole region.

    It ends if the inequality holds with room to spare, and the boxes are then its proof. ArithmeticError if a million
    boxes do not suffice; ValueError if `least` is not positive.

    >>> boxes = cover(least=0.001)
    >>> bool(boxes.bound.min() >= 0.001), float((boxes.high - boxes.low).prod(axis=0).sum())  # 16 / 2
    (True, 8.0)
    """
    positive(least=least)
    low, high = np.zeros((3, 1)), np.array([[TOP], [0.5], [1.0]])
    done = []
    while low.size:
        bound = excess(low, high)
        fine = bound >= least
        done.append(Cover(low[:, fine], high[:, fine], bound[fine]))
        low, high = _halves(low[:, ~fine], high[:, ~fine])
        if low.shape[1] > 1_000_000:
            raise ArithmeticError(f"the excess is not shown to be at least {least:g} with a million boxes")
    return Cover(*(np.concatenate(parts, axis=-1) for parts in zip(*done, strict=True)))


def _halves(low: Array, high: Array) -> tuple[Array, Array]:
    """The two halves of each box, cut where the bound is likely to gain most. All corners are dyadic, hence exact."""
    influence = np.stack([np.ones_like(low[0]), np.full_like(low[0], 4.0), np.maximum(1.0, high[0] / 3)])
    cut = np.arange(3)[:, None] == ((high - low) * influence).argmax(axis=0)
    middle = (low + high) / 2
    return (
        np.concatenate([low, np.where(cut, middle, low)], axis=1),
        np.concatenate([np.where(cut, middle, high), high], axis=1),
    )


def excess(low: Array, high: Array) -> Array:
    r"""A lower bound of the excess on boxes with the corners `low` and `high`, both `(3, n)` in (s, k, x): `(n,)`.

    Each factor is monotone in s, k and x, and is taken at the corner where it is worst. For T this holds of its parts,
    if V over s is fixed on the box. Differences of corners are exact where these are dyadic, as in :func:`cover`, and
    the rest are sums, products and quotients of positive numbers, so that float64 is good to 1e-13. A box with no
    admissible point gets infinity. For `low` equal to `high` this is the excess at a point, with one choice of V. There
    is no check of the region.

    >>> point = np.array([[1.3], [0.2], [0.5]])
    >>> around = excess(point - 0.01, point + 0.01)
    >>> bool(0 < around[0] < excess(point, point)[0])
    True
    """
    (s, k, x), (s_top, k_top, x_top) = low, high
    at_top, at_bottom = _slope(s_top * x_top), _slope(s * x)  # of sigma at s x
    with np.errstate(divide="ignore"):  # psi is infinite at k = 1/2
        delta, psi_top = _delta(s_top, x_top), _delta(s, x) / (1 - 2 * k_top)
    psi = delta / (1 - 2 * k)
    kappa = k * psi
    beta = 2 * psi * (1 - k * x_top) / (1 + x_top)
    beta_less_kappa = psi * (2 - k - 3 * k * x_top) / (1 + x_top)
    void = (
        (x * (1 + 2 * k) > 1 + _SAFE)
        | (beta_less_kappa > 0.25 * (1 + _SAFE))
        | (2 * s * kappa * (1 + np.exp(s)) > 1 + _SAFE)
    )

    numerator = at_top * (1 - x_top) / 2 + _slope(s_top)
    denominator = psi_top * (1 + 2 * k_top + 2 * k_top**2) / (1 + k_top)
    denominator += at_bottom * (1 + x_top) * (k_top / (1 + k_top)) ** 2
    growth = (1 + k) / (1 - k * x) * (0.5 + numerator / denominator)

    # V = share * s at most 2, near the best V
    share = 20 / np.maximum(40 + ((s + s_top) / 2) ** 2, 10 * s_top)
    V = share * s
    T = np.maximum((4 - V**2) / (4 + V**2) ** 2, 2 * share**3 * s_top**2 / (4 + V**2) ** 2 + _slope(s))
    tau = (1 + _quotient(s, np.sinh(s))) / 2
    return np.where(void, np.inf, growth - 1 - T / np.maximum(beta, T / tau + kappa))


def _slope(t: Array) -> Array:
    """The derivative of the logistic function."""
    return 1 / (4 * np.cosh(t / 2) ** 2)


def _delta(s: Array, x: Array) -> Array:
    """The integral of sigma'(s v) over v from x to 1, without a difference of logistic functions."""
    z = s * (1 - x) / 2
    return (1 - x) / 4 / _quotient(z, np.sinh(z)) / (np.cosh(s / 2) * np.cosh(s * x / 2))


def _quotient(z: Array, sinh: Array) -> Array:
    """z / sinh z, 1 at 0."""
    return np.divide(z, sinh, out=np.ones_like(z), where=z > 0)
