r"""Low-rank solutions, among them the halves, which beat collapse from 15 classes on wherever collapse beats zero, and
how far any solution can beat it (derived in this book).

Classes are sets A of k among r points. The hidden levels before the last hold the incidence matrix T of points and
sets, `(r, K)`. A unit of the last level has a sign for every point, :math:`\epsilon_i = \pm1`, and its
pre-activations are

.. math::
    (BT)_{\epsilon A} = \sum_{i\in A}\Big(\frac{\epsilon_i}2 + \frac{2-k}{2k}\Big) = 1 - \#\{i \in A: \epsilon_i = -1\},

so it fires, with value 1, exactly for the sets whose points all have a plus. *The halves* use pairs, k = 2, and as many
plus as minus signs. Each choice gives a family of solutions as in :mod:`lib.theory.low_rank`, with one scale to choose.
The proofs are on the page *Halves*.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from lib import checks
from lib.theory import low_rank
from lib.theory.low_rank import Decays, Family, Solution


def half_signs(r: int) -> Tensor:
    r"""The signs of the halves, `(binom(r, r/2), r)`: plus at r/2 points. ValueError unless r >= 4 is even.

    >>> signs = half_signs(6)
    >>> tuple(signs.shape), signs.sum(1).abs().max().item(), signs[0].tolist()
    ((20, 6), 0.0, [1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    """
    _check_even(r)
    return 2 * low_rank.incidence(combinations(range(r), r // 2)).T - 1


def array_signs(m: int) -> Tensor:
    r"""An orthogonal array of strength four, `(4^m, 2^m - 1)`: any four columns show the 16 sign vectors equally often.

    The row of a pair (a, b) of elements of the field with :math:`2^m` elements holds the parities of
    :math:`\langle a, x\rangle + \langle b, x^3\rangle` at all :math:`x \ne 0`. The columns :math:`(x, x^3)` are those
    of a parity-check matrix of the BCH code of distance five, so any four are independent. ValueError unless m is 3 to
    6.

    >>> signs = array_signs(3)
    >>> products = [signs[:, list(c)].prod(1).sum().item() for k in (1, 2, 3, 4) for c in combinations(range(7), k)]
    >>> tuple(signs.shape), set(products)
    ((64, 7), {0.0})
    """
    modulus = {3: 0b1011, 4: 0b10011, 5: 0b100101, 6: 0b1000011}
    checks.one_of(modulus, m=m)

    def times(x: int, y: int) -> int:
        product = 0
        for bit in range(m):
            product ^= (y >> bit & 1) * (x << bit)
        for bit in range(2 * m - 2, m - 1, -1):
            product ^= (product >> bit & 1) * (modulus[m] << bit - m)
        return product

    columns = np.array([x << m | times(x, times(x, x)) for x in range(1, 2**m)])
    return torch.from_numpy(1.0 - 2.0 * (np.bitwise_count(np.arange(4**m)[:, None] & columns) % 2))


def rows(signs: Tensor, k: int = 2) -> Tensor:
    """B for sets of k points: each entry is half the sign of its point, plus (2 - k) / 2k.

    >>> rows(torch.tensor([[1.0, -1.0, 1.0]])).tolist()
    [[0.5, -0.5, 0.5]]
    """
    return signs / 2 + (2 - k) / (2 * k)


def price(T: Tensor, B: Tensor, L: int) -> float:
    r"""The price :math:`V`: as the decay tends to zero, so does the loss, like :math:`\frac{L+1}2(V\Lambda)^{1/(L+1)}`.

    .. math:: V = C\operatorname{tr}(\sigma(BT)^\top\sigma(BT))^{-1},\qquad C = \|T\|_*^2\,r^{L-3}\,\|B\|_F^2,

    or :math:`C = \|BT\|_*^2` for L = 2. For collapse, V is :math:`K^{L+1}`. ValueError for L < 2, or if the ReLU leaves
    fewer directions than classes.

    >>> T = low_rank.incidence(combinations(range(6), 2))
    >>> round(price(T, rows(half_signs(6)), L=2), 6), 15**3
    (3250.0, 3375)
    """
    return _limit(_family(T, B, L))


def solution(T: Tensor, B: Tensor, L: int, lam: Decays, n: int, K: int | None = None) -> Solution:
    r"""A family as matrices at the scales that minimise the objective, with a frame for the classes missing from T.

    `T: (r, sets)` is non-negative, `B: (units, r)`; `K` defaults to the number of sets. Widths are r, except one unit
    per row of B in the last level. Otherwise as :func:`lib.theory.low_rank.srg_solution`; ValueError also as for
    :func:`price`, and for K < sets.

    >>> T, B = low_rank.incidence(combinations(range(6), 2)), rows(half_signs(6))
    >>> H1, Ws = solution(T, B, L=2, lam=0.01, n=1)
    >>> before = Ws[0] @ H1
    >>> [torch.linalg.matrix_rank(part).item() for part in (before, before.clamp(min=0))]
    [5, 15]
    >>> [tuple(W.shape) for W in solution(T, B, L=3, lam=0.01, n=1, K=17)[1]]
    [(8, 8), (22, 8), (17, 22)]
    """
    sets = T.shape[1]
    K = sets if K is None else K
    checks.integers(sets, K=K)
    return low_rank.solution_of(_family(T, B, L), T, B, K, L, lam, n)


def loss(K: int, L: int, lam: Decays, n: int) -> float:
    r"""The loss of the halves of r points, the largest even r with :math:`\frac{r(r-1)}2 \le K`, at the best scale.

    .. math::
        \min_{u\ge0}\
        \frac1{2K}\Big(\frac1{1+\frac{r-2}2u^L} + \frac{r-1}{1+u^L} + \frac{r(r-3)/2}{1+\frac1{r-3}u^L}\Big)
        + \frac L2\,(CK\Lambda)^{1/L}\,u

    with :math:`C = 4(r-1)^2` for L = 2, and
    :math:`C = \big(\sqrt{2(r-1)} + (r-1)\sqrt{r-2}\big)^2\,r^{L-3}\,\frac{4(r-1)}{r-2}` for more layers; further
    classes have a separate frame. `K >= 6`, `L >= 2`, otherwise ValueError as
    :func:`lib.theory.low_rank.general_srg_loss`.

    >>> lam = 0.001
    >>> loss(15, 2, lam, 1) < low_rank.dnc_loss(15, 2, lam, 1) < low_rank.srg_loss(6, 2, lam, 1)
    True
    """
    return low_rank.loss_of(_halves(points(K), L), K, L, lam, n)


def limit(r: int, L: int) -> float:
    r""":func:`price` of the halves of r points in closed form; for two layers
    :math:`4(r-1)^2\big(\frac2{r-2} + r - 1 + \frac{r(r-3)^2}2\big)`.

    >>> round(limit(6, 2), 6)
    3250.0
    """
    _check_even(r)
    return _limit(_halves(r, L))


def points(K: int) -> int:
    """The largest even r with r (r - 1) / 2 <= K; ValueError for K < 6.

    >>> points(15), points(27), points(28)
    (6, 6, 8)
    """
    checks.integers(6, K=K)
    return (1 + math.isqrt(1 + 8 * K)) // 4 * 2


def bound_factor(K: int, L: int, k: int) -> float:
    r"""The factor :math:`c_kr^{L-1}`: the least objective is at most :math:`\varphi_L(c_kr^{L-1}K^2\Lambda)`.

    .. math:: c_k = 4^{k-1}(k^2-3k+4) \text{ for } L = 2, \qquad c_k = 4^k\,\frac{k^2-2k+2}{2k} \text{ for } L \ge 3,

    for sets of k among the fewest points r with :math:`\binom rk \ge K`. ValueError for K, L or k below 2.

    >>> bound_factor(K=45, L=2, k=2), bound_factor(K=45, L=2, k=3)
    (80.0, 512.0)
    """
    checks.integers(2, K=K, L=L, k=k)
    constant = 4.0 ** (k - 1) * (k * k - 3 * k + 4) if L == 2 else 4.0**k * (k * k - 2 * k + 2) / (2 * k)
    r = max(k, int((K * math.factorial(k)) ** (1 / k)))  # binom(r, k) is at most r^k / k!
    while math.comb(r, k) < K:
        r += 1
    return constant * r ** (L - 1)


def least(L: int, x: float) -> float:
    r""":math:`\varphi_L(x) = \min_{u\ge0}\frac12\frac1{1+u^L} + \frac L2x^{1/L}u`, for positive x.

    It is the loss of collapse at :math:`x = K^{L+1}\Lambda` and is 1/2 from :math:`x = (L-1)^{L-1}/L^{2L}` on; the
    least objective over all widths is at least :math:`\varphi_L(K^2\Lambda)`.

    >>> abs(least(3, 15**4 * 0.001**4) - low_rank.dnc_loss(15, 3, 0.001, 1)) < 1e-14
    True
    """
    checks.positive(x=x)
    return low_rank.loss_of(Family(np.ones(1), np.ones(1), 0.0), 1, L, x ** (1 / (L + 1)), 1)


def _family(T: Tensor, B: Tensor, L: int) -> Family:
    """Eigenvalues and cost of any T and B, computed numerically."""
    checks.integers(2, L=L)
    top = (B @ T).clamp(min=0)
    eigenvalues = torch.linalg.eigvalsh(top.T @ top).numpy()
    if eigenvalues[0] <= 1e-9 * eigenvalues[-1]:
        raise ValueError(f"B T: {len(eigenvalues)} directions behind the ReLU are needed, one for each class")
    cost = 2 * math.log(torch.linalg.matrix_norm(B @ T if L == 2 else T, "nuc").item())
    if L > 2:
        cost += (L - 3) * math.log(len(T)) + math.log(B.square().sum().item())
    return Family(eigenvalues, np.ones(len(eigenvalues)), cost)


def _halves(r: int, L: int) -> Family:
    """The family of the halves, scaled so that the middle eigenvalue, binom(r, r/2) r (r - 2) / (16 (r - 1)), is 1."""
    checks.integers(2, L=L)
    eigenvalues, multiplicities = np.array([(r - 2) / 2, 1, 1 / (r - 3)]), np.array([1, r - 1, r * (r - 3) // 2])
    if L == 2:
        return Family(eigenvalues, multiplicities, 2 * math.log(2 * (r - 1)))
    nuclear = math.sqrt(2 * (r - 1)) + (r - 1) * math.sqrt(r - 2)
    cost = 2 * math.log(nuclear) + (L - 3) * math.log(r) + math.log(4 * (r - 1) / (r - 2))
    return Family(eigenvalues, multiplicities, cost)


def _check_even(r: int) -> None:
    checks.integers(4, r=r)
    if r % 2:
        raise ValueError(f"r = {r}: an even number of points has halves")


def _limit(family: Family) -> float:
    return math.exp(family.log_cost) * float((family.multiplicities / family.eigenvalues).sum())
