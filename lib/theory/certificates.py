r"""Certificates of global optimality for the sentence models: bounds on the risk from its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from lib.checks import positive
from lib.models.sentences import scores, weight_decay

_CHUNK = 8192  # sentences at a time


@torch.no_grad()
def dual_certificate(W: Tensor, U: Tensor, x: Tensor, y: Tensor, p: Tensor | None = None) -> float:
    r"""The operator norm of :math:`\nabla f(W^\top \hat U)`.

    The risk of `h` is :math:`f(W^\top\hat U) + \frac\lambda2(\|W\|_F^2 + \|U\|_F^2)` with a convex f. A critical
    point with :math:`\|\nabla f\|_{op} \le \lambda` is a global minimiser, for every width (Claim H). This holds
    for the empirical risk as well, and needs no assumption on the latent variables.

    Source: Appendix G, equation (160) and Claim H.

    Parameters
    ----------
    W, U
        `(n_w, d)` and `(K, L, d)`.
    x, y, p
        Sentences `(N, L)`, classes `(N,)`, weights `(N,)` in any scale (`SentenceTask.enumerate`), or `None` for
        equal weights.

    Examples
    --------
    >>> from lib.data.sentences import sentence_task
    >>> from lib.theory.feature_collapse import equiangular, type1, type1_weights
    >>> task, lam = sentence_task(n_c=2, n_w=4, L=2), 0.02
    >>> _, c, c_prime = type1(n_c=2, n_w=4, L=2, K=4, lam=lam)
    >>> W, U = type1_weights(task.latents, task.s_c, equiangular(2, 3), c, c_prime)
    >>> round(dual_certificate(W, U, *task.enumerate()) / lam, 6)  # a global minimiser
    1.0
    """
    return float(risk_gradient_spectrum(W, U, x, y, p)[0])


@torch.no_grad()
def risk_gradient_spectrum(W: Tensor, U: Tensor, x: Tensor, y: Tensor, p: Tensor | None = None) -> Tensor:
    r"""The singular values of :math:`\nabla f(W^\top \hat U)`, `(n_w,)` float64, largest first.

    At a nonzero global minimiser over all widths, the largest is :math:`\lambda`, and the rank of the minimiser is at
    most the number of singular values that equal it. They are the roots of eigenvalues of the Gram matrix: those below
    1e-8 of the largest are rounding. Float32 weights give the accuracy of float32. Arguments and source as
    :func:`dual_certificate`.

    >>> from lib.data.sentences import sentence_task
    >>> x, y, p = sentence_task(n_c=2, n_w=4, L=2).enumerate()
    >>> spectrum = risk_gradient_spectrum(torch.zeros(4, 3), torch.zeros(4, 2, 3), x, y, p)
    >>> tuple(spectrum.shape), round(spectrum[0].item(), 4)
    ((4,), 0.3536)
    >>> from lib.theory.feature_collapse import type3_threshold
    >>> round(type3_threshold([0.5, 0.5], n_c=2, L=2), 4)
    0.3536
    """
    return _spectrum(_data_gradient(W, U, x, y, p)[0])


def _spectrum(gradient: Tensor) -> Tensor:
    wide = gradient.permute(1, 0, 2).flatten(1).double()  # (n_w, L K)
    return torch.linalg.eigvalsh(wide @ wide.T).flip(0).clamp(min=0).sqrt()


@torch.no_grad()
def optimality_gap(W: Tensor, U: Tensor, x: Tensor, y: Tensor, lam: float, p: Tensor | None = None) -> float:
    r"""An upper bound on how far the risk of `h` at `(W, U)` lies above its global minimum over all widths.

    With :math:`s = \|\nabla f\|_{op}` and the softmax outputs pulled towards the labels as :math:`q'_x = e_y +
    \min(1, \lambda/s)\,(q_x - e_y)`,

    .. math:: \min \mathcal R \;\ge\; \mathbb E_x\, \mathrm{entropy}(q'_x),

    which is the Fenchel dual of :math:`f(D) + \lambda\|D\|_*` at a feasible point. This assumes nothing about `(W, U)`;
    at a minimiser over all widths the gap is 0. The bound is ours.

    Raises ValueError if `lam` is not positive. Arguments as for :func:`dual_certificate`.

    >>> from lib.data.sentences import sentence_task
    >>> from lib.theory.feature_collapse import equiangular, type1, type1_weights
    >>> task, lam = sentence_task(n_c=2, n_w=4, L=2), 0.02
    >>> x, y, p = task.enumerate()
    >>> _, c, c_prime = type1(n_c=2, n_w=4, L=2, K=4, lam=lam)
    >>> W, U = type1_weights(task.latents, task.s_c, equiangular(2, 3), c, c_prime)
    >>> abs(optimality_gap(W, U, x, y, lam, p)) < 1e-9
    True
    >>> optimality_gap(2 * W, U, x, y, lam, p) > 0.01
    True
    """
    positive(lam=lam)
    gradient, losses = _data_gradient(W, U, x, y, p)
    norm = float(_spectrum(gradient)[0])
    shrink = min(1.0, lam / norm) if norm > 0 else 1.0
    weights = _normalised(p, len(x), W)
    bound = W.new_zeros(())
    for rows in torch.arange(len(x), device=x.device).split(_CHUNK):
        q = shrink * torch.softmax(scores(W, U, x[rows]), dim=1)
        own = y[rows, None]
        q.scatter_(1, own, q.gather(1, own) + (1 - shrink))
        bound += weights[rows] @ torch.special.entr(q).sum(1)
    return float(losses + weight_decay(W, U, lam) - bound)


def _data_gradient(W: Tensor, U: Tensor, x: Tensor, y: Tensor, p: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradient of f with respect to the products W U_l^T, (L, n_w, K), and f."""
    K, L, _ = U.shape
    weights = _normalised(p, len(x), W)
    gradient = W.new_zeros(L, len(W), K)
    value = W.new_zeros(())
    for rows in torch.arange(len(x), device=x.device).split(_CHUNK):
        log_q = torch.log_softmax(scores(W, U, x[rows]), dim=1)
        own = y[rows, None]
        value -= weights[rows] @ log_q.gather(1, own).squeeze(1)
        residual = log_q.exp()
        residual.scatter_add_(1, own, residual.new_full(own.shape, -1.0))
        residual *= weights[rows, None]
        for position in range(L):
            gradient[position].index_add_(0, x[rows, position], residual)
    return gradient, value


def _normalised(p: Tensor | None, n: int, like: Tensor) -> Tensor:
    return like.new_full((n,), 1 / n) if p is None else (p / p.sum()).to(like)
