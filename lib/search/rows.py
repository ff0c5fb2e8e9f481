"""L-BFGS for many small problems at once: every row of a matrix is a problem, and has its own line search.

The starts of :mod:`lib.search.many_starts` share one step length, which is cheapest where the objective is smooth. With
ReLUs the starts meet their kinks at different steps, and a start that has to shorten its step would hold up all others:
neither SciPy nor PyTorch has an L-BFGS with separate steps for its problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# A line search ends after this many trials; a row for which it has found nothing lower does not move.
_TRIALS = 25
# Sufficient decrease and curvature of the weak Wolfe conditions.
_DECREASE, _CURVATURE = 1e-4, 0.9
# Differences of values below this share of the values are rounding, and count as zero.
_ROUNDING = 4e-16


def join(parts: Sequence[Tensor]) -> Tensor:
    """Parameters with a leading dimension of rows, `(rows, ...)` each, as one matrix `(rows, P)`.

    >>> join([torch.ones(2, 3, 4), torch.ones(2, 5)]).shape
    torch.Size([2, 17])
    """
    return torch.cat([part.flatten(1) for part in parts], 1)


def split(x: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """The parameters with the given shapes, each with the leading dimension of `x: (rows, P)`; undoes :func:`join`.

    >>> [tuple(part.shape) for part in split(torch.ones(2, 17), [(3, 4), (5,)])]
    [(2, 3, 4), (2, 5)]
    """
    parts = x.split([math.prod(shape) for shape in shapes], 1)
    return [part.reshape(len(x), *shape) for part, shape in zip(parts, shapes, strict=True)]


def lbfgs_rows(
    function: Callable[..., tuple[Tensor, Tensor]],
    x: Tensor,
    data: Sequence[Tensor] = (),
    iterations: int = 80,
    tolerance: float = 1e-10,
    memory: int = 20,
) -> Tensor:
    r"""L-BFGS for every row of `x: (rows, P)`, each with its own history and its own weak-Wolfe line search.

    A row whose gradient has no entry above `tolerance`, or that no step lowers, is done. Rows that are done
    are left alone once they are more than an eighth.

    Source: Liu & Nocedal (1989); the line search, which kinks do not break, is that of Lewis & Overton (2013).

    Parameters
    ----------
    function
        `function(x, *data)` returns values `(rows,)` and gradients `(rows, P)`, for any choice of the rows.
    data
        Tensors with one entry per row, which go to `function` with their rows.
    iterations
        Steps of each row; each takes one evaluation or a few.
    memory
        Pairs kept for the inverse Hessian.

    Returns
    -------
    Tensor
        Where the rows ended, `(rows, P)`.

    Examples
    --------
    >>> centres = torch.tensor([[1.0, 2.0], [-3.0, 0.5]], dtype=torch.float64)
    >>> square = lambda x, centre: ((x - centre).square().sum(1) / 2, x - centre)
    >>> lbfgs_rows(square, torch.zeros_like(centres), [centres]).round(decimals=6).tolist()
    [[1.0, 2.0], [-3.0, 0.5]]
    """
    final, index, data = x.clone(), torch.arange(len(x)), list(data)
    f, g = function(x, *data)
    S, Y, rho = x.new_zeros(memory, *x.shape), x.new_zeros(memory, *x.shape), x.new_zeros(memory, len(x))
    gamma, stuck = torch.ones_like(f), torch.zeros(len(x), dtype=torch.long)
    fresh = torch.ones(len(x), dtype=torch.bool)  # rows without a history
    for k in range(iterations + 1):
        done = (g.abs().amax(1) < tolerance) | (stuck >= 6) | ~f.isfinite() | (k == iterations)
        # rows that are done stay in the batch until they are an eighth of it: taking them out copies the history
        if done.sum() > len(f) // 8 or done.all():
            final[index] = x
            if done.all():
                break
            on = (~done).nonzero().squeeze(1)
            index, x, f, g, data = index[on], x[on], f[on], g[on], [q[on] for q in data]
            S, Y, rho, gamma, stuck, fresh = S[:, on], Y[:, on], rho[:, on], gamma[on], stuck[on], fresh[on]
        p = _direction(g, S, Y, rho, gamma, [(k - j) % memory for j in range(1, min(k, memory) + 1)])
        slope = (p * g).sum(1)
        bad = ~(slope < 0)  # rounding has spoilt the history, or a nan has
        if bad.any():
            p[bad], rho[:, bad], fresh = -g[bad], 0, fresh | bad
            slope = (p * g).sum(1)
        # a quasi-Newton step has a length of its own; without a history a step is at most a unit long
        t = torch.where(fresh, (1 / g.norm(dim=1).clamp(min=1e-300)).clamp(max=1), torch.ones_like(f))
        new_x, new_f, new_g = _line_search(function, x, f, g, data, p, slope, t)
        s, y = new_x - x, new_g - g
        sy, yy = (s * y).sum(1), y.square().sum(1)
        curved = sy > 1e-12 * yy.sqrt() * s.norm(dim=1)
        S[k % memory], Y[k % memory] = s, y
        rho[k % memory] = torch.where(curved, 1 / sy, torch.zeros_like(sy))  # 0: the pair does not count
        gamma = torch.where(curved, sy / yy, gamma)
        fresh = ~(s != 0).any(1)  # no step was taken: forget the history
        stuck = torch.where(new_f < f - _ROUNDING * f.abs(), torch.zeros_like(stuck), stuck + 1 + 2 * fresh)
        if fresh.any():
            rho[:, fresh] = 0
        x, f, g = new_x, new_f, new_g
    return final


def _direction(g: Tensor, S: Tensor, Y: Tensor, rho: Tensor, gamma: Tensor, order: list[int]) -> Tensor:
    """The two-loop recursion, newest pair first; a pair with rho = 0 drops out of its row without a branch."""
    p, alphas = g.neg(), []
    for j in order:
        alphas.append(rho[j] * (S[j] * p).sum(1))
        p.addcmul_(Y[j], alphas[-1][:, None], value=-1)
    p *= gamma[:, None]
    for j, alpha in zip(reversed(order), reversed(alphas), strict=True):
        p.addcmul_(S[j], (alpha - rho[j] * (Y[j] * p).sum(1))[:, None])
    return p


def _line_search(function, x, f, g, data, p, slope, t):
    """The lowest trials x + t p with enough decrease, their values and gradients; x itself where there is none.

    A bracket per row: its lower end has enough decrease and too steep a slope, its upper end has too little decrease.
    The step is doubled until there is an upper end; then the bracket is halved. Bisection needs no smoothness;
    interpolation would. The first trial takes all rows, as it suffices for most; later ones take only the others.
    """
    new_x = torch.addcmul(x, p, t[:, None])
    new_f, new_g = function(new_x, *data)
    bar = f + _ROUNDING * f.abs()
    low = new_f <= bar + _DECREASE * t * slope
    again = ~(low & ((new_g * p).sum(1) >= _CURVATURE * slope))
    lower, upper = torch.where(low, t, torch.zeros_like(t)), torch.where(low, torch.full_like(t, math.inf), t)
    if not low.all():
        new_x[~low], new_f[~low], new_g[~low] = x[~low], f[~low], g[~low]
    rows = again.nonzero().squeeze(1)
    for _ in range(_TRIALS):
        if not len(rows):
            break
        t[rows] = torch.where(upper[rows].isinf(), 2 * t[rows], (lower[rows] + upper[rows]) / 2)
        trial = torch.addcmul(x[rows], p[rows], t[rows, None])
        ft, gt = function(trial, *(q[rows] for q in data))
        low = ft <= bar[rows] + _DECREASE * t[rows] * slope[rows]
        better = low & (ft <= new_f[rows])
        new_x[rows[better]], new_f[rows[better]], new_g[rows[better]] = trial[better], ft[better], gt[better]
        lower[rows] = torch.where(low, t[rows], lower[rows])
        upper[rows] = torch.where(low, upper[rows], t[rows])
        rows = rows[~(low & ((gt * p[rows]).sum(1) >= _CURVATURE * slope[rows]))]
    return new_x, new_f, new_g
