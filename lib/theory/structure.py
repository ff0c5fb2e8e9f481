r"""What a set of class means looks like: an orthogonal frame, the edges of a graph, or neither.

The graph solutions of Súkeník et al. (2024) attach a class to every edge of a graph and a unit to every vertex. With
:math:`T` the incidence matrix, class means are the columns of :math:`T` up to scale, so their Gram matrix is

.. math:: T^\top T = 2 I + A(\text{line graph}),

that is, cosines are 1/2 between edges that share a vertex, and 0 between those that do not. The complete graph gives
the paper's strongly regular (SRG) solution, the cycle of length four gives its square graph.
"""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lib import checks

if TYPE_CHECKING:  # networkx is imported where a graph is built: measuring a network needs none
    import networkx as nx

DNC, SRG, SQUARE, OTHER = "DNC", "SRG", "square graph", "other"


def structure(means: Tensor, tol: float = 0.05) -> str:
    r"""The name of the structure of the class means of one layer, from their Gram matrix alone.

    Norms count as equal if they differ from their mean by at most `tol` times the mean. If they are, the name is, with
    cosines :math:`c_{ij}`,

    - `"DNC"`: all :math:`|c_{ij}| \le` `tol`;
    - `"SRG"`: cosines within `tol` of 1/2 or of 0, those of 1/2 forming a triangular graph, up to the order of classes;
    - `"square graph"`: the same with a cycle of four classes;
    - `"line graph of ..."`: the same with the line graph of another graph, which the name describes. Its vertices need
      not be alike, so cosines between edges that share one only have to be within 2 `tol` of 1/2;
    - `"sets: 5 of 1, 10 of 3, over 5"`, for example: classes are the sets of vertices that `sets` finds, and
      cosines are within 2 `tol` of :math:`|A \cap B| / \sqrt{|A| |B|}`; norms need not be equal, and there are at most
      K vertices. A graph is the case of sets of two;
    - `"other"` otherwise, also for means that vanish.

    Except for the sets, names depend neither on the basis nor on the order of classes.

    Parameters
    ----------
    means
        `(K, d)`, rows are class means, not centred. K of at least 2.
    tol
        Between 0 and 1/4; from there on, 0 and 1/2 could not be told apart.

    Returns
    -------
    str
        The name.

    Raises
    ------
    ValueError
        For means that are no matrix, fewer than two classes, values that are not finite, and `tol` outside (0, 1/4).

    Examples
    --------
    >>> structure(torch.eye(4))
    'DNC'
    >>> edges = torch.tensor([[1.0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1]])
    >>> structure(edges)
    'square graph'
    >>> structure(torch.eye(4) - 1 / 4)
    'other'
    """
    if not 0 < tol < 0.25:
        raise ValueError(f"tol={tol!r}: a number between 0 and 1/4 is needed")
    if means.ndim != 2 or len(means) < 2 or means.shape[1] < 1:
        raise ValueError(f"means has shape {tuple(means.shape)}; (K, d) with K of at least 2 is needed")
    checks.finite(means=means)
    means = means.detach().double().cpu()
    found = _of_gram(means @ means.mT, tol)
    return _of_sets(means, tol) if found == OTHER else found


def cosines(means: Tensor) -> Tensor:
    """Cosines `(..., K, K)` between class means `(..., K, d)`; nan where a mean vanishes."""
    unit = means / means.norm(dim=-1, keepdim=True)
    return unit @ unit.mT


def sets(means: Tensor, least: float = 0.2, lightest: float = 0.1) -> Tensor:
    """The classes as sets of vertices, `(K, vertices)`, True where a vertex belongs to a class; means are `(K, d)`.

    A unit stands for the set of classes at which it is above `least` times its largest entry. Units with the same set
    form one vertex, with their squares added; vertices below `lightest` times the largest are left out.

    >>> sets(torch.tensor([[1.0, 0.0, 0.9], [0.5, 2.0, 0.4], [0.0, 3.0, 0.0]])).int().tolist()  # two units are alike
    [[0, 1], [1, 1], [1, 0]]
    """
    units = means[:, means.norm(dim=0) > 0]
    if not units.numel():
        return units > 0
    member, which = torch.unique(units > units.amax(0).clamp(min=0) * least, dim=1, return_inverse=True)
    weight = means.new_zeros(member.shape[1]).index_add_(0, which, units.square().sum(0))
    return member[:, weight > weight.max() * lightest]


def counted(member: Tensor) -> str:
    """How many `sets` there are of each size, and over how many vertices.

    >>> counted(torch.tensor([[True, False], [True, True], [False, True]]))
    '2 of 1, 1 of 2, over 2'
    """
    sizes = member.sum(1)
    found = ", ".join(f"{int((sizes == size).sum())} of {int(size)}" for size in sizes.unique())
    return f"{found}, over {member.shape[1]}"


def _of_gram(gram: Tensor, tol: float) -> str:
    import networkx as nx

    norms = gram.diagonal().clamp(min=0).sqrt()
    if norms.mean() == 0 or ((norms - norms.mean()).abs() > tol * norms.mean()).any():
        return OTHER
    K = len(gram)
    cosine = gram / norms / norms[:, None]
    apart = cosine[~torch.eye(K, dtype=torch.bool)]
    if (apart.abs() <= tol).all():
        return DNC
    if ((apart.abs() > tol) & ((apart - 0.5).abs() > 2 * tol)).any():
        return OTHER
    exact = ((apart.abs() <= tol) | ((apart - 0.5).abs() <= tol)).all()
    graph = nx.from_numpy_array(((cosine > 0.25) & ~torch.eye(K, dtype=torch.bool)).numpy())
    try:
        # networkx rejects a single vertex, which is the line graph of an edge
        roots = [
            nx.path_graph(2) if len(part) == 1 else nx.inverse_line_graph(graph.subgraph(part).copy())
            for part in nx.connected_components(graph)
        ]
    except nx.NetworkXError:
        return OTHER
    # a graph is the line graph of only one graph (except the triangle): no search over orders is needed
    size, edges = len(roots[0]), roots[0].number_of_edges()
    if exact and size >= 4 and edges == comb(size, 2) == K:
        return SRG
    if exact and K == 4 and nx.is_isomorphic(roots[0], nx.cycle_graph(4)):
        return SQUARE
    return f"line graph of {' and '.join(sorted(map(_described, roots)))}"


def _of_sets(means: Tensor, tol: float) -> str:
    if (means.norm(dim=1) <= tol * means.norm(dim=0).max()).any():
        return OTHER
    member = sets(means)
    counts = member.double().sum(1)
    if (counts == 0).any() or (means < -tol * means.abs().max()).any() or member.shape[1] > len(means):
        return OTHER
    shared = member.double() @ member.double().T
    if (cosines(means) - shared / (counts[:, None] * counts).sqrt()).abs().max() > 2 * tol:
        return OTHER
    return f"sets: {counted(member)}"


def _described(graph: nx.Graph) -> str:
    """The usual name of a graph, or its degrees."""
    import networkx as nx

    size, edges = len(graph), graph.number_of_edges()
    if edges == comb(size, 2):
        return f"the complete graph on {size}"
    if nx.is_connected(graph):
        if all(degree == 2 for _, degree in graph.degree()):
            return f"the cycle of {size}"
        if nx.is_bipartite(graph):
            left, right = sorted(map(len, nx.bipartite.sets(graph)))
            if edges == left * right:
                return f"K({left},{right})"
    degrees = sorted((degree for _, degree in graph.degree()), reverse=True)
    return f"a graph with degrees {','.join(map(str, degrees))}"
