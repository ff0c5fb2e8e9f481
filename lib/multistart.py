"""Many random starts of one smooth minimisation, run together as one problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits
from torch import Tensor


class Minima(NamedTuple):
    """Where the starts ended.

    `values` (starts,), `parameters`, each with a leading (starts,), and the largest `gradient` entry.
    """

    values: Tensor
    parameters: list[Tensor]
    gradient: float


def multistart(
    risk: Callable[..., Tensor],
    shapes: Sequence[tuple[int, ...]],
    starts: int,
    seed: int,
    scales: Sequence[float] = (0.1, 0.5, 1.0, 3.0),
    max_iter: int = 3000,
) -> Minima:
    r"""Minimise `risk` from random normal starts with L-BFGS in float64.

    The starts do not interact: what is minimised is the sum of their risks, whose critical points are those of each
    of them. One evaluation serves them all.

    Parameters
    ----------
    risk
        `risk(*parameters)` is a scalar tensor; it is mapped over the starts with `torch.func.vmap`.
    shapes
        The shape of each parameter.
    scales
        Standard deviations of the initial entries, used in turn, so that starts lie close to zero and far from it.

    Raises
    ------
    ValueError
        If `starts` is not positive.
    """
    if starts < 1:
        raise ValueError(f"starts={starts}: at least one start is needed")
    sizes = [int(np.prod(shape)) for shape in shapes]
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((starts, sum(sizes))) * np.resize(scales, starts)[:, None]
    batched = torch.func.vmap(risk)

    def split(flat: Tensor) -> list[Tensor]:
        parts = flat.reshape(starts, -1).split(sizes, 1)
        return [part.reshape(starts, *shape) for part, shape in zip(parts, shapes, strict=True)]

    def total(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(flat).requires_grad_()
        value = batched(*split(point)).sum()
        (gradient,) = torch.autograd.grad(value, point)
        return value.item(), gradient.numpy()

    options = {"maxiter": max_iter, "maxfun": 2 * max_iter, "ftol": 0.0, "gtol": 1e-11, "maxcor": 30}
    with threadpool_limits(1):  # L-BFGS works on vectors that are too short to be shared between cores
        found = minimize(total, z.ravel(), jac=True, method="L-BFGS-B", options=options)
    parameters = split(torch.from_numpy(found.x))
    return Minima(batched(*parameters), parameters, float(np.abs(found.jac).max()))
