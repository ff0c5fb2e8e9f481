"""Many random starts of one smooth minimisation, run together as one problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import Bounds, minimize
from threadpoolctl import threadpool_limits
from torch import Tensor

from lib.checks import positive_integers
from lib.search.rows import split


class Minima(NamedTuple):
    """Where the starts ended: `values` (starts,) and `parameters`, each with a leading (starts,)."""

    values: Tensor
    parameters: list[Tensor]


def multistart(
    risk: Callable[..., Tensor],
    shapes: Sequence[tuple[int, ...]],
    starts: int,
    seed: int,
    scales: Sequence[float] = (0.1, 0.5, 1.0, 3.0),
    max_iter: int = 3000,
    lower: Sequence[float | None] | None = None,
) -> Minima:
    r"""Minimise `risk` from random normal starts with L-BFGS in float64, over all parameters or above lower bounds.

    The starts do not interact: the sum of their risks is minimised, which is critical where each of them is. One
    evaluation serves all starts.

    Source: Byrd, Lu, Nocedal & Zhu (1995), as implemented in SciPy, for the search with bounds.

    Parameters
    ----------
    risk
        `risk(*parameters)` is a scalar tensor; it is mapped over the starts with `torch.func.vmap`.
    shapes
        The shape of each parameter.
    scales
        Standard deviations of the initial entries, used in turn, so that starts lie close to zero and far from it.
    lower
        One lower bound per parameter, for all its entries; `None` for none. The search is then L-BFGS-B, which never
        leaves the feasible set, and starts are reflected at the bound, so that none of them begins on it.

    Raises
    ------
    ValueError
        If `starts` is not positive, or `lower` does not have one entry per parameter.

    Examples
    --------
    >>> risk = lambda x: (x.square() - 1).square().sum()
    >>> found = multistart(risk, [(1,)], starts=4, seed=0)
    >>> found.values.max().item() < 1e-12
    True
    >>> found.parameters[0].abs().round(decimals=5).flatten().tolist()  # 1 or -1
    [1.0, 1.0, 1.0, 1.0]
    """
    positive_integers(starts=starts)
    bounds = [-math.inf if bound is None else bound for bound in lower or [None] * len(shapes)]
    floor = np.concatenate([np.full(math.prod(shape), low) for shape, low in zip(shapes, bounds, strict=True)])
    bounded = np.isfinite(floor)
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((starts, len(floor))) * np.resize(scales, starts)[:, None]
    z[:, bounded] = floor[bounded] + np.abs(z[:, bounded] - floor[bounded])
    batched = torch.func.vmap(risk)

    def total(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(flat).requires_grad_()
        value = batched(*split(point.view(starts, -1), shapes)).sum()
        (gradient,) = torch.autograd.grad(value, point)
        return value.item(), gradient.numpy()

    options = {"maxiter": max_iter, "maxfun": 2 * max_iter, "ftol": 0.0, "gtol": 1e-11, "maxcor": 30}
    with threadpool_limits(1):  # L-BFGS works on vectors that are too short to be shared between cores
        bounds = Bounds(np.tile(floor, starts)) if bounded.any() else None
        found = minimize(total, z.ravel(), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    parameters = split(torch.from_numpy(found.x).view(starts, -1), shapes)
    return Minima(batched(*parameters), parameters)
