"""Where searches start: factors whose class means have some structure, with noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lib import checks
from lib.models.unconstrained import activations
from lib.theory import halves, low_rank

#: The kinds of :func:`initial_factors`.
KINDS = ("product", "sphere", "subsets", "graph", "loops", "halves", "polygon", "frame")


def balanced(factors: Sequence[Tensor]) -> list[Tensor]:
    """Factors with the same scores whose Frobenius norms agree, as at every stationary point with equal decays.

    All factors are `(runs, out, in)`.
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
    return balanced([H, W, *middle, _ridge((R @ M).clamp(min=0), loss)])


def _ridge(top: Tensor, loss: str) -> Tensor:
    """The last factors `(runs, K, d)` that fit the classes to what they read, `top: (runs, d, K)`."""
    gram = top.mT @ top
    ridge = 0.05 * gram.diagonal(dim1=-2, dim2=-1).mean(1)[:, None, None] + 1e-9
    last = torch.linalg.solve(gram + ridge * torch.eye(top.shape[2], dtype=top.dtype), top.mT)
    return 4 * (last - last.mean(1, keepdim=True)) if loss == "ce" else last


def initial_factors(
    K: int, L: int, d: int, runs: int, rng: np.random.Generator, loss: str = "mse", kinds: Sequence[str] = KINDS
) -> tuple[list[Tensor], list[str]]:
    """Random factors whose class means take the kinds in turn, with noise: `(runs, ..)` each, and their kinds.

    Class means of the kind "product" are a non-negative matrix of random rank; "sphere": points on a sphere of random
    dimension, seen by random half-spaces; "subsets": each unit fires for a random set of classes; "graph": the
    incidence matrix of a random graph with K edges; "loops": the same with loops; "halves": such a graph, whose last
    level has the halves of its vertices; "polygon": a regular polygon; "frame": one unit per class. Loss "exact" omits
    the last factor. ValueError for an unknown kind.
    """
    names = [kinds[i % len(kinds)] for i in range(runs)]
    M = torch.from_numpy(np.stack([_random_means(kind, K, d, rng) for kind in names]))
    # units of the last level: random, or one class against a part of all the others
    own = torch.eye(K, dtype=M.dtype)[torch.arange(d) % K] - torch.from_numpy(rng.uniform(0, 1.5, (runs, 1, 1))) / K
    chosen = torch.from_numpy(rng.random(runs) < 0.6)[:, None, None]
    R = torch.where(chosen, own @ torch.linalg.pinv(M, rtol=1e-6), torch.from_numpy(rng.standard_normal((runs, d, d))))
    for i, kind in enumerate(names):
        if kind == "halves":
            signs = halves.half_signs(_even(K))
            R[i, :, : signs.shape[1]] = signs[rng.permutation(len(signs))[np.arange(d) % len(signs)], :d]
    factors = through(M, R, L, loss)
    return perturbed(factors[:-1] if loss == "exact" else factors, runs, rng, (0.02, 0.1, 0.3)), names


def _random_means(kind: str, K: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Non-negative class means (d, K) of unit length; :func:`initial_factors` says what the kinds are."""
    checks.one_of(KINDS, kind=kind)
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
    elif kind == "frame":
        M = np.eye(d, K)
    else:
        M = _random_graph(kind, K, d, rng)
    return M / np.linalg.norm(M, axis=0).clip(1e-9)


def _random_graph(kind: str, K: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """The incidence matrix of K random edges, `(d, K)`, among few vertices; with "loops" there are loops among them."""
    loops = kind == "loops"
    least = next(v for v in range(2, K + 2) if math.comb(v + loops, 2) >= K)  # a loop is an edge to one vertex more
    v = _even(K) if kind == "halves" else int(rng.integers(least, max(least, min(K, d)) + 1))
    edges = [(a, b) for a in range(v) for b in range(a)]
    if loops:
        edges += [(a,) for a in range(v)]
    return low_rank.incidence([edges[i] for i in rng.choice(len(edges), K, replace=False)], d).numpy()


def _even(K: int) -> int:
    """The least even number of vertices, four or more, that can have K edges between them."""
    return next(v for v in range(4, K + 5, 2) if math.comb(v, 2) >= K)


def perturbed(
    factors: Sequence[Tensor], runs: int, rng: np.random.Generator, sizes: Sequence[float] = (0.03, 0.1, 0.2, 0.4)
) -> list[Tensor]:
    """Noisy copies of given runs in turn, `runs` of them in all: factors `(runs, out, in)`.

    Noise is relative to the root mean square of each factor; its sizes are drawn from `sizes`.
    """
    pick, size = torch.arange(runs) % len(factors[0]), torch.from_numpy(rng.choice(sizes, runs))
    noisy = []
    for q in (q[pick] for q in factors):
        scale = size * q.flatten(1).norm(dim=1) / math.sqrt(q[0].numel())
        noisy.append(q + scale[:, None, None] * torch.from_numpy(rng.standard_normal(tuple(q.shape))))
    return noisy


def relocated(factors: Sequence[Tensor], runs: int, rng: np.random.Generator, loss: str = "mse") -> list[Tensor]:
    """Slightly noisy copies of given runs, in turn, in which one class or two have moved, with `W_L` fitted anew.

    A class that moves has features between those of up to three others. Factors `(runs, out, in)`.
    """
    H, *Ws = perturbed(factors, runs, rng, (0.01, 0.05, 0.1))
    K = H.shape[2]
    for run in H:
        for c in rng.choice(K, int(rng.integers(1, 3)), replace=False):
            others = rng.permutation(np.delete(np.arange(K), c))[: rng.integers(1, 4)]
            weights = rng.dirichlet(np.ones(len(others))) * rng.uniform(0.8, 1.3)
            run[:, c] = run[:, others] @ torch.from_numpy(weights)
    top = activations(H, Ws, relu=True)[-1]
    return balanced([H, *Ws[:-1], _ridge(top, loss)])


def widened(factors: Sequence[Tensor], d: int) -> list[Tensor]:
    """One solution's factors `(out, in)` with zero units added, up to d in every level that has fewer.

    >>> wide = widened([torch.ones(2, 3), torch.ones(2, 2), torch.ones(3, 2)], d=5)
    >>> [tuple(W.shape) for W in wide]
    [(5, 3), (5, 5), (3, 5)]
    """
    widths = [max(d, len(q)) for q in factors[:-1]]
    out, into = [*widths, len(factors[-1])], [factors[0].shape[1], *widths]
    pad = torch.nn.functional.pad
    return [pad(q, (0, b - q.shape[1], 0, a - q.shape[0])) for q, a, b in zip(factors, out, into, strict=True)]
