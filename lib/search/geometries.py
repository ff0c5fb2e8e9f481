r"""The geometries of the book side by side: what a classifier reads, as matrices of unit size, and what they cost.

A :class:`Shape` is a set of class means up to one scale. :func:`stack` makes it the last level of a model with any
number of layers, so that one shape can be tried in every model, and :func:`linear_price` gives what its scores would
cost in a linear model. Class means are columns here, `(d, K)`, as in :mod:`lib.models.unconstrained`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import networkx as nx
import torch
from networkx.algorithms import isomorphism
from torch import Tensor

from lib import checks
from lib.search.best_known import through
from lib.theory import low_rank


class Shape(NamedTuple):
    r"""Class means that a classifier reads: :math:`\sigma(RM)` if `rectified`, otherwise :math:`RM`.

    hidden
        M, `(t, K)`: the class means of the levels below the last, where a model has them.
    rows
        R, `(d, t)`.
    rectified
        Whether the ReLU acts on :math:`RM`.

    >>> shape = Shape(hidden=torch.eye(2), rows=torch.tensor([[1.0, -1.0]]), rectified=True)
    >>> shape.means.tolist()
    [[1.0, 0.0]]
    """

    hidden: Tensor
    rows: Tensor
    rectified: bool = False

    @property
    def means(self) -> Tensor:
        """What the classifier reads, `(d, K)`."""
        means = self.rows @ self.hidden
        return means.clamp(min=0) if self.rectified else means

    @property
    def nonnegative(self) -> bool:
        """Whether levels behind a ReLU, or constrained to be non-negative, can hold the shape."""
        return bool((self.means >= 0).all() and (self.hidden >= 0).all())


def between(K: int, ratio: float) -> Shape:
    r"""Means with the Gram matrix :math:`I - \frac1K 11^\top + \text{ratio}\cdot\frac1K 11^\top`.

    A simplex for `ratio` 0, an orthogonal frame for 1. ValueError for a negative ratio.

    >>> means = between(K=3, ratio=1.0).means
    >>> (means.T @ means).round(decimals=6).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    centre = torch.full((K, K), 1 / K, dtype=torch.float64)
    return _read(_eye(K) - centre + math.sqrt(ratio) * centre)


def simplex(K: int) -> Shape:
    r"""The simplex: :math:`K` vectors with cosines :math:`-\frac1{K-1}`.

    >>> means = simplex(K=3).means
    >>> cosines = means.T @ means / means.square().sum(0)
    >>> cosines[0].round(decimals=6).tolist()
    [1.0, -0.5, -0.5]
    """
    return between(K, 0.0)


def frame(K: int) -> Shape:
    """The orthogonal frame on the axes, which is non-negative.

    >>> frame(K=3).means.tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    return _read(_eye(K))


def pairs(K: int) -> Shape:
    """Antipodal pairs on orthogonal axes; ValueError unless K is even.

    >>> pairs(K=4).means.tolist()
    [[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0]]
    """
    if K % 2:
        raise ValueError(f"K = {K!r}: an even number of classes is needed")
    return _read(torch.kron(_eye(K // 2), torch.tensor([[1.0, -1.0]], dtype=torch.float64)))


def graph(r: int) -> Shape:
    r"""The graph solution for :math:`K = \frac{r(r-1)}2`: classes are the edges of a complete graph (Definition 9).

    >>> shape = graph(r=4)
    >>> tuple(shape.hidden.shape), tuple(shape.means.shape), shape.nonnegative
    ((4, 6), (6, 6), True)
    """
    T = low_rank.unit_incidence(r)
    signs = 1 - 2 * (T > 0).mT.to(T)  # of a class's row: minus at its own two ends
    return Shape(T, signs / (signs @ T).norm(dim=1, keepdim=True), rectified=True)


def edges(r: int) -> Shape:
    """The hidden level of :func:`graph`, read by the classifier as it is: rank r.

    >>> tuple(edges(r=4).means.shape)
    (4, 6)
    """
    return _read(low_rank.unit_incidence(r))


def centred_edges(r: int) -> Shape:
    r"""The same edges with their mean subtracted: rank r - 1, only two values of the cosines.

    .. math::
        \cos = \frac{r-4}{2(r-2)} \text{ for edges that share a vertex}, \qquad -\frac2{r-2} \text{ for others.}

    >>> means = centred_edges(r=5).means
    >>> cosines = means.T @ means / means.square().sum(0)
    >>> sorted(set(cosines.flatten().round(decimals=4).tolist()))  # 1, 1/6 and -2/3
    [-0.6667, 0.1667, 1.0]
    """
    T = low_rank.unit_incidence(r)
    return _read(T - T.mean(1, keepdim=True))


def pentagons(K: int) -> Shape:
    """K/5 pentagons side by side, a counterexample for two layers; ValueError unless K is a multiple of five.

    >>> shape = pentagons(K=5)
    >>> torch.linalg.matrix_rank(shape.means).item(), shape.nonnegative
    (5, True)
    """
    if K % 5:
        raise ValueError(f"K = {K!r}: a multiple of five is needed")
    one, turn = _eye(5), torch.roll(_eye(5), 1, 1)
    before = one + turn - (math.sqrt(5) - 1) / 2 * torch.linalg.matrix_power(turn, 3)
    hidden = one + turn  # invertible, as five is odd
    blocks = _eye(K // 5)
    return Shape(torch.kron(blocks, hidden), torch.kron(blocks, before @ torch.linalg.inv(hidden)), rectified=True)


def stack(shape: Shape, L: int, relu: bool, lengths: Tensor | None = None) -> list[Tensor]:
    r"""Features and all weights but the classifier, :math:`[H_1, W_1, \dots, W_{L-1}]`, whose last level is the shape.

    Every factor can still be scaled. Without ReLUs the factors are balanced up to such scales, which is cheapest for
    this product; with ReLUs the levels in between hold `shape.hidden`, as in the book's solutions.

    Parameters
    ----------
    L
        Layers of weights, including the classifier.
    relu
        Whether ReLUs act between them.
    lengths
        `(n,)`: n samples per class, at these multiples of the class mean. One sample by default.

    Returns
    -------
    list of Tensor
        `H_1` has `n K` columns organised by class.

    Raises
    ------
    ValueError
        For L < 1, lengths that are not positive, and, with `relu` and L > 1, a shape with negative entries.

    Examples
    --------
    >>> H, W1 = stack(frame(3), L=2, relu=True)
    >>> levels = (W1 @ H).clamp(min=0)
    >>> difference(levels, frame(3).means) < 1e-9
    True
    """
    lengths = torch.ones(1, dtype=torch.float64) if lengths is None else lengths
    checks.positive_integers(L=L)
    if not bool((lengths > 0).all()):
        raise ValueError(f"lengths = {lengths.tolist()}: positive lengths are needed")
    if L > 1 and relu:
        if not shape.nonnegative:
            raise ValueError("the shape has negative entries: it cannot stand behind a ReLU")
        factors = [q[0] for q in through(shape.hidden[None], shape.rows[None], L)][:-1]
    elif L > 1:
        U, s, V = torch.linalg.svd(shape.means, full_matrices=False)
        kept = s > 1e-9 * s[0]
        root, U, V = s[kept] ** (1 / L), U[:, kept], V[kept]
        factors = [root[:, None] * V, *[torch.diag(root)] * (L - 2), U * root]
    else:
        factors = [shape.means]
    return [(factors[0][:, :, None] * lengths).flatten(1), *factors[1:]]


def linear_price(Z: Tensor, decays: Sequence[float]) -> float:
    r"""The least weight decay for scores `Z: (K, N)` written as a product of as many matrices as there are decays.

    .. math:: \frac F2\,(\lambda_1 \cdots \lambda_F)^{1/F} \sum_k \sigma_k(Z)^{2/F}

    A model with ReLUs may pay less, one with a constraint pays at least as much. ValueError for decays that are not
    positive. Source: Tirer & Bruna, Lemma C.1, for any number of factors.

    >>> round(linear_price(torch.eye(4), [0.1, 0.1]), 6)  # 0.1 for each of four singular values
    0.4
    """
    F = len(decays)
    mean = math.exp(sum(math.log(value) for value in decays) / F)
    sigma = torch.linalg.svdvals(Z)
    sigma = sigma[sigma > max(Z.shape) * torch.finfo(Z.dtype).eps * sigma.max()]  # the root of a rounded zero is large
    return F / 2 * mean * sigma.pow(2 / F).sum().item()


def matching(means: Tensor, others: Tensor, tolerance: float = 0.02) -> list[int] | None:
    """The classes of `means` in the order of `others`, `(d, K)` both, or None if no order fits.

    It fits if all entries of the Gram matrices, each over its mean diagonal entry, agree to the tolerance: the means
    are then the same figure up to scale and rotation.

    >>> means = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    >>> matching(means, means[:, [2, 0, 1]])
    [2, 0, 1]
    >>> matching(means, torch.eye(3)) is None
    True
    """
    if means.shape[1] != others.shape[1]:
        return None
    grams = [_unit_gram(M) for M in (others, means)]
    first, second = (gram.flatten().sort().values for gram in grams)
    if (first - second).abs().max() > tolerance:  # no order can help
        return None
    graphs = [_weighted(gram) for gram in grams]
    close = isomorphism.numerical_edge_match("weight", 0.0, rtol=0, atol=tolerance)
    matcher = isomorphism.GraphMatcher(*graphs, edge_match=close)
    return [matcher.mapping[k] for k in range(means.shape[1])] if matcher.is_isomorphic() else None


def difference(means: Tensor, others: Tensor) -> float:
    """How far two sets of class means `(d, K)` are from equality up to scale, rotation and the order of classes.

    The largest difference between entries of their Gram matrices, each over its mean diagonal entry, in the order of
    :func:`matching`; infinite if no order fits.

    >>> difference(2 * frame(3).means, frame(3).means), difference(frame(3).means, simplex(3).means)
    (0.0, inf)
    """
    order = matching(means, others)
    if order is None:
        return math.inf
    return (_unit_gram(means[:, order]) - _unit_gram(others)).abs().max().item()


def _unit_gram(means: Tensor) -> Tensor:
    gram = means.mT @ means
    return gram / gram.diagonal().mean()


def _weighted(gram: Tensor) -> nx.Graph:
    """The complete graph on the classes, with inner products on its edges and squared lengths on its loops."""
    graph = nx.Graph()
    graph.add_weighted_edges_from((i, j, gram[i, j].item()) for i in range(len(gram)) for j in range(i + 1))
    return graph


def _eye(K: int) -> Tensor:
    return torch.eye(K, dtype=torch.float64)


def _read(means: Tensor) -> Shape:
    """Means that the classifier reads as they are."""
    return Shape(means, _eye(len(means)))
