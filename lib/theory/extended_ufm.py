r"""Closed forms from *Extended Unconstrained Features Model* (Tirer & Bruna) and, where the paper has none, our own.

All of them rest on one fact. The least weight decay over all factorisations of a score matrix :math:`Z` is a function
of its singular values, so only the singular values remain to be chosen.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from scipy.optimize import brentq
from torch import Tensor

from lib import checks

#: Zero is not a global minimiser of the two-layer model if and only if :func:`two_layer`'s `c` lies below this.
TWO_LAYER_THRESHOLD = 2 ** (-4 / 3)
#: The model's quartic has positive roots for `c` up to this value, see :func:`larger_root`.
LAST_ROOT = 0.75 * 4 ** (-1 / 3)


class OneLayer(NamedTuple):
    r"""The global minimum of a one-layer model.

    c
        :math:`K\sqrt{n\lambda_H\lambda_W}`; the frame vanishes for :math:`c \ge 1`.
    rho
        Squared norm of a class mean, :math:`\|h_k\|^2`.
    alignment
        :math:`\sqrt{n\lambda_H/\lambda_W}`, the factor in :math:`w_k = \text{alignment}\cdot h_k`.
    gram
        The Gram matrix of the means is `gram[0]` :math:`(I - \frac1K 11^T)` + `gram[1]` :math:`\frac1K 11^T`.
    bias
        Every entry of :math:`b` (0 without a bias).
    objective
        The minimum.
    """

    c: float
    rho: float
    alignment: float
    gram: tuple[float, float]
    bias: float
    objective: float


def bias_free(K: int, n: int, lam_w: float, lam_h: float) -> OneLayer:
    r"""Theorem 3.1: the minimum of (5), an orthogonal frame with :math:`\rho = (1-c)_+\sqrt{\lambda_W/(n\lambda_H)}`.

    The `K` classes have `n` samples each in at least K dimensions. The minimum is :math:`c - c^2/2` for :math:`c \le 1`
    and :math:`\frac12` beyond (Lemma A.1). ValueError for fewer than two classes, no samples, or a weight decay that is
    not positive.

    >>> found = bias_free(K=2, n=1, lam_w=0.1, lam_h=0.1)
    >>> [round(number, 4) for number in (found.c, found.rho, found.objective)]
    [0.2, 0.8, 0.18]
    >>> bias_free(K=2, n=1, lam_w=1.0, lam_h=1.0).rho  # too strong a decay
    0.0
    """
    return _one_layer(K, n, lam_w, lam_h, math.inf)


def free_bias(K: int, n: int, lam_w: float, lam_h: float) -> OneLayer:
    r"""Theorem 3.2: the minimum of (14), a simplex frame.

    :math:`\rho = (1-c)_+\frac{K-1}K\sqrt{\lambda_W/(n\lambda_H)}`, the bias is :math:`\frac1K 1_K`, and the minimum
    :math:`\frac{K-1}K(c - c^2/2)` for :math:`c \le 1` and :math:`\frac{K-1}{2K}` beyond (Lemma B.1). Arguments and
    errors as for :func:`bias_free`, but K - 1 dimensions are enough.

    >>> found = free_bias(K=4, n=1, lam_w=0.05, lam_h=0.05)
    >>> round(found.c, 4), round(found.rho, 4), found.bias
    (0.2, 0.6, 0.25)
    """
    return _one_layer(K, n, lam_w, lam_h, 0.0)


def regularised_bias(K: int, n: int, lam_w: float, lam_h: float, lam_b: float) -> OneLayer:
    r"""The minimum of (3) for any :math:`0 < \lambda_b < \infty`, which the paper leaves open (derived in this book).

    The bias acts along :math:`1_K` only. With :math:`\mu = \lambda_b/(1+\lambda_b)` the scores at the minimum are
    :math:`(1-c)_+(I - \frac1K 11^T) + (1 - c/\mu)_+\frac1K 11^T` from the features plus
    :math:`b = \frac{1 - (1-c/\mu)_+}{K(1+\lambda_b)}1_K`. The frame is a simplex while :math:`\mu \le c`, that is,
    :math:`\lambda_b \le c/(1-c)`, and beyond that lies strictly between a simplex and an orthogonal frame.

    Arguments and errors as for :func:`bias_free`; `lam_b` must be positive.

    >>> found = [regularised_bias(4, 1, 0.05, 0.05, lam_b) for lam_b in (1e-9, 0.1, 1, 1e9)]
    >>> [round(minimum.objective, 4) for minimum in found]
    [0.135, 0.1464, 0.175, 0.18]
    >>> round(free_bias(4, 1, 0.05, 0.05).objective, 4)
    0.135
    >>> round(bias_free(4, 1, 0.05, 0.05).objective, 4)
    0.18
    """
    checks.positive(lam_b=lam_b)
    return _one_layer(K, n, lam_w, lam_h, lam_b)


def _one_layer(K: int, n: int, lam_w: float, lam_h: float, lam_b: float) -> OneLayer:
    """The minimum for any decay of the bias, which is free at 0 and absent at infinity."""
    checks.integers(2, K=K)
    checks.integers(1, n=n)
    checks.positive(lam_w=lam_w, lam_h=lam_h)
    c, scale = K * math.sqrt(n * lam_h * lam_w), math.sqrt(lam_w / (n * lam_h))
    mu = 1 / (1 + 1 / lam_b) if lam_b else 0.0  # the share of the squared error along 1_K that the best bias leaves
    frame, left = max(1 - c, 0.0), min(c / mu, 1.0) if mu else 1.0
    centre = 1 - left
    # a singular value z costs (1 - z)^2 / 2K + c z / K (K - 1 of them) or mu (1 - z)^2 / 2K + c z / K (along 1_K)
    along, across = mu * (1 - centre) ** 2 / 2 + c * centre, (1 - frame) ** 2 / 2 + c * frame
    return OneLayer(
        c=c,
        rho=scale * ((K - 1) * frame + centre) / K,
        alignment=1 / scale,
        gram=(scale * frame, scale * centre),
        bias=left / (K * (1 + lam_b)),  # 1 - mu would lose digits
        objective=((K - 1) * across + along) / K,
    )


class TwoLayer(NamedTuple):
    r"""The global minimum of a two-layer model.

    c
        :math:`K(n\lambda_{W_2}\lambda_{W_1}\lambda_{H_1})^{1/3}`.
    score
        The scores are `score` :math:`\cdot\, I_K` for each sample.
    sigma_w2, sigma_w1, sigma_h1
        The K equal singular values of :math:`W_2`, :math:`W_1` and of the class means :math:`\bar H_1`.
    objective
        The minimum.
    """

    c: float
    score: float
    sigma_w2: float
    sigma_w1: float
    sigma_h1: float
    objective: float


def two_layer(K: int, n: int, lam_w2: float, lam_w1: float, lam_h1: float) -> TwoLayer:
    r"""Theorems 4.1 and 4.2 with their constants: the minimum of (23), and for K = 2 that of (24); with more
    classes (24) can be lower, see :mod:`lib.theory.halves`.

    With :math:`c = K(n\lambda_{W_2}\lambda_{W_1}\lambda_{H_1})^{1/3}` a singular value :math:`x^3` of the scores costs
    :math:`\frac1K\big(\frac12(1 - x^3)^2 + \frac32 c\,x^2\big)` once weight decay is spread evenly over the factors.
    The stationary points are zero and the roots of :math:`x^4 - x + c = 0`, the paper's quartic in other units. Of its
    two positive roots the larger is the local minimum, and it beats zero if and only if :math:`x^3 > \frac12`, that is,
    :math:`c < 2^{-4/3}`, or :math:`16\,K^3 n\lambda_{W_2}\lambda_{W_1}\lambda_{H_1} < 1`. The three terms of weight
    decay are equal, :math:`\lambda_{W_2}\sigma_{W_2}^2 = \lambda_{W_1}\sigma_{W_1}^2 = n\lambda_{H_1}\sigma_{H_1}^2`.

    The `K` classes have `n` samples each in dimension at least K. At the threshold itself the function returns zero;
    there every score matrix that is :math:`\frac12` times an orthogonal projection is a minimiser.

    Source: Appendix C for the quartic and the structure; root and condition are ours. ValueError as :func:`bias_free`.

    >>> found = two_layer(K=2, n=1, lam_w2=0.1, lam_w1=0.1, lam_h1=0.1)
    >>> round(found.c, 4), round(found.score, 4), round(found.objective, 4)
    (0.2, 0.783, 0.2784)
    >>> two_layer(K=4, n=1, lam_w2=0.1, lam_w1=0.1, lam_h1=0.1).score  # c is too large
    0.0
    """
    checks.integers(2, K=K)
    checks.integers(1, n=n)
    checks.positive(lam_w2=lam_w2, lam_w1=lam_w1, lam_h1=lam_h1)
    geometric = (n * lam_w2 * lam_w1 * lam_h1) ** (1 / 3)
    c = K * geometric
    x = larger_root(c) if c < TWO_LAYER_THRESHOLD else 0.0
    sigmas = [x * math.sqrt(geometric / lam) for lam in (lam_w2, lam_w1, n * lam_h1)]
    return TwoLayer(c, x**3, *sigmas, objective=(1 - x**3) ** 2 / 2 + 1.5 * c * x**2)


def larger_root(c: float) -> float:
    r"""The larger positive root of :math:`x^4 - x + c`, for :math:`0 < c \le \frac34 4^{-1/3}`; ValueError beyond.

    >>> x = larger_root(0.25)
    >>> round(x, 6), abs(x**4 - x + 0.25) < 1e-12
    (0.89679, True)
    >>> larger_root(0.5)
    Traceback (most recent call last):
    ValueError: c = 0.5: the quartic has positive roots for 0 < c <= 0.472470
    """
    if not 0 < c <= LAST_ROOT:
        raise ValueError(f"c = {c}: the quartic has positive roots for 0 < c <= {LAST_ROOT:.6f}")

    def quartic(x: float) -> float:
        return x**4 - x + c

    bottom = 4 ** (-1 / 3)  # where the quartic is least; at the last c, both roots are here but for rounding
    return brentq(quartic, bottom, 1.0, xtol=1e-15) if quartic(bottom) < 0 else bottom


def noisy_classifier_factor(K: int, lam_w: float, lam_h: float, sigma: float) -> float:
    r"""Theorem 5.1: noise shrinks the classifier by :math:`1/(1 + \sigma_e^2 K\sqrt{\tilde\lambda_H/\lambda_W})`.

    `lam_h` is :math:`\tilde\lambda_H = n\lambda_H`, and `sigma` the standard deviation of the noise on each entry of
    the optimal features. These features must not be zero: ValueError unless
    :math:`K\sqrt{\tilde\lambda_H\lambda_W} < 1`.

    >>> found = noisy_classifier_factor(K=2, lam_w=0.1, lam_h=0.1, sigma=0.5)
    >>> round(found, 4)  # 1 / (1 + 0.25 * 2)
    0.6667
    """
    minimum = bias_free(K, 1, lam_w, lam_h)
    if minimum.c >= 1:
        raise ValueError(f"K sqrt(lam_h lam_w) = {minimum.c:.6g}: below 1 is needed, the minimiser is zero otherwise")
    checks.not_negative(sigma=sigma)
    return 1 / (1 + sigma**2 * K * minimum.alignment)


def orthogonal_frame(d: int, K: int, seed: int = 0) -> Tensor:
    """A random `(d, K)` matrix in float64 with orthonormal columns; ValueError for d < K.

    >>> Q = orthogonal_frame(d=5, K=3)
    >>> torch.allclose(Q.T @ Q, torch.eye(3, dtype=torch.float64))
    True
    """
    checks.integers(K, d=d)
    normal = torch.randn(d, K, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(normal)[0]
