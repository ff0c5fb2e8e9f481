r"""The two networks of *Feature Collapse* and their risks (Laurent, von Brecht & Bresson, section 2, appendix A).

A sentence is a row of word indices `x: (N, L)`. Word embeddings are the rows of `W: (n_w, d)`; the linear layer is
`U: (K, L, d)`, whose entry `U[k, l]` is the vector the paper writes :math:`\mathbf u_{k,\ell}`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def layer_norm(V: Tensor) -> Tensor:
    r"""LayerNorm without learnable parameters, :math:`\varphi(v) = (v - \operatorname{mean}(v)\mathbf 1)/\sigma(v)`.

    Parameters
    ----------
    V
        Vectors along the last dimension, `(..., d)`.

    Returns
    -------
    Tensor
        Same shape; each vector has mean 0 and norm :math:`\sqrt d`. No epsilon is added under the root: the paper's
        formula has none, and with one the result would depend on the scale of `V`.

    Source: section 3, "Word embeddings, LayerNorm, and word representations".
    """
    centred = V - V.mean(-1, keepdim=True)
    return centred * centred.square().mean(-1, keepdim=True).rsqrt()


def word_features(W: Tensor, normalize: bool = False) -> Tensor:
    r"""What the linear layer sees of each word: `W` itself for `h`, :math:`\varphi(W)` for `h*`; shape `(n_w, d)`."""
    return layer_norm(W) if normalize else W


def scores(W: Tensor, U: Tensor, x: Tensor, normalize: bool = False) -> Tensor:
    r"""Class scores of :math:`h_{W,U}` (equation 17) or, with `normalize`, of :math:`h^*_{W,U}` (equation 18).

    .. math:: h_{W,U}(x)_k = \sum_{\ell=1}^{L} \langle \mathbf u_{k,\ell}, \mathbf w_{x_\ell} \rangle

    Parameters
    ----------
    W, U
        Embeddings `(n_w, d)` and linear weights `(K, L, d)`.
    x
        Word indices `(N, L)` in `0..n_w-1`.

    Returns
    -------
    Tensor
        Scores `(N, K)`.

    Raises
    ------
    ValueError
        If the widths of `W` and `U`, or the lengths of `U` and `x`, differ.
    """
    if W.shape[-1] != U.shape[-1]:
        raise ValueError(f"W has embeddings of width d={W.shape[-1]}, U expects d={U.shape[-1]}")
    if x.shape[-1] != U.shape[-2]:
        raise ValueError(f"x has sentences of length L={x.shape[-1]}, U expects L={U.shape[-2]}")
    return F.embedding(x, word_features(W, normalize)).flatten(1) @ U.flatten(1).T


def empirical_risk(
    W: Tensor, U: Tensor, x: Tensor, y: Tensor, lam: float, normalize: bool = False, weights: Tensor | None = None
) -> Tensor:
    r"""Regularised risk of `h` (equation 2) or, with `normalize`, of `h*` (equation 3).

    .. math::
        \frac1N \sum_{i} \ell(h(x_i), y_i) + \frac\lambda2 \|U\|_F^2 + \frac\lambda2 \|W\|_F^2,

    the last term for `h` only. With `weights` (they sum to 1) the mean becomes a weighted sum, so that the true
    risks (equations 5 and 10) are this function of all sentences, weighted by :math:`\mathcal D_{z_k}(x)/K`.

    Parameters
    ----------
    W, U, x
        As for :func:`scores`.
    y
        Classes `(N,)` in `0..K-1`.
    lam
        Weight decay :math:`\lambda`.
    weights
        `(N,)`, or `None` for the plain mean.

    Returns
    -------
    Tensor
        A scalar, differentiable in `W` and `U`.
    """
    losses = F.cross_entropy(scores(W, U, x, normalize), y, reduction="mean" if weights is None else "none")
    data_term = losses if weights is None else losses @ weights.to(losses)
    return data_term + weight_decay(W, U, lam, normalize)


class _GatherSum(torch.autograd.Function):
    """Sum of rows of a table, one bag of rows per sentence; its transpose is again a sum of rows."""

    @staticmethod
    def forward(ctx, table, plan):
        ctx.plan = plan
        return F.embedding_bag(plan.rows, table, mode="sum")

    @staticmethod
    def backward(ctx, gradient):
        plan = ctx.plan
        return F.embedding_bag(plan.sentences, gradient, plan.offsets, mode="sum"), None


class _Products(torch.autograd.Function):
    """The L matrices W U_l^T as one tensor (L, n_w, K), position by position: U is never copied into another layout."""

    @staticmethod
    def forward(ctx, W, U):
        ctx.save_for_backward(W, U)
        V = W.new_empty(U.shape[1], len(W), len(U))
        for position, block in enumerate(V):
            torch.mm(W, U[:, position].T, out=block)
        return V

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        W, U = ctx.saved_tensors
        by_W, by_U = torch.zeros_like(W), torch.empty_like(U)
        for position, block in enumerate(gradient):
            by_W.addmm_(block, U[:, position])
            by_U[:, position] = block.T @ W
        return by_W, by_U


class SentenceSet:
    r"""Sentences prepared for full-batch scoring; calling it gives the same scores as :func:`scores`, faster.

    The scores depend on the weights through :math:`V_\ell = W U_\ell^T` alone (`L` matrices of shape `(n_w, K)`, the
    matrix :math:`W^T\hat U` of appendix G), and a sentence adds one row of each. Computing these products costs
    :math:`L n_w K d` multiplications whatever the number of sentences, after which a sentence costs `L K` additions
    instead of `L K d` multiplications.

    Parameters
    ----------
    x
        Word indices `(N, L)` in `0..n_w-1`.
    n_w
        Number of words.

    Raises
    ------
    ValueError
        If a word is not in the vocabulary, or, when called, if the sizes of `W` or `U` do not fit the sentences.
    """

    def __init__(self, x: Tensor, n_w: int):
        if x.min() < 0 or x.max() >= n_w:  # a row of another position's matrix otherwise
            raise ValueError(f"x has words {int(x.min())} to {int(x.max())}; they are 0..n_w - 1 = {n_w - 1}")
        self.n_w = n_w
        self.rows = x + n_w * torch.arange(x.shape[1], device=x.device)
        flat = self.rows.flatten()
        self.sentences = torch.argsort(flat, stable=True) // x.shape[1]
        self.offsets = torch.zeros(n_w * x.shape[1], dtype=torch.long, device=x.device)
        self.offsets[1:] = torch.bincount(flat, minlength=n_w * x.shape[1]).cumsum(0)[:-1]

    def __call__(self, W: Tensor, U: Tensor, normalize: bool = False) -> Tensor:
        """Scores `(N, K)` of `h`, or of `h*` with `normalize`; differentiable in `W: (n_w, d)` and `U: (K, L, d)`."""
        if W.shape[-1] != U.shape[-1]:
            raise ValueError(f"W has embeddings of width d={W.shape[-1]}, U expects d={U.shape[-1]}")
        return self.scores_from_products(_Products.apply(word_features(W, normalize), U))

    def scores_from_products(self, V: Tensor) -> Tensor:
        r"""Scores `(N, K)` as the linear function of :math:`V` that they are; `V: (L, n_w, K)`."""
        L = self.rows.shape[1]
        if V.shape[:2] != (L, self.n_w):
            raise ValueError(f"V has shape {tuple(V.shape)}; the sentences need (L, n_w, K) with L={L}, n_w={self.n_w}")
        return _GatherSum.apply(V.flatten(0, 1), self)


def full_batch_risk(
    sentences: SentenceSet, y: Tensor, lam: float, normalize: bool = False
) -> Callable[[Tensor, Tensor], Tensor]:
    """:func:`empirical_risk` of fixed sentences as a function of `(W, U)`, evaluated through :class:`SentenceSet`."""

    def risk(W: Tensor, U: Tensor) -> Tensor:
        return F.cross_entropy(sentences(W, U, normalize), y) + weight_decay(W, U, lam, normalize)

    return risk


def weight_decay(W: Tensor, U: Tensor, lam: float, normalize: bool = False) -> Tensor:
    r""":math:`\frac\lambda2(\|U\|_F^2 + \|W\|_F^2)` for `h`, :math:`\frac\lambda2\|U\|_F^2` for `h*` (2, 3)."""
    decay = U.square().sum()
    if not normalize:
        decay = decay + W.square().sum()
    return 0.5 * lam * decay


@torch.no_grad()
def predictions(W: Tensor, U: Tensor, x: Tensor, normalize: bool = False, chunk: int = 10_000) -> Tensor:
    """The class with the highest score for each sentence, `(N,)`; sentences are scored `chunk` at a time."""
    features = word_features(W, normalize)
    return torch.cat([scores(features, U, part).argmax(1) for part in x.split(chunk)])


def accuracy(W: Tensor, U: Tensor, x: Tensor, y: Tensor, normalize: bool = False) -> float:
    """Fraction of sentences whose highest score is that of their own class."""
    return (predictions(W, U, x, normalize) == y).double().mean().item()
