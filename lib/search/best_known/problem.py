"""The problem, the decays at which its solutions are compared, deep neural collapse, and what a solution looks like."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from torch import Tensor

from collapsemetrics import numerical_rank
from lib import checks
from lib.models import unconstrained
from lib.theory.low_rank import decay_at
from lib.theory.structure import counted, sets, structure


def simplex_decay(K: int, L: int, share: float = 0.4) -> float:
    r"""The weight decay at which a linear simplex has the cross-entropy `share` :math:`\cdot \log K`.

    In the simplex of a model without ReLUs, a margin p costs
    :math:`\log(1 + (K-1)e^{-p}) + \frac{L+1}2\lambda(K-1)p^{2/(L+1)}`. This decay only sets the strength at which
    solutions are compared. ValueError as :func:`~lib.theory.low_rank.decay_at`, and for a share outside [0, 1).

    >>> 0 < simplex_decay(K=4, L=3) < simplex_decay(K=4, L=3, share=0.9)
    True
    """
    check_sizes(K, L)
    checks.shares(share=share)
    p = np.geomspace(1e-3, 100, 20000)
    fit, price = np.log1p((K - 1) * np.exp(-p)), (L + 1) / 2 * (K - 1) * p ** (2 / (L + 1))
    low, high = 1e-9, 1.0
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if (fit + middle * price).min() < share * math.log(K) else (low, middle)
    return low


def standard_decay(K: int, L: int, kind: str = "mse") -> float:
    """The decay at which all (K, L) are compared: that of collapse for "mse", :func:`simplex_decay` for "ce".

    ValueError for another `kind` and as :func:`~lib.theory.low_rank.decay_at`, which defines the first.

    >>> standard_decay(4, 3) == decay_at(4, 3)
    True
    >>> standard_decay(4, 3, "ce") == simplex_decay(4, 3)
    True
    """
    checks.one_of(unconstrained.LOSSES, kind=kind)
    return decay_at(K, L) if kind == "mse" else simplex_decay(K, L)


def collapse_cross_entropy(K: int, L: int, lam: float) -> float:
    r"""The cross-entropy of deep neural collapse with an orthogonal frame in every level and the scores of a simplex.

    .. math::
        \min_{p\ge0}\ \log(1 + (K-1)e^{-p}) + \frac{L+1}2\lambda\,\big(K^L(K-1)\big)^{1/(L+1)} p^{2/(L+1)}:

    the scores are :math:`p(I - 11^\top/K)`, the first L factors have K equal singular values, the last has K - 1.
    It is what :func:`symmetric_search` finds. ValueError for K < 2, L < 1 and a decay that is not positive.

    >>> collapse_cross_entropy(4, 3, simplex_decay(4, 3)) < math.log(4)
    True
    """
    check_sizes(K, L)
    checks.positive(lam=lam)
    price = (L + 1) / 2 * lam * (K**L * (K - 1)) ** (1 / (L + 1))

    def cost(p):
        return np.log1p((K - 1) * np.exp(-p)) + price * p ** (2 / (L + 1))

    grid = np.r_[0, np.geomspace(1e-3, 100, 5000)]
    i = int(cost(grid).argmin())
    if i in (0, len(grid) - 1):
        return float(cost(grid[i]))
    return float(minimize_scalar(cost, bounds=grid[[i - 1, i + 1]], method="bounded", options={"xatol": 1e-12}).fun)


class Solution(NamedTuple):
    """A solution: problem, factors `[H_1, W_1, .., W_L]` in float64, their loss, and how it was found."""

    K: int
    L: int
    lam: float
    kind: str
    factors: list[Tensor]
    loss: float
    how: str

    @property
    def levels(self) -> list[Tensor]:
        """The class means `M_1, .., M_L` after the ReLUs, `(d_l, K)` each."""
        return unconstrained.activations(self.factors[0], self.factors[1:], relu=True)

    @property
    def name(self) -> str:
        """The name of its file, see `file_name`."""
        return file_name(self.K, self.L, self.lam, self.kind)


def file_name(K: int, L: int, lam: float, kind: str = "mse") -> str:
    """The name of a solution's file, which contains the decay where that is not the standard one.

    >>> file_name(4, 3, standard_decay(4, 3)), file_name(4, 3, 0.01)
    ('mse-K04-L3.npz', 'mse-K04-L3-lam0.01000.npz')
    """
    usual = math.isclose(lam, standard_decay(K, L, kind), rel_tol=1e-9)
    return f"{kind}-K{K:02d}-L{L}" + ("" if usual else f"-lam{lam:.5f}") + ".npz"


def describe(solution: Solution) -> str:
    """The structure of level 2, the first behind a ReLU, as :func:`lib.theory.structure.structure` names it.

    Where that finds no name, the sets of units at which the classes fire are counted: in "weighted sets: 1 of 1, 6 of
    2, over 4" one class fires one of four units and six classes fire two, not all with the same strength.
    """
    means = solution.levels[1].mT
    name = structure(means)
    return f"weighted sets: {counted(sets(means, 1e-3, 1e-3))}" if name == "other" else name


def ranks(solution: Solution) -> list[int]:
    """Numerical ranks of the class means `M_1, .., M_L`, see :func:`collapsemetrics.numerical_rank`."""
    return [int(numerical_rank(M)) for M in solution.levels]


def check_sizes(K: int, L: int, layers: int = 1) -> None:
    """ValueError unless there are at least two classes and `layers` layers."""
    checks.integers(2, K=K)
    checks.integers(layers, L=L)
