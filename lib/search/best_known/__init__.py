r"""The lowest losses of the deep unconstrained features model that a search has found, kept as small files.

The problem is (1) of Súkeník et al. with one sample per class and one weight decay for all factors,

.. math::
    \frac1{2K}\|W_L\,\sigma(W_{L-1}\cdots\sigma(W_1 H_1)) - I_K\|_F^2
    + \frac\lambda2\Big(\|H_1\|_F^2 + \sum_{l=1}^L\|W_l\|_F^2\Big),

or the same with cross-entropy. That is no restriction for collapsed features: with n samples per class and unequal
decays they have, at their best scales, the loss of this problem at
:math:`\lambda^{L+1} = n\lambda_{H_1}\lambda_{W_1}\cdots\lambda_{W_L}`. A solution is the list of its factors
:math:`[H_1, W_1, \dots, W_L]`.

A reader can check the files and beat them::

    python -m lib.search.best_known check
    python -m lib.search.best_known search 6 4 --seconds 60
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from lib import checks
from lib.checks import positive_integers
from lib.metrics import numerical_rank
from lib.models.unconstrained import LOSSES, activations, labels, objective
from lib.theory import low_rank

#: Where the solutions are kept.
FOLDER = Path(__file__).resolve().parents[3] / "chapters" / "synthesis" / "best-known"
#: Files of the squared loss are for the decay at which deep neural collapse has this loss (the zero solution has 0.5).
LEVEL = 0.2
#: A file's loss may differ from that of its matrices by this much.
TOLERANCE = 1e-9


# The problem ----------------------------------------------------------------------------------------------------------


def decay_at(K: int, L: int, level: float = LEVEL) -> float:
    r"""The weight decay :math:`\lambda` of all factors at which deep neural collapse has the squared loss `level`.

    Scores :math:`z I_K` of an orthogonal frame cost :math:`\frac12(1-z)^2 + \frac{L+1}2 c z^{2/(L+1)}`,
    :math:`c = K\lambda`. Where that is stationary, :math:`c = (1-z) z^{(L-1)/(L+1)}`, and the loss is
    :math:`\frac12(1-z)(1 + Lz)`. ValueError unless K >= 2, L >= 1 and 0 < level < 1/2, the loss of zero.

    >>> lam = decay_at(K=4, L=3, level=0.2)
    >>> round(low_rank.dnc_loss(4, 3, lam, 1), 10)
    0.2
    """
    _check_sizes(K, L)
    if not 0 < level < 0.5:
        raise ValueError(f"level = {level!r}: a loss between 0 and that of the zero solution, 1/2, is needed")
    z = (L - 1 + math.sqrt((L - 1) ** 2 + 4 * L * (1 - 2 * level))) / (2 * L)  # the larger root: a minimum
    return (1 - z) * z ** ((L - 1) / (L + 1)) / K


def simplex_decay(K: int, L: int, share: float = 0.4) -> float:
    r"""The weight decay at which a linear simplex has the cross-entropy `share` :math:`\cdot \log K`.

    The simplex of a model without ReLUs: margins p cost
    :math:`\log(1 + (K-1)e^{-p}) + \frac{L+1}2\lambda(K-1)p^{2/(L+1)}`. It only sets the strength at which solutions are
    compared. ValueError as :func:`decay_at`.

    >>> 0 < simplex_decay(K=4, L=3) < simplex_decay(K=4, L=3, share=0.9)
    True
    """
    _check_sizes(K, L)
    if not 0 < share < 1:
        raise ValueError(f"share = {share!r}: a part of log K, between 0 and 1, is needed")
    p = np.geomspace(1e-3, 100, 20000)
    fit, price = np.log1p((K - 1) * np.exp(-p)), (L + 1) / 2 * (K - 1) * p ** (2 / (L + 1))
    low, high = 1e-9, 1.0
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if (fit + middle * price).min() < share * math.log(K) else (low, middle)
    return low


def evaluate(factors: Sequence[Tensor], lam: float, loss: str = "mse") -> Tensor:
    """The objective (1) of factors `[H_1, W_1, .., W_L]`, one value per run.

    `H_1: (..., d_1, K)`, `W_l: (..., d_(l+1), d_l)`, the last with K rows; `loss` is "mse" or "ce". ValueError as
    :func:`lib.models.unconstrained.objective`, which computes it.

    >>> H1, Ws = low_rank.dnc_solution(4, 3, 0.01, 1)
    >>> abs(evaluate([H1, *Ws], 0.01).item() - low_rank.dnc_loss(4, 3, 0.01, 1)) < 1e-10
    True
    """
    y = labels(factors[-1].shape[-2], 1)
    return objective(factors[0], factors[1:], y, lam, lam, relu=True, loss=loss)


def standard_decay(K: int, L: int, kind: str = "mse") -> float:
    """The decay at which all (K, L) are compared: :func:`decay_at` for "mse", :func:`simplex_decay` for "ce".

    ValueError for another `kind` and as :func:`decay_at`.

    >>> standard_decay(4, 3) == decay_at(4, 3)
    True
    >>> standard_decay(4, 3, "ce") == simplex_decay(4, 3)
    True
    """
    _check_loss(kind)
    return decay_at(K, L) if kind == "mse" else simplex_decay(K, L)


def file_name(K: int, L: int, lam: float, kind: str = "mse") -> str:
    """Where a solution is kept; with the decay in the name where it is not the standard one.

    >>> file_name(4, 3, standard_decay(4, 3)), file_name(4, 3, 0.01)
    ('mse-K04-L3.npz', 'mse-K04-L3-lam0.01000.npz')
    """
    usual = math.isclose(lam, standard_decay(K, L, kind), rel_tol=1e-9)
    return f"{kind}-K{K:02d}-L{L}" + ("" if usual else f"-lam{lam:.5f}") + ".npz"


class Solution(NamedTuple):
    """A stored solution: problem, factors `[H_1, W_1, .., W_L]` in float64, their loss, and how it was found."""

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
        return activations(self.factors[0], self.factors[1:], relu=True)

    @property
    def name(self) -> str:
        """The file name; with the decay where it is not the one at which all (K, L) are compared."""
        return file_name(self.K, self.L, self.lam, self.kind)


def save(solution: Solution, folder: Path = FOLDER) -> Path:
    """Write a solution as a compressed file and return its path; ValueError where :func:`load` would raise it."""
    arrays = {"M1": solution.factors[0]} | {f"W{i}": W for i, W in enumerate(solution.factors[1:], 1)}
    texts = {"K": solution.K, "L": solution.L, "lam": solution.lam, "n": 1, "kind": solution.kind}
    path = Path(folder) / solution.name
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}-{os.getpid()}.npz")
    try:
        arrays = {name: q.numpy() for name, q in arrays.items()}
        np.savez_compressed(temporary, **arrays, **texts, loss=solution.loss, how=solution.how)
        load(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


_UNREADABLE = (
    *(OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)


def load(path: Path | str) -> Solution:
    """Read a solution and evaluate (1) at its matrices.

    ValueError naming the file if it cannot be read, a key is missing or unknown, a shape does not fit, an entry is not
    finite, or the loss that it states is not that of its matrices to :data:`TOLERANCE`.
    """
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = {key: file[key] for key in file.files}
    except _UNREADABLE as error:
        raise ValueError(f"{path}: not a readable .npz file ({error})") from None
    scalars = ("K", "L", "lam", "n", "kind", "loss", "how")
    missing = [key for key in scalars if key not in stored or stored[key].shape != ()]
    if missing:
        raise ValueError(f"{path}: {', '.join(missing)} missing, or no single value")
    broken = [key for key in ("K", "L", "n") if stored[key].dtype.kind != "i"]
    if broken:
        raise ValueError(f"{path}: {', '.join(broken)} has to be an integer")
    try:
        K, L, n = (int(stored[key]) for key in ("K", "L", "n"))
        lam, claimed, kind = float(stored["lam"]), float(stored["loss"]), str(stored["kind"])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
    if K < 2 or L < 1 or n != 1 or not lam > 0 or kind not in LOSSES:
        found = f"K = {K}, L = {L}, n = {n}, lam = {lam}, kind = {kind!r}"
        raise ValueError(f"{path}: {found}; K >= 2, L >= 1, n = 1, lam > 0 and 'mse' or 'ce' are needed")
    names = ["M1", *(f"W{i}" for i in range(1, L + 1))]
    if set(stored) != {*scalars, *names}:
        raise ValueError(f"{path}: has {sorted(set(stored) - set(scalars))}, for L = {L} {names} are needed")
    for name in names:
        if stored[name].dtype != np.float64 or stored[name].ndim != 2 or not np.isfinite(stored[name]).all():
            raise ValueError(f"{path}: {name} has to be a matrix of finite float64 numbers")
    factors = [torch.from_numpy(stored[name]) for name in names]
    if factors[0].shape[1] != K or factors[-1].shape[0] != K:
        shapes = f"M1 {tuple(factors[0].shape)}, W{L} {tuple(factors[-1].shape)}"
        raise ValueError(f"{path}: {shapes}: K = {K} columns and rows are needed")
    for name, W, before in zip(names[1:], factors[1:], factors, strict=False):
        if W.shape[1] != before.shape[0]:
            raise ValueError(f"{path}: {name} is {tuple(W.shape)}, what it multiplies has {before.shape[0]} rows")
    value = evaluate(factors, lam, kind).item()
    if not abs(value - claimed) <= TOLERANCE:
        raise ValueError(f"{path}: states the loss {claimed!r}, its matrices have {value!r}")
    return Solution(K, L, lam, kind, factors, value, str(stored["how"]))


def stored(kind: str = "mse", folder: Path = FOLDER) -> list[Solution]:
    """Every stored solution of one kind of loss, each evaluated anew, ordered by L, K and decay."""
    solutions = [load(path) for path in Path(folder).glob(f"{kind}-*.npz")]
    return sorted(solutions, key=lambda s: (s.L, s.K, s.lam))


# Descent --------------------------------------------------------------------------------------------------------------


def smoothed_risk(
    factors: Sequence[Tensor], lam: Tensor, slopes: Sequence[Tensor], eps: float, loss: str = "mse"
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    r"""(1) of every run with its ReLUs smoothed around guesses of their slopes: values, gradients, new slopes.

    The ReLU is :math:`\max_{0\le u\le1} ux`. Smoothed around the slope :math:`\theta` it is
    :math:`\max_{0\le u\le1} ux - \frac\varepsilon2(u-\theta)^2`, attained at
    :math:`u = \min(\max(\theta + x/\varepsilon, 0), 1)`, which is its derivative. At a minimum of (1) many
    pre-activations stand exactly on the kink. There the smoothed function has the value and the slope of the minimum
    as soon as :math:`\theta` is right, for any :math:`\varepsilon`; so :math:`\theta \leftarrow u` after each descent,
    as in the method of multipliers.

    Parameters
    ----------
    factors
        H_1 `(runs, d, K)`, W_1 .. W_L `(runs, out, in)`. With loss "exact" without W_L.
    lam
        `(runs,)`.
    slopes
        One tensor `(runs, d_l, K)` for each ReLU.
    loss
        "mse"; "ce"; or "exact", the limit of the squared loss for weak decay: the least decay of an exact fit,
        :math:`\frac\lambda2(\sum\|\cdot\|_F^2 + \operatorname{tr}(M_L^\top M_L)^{-1})`.
    """
    inner = factors[1:] if loss == "exact" else factors[1:-1]
    levels, moved, decay = [factors[0]], [], lam[:, None, None]
    for W, theta in zip(inner, slopes, strict=True):
        x = W @ levels[-1]
        u = torch.add(theta, x, alpha=1 / eps).clamp_(0, 1)
        moved.append(u)
        levels.append((x * u).addcmul_(u - theta, u - theta, value=-eps / 2))
    gradients, top = [], levels[-1]
    if loss == "exact":
        inverse = torch.linalg.inv_ex(top.mT @ top)[0]
        trace = inverse.diagonal(dim1=-2, dim2=-1).sum(-1)
        value = torch.where(trace > 0, lam / 2 * trace, math.inf)
        back = -decay * (top @ (inverse @ inverse))
    else:
        back, data = _output(factors[-1] @ top, loss)
        value = data
        gradients.append(torch.baddbmm(factors[-1] * decay, back, top.mT))
        back = factors[-1].mT @ back
    for W, level, u in zip(reversed(inner), reversed(levels[:-1]), reversed(moved), strict=True):
        back = back * u
        gradients.append(torch.baddbmm(W * decay, back, level.mT))
        back = W.mT @ back
    gradients.append(back + decay * factors[0])
    value = value + lam / 2 * sum(W.square().sum((-2, -1)) for W in factors)
    return value, gradients[::-1], moved


def _output(Z: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """Gradient with respect to the scores, and the data term; Z may be overwritten."""
    K = Z.shape[-1]
    if loss == "mse":
        Z.diagonal(dim1=-2, dim2=-1).sub_(1.0)
        return Z / K, Z.square().sum((-2, -1)) / (2 * K)
    logs = Z.logsumexp(-2, keepdim=True)
    data = (logs.squeeze(-2) - Z.diagonal(dim1=-2, dim2=-1)).mean(-1)
    back = (Z - logs).exp_()
    back.diagonal(dim1=-2, dim2=-1).sub_(1.0)
    return back / K, data


def lbfgs(
    function: Callable, x: Tensor, data: Sequence[Tensor], iterations: int, tolerance: float = 1e-10, memory: int = 20
) -> Tensor:
    """L-BFGS for every row of `x: (runs, P)`, each with its own history and its own weak-Wolfe line search.

    `function(x, *data)` returns values `(runs,)` and gradients `(runs, P)`; `data` are tensors with one row per run. A
    row whose gradient is below `tolerance`, or that no step lowers, is left alone. Returns where the rows ended.
    """
    final, index, data = x.clone(), torch.arange(len(x)), list(data)
    f, g = function(x, *data)
    S, Y, rho = x.new_zeros(memory, *x.shape), x.new_zeros(memory, *x.shape), x.new_zeros(memory, len(x))
    gamma, stuck = torch.ones_like(f), torch.zeros(len(x), dtype=torch.long)
    fresh = torch.ones(len(x), dtype=torch.bool)
    for k in range(iterations + 1):
        over = k == iterations
        done = (g.abs().amax(1) < tolerance) | (stuck >= 6) | ~f.isfinite() | over
        if done.sum() > len(f) // 8 or done.all():
            final[index] = x
            if done.all():
                break
            rows = (~done).nonzero().squeeze(1)
            index, x, f, g, data = index[rows], x[rows], f[rows], g[rows], [q[rows] for q in data]
            S, Y, rho, gamma, stuck, fresh = S[:, rows], Y[:, rows], rho[:, rows], gamma[rows], stuck[rows], fresh[rows]
        p, alphas, order = g.neg(), [], [(k - j) % memory for j in range(1, min(k, memory) + 1)]
        for j in order:  # the two-loop recursion; a pair without positive curvature has rho = 0
            alphas.append(rho[j] * (S[j] * p).sum(1))
            p.addcmul_(Y[j], alphas[-1][:, None], value=-1)
        p *= gamma[:, None]
        for j, alpha in zip(reversed(order), reversed(alphas), strict=True):
            p.addcmul_(S[j], (alpha - rho[j] * (Y[j] * p).sum(1))[:, None])
        slope = (p * g).sum(1)
        bad = ~(slope < 0)
        if bad.any():
            p[bad], rho[:, bad], fresh = -g[bad], 0, fresh | bad
            slope = (p * g).sum(1)
        # the step: 1, or for the steepest descent at most a unit length; then bisection
        t = torch.where(fresh, (1 / g.norm(dim=1).clamp(min=1e-300)).clamp(max=1), torch.ones_like(f))
        new_x = torch.addcmul(x, p, t[:, None])
        new_f, new_g = function(new_x, *data)
        bar = f + 4e-16 * f.abs()  # differences below rounding count as none
        low = new_f <= bar + 1e-4 * t * slope
        again = ~(low & ((new_g * p).sum(1) >= 0.9 * slope))
        lo, hi = torch.where(low, t, torch.zeros_like(t)), torch.where(low, torch.full_like(t, math.inf), t)
        if not low.all():
            new_x[~low], new_f[~low], new_g[~low] = x[~low], f[~low], g[~low]
        rows = again.nonzero().squeeze(1)
        for _ in range(25):
            if not len(rows):
                break
            t[rows] = torch.where(hi[rows].isinf(), 2 * t[rows], (lo[rows] + hi[rows]) / 2)
            trial = torch.addcmul(x[rows], p[rows], t[rows, None])
            ft, gt = function(trial, *(q[rows] for q in data))
            low = ft <= bar[rows] + 1e-4 * t[rows] * slope[rows]
            better = low & (ft <= new_f[rows])
            new_x[rows[better]], new_f[rows[better]], new_g[rows[better]] = trial[better], ft[better], gt[better]
            lo[rows], hi[rows] = torch.where(low, t[rows], lo[rows]), torch.where(low, hi[rows], t[rows])
            rows = rows[~(low & ((gt * p[rows]).sum(1) >= 0.9 * slope[rows]))]
        s, y = new_x - x, new_g - g
        sy, yy = (s * y).sum(1), y.square().sum(1)
        good = sy > 1e-12 * yy.sqrt() * s.norm(dim=1)
        S[k % memory], Y[k % memory] = s, y
        rho[k % memory] = torch.where(good, 1 / sy, torch.zeros_like(sy))
        gamma = torch.where(good, sy / yy, gamma)
        fresh = ~(s != 0).any(1)  # no step was taken: forget the history
        stuck = torch.where(new_f < f - 4e-16 * f.abs(), torch.zeros_like(stuck), stuck + 1 + 2 * fresh)
        if fresh.any():
            rho[:, fresh] = 0
        x, f, g = new_x, new_f, new_g
    return final


#: Widths of the smoothing in :func:`descend`, one per round.
ROUNDS = (0.1,) * 4 + (0.03,) * 6
_POLISH = (0.03,) * 12 + (0.01,) * 12


def descend(
    factors: Sequence[Tensor],
    lam: float | Sequence[float] | Tensor,
    loss: str = "mse",
    rounds: Sequence[float] = ROUNDS,
    iterations: int = 80,
    tolerance: float = 1e-10,
) -> tuple[list[Tensor], Tensor]:
    """A local minimum of (1) from every start: L-BFGS on smoothed ReLUs, whose slopes are updated after each round.

    Factors: `H_1 (runs, d, K)`, `W_1 .. W_L (runs, out, in)`; `lam` is one decay, or one per run; `loss` is "mse",
    "ce", or "exact" (see :func:`smoothed_risk`). Returns the best point that each run has seen after a round, and its
    loss with ReLUs. ValueError for a decay that is not positive.
    """
    shapes = [tuple(q.shape[1:]) for q in factors]
    sizes = [math.prod(shape) for shape in shapes]

    def split(x):
        return [p.reshape(len(x), *shape) for p, shape in zip(x.split(sizes, 1), shapes, strict=True)]

    x, value = _descend(_join(factors), split, _join, lam, loss, rounds, iterations, tolerance)
    return split(x), value


def _join(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([q.flatten(1) for q in parts], 1)


def _descend(x, factors_of, gradient_of, lam, loss, rounds, iterations, tolerance):
    """:func:`descend` for parameters x (runs, P), factors_of(x), and gradient_of(gradients of the factors)."""
    lam = torch.as_tensor(lam, dtype=torch.float64).expand(len(x))
    if not bool((lam > 0).all() and lam.isfinite().all()):
        raise ValueError(f"lam has entries from {lam.min()} to {lam.max()}: positive numbers are needed")

    def with_relus(x):
        factors, slopes = factors_of(x), []
        A = factors[0]
        for W in factors[1:] if loss == "exact" else factors[1:-1]:
            slopes.append((W @ A > 0).to(x))
            A = (W @ A).clamp(min=0)
        value = smoothed_risk(factors, lam, slopes, 1e-300, loss)[0]
        return torch.where(value.isfinite(), value, math.inf), slopes

    best, (best_value, slopes) = x.clone(), with_relus(x)
    slopes = [0.25 + 0.5 * theta for theta in slopes]
    for eps in rounds:

        def function(x, lam, *slopes, eps=eps):
            value, gradients, _ = smoothed_risk(factors_of(x), lam, slopes, eps, loss)
            return value, gradient_of(gradients)

        x = lbfgs(function, x, [lam, *slopes], iterations, tolerance)
        slopes = smoothed_risk(factors_of(x), lam, slopes, eps, loss)[2]
        value = with_relus(x)[0]
        lower = value < best_value
        best[lower], best_value[lower] = x[lower], value[lower]
    return best, best_value


def symmetric_search(K: int, L: int, lam: float, loss: str = "ce", runs: int = 12, seed: int = 0) -> float:
    r"""The lowest loss among the solutions that treat all classes alike, by a search over their few numbers.

    The family: one unit per class in every level, and every factor :math:`a_l I_K + b_l 11^\top/K`; these are the
    matrices that commute with every renaming of the classes. It contains orthogonal frames, simplices (where no ReLU
    follows), and levels with Gram matrices :math:`u I + v 11^\top`. ValueError for K < 2, L < 1, a decay that is not
    positive, an unknown loss.
    """
    _check_sizes(K, L)
    checks.positive(lam=lam)
    _check_loss(loss)
    rng = np.random.default_rng(seed)
    one, mean = torch.eye(K, dtype=torch.float64), torch.full((K, K), 1 / K, dtype=torch.float64)
    x = torch.from_numpy(rng.uniform(-1.5, 1.5, (runs, 2 * (L + 1))))
    x[:, ::2] = x[:, ::2].abs() + 0.5

    def factors_of(x):
        return [a[:, None, None] * one + b[:, None, None] * mean for a, b in zip(x.T[::2], x.T[1::2], strict=True)]

    def gradient_of(gradients):
        return torch.stack([(g * part).sum((-2, -1)) for g in gradients for part in (one, mean)], 1)

    return _descend(x, factors_of, gradient_of, lam, loss, ROUNDS, 80, 1e-10)[1].min().item()


def collapse_cross_entropy(K: int, L: int, lam: float) -> float:
    r"""The cross-entropy of deep neural collapse, an orthogonal frame in every level and the scores of a simplex.

    .. math::
        \min_{p\ge0}\ \log(1 + (K-1)e^{-p}) + \frac{L+1}2\lambda\,\big(K^L(K-1)\big)^{1/(L+1)} p^{2/(L+1)}:

    the scores are :math:`p(I - 11^\top/K)`, the first L factors have K equal singular values, the last has K - 1.
    It is what :func:`symmetric_search` finds. ValueError for K < 2, L < 1 and a decay that is not positive.

    >>> collapse_cross_entropy(4, 3, simplex_decay(4, 3)) < math.log(4)
    True
    """
    _check_sizes(K, L)
    checks.positive(lam=lam)
    price = (L + 1) / 2 * lam * (K**L * (K - 1)) ** (1 / (L + 1))

    def cost(p):
        return np.log1p((K - 1) * np.exp(-p)) + price * p ** (2 / (L + 1))

    grid = np.r_[0, np.geomspace(1e-3, 100, 5000)]
    i = int(cost(grid).argmin())
    if i in (0, len(grid) - 1):
        return float(cost(grid[i]))
    return float(minimize_scalar(cost, bounds=grid[[i - 1, i + 1]], method="bounded", options={"xatol": 1e-12}).fun)


# Starts ---------------------------------------------------------------------------------------------------------------


def balanced(factors: Sequence[Tensor]) -> list[Tensor]:
    """The same scores by factors whose Frobenius norms agree, as at every stationary point with equal decays.

    Factors `(runs, out, in)`.
    """
    norms = torch.stack([q.flatten(1).norm(dim=1) for q in factors]).clamp(min=1e-12)
    return [q * r[:, None, None] for q, r in zip(factors, norms.log().mean(0).exp() / norms, strict=True)]


def through(M: Tensor, R: Tensor, L: int, loss: str = "mse") -> list[Tensor]:
    r"""Factors with class means `M` in the levels 2 .. L - 1, :math:`\sigma(RM)` in level L, and a ridge fit on top.

    `M: (runs, d, K)`, not negative; `R: (runs, d_L, d)`. With L = 2 the only level behind a ReLU is :math:`\sigma(RM)`.
    """
    U, s, V = torch.linalg.svd(M if L > 2 else R @ M, full_matrices=False)
    H, W = s.sqrt()[:, :, None] * V, U * s.sqrt()[:, None, :]
    onto = M @ torch.linalg.pinv(M, rtol=1e-6)
    middle = [onto] * max(L - 3, 0) + ([R @ onto] if L > 2 else [])
    top = (R @ M).clamp(min=0)
    gram = top.mT @ top
    ridge = 0.05 * gram.diagonal(dim1=-2, dim2=-1).mean(1)[:, None, None] + 1e-9
    last = torch.linalg.solve(gram + ridge * torch.eye(M.shape[2], dtype=M.dtype), top.mT)
    if loss == "ce":
        last = 4 * (last - last.mean(1, keepdim=True))
    return balanced([H, W, *middle, last])


def incidence(edges: Sequence[tuple[int, ...]], d: int | None = None) -> np.ndarray:
    """Rows are vertices, columns edges (a loop is an edge with one vertex): 1 where they meet; with d rows.

    >>> incidence([(0, 1), (1, 2), (2,)], d=3).tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
    """
    T = np.zeros((max(max(edge) for edge in edges) + 1, len(edges)))
    for j, edge in enumerate(edges):
        T[list(edge), j] = 1
    return T if d is None else np.vstack([T[:d], np.zeros((max(d - len(T), 0), len(edges)))])


#: The kinds of :func:`starts`.
KINDS = ("product", "sphere", "subsets", "graph", "loops", "polygon", "frame")


def _random_means(kind: str, K: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Non-negative class means (d, K) of a start; :func:`starts` says what the kinds are."""
    rank = int(rng.integers(2, K + 1))
    if kind == "product":
        M = np.abs(rng.standard_normal((d, rank))) @ np.abs(rng.standard_normal((rank, K)))
    elif kind == "sphere":
        points, units = rng.standard_normal((rank - 1, K)), rng.standard_normal((d, rank - 1))
        points, units = points / np.linalg.norm(points, axis=0), units / np.linalg.norm(units, axis=1, keepdims=True)
        M = 1 + rng.uniform(0.5, 1) * units @ points
    elif kind == "polygon":
        M = 1 + np.cos(2 * np.pi * (np.arange(K) / K - np.arange(d)[:, None] / d * rng.integers(1, 3)))
    elif kind == "subsets":
        rows = (rng.random((min(rank, d), K)) < rng.uniform(0.2, 0.7)).astype(float)
        rows[0, rows.sum(0) == 0] = 1
        M = rows[np.r_[np.arange(len(rows)), rng.integers(0, len(rows), d - len(rows))]]
    elif kind in ("graph", "loops"):
        least = next(v for v in range(2, K + 2) if v * (v - 1) // 2 + v * (kind == "loops") >= K)
        v = int(rng.integers(least, max(least, min(K, d)) + 1))
        edges = [(a, b) for a in range(v) for b in range(a)] + [(a,) for a in range(v) if kind == "loops"]
        M = incidence([edges[i] for i in rng.choice(len(edges), K, replace=False)], d)
    elif kind == "frame":
        M = np.eye(d, K)
    else:
        raise ValueError(f"kind = {kind!r}: one of {', '.join(KINDS)} is needed")
    return M / np.linalg.norm(M, axis=0).clip(1e-9)


def starts(
    K: int, L: int, d: int, runs: int, rng: np.random.Generator, loss: str = "mse", kinds: Sequence[str] = KINDS
) -> tuple[list[Tensor], list[str]]:
    """Random starts whose class means are of the kinds in turn, with noise: factors `(runs, ..)`, and their kinds.

    Class means of the kind "product" are a non-negative matrix of random rank; "sphere": points on a sphere of random
    dimension, seen by random half-spaces; "subsets": each unit fires for a random set of classes; "graph": the
    incidence matrix of a random graph with K edges; "loops": the same with loops; "polygon": a regular polygon;
    "frame": one unit per class. ValueError for another kind.
    """
    names = [kinds[i % len(kinds)] for i in range(runs)]
    M = torch.from_numpy(np.stack([_random_means(kind, K, d, rng) for kind in names]))
    # units of the last level: random, or one class against a part of all the others
    own = torch.eye(K, dtype=M.dtype)[torch.arange(d) % K] - torch.from_numpy(rng.uniform(0, 1.5, (runs, 1, 1))) / K
    chosen = torch.from_numpy(rng.random(runs) < 0.6)[:, None, None]
    R = torch.where(chosen, own @ torch.linalg.pinv(M, rtol=1e-6), torch.from_numpy(rng.standard_normal((runs, d, d))))
    factors = through(M, R, L, loss)
    factors = factors[:-1] if loss == "exact" else factors
    return perturbed(factors, runs, rng, (0.02, 0.1, 0.3)), names


def perturbed(factors: Sequence[Tensor], runs: int, rng: np.random.Generator, sizes=(0.03, 0.1, 0.2, 0.4)):
    """As many noisy copies of given runs, in turn, as `runs` says: factors `(runs, out, in)`.

    Noise is relative to the root mean square of each factor; its sizes are drawn from `sizes`.
    """
    pick, size = torch.arange(runs) % len(factors[0]), torch.from_numpy(rng.choice(sizes, runs))
    noisy = []
    for q in (q[pick] for q in factors):
        scale = size * q.flatten(1).norm(dim=1) / math.sqrt(q[0].numel())
        noisy.append(q + scale[:, None, None] * torch.from_numpy(rng.standard_normal(tuple(q.shape))))
    return noisy


def widened(factors: Sequence[Tensor], d: int) -> list[Tensor]:
    """One solution's factors `(out, in)` with zero units added, up to d in every level that has fewer.

    >>> wide = widened([torch.ones(2, 3), torch.ones(2, 2), torch.ones(3, 2)], d=5)
    >>> [tuple(W.shape) for W in wide]
    [(5, 3), (5, 5), (3, 5)]
    """
    wide = []
    for i, q in enumerate(factors):
        rows = q.shape[0] if i == len(factors) - 1 else max(d, q.shape[0])
        columns = q.shape[1] if i == 0 else max(d, q.shape[1])
        wide.append(q.new_zeros(rows, columns))
        wide[-1][: q.shape[0], : q.shape[1]] = q
    return wide


# Search ---------------------------------------------------------------------------------------------------------------


def merged(factors: Sequence[Tensor], tolerance: float = 1e-5) -> list[Tensor]:
    """The same solution with fewer units: silent ones dropped, parallel ones united, level 1 cut to its rank.

    Factors `[H_1, W_1, .., W_L]`, `(out, in)` each. Units whose pre-activations are positive multiples of each other
    (cosine above 1 - tolerance) are one unit of the same incoming norm. For exact multiples the scores stay and the
    norms do not grow.
    """
    before, factors = factors, [q.clone() for q in factors]
    U, s, V = torch.linalg.svd(factors[1] @ factors[0], full_matrices=False)
    rank = max(int((s > 1e-7 * s[0]).sum()), 1)
    factors[0], factors[1] = s[:rank].sqrt()[:, None] * V[:rank], U[:, :rank] * s[:rank].sqrt()
    A = factors[0]
    for i in range(1, len(factors) - 1):
        X = factors[i] @ A
        if not X.max() > 0:
            return [q.clone() for q in before]  # no unit fires, as in the zero solution
        alive = (X.amax(1) > 1e-7 * X.max()).nonzero().squeeze(1).tolist()
        unit = X / X.norm(dim=1, keepdim=True).clamp(min=1e-300)
        groups = []
        for j in sorted(alive, key=lambda j: -X[j].norm()):
            group = next((g for g in groups if unit[g[0]] @ unit[j] > 1 - tolerance), None)
            groups.append([j]) if group is None else group.append(j)
        incoming, outgoing = [], []
        for group in groups:
            size = X[group].norm(dim=1)
            total = size.norm()
            incoming.append(factors[i][group[0]] * total / size[0])
            outgoing.append(factors[i + 1][:, group] @ size / total)
        factors[i], factors[i + 1] = torch.stack(incoming), torch.stack(outgoing, 1)
        A = (factors[i] @ A).clamp(min=0)
    return factors


def _polished(factors: Sequence[Tensor], lam: float, loss: str = "mse") -> tuple[list[Tensor], float]:
    """One solution after more and finer rounds, with as few units as give a loss that is not higher."""
    (wide, value) = descend([q[None] for q in factors], lam, loss, _POLISH, 200, 1e-13)
    wide = [q[0] for q in wide]
    slim, slim_value = descend([q[None] for q in merged(wide)], lam, loss, _POLISH, 200, 1e-13)
    if slim_value.item() <= value.item() + 1e-11:
        return [q[0] for q in slim], slim_value.item()
    return wide, value.item()


def _default_width(K: int) -> int:
    """Units per level in a search: twice the classes for few of them, K for many."""
    return 2 * K if K <= 5 else max(10, K + 2) if K <= 10 else K


def search(
    K: int,
    L: int,
    lam: float,
    loss: str = "mse",
    seconds: float = 30.0,
    seed: int = 0,
    d: int | None = None,
    known: Sequence[Sequence[Tensor]] = (),
    runs: int = 48,
) -> Solution:
    """The lowest loss found in a time: random starts and noisy copies of the best so far, in turn; then polished.

    `known`: factors of solutions, `(out, in)` each, to start from as well. ValueError for K < 2, L < 2, widths, decays
    or seconds that are not positive, an unknown loss.
    """
    _check_sizes(K, L)
    if L < 2:
        raise ValueError(f"L = {L}: two layers at least are needed, one has no ReLU")
    d = _default_width(K) if d is None else d
    positive_integers(d=d, runs=runs)
    _check_loss(loss)
    checks.positive(lam=lam, seconds=seconds)
    rng, end = np.random.default_rng(seed), time.monotonic() + seconds
    best: list[tuple[float, list[Tensor], str]] = []
    d = max([d, *(max(W.shape[1] for W in factors[1:]) for factors in known)])

    def run(factors, names):
        ends, values = descend(factors, lam, loss)
        best.extend((values[i].item(), [q[i] for q in ends], names[i]) for i in values.argsort()[:6].tolist())
        best.sort(key=lambda entry: entry[0])
        apart = [best[0]]
        for entry in best[1:]:
            if entry[0] - apart[-1][0] > 1e-6:
                apart.append(entry)
        best[:] = apart[:8]

    if known:
        run(
            [torch.stack(q) for q in zip(*(widened(factors, d) for factors in known), strict=True)],
            ["known"] * len(known),
        )
    rounds = 0
    while rounds == 0 or time.monotonic() < end:
        if rounds % 3 == 0:
            run(*starts(K, L, d, runs, rng, loss))
        else:
            names = [f"{name.removesuffix(', perturbed')}, perturbed" for _, _, name in best]
            stack = [torch.stack(q) for q in zip(*(widened(factors, d) for _, factors, _ in best), strict=True)]
            run(perturbed(stack, runs, rng), [names[i % len(names)] for i in range(runs)])
        rounds += 1
    factors, value = _polished(best[0][1], lam, loss)
    return Solution(K, L, lam, loss, factors, value, best[0][2])


def _check_loss(loss: str) -> None:
    if loss not in LOSSES:
        raise ValueError(f"loss = {loss!r}: one of {', '.join(LOSSES)} is needed")


def _check_sizes(K: int, L: int) -> None:
    positive_integers(K=K, L=L)
    if K < 2:
        raise ValueError(f"K = {K}: at least two classes are needed")


# What a solution looks like -------------------------------------------------------------------------------------------


def classes_as_edges(means: Tensor, tolerance: float = 1e-3) -> list[tuple[int, ...]]:
    """Which units fire for each class in one level `(d, K)`: a tuple per class, of units that differ in direction.

    >>> classes_as_edges(low_rank.unit_incidence(4))
    [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    """
    rows = means[means.norm(dim=1) > tolerance * means.norm(dim=1).max()]
    rows, distinct = rows / rows.norm(dim=1, keepdim=True), []
    for row in rows:
        if all(row @ other < 1 - tolerance for other in distinct):
            distinct.append(row)
    fires = torch.stack(distinct) > tolerance
    return [tuple(fires[:, k].nonzero().squeeze(1).tolist()) for k in range(means.shape[1])]


def structure(means: Tensor, tolerance: float = 1e-3) -> str:
    """A name for the pattern of one level of class means `(d, K)`: units are vertices and classes are edges.

    "frame" if the means are orthogonal and of one length; "K4 + 1 loop" if every class fires one unit (a loop) or two
    (an edge); components of the graph are named apart. Otherwise the units are the corners of a simplex and the classes
    points in it, or there are more units than dimensions.

    >>> structure(torch.eye(3)), structure(low_rank.unit_incidence(4))
    ('frame', 'K4')
    """
    if not means.abs().max() > 0:
        return "zero"
    gram = means.T @ means
    size = gram.diagonal().mean()
    if (gram - size * torch.eye(len(gram), dtype=gram.dtype)).abs().max() < tolerance * size:
        return "frame"
    edges = classes_as_edges(means, tolerance)
    if not all(1 <= len(edge) <= 2 for edge in edges):
        units, rank = len({v for edge in edges for v in edge}), int(torch.linalg.matrix_rank(means, rtol=tolerance))
        names = {2: "points of a segment", 3: "points of a triangle", 4: "points of a tetrahedron"}
        return names[rank] if units == rank in names else f"{units} units of rank {rank}"
    graph = nx.MultiGraph([(edge[0], edge[-1]) for edge in edges])
    parts = Counter(sorted(_graph_name(graph.subgraph(c)) for c in nx.connected_components(graph)))
    return " ∪ ".join(f"{count} × {name}" if count > 1 else name for name, count in parts.items())


def _graph_name(graph: nx.MultiGraph) -> str:
    """K4, C5, path P3 or star, with its loops and parallel edges counted; else vertices and edges."""
    v, loops = graph.number_of_nodes(), nx.number_of_selfloops(graph)
    simple = nx.Graph((a, b) for a, b in graph.edges() if a != b)
    e, degrees = simple.number_of_edges(), sorted(degree for _, degree in simple.degree())
    doubled = graph.number_of_edges() - loops - e
    if v == 1:
        return "single class" if loops == 1 else f"{loops} classes on one unit"
    if 2 * e == v * (v - 1):
        name = f"K{v}"
    elif e == v and degrees[0] == degrees[-1] == 2:
        name = f"C{v}"
    elif e == v - 1 and degrees[-1] == 2:
        name = f"path P{v}"
    elif e == v - 1 and degrees[-1] == v - 1:
        name = f"star S{v - 1}"
    elif 2 * e == v * (v - 1) - 2:
        name = f"K{v} less an edge"
    else:
        name = f"graph({v} vertices, {e} edges)"
    name += f" + {loops} loop{'s' * (loops > 1)}" if loops else ""
    return name + (f" + {doubled} parallel" if doubled else "")


def describe(solution: Solution) -> str:
    """The structures of the levels behind a ReLU and below the last: 2 to L - 1, or level 2 for L = 2."""
    names = [structure(M) for M in (solution.levels[1:-1] or solution.levels[1:])]
    return " → ".join(dict.fromkeys(names))


def ranks(solution: Solution, rtol: float = 1e-3) -> list[int]:
    """Numerical ranks of the class means `M_1, .., M_L`, see :func:`lib.metrics.numerical_rank`."""
    return [int(numerical_rank(M, rtol)) for M in solution.levels]


# The command line -----------------------------------------------------------------------------------------------------


def check(folder: Path = FOLDER) -> int:
    """Evaluate every file anew and print one line for each, also where :func:`load` raises ValueError.

    Returns the number of files that fail.
    """
    failed = 0
    for path in sorted(Path(folder).glob("*.npz")):
        try:
            s = load(path)
            if s.name != path.name:
                raise ValueError(f"{path}: what it holds belongs into {s.name}")
        except ValueError as error:
            print(f"FAILED  {error}")
            failed += 1
        else:
            print(f"{s.name}: loss {s.loss:.10f} at lam {s.lam:.8g}, ranks {ranks(s)}, {describe(s)}")
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 0, 1 for a file that fails, 2 for what is a ValueError."""
    parser = argparse.ArgumentParser(
        prog="python -m lib.search.best_known", description="Check and beat the stored solutions."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    checked = commands.add_parser("check", help="evaluate every file anew")
    searched = commands.add_parser("search", help="search, and store what is lower than the file")
    searched.add_argument("K", type=int)
    searched.add_argument("L", type=int)
    searched.add_argument("--seconds", type=float, default=60.0)
    searched.add_argument("--seed", type=int, default=0)
    searched.add_argument("--width", type=int, default=None)
    searched.add_argument("--loss", default="mse", help="mse or ce")
    searched.add_argument("--lam", type=float, default=None, help="another weight decay than the standard one")
    for sub in (checked, searched):
        sub.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args(arguments)
    try:
        if given.command == "check":
            return 1 if check(given.folder) else 0
        return _improve(given)
    except ValueError as error:
        print(f"error: {error}")
        return 2


def _improve(given: argparse.Namespace) -> int:
    K, L, kind = given.K, given.L, given.loss
    lam = standard_decay(K, L, kind) if given.lam is None else given.lam
    path = given.folder / file_name(K, L, lam, kind)
    before = load(path) if path.exists() else None
    same = before is None or ((before.K, before.L, before.kind) == (K, L, kind) and math.isclose(before.lam, lam))
    if not same:
        raise ValueError(f"{path}: holds another problem, lam = {before.lam!r} in place of {lam!r}")
    known = [] if before is None else [before.factors]
    found = search(K, L, lam, kind, given.seconds, given.seed, given.width, known)
    collapse = low_rank.dnc_loss(K, L, lam, 1) if kind == "mse" else collapse_cross_entropy(K, L, lam)
    bar = collapse if before is None else before.loss
    print(f"K = {K}, L = {L}, lam = {lam:.8g}: found {found.loss:.12f}, known {bar:.12f}, collapse {collapse:.12f}")
    if found.loss < bar - TOLERANCE:
        print(f"lower by {bar - found.loss:.3g}: {describe(found)}; stored in {save(found, given.folder)}")
    else:
        print("not lower: nothing is stored")
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
