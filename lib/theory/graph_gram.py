r"""Is a Gram matrix of class means that of the graph, whatever its three values?

In every layer of the graph solution of Súkeník et al. (2024) the Gram matrix of the class means, before and after the
ReLU, is

.. math:: a I + b\,G + c\,(J - I - G)

up to the order of the classes, with the adjacency matrix G of the triangular graph and the matrix J of ones. Only in
the layers between the first and the last are the values known in advance (:mod:`lib.theory.structure` looks for these).
"""

from __future__ import annotations

import math

import networkx as nx
import torch
from torch import Tensor

from lib import checks
from lib.theory.low_rank import triangular_graph


def is_graph_gram(means: Tensor, tol: float = 0.05) -> bool:
    r"""Whether the Gram matrix of class means `(K, d)`, over its mean diagonal, is that of the graph up to `tol`.

    Every entry has to be within `tol` of :math:`aI + bG + c(J - I - G)` in some order of the classes, with the values
    a, b and c that fit best and b and c at least 2 `tol` apart. False where K is no triangular number of at least 6,
    and for means that vanish. ValueError for another shape, entries that are not finite and `tol` outside (0, 1).

    >>> from lib.theory.low_rank import unit_incidence
    >>> T = unit_incidence(5).T  # of ten classes
    >>> is_graph_gram(T[torch.randperm(10)]), is_graph_gram(1 - 2 * T), is_graph_gram(torch.eye(10))
    (True, True, False)
    """
    if means.ndim != 2:
        raise ValueError(f"means has shape {tuple(means.shape)}; (K, d) is needed")
    if not 0 < tol < 1:
        raise ValueError(f"tol={tol!r}: a number between 0 and 1 is needed")
    checks.finite(means=means)
    means, K = means.detach().double().cpu(), len(means)
    r = (1 + math.isqrt(1 + 8 * K)) // 2
    gram = means @ means.mT
    if r < 4 or r * (r - 1) // 2 != K or gram.trace() == 0:
        return False
    gram = gram * K / gram.trace()
    graph = triangular_graph(r)
    rows, columns = torch.triu_indices(K, K, 1)
    order = gram[rows, columns].argsort()
    joined = graph.number_of_edges()
    for pairs in (order[-joined:], order[:joined]):  # the graph joins those with the largest entries or the smallest
        G = torch.zeros(K, K, dtype=torch.bool)
        G[rows[pairs], columns[pairs]] = True
        G = G | G.T
        if nx.is_isomorphic(nx.from_numpy_array(G.numpy()), graph) and _has_three_values(gram, G, tol):
            return True
    return False


def _has_three_values(gram: Tensor, G: Tensor, tol: float) -> bool:
    """Whether the entries on the diagonal, at the pairs that G joins, and at the others are alike within each group."""
    diagonal = torch.eye(len(gram), dtype=torch.bool)
    groups = [gram[where] for where in (diagonal, G, ~(G | diagonal))]
    middles = [(group.min() + group.max()) / 2 for group in groups]  # the values that fit best
    within = all((group - middle).abs().max() <= tol for group, middle in zip(groups, middles, strict=True))
    return bool(within and (middles[1] - middles[2]).abs() >= 2 * tol)
