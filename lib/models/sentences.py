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

from lib.data.sentences import SentenceTask


def layer_norm(V: Tensor) -> Tensor:
    r"""LayerNorm without learnable parameters, :math:`\varphi(v) = (v - \operatorname{mean}(v)\mathbf 1)/\sigma(v)`.

    Source: section 3, "Word embeddings, LayerNorm, and word representations".

    Parameters
    ----------
    V
        Vectors along the last dimension, `(..., d)`.

    Returns
    -------
    Tensor
        Same shape; each vector has mean 0 and norm :math:`\sqrt d`; nan for equal entries. No epsilon is added
        under the root: the paper's formula has none, and with one the result would depend on the scale of `V`.

    Examples
    --------
    >>> layer_norm(torch.tensor([1.0, 3.0, 1.0, 3.0])).tolist()
    [-1.0, 1.0, -1.0, 1.0]
    """
    centred = V - V.mean(-1, keepdim=True)
    return centred * centred.square().mean(-1, keepdim=True).rsqrt()


def word_features(W: Tensor, normalize: bool = False) -> Tensor:
    r"""What the linear layer sees of each word: `W` itself for `h`, :math:`\varphi(W)` for `h*`; shape `(n_w, d)`.

    >>> W = torch.tensor([[1.0, 3.0]])
    >>> word_features(W).tolist(), word_features(W, normalize=True).tolist()
    ([[1.0, 3.0]], [[-1.0, 1.0]])
    """
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
        If `U` does not fit the width of `W` and the length of the sentences.

    Examples
    --------
    >>> W = torch.eye(2)  # two words
    >>> U = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[0.0, 1.0], [3.0, 0.0]]])  # K = L = 2
    >>> scores(W, U, torch.tensor([[0, 1], [1, 0]])).tolist()
    [[3.0, 0.0], [0.0, 4.0]]
    """
    if U.shape[1:] != (x.shape[1], W.shape[1]):
        raise ValueError(f"U {tuple(U.shape)}: (K, {x.shape[1]}, {W.shape[1]}) fits W {tuple(W.shape)} and x")
    return F.embedding(x, word_features(W, normalize)).flatten(1) @ U.flatten(1).T


def empirical_risk(
    W: Tensor, U: Tensor, x: Tensor, y: Tensor, lam: float, normalize: bool = False, weights: Tensor | None = None
) -> Tensor:
    r"""Regularised risk of `h` (equation 2) or, with `normalize`, of `h*` (equation 3).

    .. math::
        \frac1N \sum_{i} \ell(h(x_i), y_i) + \frac\lambda2 \|U\|_F^2 + \frac\lambda2 \|W\|_F^2,

    the last term for `h` only. With `weights` (which sum to 1) the mean becomes a weighted sum. The true risks
    (equations 5 and 10) are this function of all sentences, weighted by :math:`\mathcal D_{z_k}(x)/K`.

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

    Examples
    --------
    >>> x, y = torch.tensor([[0, 1], [2, 3]]), torch.tensor([0, 1])
    >>> W, U = torch.zeros(4, 3), torch.zeros(2, 2, 3)
    >>> round(empirical_risk(W, U, x, y, lam=0.1).item(), 4)  # log 2 at zero
    0.6931
    """
    losses = F.cross_entropy(scores(W, U, x, normalize), y, reduction="mean" if weights is None else "none")
    data_term = losses if weights is None else losses @ weights.to(losses)
    return data_term + weight_decay(W, U, lam, normalize)


def true_risk(task: SentenceTask, lam: float, normalize: bool = False) -> Callable[[Tensor, Tensor], Tensor]:
    r"""The true risk of `h` (equation 5) or, with `normalize`, of `h*` (equation 10), as a function of `(W, U)`.

    .. math::
        \frac1K \sum_k \sum_x \mathcal D_{z_k}(\{x\})\, \ell(h(x), k)
        + \frac\lambda2 \|U\|_F^2 + \frac\lambda2 \|W\|_F^2,

    the last term for `h` only. Every sentence of the task is listed and weighed by its probability: ValueError for a
    task that has too many of them.

    >>> from lib.data.sentences import sentence_task
    >>> risk = true_risk(sentence_task(n_c=2, n_w=4, L=2), lam=0.1)
    >>> round(risk(torch.zeros(4, 3), torch.zeros(4, 2, 3)).item(), 4)  # log 4 at zero
    1.3863
    """
    x, y, p = task.enumerate()

    def risk(W: Tensor, U: Tensor) -> Tensor:
        return empirical_risk(W, U, x, y, lam, normalize, p / task.K)

    return risk


class SentenceSet:
    r"""Sentences prepared for full-batch training: their mean cross-entropy with its gradients, in one pass.

    There are two ways to the scores, and the cheaper is taken. Computed directly, as in :func:`scores`, a sentence
    costs :math:`L K d` multiplications. Alternatively, the scores are read off the products :math:`V_\ell = W U_\ell^T`
    (`L` matrices of shape `(n_w, K)`, the matrix :math:`W^T\hat U` of appendix G): these cost :math:`L n_w K d`
    multiplications whatever the number of sentences, after which a sentence adds up `L` rows. Either way, sentences are
    processed in blocks, and the softmax outputs are kept for the gradients, which are sums over the same rows. Memory
    is kept from call to call, so one set serves one thread at a time.

    Parameters
    ----------
    x
        Word indices `(N, L)` in `0..n_w-1`.
    n_w
        Number of words.

    Raises
    ------
    ValueError
        If a word is not in the vocabulary, or, when called, if the sizes of `W`, `U` or `y` do not fit the sentences.

    Examples
    --------
    >>> x, y = torch.tensor([[0, 1], [2, 0]]), torch.tensor([0, 1])
    >>> loss = SentenceSet(x, n_w=3).cross_entropy(torch.ones(3, 4), torch.zeros(2, 2, 4), y)
    >>> round(loss.item(), 4)  # log 2
    0.6931
    """

    def __init__(self, x: Tensor, n_w: int):
        if x.min() < 0 or x.max() >= n_w:  # these would read a row of another position's matrix
            raise ValueError(f"x has words {int(x.min())} to {int(x.max())}; they are 0..n_w - 1 = {n_w - 1}")
        self.x, self.n_w = x, n_w
        self.rows = x + n_w * torch.arange(x.shape[1], device=x.device)
        by_word = torch.sort(x, dim=0, stable=True)  # at each position, the sentences in the order of their words
        self.sentences = by_word.indices.T.contiguous()
        words = torch.arange(n_w, device=x.device).expand(x.shape[1], n_w).contiguous()
        self.offsets = torch.searchsorted(by_word.values.T.contiguous(), words)
        self._kept = {}

    def cross_entropy(self, W: Tensor, U: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy for classes `y: (N,)` at word features `W: (n_w, d)` and `U: (K, L, d)`.

        A scalar, differentiable once in `W` and `U`.
        """
        N, L = self.x.shape
        if (len(W), U.shape[1:], y.shape) != (self.n_w, (L, W.shape[1]), (N,)):
            found = f"W {tuple(W.shape)}, U {tuple(U.shape)}, y {tuple(y.shape)}"
            raise ValueError(f"{found}: ({self.n_w}, d), (K, {L}, d) and ({N},) are needed")
        return _MeanCrossEntropy.apply(W, U, self, y)

    def _memory(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """Memory that is kept from one call to the next: a fresh 100 MB costs more than the sums that fill it."""
        kept = self._kept.get(name)
        if kept is None or kept.shape != shape or kept.dtype != like.dtype or kept.device != like.device:
            kept = self._kept[name] = like.new_empty(shape)
        return kept


class _MeanCrossEntropy(torch.autograd.Function):
    """Value and gradients of the mean cross-entropy of a :class:`SentenceSet`, both computed in the forward pass."""

    @staticmethod
    def forward(ctx, W, U, plan, y):
        N, L = plan.x.shape
        K, d = U.shape[0], U.shape[2]
        flat = U.flatten(1)
        direct = d * (N - plan.n_w) <= 8 * N  # a gathered number costs about as much as eight multiplications
        size = 1024 if W.device.type == "cpu" else 65_536  # a block fits the cache, or fills the card
        q = plan._memory("softmax", W, min(N, size) if direct else N, K)
        if not direct:
            V = plan._memory("products", W, L, plan.n_w, K)
            for position, block in enumerate(V):
                torch.mm(W, U[:, position].T, out=block)
        total = W.new_zeros((), dtype=torch.float64)
        by_W, by_U = torch.zeros_like(W), torch.zeros_like(flat)
        for start in range(0, N, size):
            rows = slice(start, start + size)
            if direct:
                E = F.embedding(plan.x[rows], W).flatten(1)
                scores = E @ flat.T
            else:
                scores = F.embedding_bag(plan.rows[rows], V.flatten(0, 1), mode="sum")
            log_q, own = torch.log_softmax(scores, 1), y[rows, None]
            total -= log_q.gather(1, own).sum(dtype=torch.float64)
            residual = torch.exp(log_q, out=q[: len(own)] if direct else q[rows])
            residual.scatter_add_(1, own, residual.new_full(own.shape, -1.0))
            if direct:
                by_U.addmm_(residual.T, E)
                by_W.index_add_(0, plan.x[rows].flatten(), (residual @ flat).view(-1, d))
        by_U = by_U.view_as(U)
        if not direct:
            for position in range(L):
                sums = F.embedding_bag(plan.sentences[position], q, plan.offsets[position], mode="sum")
                by_W.addmm_(sums, U[:, position])
                by_U[:, position] = sums.T @ W
        ctx.save_for_backward(by_W.div_(N), by_U.div_(N))
        return (total / N).to(W.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, slope):
        by_W, by_U = ctx.saved_tensors
        return slope * by_W, slope * by_U, None, None


def full_batch_risk(
    sentences: SentenceSet, y: Tensor, lam: float, normalize: bool = False
) -> Callable[[Tensor, Tensor], Tensor]:
    """:func:`empirical_risk` of fixed sentences as a function of `(W, U)`, evaluated through :class:`SentenceSet`.

    >>> x, y = torch.tensor([[0, 1], [2, 0]]), torch.tensor([0, 1])
    >>> risk = full_batch_risk(SentenceSet(x, n_w=3), y, lam=0.1)
    >>> W, U = torch.ones(3, 4), torch.zeros(2, 2, 4)
    >>> torch.allclose(risk(W, U), empirical_risk(W, U, x, y, lam=0.1))
    True
    """

    def risk(W: Tensor, U: Tensor) -> Tensor:
        return sentences.cross_entropy(word_features(W, normalize), U, y) + weight_decay(W, U, lam, normalize)

    return risk


def weight_decay(W: Tensor, U: Tensor, lam: float, normalize: bool = False) -> Tensor:
    r"""The decay of equation 2, :math:`\frac\lambda2(\|U\|_F^2 + \|W\|_F^2)`, or of equation 3, which leaves out `W`.

    The latter, for `h*`, applies with `normalize`. `W: (n_w, d)`, `U: (K, L, d)`; a scalar tensor.

    >>> W, U = torch.ones(2, 2), torch.ones(1, 2, 2)
    >>> weight_decay(W, U, lam=1.0).item()
    4.0
    >>> weight_decay(W, U, lam=1.0, normalize=True).item()
    2.0
    """
    squares = U.square().sum()
    return 0.5 * lam * (squares if normalize else squares + W.square().sum())


@torch.no_grad()
def accuracy(W: Tensor, U: Tensor, x: Tensor, y: Tensor, normalize: bool = False, chunk: int = 10_000) -> float:
    """Fraction of sentences `x: (N, L)` whose highest score is that of their own class `y: (N,)`; see :func:`scores`.

    Sentences are scored `chunk` at a time.

    >>> W, U = torch.eye(2), torch.eye(2)[:, None]
    >>> accuracy(W, U, torch.tensor([[1], [0]]), torch.tensor([1, 1]))
    0.5
    """
    features = word_features(W, normalize)
    return (torch.cat([scores(features, U, part).argmax(1) for part in x.split(chunk)]) == y).double().mean().item()


def initial_weights(n_w: int, K: int, L: int, d: int, seed: int, scale: float) -> tuple[Tensor, Tensor]:
    r"""PyTorch's default initial weights of an embedding and of a linear layer, both multiplied by `scale`.

    :math:`W \sim N(0, 1)`, `(n_w, d)`, and :math:`U \sim` uniform on :math:`\pm 1/\sqrt{Ld}`, `(K, L, d)`, drawn on the
    CPU, so a seed gives the same start on every device. The paper does not say how its runs start; its authors'
    published notebooks use `scale` = 1/1000.

    >>> W, U = initial_weights(n_w=6, K=2, L=3, d=4, seed=0, scale=1e-3)
    >>> tuple(W.shape), tuple(U.shape)
    ((6, 4), (2, 3, 4))
    >>> torch.equal(W, initial_weights(6, 2, 3, 4, seed=0, scale=1e-3)[0])
    True
    """
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(n_w, d, generator=generator)
    U = (2 * torch.rand(K, L, d, generator=generator) - 1) / (L * d) ** 0.5
    return scale * W, scale * U
