r"""Descent to local minima of the deep model with ReLUs, and searches made of many descents.

At a minimum many pre-activations lie exactly on the kink of the ReLU, where plain L-BFGS gets stuck. The ReLU is
:math:`\max_{0\le u\le1} ux`. Smoothed around the slope :math:`\theta` it is
:math:`\max_{0\le u\le1} ux - \frac\varepsilon2(u-\theta)^2`, attained at
:math:`u = \min(\max(\theta + x/\varepsilon, 0), 1)`, which is its derivative. On the kink the smoothed function has the
value and the slope of the minimum as soon as :math:`\theta` is right, for any :math:`\varepsilon`; hence the update
:math:`\theta \leftarrow u` after each round, as in the method of multipliers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lib import checks
from lib.models.unconstrained import LOSSES
from lib.search.best_known.initial import initial_factors, perturbed, relocated, widened
from lib.search.best_known.problem import Solution, check_sizes
from lib.search.rows import join, lbfgs_rows, split
from lib.search.smooth_relu import value_and_gradient

#: Widths of the smoothing in :func:`~lib.search.best_known.descend`, one per round.
ROUNDS = (0.1,) * 4 + (0.03,) * 6
#: A search begins again after this many batches in a row that lowered nothing.
_STUCK = 15
_POLISH = (0.03,) * 12 + (0.01,) * 12


def descend(
    factors: Sequence[Tensor],
    lam: float | Sequence[float] | Tensor,
    loss: str = "mse",
    rounds: Sequence[float] = ROUNDS,
    iterations: int = 80,
    tolerance: float = 1e-10,
) -> tuple[list[Tensor], Tensor]:
    """A local minimum from every start: L-BFGS on smoothed ReLUs, whose slopes are updated after each round.

    Factors: `H_1 (runs, d, K)`, `W_1 .. W_L (runs, out, in)`; `lam` is one decay, or one per run; `loss` is "mse",
    "ce", or "exact" (see :func:`lib.search.smooth_relu.value_and_gradient`). Returns the best point that each run has
    seen after a round, and its loss with ReLUs. ValueError for a decay that is not positive.
    """
    shapes = [q.shape[1:] for q in factors]
    x, value = _descend(join(factors), lambda x: split(x, shapes), join, lam, loss, rounds, iterations, tolerance)
    return split(x, shapes), value


def relu_around(slopes: Sequence[Tensor], eps: float) -> Callable[[int, Tensor], tuple[Tensor, Tensor]]:
    """The ReLU number i smoothed around `slopes[i]: (runs, d_l, K)`, and its derivative u, the slope to try next.

    >>> relu_around([torch.tensor([0.25, 0.25])], eps=0.5)(0, torch.tensor([0.0, 2.0]))
    (tensor([0.0000, 1.8594]), tensor([0.2500, 1.0000]))
    """

    def relu(i: int, x: Tensor) -> tuple[Tensor, Tensor]:
        theta = slopes[i]
        u = torch.add(theta, x, alpha=1 / eps).clamp_(0, 1)
        return (x * u).addcmul_(u - theta, u - theta, value=-eps / 2), u

    return relu


def _descend(x, factors_of, gradient_of, lam, loss, rounds, iterations, tolerance):
    """:func:`descend` for parameters x (runs, P), factors_of(x), and gradient_of(gradients of the factors)."""
    (decays,) = checks.each(len(x), lam=lam)
    lam = torch.tensor(decays, dtype=torch.float64)

    def risk(x, lam, relu):
        factors = factors_of(x)
        return value_and_gradient(factors, torch.eye(factors[0].shape[-1]).to(x), lam, relu, loss)

    def with_relus(x):
        value, _, slopes = risk(x, lam, lambda _, z: (z.clamp(min=0), (z > 0).to(z)))
        return torch.where(value.isfinite(), value, math.inf), slopes

    best, (best_value, slopes) = x.clone(), with_relus(x)
    slopes = [0.25 + 0.5 * theta for theta in slopes]
    for eps in rounds:

        def function(x, lam, *slopes, eps=eps):
            value, gradients, _ = risk(x, lam, relu_around(slopes, eps))
            return value, gradient_of(gradients)

        x = lbfgs_rows(function, x, [lam, *slopes], iterations, tolerance, memory=8)
        slopes = risk(x, lam, relu_around(slopes, eps))[2]
        value = with_relus(x)[0]
        lower = value < best_value
        best[lower], best_value[lower] = x[lower], value[lower]
    return best, best_value


def symmetric_search(K: int, L: int, lam: float, runs: int = 12, seed: int = 0) -> float:
    r"""The lowest cross-entropy among the solutions that treat all classes alike, by a search over their parameters.

    In this family every level has one unit per class, and every factor is :math:`a_l I_K + b_l 11^\top/K`; these are
    the matrices that commute with every permutation of the classes. It contains orthogonal frames, simplices (where no
    ReLU follows), and levels with Gram matrices :math:`u I + v 11^\top`. ValueError for K < 2, L < 1 and a decay that
    is not positive.
    """
    check_sizes(K, L)
    rng = np.random.default_rng(seed)
    one, mean = torch.eye(K, dtype=torch.float64), torch.full((K, K), 1 / K, dtype=torch.float64)
    x = torch.from_numpy(rng.uniform(-1.5, 1.5, (runs, 2 * (L + 1))))
    x[:, ::2] = x[:, ::2].abs() + 0.5

    def factors_of(x):
        return [a[:, None, None] * one + b[:, None, None] * mean for a, b in zip(x.T[::2], x.T[1::2], strict=True)]

    def gradient_of(gradients):
        return torch.stack([(g * part).sum((-2, -1)) for g in gradients for part in (one, mean)], 1)

    return _descend(x, factors_of, gradient_of, lam, "ce", ROUNDS, 80, 1e-10)[1].min().item()


def search(
    K: int,
    L: int,
    lam: float,
    loss: str = "mse",
    descents: int = 1000,
    seed: int = 0,
    d: int | None = None,
    known: Sequence[Sequence[Tensor]] = (),
    runs: int = 48,
    polish: bool = True,
) -> tuple[Solution, list[tuple[int, float]]]:
    """The lowest loss found, polished, from random starts and copies of the best ends with classes moved or noise.

    `descents` is the effort: this many, in batches of `runs`, from the three kinds of start in turn. A search that gets
    stuck begins again from new starts. `d`: units per level, by default five more than classes. `known`: factors of
    solutions, `(out, in)` each, to start from as well. Without `polish` the lowest end stays as the descents have left
    it. Returns the solution and, for each batch, the number of descents and the lowest loss so far. ValueError for
    K < 2, L < 2, widths, decays or descents that are not positive, an unknown loss.
    """
    check_sizes(K, L, layers=2)  # one layer has no ReLU
    d = K + 5 if d is None else d
    checks.positive_integers(d=d, runs=runs, descents=descents)
    checks.one_of(LOSSES, loss=loss)
    d = max([d, *(max(W.shape[1] for W in factors[1:]) for factors in known)])
    rng, pool = np.random.default_rng(seed), _Pool()
    best, made, effort = _End(math.inf, [], ""), 0, []

    def polished(end: _End) -> _End:
        factors, value = _polished(end.factors, lam, loss) if polish else (end.factors, end.loss)
        return min(best, _End(value, factors, end.name), key=itemgetter(0))

    while made < descents:
        if pool.stuck == _STUCK:
            best, pool = polished(pool.lowest(1)[0]), _Pool()
        if known and not effort:
            starts, names = _stacked(known, d), ["known"] * len(known)
        elif not pool.ends or len(effort) % 3 == 0:
            starts, names = initial_factors(K, L, d, runs, rng, loss)
        else:
            starts, names = pool.copies(runs, rng, loss, d, moved=len(effort) % 3 == 1)
        pool.add(*descend(starts, lam, loss), names)
        made += len(names)
        effort.append((made, min(best.loss, pool.lowest(1)[0].loss)))
    found = polished(pool.lowest(1)[0])
    return Solution(K, L, lam, loss, found.factors, found.loss, found.name), effort


class _End(NamedTuple):
    """Where a descent ended: its loss, the factors, and the kind of its start."""

    loss: float
    factors: list[Tensor]
    name: str


class _Pool:
    """The ends from which a search goes on: one for each loss to six decimals, so that copies of it count once."""

    def __init__(self):
        self.ends: dict[float, _End] = {}
        self.stuck = 0  # batches in a row that lowered nothing

    def lowest(self, count: int) -> list[_End]:
        return [self.ends[key] for key in sorted(self.ends)[:count]]

    def add(self, factors: list[Tensor], losses: Tensor, names: list[str]) -> None:
        """Keep the six lowest ends of a batch."""
        before = min(self.ends, default=math.inf)
        for i in losses.argsort()[:6].tolist():
            end = _End(losses[i].item(), [q[i] for q in factors], names[i])
            key = round(end.loss, 6)
            self.ends[key] = min(end, self.ends.get(key, end), key=itemgetter(0))
        self.stuck = 0 if min(self.ends) < before else self.stuck + 1

    def copies(self, runs: int, rng: np.random.Generator, loss: str, d: int, moved: bool) -> tuple[list, list[str]]:
        """Copies of the eight lowest ends, in turn, with classes moved or noise; and the kinds of their starts."""
        lowest = self.lowest(8)
        ends = _stacked([end.factors for end in lowest], d)
        copies = relocated(ends, runs, rng, loss) if moved else perturbed(ends, runs, rng)
        names = [f"{end.name.removesuffix(', moved')}, moved" for end in lowest]
        return copies, [names[i % len(names)] for i in range(runs)]


def _stacked(several: Sequence[Sequence[Tensor]], d: int) -> list[Tensor]:
    """Factors of several solutions as runs, with d units in every level."""
    return [torch.stack(q) for q in zip(*(widened(factors, d) for factors in several), strict=True)]


def _polished(factors: Sequence[Tensor], lam: float, loss: str) -> tuple[list[Tensor], float]:
    """One solution after more and finer rounds, with its units merged if that does not raise the loss."""

    def polish(factors):
        ends, value = descend([q[None] for q in factors], lam, loss, _POLISH, 200, 1e-13)
        return [q[0] for q in ends], value.item()

    wide, value = polish(factors)
    slim, slim_value = polish(merged(wide))
    return (slim, slim_value) if slim_value <= value + 1e-11 else (wide, value)


def merged(factors: Sequence[Tensor], tolerance: float = 1e-5) -> list[Tensor]:
    """The same solution with fewer units: silent ones dropped, parallel ones united, level 1 cut to its rank.

    Factors `[H_1, W_1, .., W_L]`, `(out, in)` each. Units whose pre-activations are positive multiples of each other
    (cosine above 1 - tolerance) become one unit of the same incoming norm. For exact multiples the scores stay the same
    and the norms do not grow.
    """
    before, factors = list(factors), list(factors)
    U, s, V = torch.linalg.svd(factors[1] @ factors[0], full_matrices=False)
    rank = max(int((s > 1e-7 * s[0]).sum()), 1)
    factors[0], factors[1] = s[:rank].sqrt()[:, None] * V[:rank], U[:, :rank] * s[:rank].sqrt()
    A = factors[0]
    for i in range(1, len(factors) - 1):
        X = factors[i] @ A
        if not X.max() > 0:
            return before  # no unit fires, as in the zero solution
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
