r"""Deep neural collapse and the graph solution of the deep unconstrained features model (Súkeník et al., Appendix A.1).

The model is (1), :func:`lib.models.unconstrained.objective` with `relu`: L layers of weights with a ReLU between them,
K classes of n samples, and one weight decay per factor. Everywhere `lam` is one number or the sequence
:math:`(\lambda_{H_1}, \lambda_{W_1}, \dots, \lambda_{W_L})`, from the features to the scores. Both kinds of solutions
have collapsed classes, and non-negative class means :math:`M_l = A_l T` in the layers :math:`2 \le l < L`, where the
rows of T are fixed and :math:`A_l^\top A_l = \alpha_l I`; the last ReLU acts on the rows of P = B T.

* Deep neural collapse: T = B = I (Definition 10).
* The graph solution, for K = r(r-1)/2: T is the incidence matrix of the complete graph on r vertices (Definition 9),
  and P has one unit row per edge e: -1 at e, +1 at the edges that share no vertex with e, 0 elsewhere.

For every family, balancing the factors leaves one number :math:`u \ge 0`, with :math:`\alpha_L = K\lambda_{W_L}u^L`,
and the objective

.. math::
    \frac1{2K}\sum_i \frac1{1 + m_i u^L} + \frac L2\,(C K \Lambda)^{1/L}\, u,
    \qquad \Lambda = n\lambda_{H_1}\lambda_{W_1}\cdots\lambda_{W_L},

where :math:`m_i` are the eigenvalues of :math:`\sigma(P)^\top\sigma(P)` and :math:`C = \|T\|_*^2\, t^{L-3}\, \|B\|_F^2`
with t the number of rows of T (:math:`\|P\|_*^2` for L = 2). The largest of the :math:`m_i` differs from the one
printed in Lemma 16; the chapter on the graph solution shows the difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import networkx as nx
import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from lib import checks

#: Features :math:`H_1` and weights :math:`W_1, \dots, W_L`.
Solution = tuple[Tensor, list[Tensor]]
#: One weight decay for all factors, or :math:`\lambda_{H_1}, \lambda_{W_1}, \dots, \lambda_{W_L}`.
Decays = float | Sequence[float]
#: One width for all layers of features, or :math:`d_1, \dots, d_L`; None for the smallest.
Widths = int | Sequence[int] | None


# The graph ------------------------------------------------------------------------------------------------------------


def triangular_graph(r: int) -> nx.Graph:
    """The line graph of the complete graph on r >= 4 vertices (Definition 3).

    Its r(r-1)/2 vertices are the pairs `(i, j)` with `i < j < r`, in lexicographic order; two are joined if they share
    an entry. ValueError for r < 4.

    >>> graph = triangular_graph(4)
    >>> len(graph), graph.number_of_edges(), sorted(graph[0, 1])
    (6, 12, [(0, 2), (0, 3), (1, 2), (1, 3)])
    """
    checks.integers(4, r=r)
    graph = nx.Graph()
    graph.add_nodes_from(combinations(range(r), 2))
    graph.add_edges_from(nx.line_graph(nx.complete_graph(r)).edges)
    return graph


def incidence(edges: Iterable[Sequence[int]], d: int | None = None) -> Tensor:
    """1 where a vertex lies on an edge, else 0: rows are vertices, columns are edges of any number of vertices.

    If `d` is given, zero rows are added or the last rows left out to make `d` of them.

    >>> incidence([(0, 1), (1, 2), (2,)], d=4).tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """
    edges = list(edges)
    vertices = 1 + max(map(max, edges))
    T = torch.zeros(max(vertices, d or 0), len(edges), dtype=torch.float64)
    for column, edge in enumerate(edges):
        T[list(edge), column] = 1
    return T[: d or vertices]


def unit_incidence(r: int) -> Tensor:
    r""":math:`T_r` of Definition 3, `(r, r(r-1)/2)`: :math:`1/\sqrt{r-1}` where a vertex lies on an edge, else 0.

    Edges are in lexicographic order. All rows have norm 1. ValueError for r < 4.

    >>> T = unit_incidence(4)
    >>> tuple(T.shape), T.norm(dim=1).round(decimals=6).tolist()
    ((4, 6), [1.0, 1.0, 1.0, 1.0])
    >>> (3 * T.T @ T)[0].round(decimals=6).tolist()  # (0, 1) meets all edges but (2, 3)
    [2.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    """
    checks.integers(4, r=r)
    return incidence(combinations(range(r), 2)) * (1 / math.sqrt(r - 1))


def _last_rows(r: int) -> Tensor:
    r"""B with P = B T: one row per edge, a multiple of -1 at its ends and +1 elsewhere, such that P has unit rows."""
    signs = 1 - 2 * incidence(combinations(range(r), 2)).T
    return signs * math.sqrt((r - 1) / (2 * (r - 2) * (r - 3) + 4))


# One number per family ------------------------------------------------------------------------------------------------


class Family(NamedTuple):
    r"""A family of solutions with one scale to choose, given by what decides their loss.

    Eigenvalues :math:`m_i` of the last Gram matrix at :math:`\alpha_L = 1`, how often each occurs (in total the number
    of classes), and :math:`\log C`.
    """

    eigenvalues: np.ndarray
    multiplicities: np.ndarray
    log_cost: float


def _graph_family(r: int, L: int) -> Family:
    checks.integers(2, L=L)
    apart = (r - 2) * (r - 3) / 2  # edges that share no vertex with a given one
    s2 = apart + 1
    eigenvalues = np.array([apart**2, (r - 3) ** 2, 1.0]) / s2
    multiplicities = np.array([1, r - 1, r * (r - 3) // 2])
    if L == 2:
        nuclear = (apart - 1 + (r - 1) * (r - 2)) / math.sqrt(s2)
        return Family(eigenvalues, multiplicities, 2 * math.log(nuclear))
    nuclear = math.sqrt(2) + math.sqrt((r - 1) * (r - 2))
    last = r**2 * (r - 1) ** 2 / (8 * s2)
    return Family(eigenvalues, multiplicities, 2 * math.log(nuclear) + (L - 3) * math.log(r) + math.log(last))


def _frame_family(K: int, L: int) -> Family:
    return Family(np.ones(1), np.array([K]), L * math.log(K))


def _minimum(family: Family, K: int, L: int, lam: list[float], n: int) -> tuple[float, float]:
    """The least value over u >= 0 and where it is attained; the zero solution's value and 0 where nothing is lower.

    A local minimum is a root at which h(u) = sum_i w_i m_i u^(L-1) / (1 + m_i u^L)^2 falls through c. Every term rises
    up to its hump and falls after it, so a root of this kind lies right of the leftmost hump, and left of 1/(L c),
    where the decay alone costs 1/2. The search is in v = log u; each sign change on a mesh brackets one root.
    """
    w, log_m = family.multiplicities / K, np.log(family.eigenvalues)
    log_c = (family.log_cost + math.log(K) + math.log(n) + sum(map(math.log, lam))) / L
    zero, top = w.sum() / 2, -math.log(L) - log_c

    def value(v: float) -> float:
        return (w * np.exp(-np.logaddexp(0, L * v + log_m))).sum() / 2 + L / 2 * math.exp(log_c + v)

    def log_ratio(v):  # log h - log c
        v = np.asarray(v)[..., None]
        terms = np.log(w) + log_m + (L - 1) * v - 2 * np.logaddexp(0, L * v + log_m)
        return np.logaddexp.reduce(terms, -1) - log_c

    if L == 1:  # only frames: (1 + u)^2 = 1/c
        u = math.expm1(-log_c / 2)
        return (value(math.log(u)), u) if u > 0 else (zero, 0.0)
    bottom = (math.log((L - 1) / (L + 1)) - log_m.max()) / L
    if top <= bottom:
        return zero, 0.0
    mesh = np.linspace(bottom, top, 600)
    above = log_ratio(mesh) > 0
    falls = np.flatnonzero(above[:-1] & ~above[1:])
    roots = [brentq(log_ratio, mesh[i], mesh[i + 1], xtol=1e-14, rtol=1e-14) for i in falls]
    best = min(roots, key=value, default=None)
    return (zero, 0.0) if best is None or value(best) >= zero else (value(best), math.exp(best))


def loss_of(family: Family, K: int, L: int, lam: Decays, n: int) -> float:
    r"""The least loss of a family in a problem with K classes, with a frame for the classes that it lacks.

    Each part has its own best scale. The sum is at most 1/2, the loss of the zero solution. `L >= 1`, `n >= 1`,
    positive `lam`, one number or L + 1 of them; otherwise ValueError.
    """
    lam, rest = _problem(L, lam, n), K - int(family.multiplicities.sum())
    parts = [family, _frame_family(rest, L)] if rest else [family]
    losses, scales = zip(*(_minimum(part, K, L, lam, n) for part in parts), strict=True)
    return float(sum(losses)) if any(scales) else 0.5


def srg_loss(r: int, L: int, lam: Decays, n: int) -> float:
    r"""The loss of the graph solution for :math:`K = \frac{r(r-1)}2` classes, at the best scales.

    .. math::
        \min_{u \ge 0}\ \frac1{2K}\sum_i \frac{k_i}{1 + m_i u^L} + \frac L2\,(CK\Lambda)^{1/L}\,u

    with :math:`s^2 = \binom{r-2}2 + 1` and :math:`m_i`, with multiplicities :math:`k_i` in brackets, equal to
    :math:`\binom{r-2}2^2/s^2` (1), :math:`(r-3)^2/s^2` (r - 1), :math:`1/s^2` (r(r-3)/2);
    :math:`C = (\sqrt2 + \sqrt{(r-1)(r-2)})^2\, r^{L-3}\, \frac{r^2(r-1)^2}{8s^2}` for :math:`L \ge 3`.

    `r >= 4`, `L >= 2`, `n >= 1`, positive `lam`, one number or L + 1 of them; otherwise ValueError. The loss is at most
    1/2, that of the zero solution. Source: the proof of Theorem 5, with the first eigenvalue of Lemma 16 corrected; the
    case L = 2 is this book's.

    >>> srg_loss(r=6, L=4, lam=0.001, n=1) < dnc_loss(K=15, L=4, lam=0.001, n=1)
    True
    >>> srg_loss(r=6, L=4, lam=1.0, n=1)  # too strong a decay
    0.5
    """
    checks.integers(4, r=r)
    return loss_of(_graph_family(r, L), r * (r - 1) // 2, L, lam, n)


def dnc_loss(K: int, L: int, lam: Decays, n: int) -> float:
    r"""The loss of deep neural collapse at the best scale, half of (10):

    .. math:: \min_{u \ge 0}\ \frac12\,\frac1{1 + u^L} + \frac L2\,(K^{L+1}\Lambda)^{1/L}\,u .

    `K >= 2`, `L >= 1`, `n >= 1`, positive `lam`, one number or L + 1 of them; otherwise ValueError. The loss is at most
    1/2.

    >>> round(dnc_loss(K=4, L=1, lam=0.05, n=1), 4)  # c - c^2 / 2 with c = 0.2
    0.18
    >>> dnc_loss(K=4, L=3, lam=1.0, n=1)  # the zero solution
    0.5
    """
    checks.integers(2, K=K)
    return loss_of(_frame_family(K, L), K, L, lam, n)


def general_srg_loss(K: int, L: int, lam: Decays, n: int, construction: int = 1) -> float:
    r"""The loss of the graph solution for any :math:`K \ge 6`, by either construction of Definition 11.

    1. The sum of the losses of a graph solution for the largest :math:`\binom r2 \le K` and of deep neural collapse for
       the other classes, each at its best scale *in the problem with K classes*.
    2. The graph solution for the smallest :math:`\binom r2 \ge K` at its own best scale, without :math:`\binom r2 - K`
       of its classes, their columns of :math:`H_1` and their rows of :math:`W_L`. All columns fit equally well; the
       classes left out here are edges at one vertex.

    Both equal :func:`srg_loss` for a triangular number K. ValueError for K < 6, L < 2, n < 1, another `construction`,
    and decays that are not positive.

    >>> general_srg_loss(15, L=4, lam=0.001, n=1) == srg_loss(6, L=4, lam=0.001, n=1)
    True
    >>> round(general_srg_loss(16, L=4, lam=0.001, n=1), 4)
    0.0318
    >>> round(general_srg_loss(16, L=4, lam=0.001, n=1, construction=2), 4)
    0.0361
    """
    r = _general(K, construction)
    size, family = r * (r - 1) // 2, _graph_family(r, L)
    if size <= K:
        return loss_of(family, K, L, lam, n)
    lam = _problem(L, lam, n)
    u = _minimum(family, size, L, lam, n)[1]
    x, out = family.eigenvalues * u**L, size - K

    def mean(values: np.ndarray) -> float:
        """Of one value per class, from those at the three eigenvalues."""
        return (family.multiplicities * values).sum() / size

    # With all its classes the solution misses the targets by R = (I + x)^-1, a function of the graph, so all classes
    # have the same entry of R on the diagonal, the same one at each neighbour, and rows of the same norm. The adjacency
    # matrix has the eigenvalues 2(r - 2), r - 4 and -2. Without `out` classes, R loses their rows and their columns,
    # and gets back where these cross: at pairs of edges at one vertex, which are all neighbours.
    diagonal = mean(1 / (1 + x))
    neighbour = mean(np.array([2 * (r - 2), r - 4, -2]) / (1 + x)) / (2 * (r - 2))
    crossing = out * diagonal**2 + out * (out - 1) * neighbour**2
    fit = (size - 2 * out) * mean((1 + x) ** -2.0) + crossing
    # Half the decay times the squared norm of each balanced factor. H_1 and W_L lose theirs in proportion.
    factor = math.exp((family.log_cost + math.log(size) + math.log(n) + sum(map(math.log, lam))) / L) * u / 2
    return float(fit / (2 * K) + K / size * (mean(x / (1 + x) ** 2) / 2 + factor) + (L - 1) * factor)


# Decays ---------------------------------------------------------------------------------------------------------------


def dnc_threshold(K: int, L: int) -> float:
    r"""The :math:`\Lambda` from which on deep neural collapse is zero, :math:`(L-1)^{L-1} L^{-2L} K^{-(L+1)}`.

    The *strength* of decays is their :math:`\Lambda` divided by this threshold. ValueError unless K >= 2 and L >= 1.

    >>> dnc_threshold(K=2, L=2)  # 16 K^3 Lambda = 1
    0.0078125
    """
    checks.integers(2, K=K)
    checks.integers(1, L=L)
    return (L - 1) ** (L - 1) / L ** (2 * L) / float(K) ** (L + 1)


def even_decay(K: int, L: int, strength: float) -> float:
    """One decay for all factors, of given strength (:func:`dnc_threshold`), for one sample per class.

    >>> dnc_loss(5, 3, even_decay(5, 3, 0.9), 1) < 0.5, dnc_loss(5, 3, even_decay(5, 3, 1.1), 1)
    (True, 0.5)
    """
    checks.positive(strength=strength)
    return (strength * dnc_threshold(K, L)) ** (1 / (L + 1))


def decay_at(K: int, L: int, level: float = 0.2) -> float:
    r"""The weight decay :math:`\lambda` of all factors at which deep neural collapse has the squared loss `level`.

    Scores :math:`z I_K` of an orthogonal frame cost :math:`\frac12(1-z)^2 + \frac{L+1}2 c z^{2/(L+1)}`,
    :math:`c = K\lambda`. Where that is stationary, :math:`c = (1-z) z^{(L-1)/(L+1)}`, and the loss is
    :math:`\frac12(1-z)(1 + Lz)`. ValueError unless K >= 2, L >= 1 and 0 < level < 1/2, the loss of zero.

    >>> lam = decay_at(K=4, L=3, level=0.2)
    >>> round(dnc_loss(4, 3, lam, 1), 10)
    0.2
    """
    checks.integers(2, K=K)
    checks.integers(1, L=L)
    if not 0 < level < 0.5:
        raise ValueError(f"level = {level!r}: a loss between 0 and that of the zero solution, 1/2, is needed")
    z = (L - 1 + math.sqrt((L - 1) ** 2 + 4 * L * (1 - 2 * level))) / (2 * L)  # the larger root: a minimum
    return (1 - z) * z ** ((L - 1) / (L + 1)) / K


def random_decays(rng: np.random.Generator, K: int, L: int, n: int, strength: float) -> list[float]:
    """L + 1 unequal decays of given strength, log-uniform within a factor of :math:`e^3` of each other, from `rng`.

    >>> lam = random_decays(np.random.default_rng(0), K=3, L=2, n=4, strength=0.5)
    >>> round(4 * math.prod(lam) / dnc_threshold(3, 2), 12)
    0.5
    """
    shares = rng.uniform(-1.5, 1.5, L + 1)
    return (even_decay(K, L, strength) * n ** (-1 / (L + 1)) * np.exp(shares - shares.mean())).tolist()


# Matrices -------------------------------------------------------------------------------------------------------------


def solution_of(
    family: Family, T: Tensor, B: Tensor, K: int, L: int, lam: Decays, n: int, d: Widths = None
) -> Solution:
    """A family as matrices, at the scale of :func:`loss_of`, with a frame for the classes that it lacks.

    T has a column for each of its classes, B a row for each unit behind the last ReLU. Otherwise as
    :func:`srg_solution`.
    """
    lam, rest = _problem(L, lam, n), K - T.shape[1]
    M1, Ws = _matrices(family, T, B, K, L, lam, n, d)
    if rest:
        eye = torch.eye(rest, dtype=torch.float64)
        frame = _matrices(_frame_family(rest, L), eye, eye, K, L, lam, n, None)
        M1, Ws = torch.block_diag(M1, frame[0]), [torch.block_diag(*pair) for pair in zip(Ws, frame[1], strict=True)]
    return M1.repeat_interleave(n, 1), Ws


def srg_solution(r: int, L: int, lam: Decays, n: int, d: Widths = None) -> Solution:
    r"""The graph solution of Definition 9 as matrices, at the scales that minimise the objective.

    Parameters
    ----------
    r, L, n
        Vertices of the complete graph (at least 4), layers of weights (at least 2), samples per class.
    lam
        One number, or :math:`\lambda_{H_1}` followed by :math:`\lambda_{W_1}, \dots, \lambda_{W_L}`.
    d
        Widths :math:`d_1, \dots, d_L`, one number or one per layer of features. The default and minimum are r, and
        r(r-1)/2 in the last. Larger widths hold further multiples of the rows in turn, from the second level on; the
        first is filled up with zeros.

    Returns
    -------
    H1, Ws
        `(d_1, K n)`, columns organised by class, and :math:`W_1, \dots, W_L`, `(d_(l+1), d_l)` and `(K, d_L)`, float64.
        All zero where no graph solution beats zero.

    Raises
    ------
    ValueError
        For r < 4, L < 2, n < 1, decays that are not positive, widths below the smallest.

    Examples
    --------
    >>> H1, Ws = srg_solution(r=4, L=3, lam=0.01, n=2)
    >>> tuple(H1.shape), [tuple(W.shape) for W in Ws]
    ((4, 12), [(4, 4), (6, 4), (6, 6)])
    >>> M2 = (Ws[0] @ H1)[:, ::2].clamp(min=0)
    >>> torch.linalg.matrix_rank(M2).item()  # 4 for 6 classes
    4
    """
    checks.integers(4, r=r)
    return solution_of(_graph_family(r, L), unit_incidence(r), _last_rows(r), r * (r - 1) // 2, L, lam, n, d)


def dnc_solution(K: int, L: int, lam: Decays, n: int, d: Widths = None) -> Solution:
    """Deep neural collapse (Definition 10) as matrices, at the scales that minimise the objective.

    `K >= 2`, `L >= 1`; widths are K by default. Otherwise as :func:`srg_solution`.

    >>> H1, Ws = dnc_solution(K=3, L=3, lam=0.01, n=1)
    >>> gram = H1.T @ H1
    >>> bool((gram - gram.diag().diag()).abs().max() < 1e-12)  # an orthogonal frame
    True
    """
    checks.integers(2, K=K)
    eye = torch.eye(K, dtype=torch.float64)
    return solution_of(_frame_family(K, L), eye, eye, K, L, lam, n, d)


def general_srg_solution(K: int, L: int, lam: Decays, n: int, construction: int = 1) -> Solution:
    """Definition 11 for any K >= 6 as matrices; :func:`general_srg_loss` describes the constructions.

    Widths are the smallest: at most K in construction 1; construction 2 needs as many units in the last layer as the
    larger graph has classes. Otherwise as :func:`srg_solution`.

    >>> H1, Ws = general_srg_solution(K=7, L=3, lam=0.005, n=1)
    >>> tuple(H1.shape), [tuple(W.shape) for W in Ws]
    ((5, 7), [(5, 5), (7, 5), (7, 7)])
    """
    r = _general(K, construction)
    size = r * (r - 1) // 2
    if size <= K:
        return solution_of(_graph_family(r, L), unit_incidence(r), _last_rows(r), K, L, lam, n)
    H1, Ws = srg_solution(r, L, lam, n)
    return H1[:, (size - K) * n :], [*Ws[:-1], Ws[-1][size - K :]]


def _matrices(family: Family, T: Tensor, B: Tensor, K: int, L: int, lam: list[float], n: int, d: Widths) -> Solution:
    """M_1 and the weights for the rows T and P = B T at the family's best scale, in a problem with K classes."""
    u = _minimum(family, K, L, lam, n)[1]
    t, k = len(T), len(B)
    d = _widths(d, [t] * (L - 1) + [k])  # for r = 4, L = 2 the first could be 3
    if u == 0:
        sizes = zip([*d[1:], T.shape[1]], d, strict=True)
        return T.new_zeros(d[0], T.shape[1]), [T.new_zeros(size) for size in sizes]
    P = B @ T
    root_L = math.sqrt(K * lam[L]) * u ** (L / 2)  # sqrt(alpha_L)
    if L == 1:
        M1, Ws = root_L * _spread(k, d[0]) @ P, []
    elif L == 2:
        M1, W1 = _factors(root_L * _spread(k, d[1]) @ P, n * lam[0], lam[1], d[0])
        Ws = [W1]
    else:
        nuclear = torch.linalg.matrix_norm(T, "nuc").item()
        cost = 2 * math.log(nuclear) + (L - 3) * math.log(t) + math.log(B.square().sum().item())
        log_c = (cost + math.log(K) + math.log(n) + sum(map(math.log, lam))) / L
        share = math.exp(log_c) * u  # lam |W_l|^2 of every balanced factor
        root = share / (nuclear * math.sqrt(n * lam[0] * lam[1]))  # sqrt(alpha_2)
        M1, W1 = _factors(root * _spread(t, d[1]) @ T, n * lam[0], lam[1], d[0])
        Ws = [W1]
        for l in range(2, L - 1):  # noqa: E741
            ratio = math.sqrt(share / (t * lam[l]))  # sqrt(alpha_(l+1) / alpha_l)
            Ws.append(ratio * _spread(t, d[l]) @ _spread(t, d[l - 1]).T)
            root *= ratio
        Ws.append(root_L / root * _spread(k, d[L - 1]) @ B @ _spread(t, d[L - 2]).T)
    last = M1 if L == 1 else (root_L * _spread(k, d[-1]) @ P).clamp(min=0)
    gram = last.T @ last
    Ws.append(torch.linalg.solve(gram + K * lam[L] * torch.eye(len(gram), dtype=gram.dtype), last.T))
    return M1, Ws


def _spread(t: int, d: int) -> Tensor:
    """A `(d, t)` matrix with orthonormal columns whose rows are multiples of standard basis vectors."""
    rows = torch.nn.functional.one_hot(torch.arange(d) % t, t).to(torch.float64)
    return rows / rows.sum(0).sqrt()


def _factors(C: Tensor, lam_m: float, lam_w: float, d: int) -> tuple[Tensor, Tensor]:
    """M `(d, K)` and W with W M = C at the least lam_w |W|^2 + lam_m |M|^2 (Lemma 18)."""
    U, S, Vh = torch.linalg.svd(C, full_matrices=False)
    rank = min(d, len(S))
    root, balance = S[:rank].sqrt(), (lam_w / lam_m) ** 0.25
    M, W = C.new_zeros(d, C.shape[1]), C.new_zeros(len(C), d)
    M[:rank] = balance * root[:, None] * Vh[:rank]
    W[:, :rank] = U[:, :rank] * root / balance
    return M, W


# Argument checks ------------------------------------------------------------------------------------------------------


def _problem(L: int, lam: Decays, n: int) -> list[float]:
    """(lam_H1, lam_W1, ..., lam_WL)."""
    checks.integers(1, L=L, n=n)
    return [float(value) for value in checks.each(L + 1, lam=lam)[0]]


def _general(K: int, construction: int) -> int:
    """The r of the largest triangular number that is at most K, or of the smallest that is at least K."""
    checks.integers(6, K=K)
    checks.one_of((1, 2), construction=construction)
    r = (1 + math.isqrt(1 + 8 * K)) // 2
    return r if construction == 1 or r * (r - 1) // 2 == K else r + 1


def _widths(d: Widths, smallest: list[int]) -> list[int]:
    if d is None:
        return smallest
    widths = list(d) if isinstance(d, Sequence) else [d] * len(smallest)
    if len(widths) != len(smallest):
        raise ValueError(f"d has {len(widths)} entries: one number, or one for each of L = {len(smallest)}, is needed")
    for l, (width, least) in enumerate(zip(widths, smallest, strict=True), 1):  # noqa: E741
        checks.integers(least, **{f"d_{l}": width})
    return [int(width) for width in widths]
