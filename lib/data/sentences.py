r"""The sentence task: concepts, words, latent variables, and the sentences they generate.

A vocabulary of :math:`n_w` words falls into :math:`n_c` concepts of :math:`s_c = n_w / n_c` words. A class is a
latent variable :math:`\mathbf z_k`, a sequence of L concepts; a sentence of the class replaces each concept by one of
its words.

Concepts are 0 ... n_c-1 here, and word :math:`(\alpha, \beta)` is the integer :math:`\alpha s_c + \beta`, both counted
from zero.

Source: Laurent, von Brecht & Bresson, *Feature Collapse*, sections 2 and 3, appendices A.3 and B.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np
import torch
from torch import Tensor

from lib.checks import integers, one_of, positive_integers

#: How many sentences :meth:`SentenceTask.enumerate` is willing to list.
MAX_SENTENCES = 4_000_000
#: How many latent variables :func:`all_latents` is willing to list.
MAX_LATENTS = 2_000_000

_LATENTS, _WORDS = 0, 1  # one seed, two independent streams: latent variables and words never share numbers


@dataclass(frozen=True, eq=False)
class SentenceTask:
    r"""A classification task with one class per latent variable.

    Arguments: `latents` (K, L) int64 with values in 0 ... n_c-1; `frequencies` (s_c,) float64, the positive numbers
    :math:`\mu_\beta` that sum to 1 and are shared by all concepts; `n_c`, the number of concepts.

    Raises ValueError when a value is out of range, a frequency is not positive, or the frequencies do not sum to 1.

    Source: Laurent et al., section 3 "Notation" and appendix A.3.

    >>> latents = torch.tensor([[0, 1, 0], [1, 1, 0]])
    >>> task = SentenceTask(latents, uniform_frequencies(3), n_c=2)
    >>> task.K, task.L, task.s_c, task.n_w
    (2, 3, 3, 6)
    """

    latents: Tensor
    frequencies: Tensor
    n_c: int

    def __post_init__(self):
        positive_integers(n_c=self.n_c)
        _check_latents(self.latents, self.n_c)
        object.__setattr__(self, "latents", self.latents.to("cpu", torch.int64))
        object.__setattr__(self, "frequencies", checked_frequencies(self.frequencies))

    @property
    def K(self) -> int:
        """Number of classes."""
        return self.latents.shape[0]

    @property
    def L(self) -> int:
        """Words per sentence."""
        return self.latents.shape[1]

    @property
    def s_c(self) -> int:
        """Words per concept."""
        return self.frequencies.shape[0]

    @property
    def n_w(self) -> int:
        """Words in the vocabulary."""
        return self.n_c * self.s_c

    def sample(self, n_spl: int, seed: int) -> tuple[Tensor, Tensor]:
        r"""`n_spl` independent sentences of every class, :math:`\mathbf x_{k,i} \sim \mathcal D_{\mathbf z_k}`.

        Every word is the inverse of the cumulative frequencies at a uniform number from numpy's PCG64, drawn on the
        CPU: the same seed gives the same sentences on every device.

        Returns `x` (K n_spl, L) int64, word indices in 0 ... n_w-1, and `y` (K n_spl,) int64, sorted by class.
        Raises ValueError when `n_spl` is below 1 or the seed is not a non-negative integer.

        >>> task = sentence_task(n_c=2, n_w=6, L=3)
        >>> x, y = task.sample(n_spl=5, seed=0)
        >>> tuple(x.shape), tuple(y.shape)
        ((40, 3), (40,))
        >>> bool((x // task.s_c == task.latents[y]).all())  # words belong to their concepts
        True
        """
        positive_integers(n_spl=n_spl)
        cumulated = np.cumsum(self.frequencies.numpy())
        uniform = _generator(seed, _WORDS).random((self.K, n_spl, self.L))
        words = np.searchsorted(cumulated / cumulated[-1], uniform, side="right")  # beta
        words += self.s_c * self.latents.numpy()[:, None, :]  # alpha s_c + beta
        x = torch.from_numpy(words.reshape(-1, self.L))
        return x, torch.arange(self.K).repeat_interleave(n_spl)

    def enumerate(self) -> tuple[Tensor, Tensor, Tensor]:
        r"""Every sentence that has positive probability in some class, with its probability there.

        Returns `x` (K s_c^L, L) int64, `y` (K s_c^L,) int64 and `p` (K s_c^L,) float64,
        :math:`p = \mathcal D_{\mathbf z_y}(\{\mathbf x\}) = \prod_\ell \mu_{\beta_\ell}`; it sums to 1 per class.
        Raises ValueError when there are more than :data:`MAX_SENTENCES` of them.

        Source: Laurent et al., appendix A.3.

        >>> x, y, p = sentence_task(n_c=2, n_w=4, L=1, frequencies="zipf").enumerate()
        >>> x.tolist(), y.tolist(), p.round(decimals=3).tolist()
        ([[0], [1], [2], [3]], [0, 0, 1, 1], [0.667, 0.333, 0.667, 0.333])
        """
        size = self.K * self.s_c**self.L
        if size > MAX_SENTENCES:
            raise ValueError(f"K * s_c**L = {self.K} * {self.s_c}**{self.L}: at most {MAX_SENTENCES} are listed")
        beta = _digits(torch.arange(self.s_c**self.L), self.s_c, self.L)  # (s_c^L, L)
        x = self.s_c * self.latents[:, None, :] + beta[None, :, :]
        p = self.frequencies[beta].prod(dim=1)
        return x.reshape(-1, self.L), torch.arange(self.K).repeat_interleave(len(beta)), p.repeat(self.K)

    def density(self, x: Tensor) -> Tensor:
        r"""The paper's density of any sentence under every class.

        .. math:: \mathcal D_{\mathbf z_k}(\{\mathbf x\})
                  = \prod_{\ell=1}^L \mathbf 1_{\{\alpha_\ell = z_{k,\ell}\}}\, \mu_{\beta_\ell}

        `x`: (N, L) int64 word indices. Returns (N, K) float64. Source: Laurent et al., appendix A.3.

        >>> task = sentence_task(n_c=2, n_w=4, L=2)
        >>> task.latents.tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
        >>> task.density(torch.tensor([[0, 3]])).tolist()  # a word of concept 0, then one of 1
        [[0.0, 0.25, 0.0, 0.0]]
        """
        alpha, beta = x // self.s_c, x % self.s_c
        matches = (alpha[:, None, :] == self.latents.to(x.device)[None, :, :]).all(dim=2)
        return matches * self.frequencies.to(x.device)[beta].prod(dim=1, keepdim=True)


def sentence_task(
    n_c: int, n_w: int, L: int, K: int | None = None, frequencies: str | Tensor = "uniform", seed: int = 0
) -> SentenceTask:
    r"""A task whose classes are K distinct latent variables, drawn uniformly from the :math:`n_c^L` possible ones.

    `K=None` takes all of them. `frequencies` is "uniform", "zipf", or the `(n_w / n_c,)` frequencies themselves.

    Raises ValueError when a size is not a positive integer, n_w is not a multiple of n_c, K exceeds :math:`n_c^L`, the
    name is unknown, or the given frequencies are not n_w / n_c positive numbers that sum to 1.

    Source: Laurent et al., section 2.1.

    >>> task = sentence_task(n_c=3, n_w=12, L=4, K=5)
    >>> tuple(task.latents.shape), task.s_c
    ((5, 4), 4)
    >>> sentence_task(n_c=3, n_w=10, L=4)
    Traceback (most recent call last):
    ValueError: n_w = 10 is not a multiple of n_c = 3: every concept has the same number of words
    """
    positive_integers(n_c=n_c, n_w=n_w, L=L)
    if n_w % n_c:
        raise ValueError(f"n_w = {n_w} is not a multiple of n_c = {n_c}: every concept has the same number of words")
    s_c = n_w // n_c
    if isinstance(frequencies, str):
        named = {"uniform": uniform_frequencies, "zipf": zipf_frequencies}
        one_of(named, frequencies=frequencies)
        frequencies = named[frequencies](s_c)
    if len(frequencies) != s_c:
        raise ValueError(f"frequencies has {len(frequencies)} entries; n_w / n_c = {s_c} words per concept")
    latents = all_latents(n_c, L) if K is None else random_latents(n_c, L, K, seed)
    return SentenceTask(latents, frequencies, n_c)


# Word frequencies -------------------------------------------------------------------------------------------------


def uniform_frequencies(s_c: int) -> Tensor:
    r"""Words that are equally frequent, :math:`\mu_\beta = 1/s_c`, as `(s_c,)` float64.

    Raises ValueError unless `s_c` is a positive integer. Source: Laurent et al., section 3 "Notation".

    >>> uniform_frequencies(4).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    positive_integers(s_c=s_c)
    return torch.full((s_c,), 1 / s_c, dtype=torch.float64)


def zipf_frequencies(s_c: int) -> Tensor:
    r"""Zipf's law :math:`\mu_\beta = C/\beta`, as `(s_c,)` float64.

    Raises ValueError unless `s_c` is a positive integer. Source: Laurent et al., section 2.2.

    >>> zipf_frequencies(3).round(decimals=4).tolist()  # 6, 3 and 2 elevenths
    [0.5455, 0.2727, 0.1818]
    """
    positive_integers(s_c=s_c)
    weights = 1 / torch.arange(1, s_c + 1, dtype=torch.float64)
    return weights / weights.sum()


def checked_frequencies(frequencies: Tensor) -> Tensor:
    """Word frequencies `(s_c,)` as float64 on the CPU; ValueError unless they are positive and sum to 1, up to 1e-9.

    >>> checked_frequencies([0.5, 0.25])
    Traceback (most recent call last):
    ValueError: frequencies sum to 0.75: positive numbers that sum to 1 are needed
    """
    frequencies = torch.as_tensor(frequencies, dtype=torch.float64, device="cpu")
    total = float(frequencies.sum())
    if frequencies.ndim != 1 or not (frequencies > 0).all() or not abs(total - 1) <= 1e-9:
        raise ValueError(f"frequencies sum to {total:.12g}: positive numbers that sum to 1 are needed")
    return frequencies


# Latent variables -------------------------------------------------------------------------------------------------


def all_latents(n_c: int, L: int) -> Tensor:
    r"""All of :math:`\mathcal Z = \{0, \dots, n_c-1\}^L` in lexicographic order, (n_c^L, L) int64.

    Raises ValueError when a size is not a positive integer, or there are more than :data:`MAX_LATENTS`.

    >>> all_latents(n_c=2, L=2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    positive_integers(n_c=n_c, L=L)
    if n_c**L > MAX_LATENTS:
        raise ValueError(f"n_c**L = {n_c}**{L} = {n_c**L} latent variables; at most {MAX_LATENTS} are listed: give K")
    return _digits(torch.arange(n_c**L), n_c, L)


def zero_sum_code(n_c: int, L: int) -> Tensor:
    r"""The latent variables whose concepts add up to zero modulo n_c, in lexicographic order, (n_c^(L-1), L) int64.

    For every n_c they have the three properties of Lemma B, the third for the spheres that are not empty: m concepts
    other than 0 add up to any given :math:`s \ne 0` in :math:`((n_c-1)^m - (-1)^m)/n_c` ways, whatever s is.

    Raises ValueError when a size is not a positive integer, or there are more than :data:`MAX_LATENTS`.

    >>> zero_sum_code(n_c=3, L=2).tolist()
    [[0, 0], [1, 2], [2, 1]]
    """
    free = all_latents(n_c, L)[: n_c ** (L - 1), 1:]  # the last L - 1 concepts of those that begin with 0
    return torch.cat([free, (-free.sum(1, keepdim=True)) % n_c], dim=1)


def random_latents(n_c: int, L: int, K: int, seed: int) -> Tensor:
    r"""K distinct latent variables drawn uniformly from the :math:`n_c^L` possible ones, (K, L) int64.

    Raises ValueError when a size is not a positive integer or K exceeds :math:`n_c^L`, and OverflowError from
    :math:`n_c^L = 2^{63}` on.

    Source: Laurent et al., section 2.1, and "mutually distinct" in Theorem 1.

    >>> latents = random_latents(n_c=3, L=2, K=9, seed=0)
    >>> len(latents.unique(dim=0))  # all of them, for they are distinct
    9
    """
    positive_integers(n_c=n_c, L=L, K=K)
    possible = n_c**L
    if possible < K:
        raise ValueError(f"K = {K} distinct latent variables asked for; there are n_c**L = {n_c}**{L} = {possible}")
    return _digits(torch.from_numpy(_generator(seed, _LATENTS).choice(possible, K, replace=False)), n_c, L)


def latent_distances(latents: Tensor) -> Tensor:
    r"""Hamming distance :math:`\mathrm{dist}(\mathbf z_j, \mathbf z_k)` of all pairs: `(K, L)` to `(K, K)` int64.

    >>> latent_distances(torch.tensor([[0, 1, 2], [0, 1, 1], [1, 2, 0]])).tolist()
    [[0, 1, 3], [1, 0, 3], [3, 3, 0]]
    """
    positions = latents.double()
    return torch.cdist(positions, positions, p=0).to(torch.int64)


# Matrices of the appendix -------------------------------------------------------------------------------------------


def zeta(x: Tensor, n_w: int) -> Tensor:
    r"""One-hot words :math:`\zeta(\mathbf x)`: `(..., L)` indices to `(..., n_w, L)` float64.

    Source: Laurent et al., eqs. (11), (12).

    >>> zeta(torch.tensor([2, 0]), n_w=3).tolist()
    [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    """
    return torch.nn.functional.one_hot(x.long(), n_w).to(torch.float64).transpose(-1, -2)


def concept_matrices(latents: Tensor, n_c: int) -> Tensor:
    r"""The matrices :math:`Z_k = [\mathbf e_{z_{k,1}} | \dots | \mathbf e_{z_{k,L}}]`: (K, L) to (K, n_c, L) float64.

    Source: Laurent et al., eq. (22).

    >>> concept_matrices(torch.tensor([[0, 1, 1]]), n_c=2).tolist()
    [[[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]]
    """
    return zeta(latents, n_c)


def partition_matrix(n_c: int, s_c: int) -> Tensor:
    r"""P, `(n_c, n_c s_c)` float64, with :math:`P\,\zeta(\alpha, \beta) = \mathbf e_\alpha`.

    Source: Laurent et al., eqs. (24), (25).

    >>> partition_matrix(n_c=2, s_c=2).tolist()
    [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    """
    return torch.eye(n_c, dtype=torch.float64).repeat_interleave(s_c, dim=1)


def frequency_matrix(n_c: int, frequencies: Tensor) -> Tensor:
    r"""Q, `(n_c, n_c s_c)` float64, with :math:`Q\,\zeta(\alpha, \beta) = \mu_\beta \mathbf e_\alpha`.

    Source: Laurent et al., eqs. (27), (28).

    >>> frequency_matrix(2, torch.tensor([0.75, 0.25], dtype=torch.float64)).tolist()
    [[0.75, 0.25, 0.0, 0.0], [0.0, 0.0, 0.75, 0.25]]
    """
    return torch.kron(torch.eye(n_c, dtype=torch.float64), frequencies[None, :])


# Assumption A -------------------------------------------------------------------------------------------------------


def symmetry_counts(latents: Tensor, n_c: int, chunk: int = 512) -> Tensor:
    r"""The left side of the symmetry assumption, counted.

    .. math:: N_{k,r,\ell,\alpha} = |\{k' : \mathrm{dist}(\mathbf z_k, \mathbf z_{k'}) = r,\; z_{k',\ell} = \alpha\}|,
              \qquad r = 1, \dots, L

    `latents`: `(K, L)`. Returns `(K, L, L, n_c)` int64 with axes k, r-1, l, alpha. Counts are exact; `chunk` rows of
    the distance matrix are in memory at a time. Raises ValueError for latents that are not `(K, L)` integers in
    `0..n_c-1`.

    Source: Laurent et al., eq. (6), repeated as eq. (35).

    >>> counts = symmetry_counts(all_latents(n_c=2, L=2), n_c=2)
    >>> counts[0].tolist()  # around (0, 0): (0, 1) and (1, 0) at distance 1, (1, 1) at 2
    [[[1, 1], [1, 1]], [[0, 1], [0, 1]]]
    """
    _check_latents(latents, n_c)
    K, L = latents.shape
    hot = concept_matrices(latents, n_c).mT.reshape(K, L * n_c).to(torch.float32)  # counts below 2^24 are exact
    counts = torch.empty(K, L, L, n_c, dtype=torch.int64)
    for rows in torch.arange(K).split(chunk):
        distance = L - hot[rows] @ hot.T
        for r in range(1, L + 1):
            counts[rows, r - 1] = ((distance == r).to(torch.float32) @ hot).reshape(-1, L, n_c).to(torch.int64)
    return counts


def symmetric_counts(latents: Tensor, n_c: int) -> Tensor:
    r"""The right side of the symmetry assumption.

    .. math:: \tfrac{K}{n_c^L} \tbinom{L-1}{r} (n_c-1)^r \text{ if } z_{k,\ell} = \alpha, \qquad
              \tfrac{K}{n_c^L} \tbinom{L-1}{r-1} (n_c-1)^{r-1} \text{ otherwise}

    Returns `(K, L, L, n_c)` float64 with the axes of :func:`symmetry_counts`. Raises ValueError as there. Source:
    Laurent et al., eq. (6).

    >>> latents = all_latents(n_c=3, L=2)  # which is symmetric
    >>> bool((symmetric_counts(latents, 3) == symmetry_counts(latents, 3)).all())
    True
    """
    _check_latents(latents, n_c)
    K, L = latents.shape
    counts = [K * (comb(L - 1, r) * (n_c - 1) ** r) / n_c**L for r in range(L + 1)]
    expected = torch.tensor(counts, dtype=torch.float64)[:, None, None]
    hot = concept_matrices(latents, n_c).mT.to(torch.bool)[:, None, :, :]
    return torch.where(hot, expected[1:], expected[:-1])


def symmetry_deviation(latents: Tensor, n_c: int) -> float:
    r"""How far latent variables are from the symmetry assumption, relative to the size of its right side.

    .. math:: \Big(\sum_{k,r,\ell,\alpha} (N_{k,r,\ell,\alpha} - S_{k,r,\ell,\alpha})^2
              \Big/ \sum_{k,r,\ell,\alpha} S_{k,r,\ell,\alpha}^2\Big)^{1/2}

    with N from :func:`symmetry_counts` and S from :func:`symmetric_counts`, of latents `(K, L)`. Both sums run over
    all indices at once, so that the nearly empty spheres of small radius do not drown the rest. The result is zero
    exactly when the assumption holds.

    >>> symmetry_deviation(all_latents(n_c=3, L=3), n_c=3)
    0.0
    >>> few = random_latents(n_c=3, L=3, K=9, seed=0)
    >>> symmetry_deviation(few, n_c=3) > 0.1
    True
    """
    predicted = symmetric_counts(latents, n_c)
    return float((symmetry_counts(latents, n_c) - predicted).norm() / predicted.norm())


# Assumption B -------------------------------------------------------------------------------------------------------


def assumption_b_dimension(latents: Tensor, n_c: int, chunk: int = 64) -> int:
    r"""Dimension of the space of symmetric :math:`A \in \mathbb R^{n_c \times n_c}` that solve a linear system:

    .. math:: \langle A, \Gamma^{(j,k)} - \Gamma^{(j',k')} \rangle_F = 0 \quad\text{whenever}\quad
              \mathrm{dist}(\mathbf z_j, \mathbf z_k) = \mathrm{dist}(\mathbf z_{j'}, \mathbf z_{k'}),
              \qquad \Gamma^{(j,k)} = Z_j (Z_j - Z_k)^T .

    One representative pair per distance is enough: the difference of two pairs is the difference between their
    differences from the representative. The equations are integer vectors; their Gram matrix has the same rank, which
    is found in exact arithmetic. Assumption B holds exactly when the dimension is that of the span of :math:`I` and
    :math:`\mathbf 1 \mathbf 1^T`: 2 for n_c >= 2.

    `latents`: `(K, L)`; `chunk` rows j are taken at a time. Raises ValueError as :func:`symmetry_counts`. Source:
    Laurent et al., eqs. (43), (44).

    >>> assumption_b_dimension(all_latents(n_c=3, L=2), n_c=3)
    2
    """
    from sympy import ZZ  # takes a second to import, and nothing else here needs it
    from sympy.polys.matrices import DomainMatrix

    _check_latents(latents, n_c)
    K, L = latents.shape
    hot = concept_matrices(latents, n_c).mT  # (K, L, n_c); small integers, exact
    above, below = torch.triu_indices(n_c, n_c)
    weight = torch.where(above == below, 0.5, 1.0).to(torch.float64)  # <A, G>: sum of A_ab (G_ab + G_ba), a < b
    representative = torch.zeros(L + 1, len(above), dtype=torch.float64)
    seen = torch.zeros(L + 1, dtype=torch.bool)
    gram = torch.zeros(len(above), len(above), dtype=torch.float64)
    for rows in torch.arange(K).split(chunk):
        joint = torch.einsum("jla,klb->jkab", hot[rows], hot)  # Z_j Z_k^T
        gamma = torch.diag_embed(hot[rows].sum(dim=1))[:, None] - joint  # Z_j Z_j^T - Z_j Z_k^T
        equation = ((gamma + gamma.mT)[..., above, below] * weight).reshape(-1, len(above))
        distance = (L - joint.diagonal(dim1=-2, dim2=-1).sum(dim=-1)).reshape(-1).to(torch.int64)
        for r in distance.unique():
            if not seen[r]:
                representative[r], seen[r] = equation[distance == r][0], True
        difference = equation - representative[distance]
        gram += difference.T @ difference
    return len(above) - DomainMatrix([[int(g) for g in row] for row in gram.tolist()], gram.shape, ZZ).rank()


# Helpers --------------------------------------------------------------------------------------------------------------


def _digits(codes: Tensor, base: int, length: int) -> Tensor:
    """The `length` digits of numbers in base `base`, `(N,)` to `(N, length)`, the highest first."""
    return torch.stack([codes // base**power % base for power in reversed(range(length))], dim=1)


def _generator(seed: int, stream: int) -> np.random.Generator:
    integers(0, seed=seed)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int(seed), spawn_key=(stream,))))


def _check_latents(latents: Tensor, n_c: int) -> None:
    if latents.ndim != 2 or 0 in latents.shape or latents.is_floating_point():
        raise ValueError(f"latents are {latents.dtype} {tuple(latents.shape)}: integers (K, L) are needed")
    if latents.min() < 0 or latents.max() >= n_c:
        raise ValueError(f"latents from {latents.min()} to {latents.max()}: concepts are 0 ... n_c - 1 = {n_c - 1}")
