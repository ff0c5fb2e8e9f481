r"""The layer-peeled model with non-negative features (Nguyen et al., Section 3, Appendix B), with corrected constants.

There are N classes of K samples, features :math:`h_n^{(k)} \ge 0` in M dimensions, a classifier with rows :math:`w_n`,
and the objective :func:`lib.models.unconstrained.layer_peeled`. Everything rests on one inequality (Lemma B.1),

.. math:: P(W, H) \ge -\frac{\|W\|\,\|H\|}{\sqrt{KN(N-1)}},

where P is the average difference between a wrong score and the right one. It leaves a convex function of a single
number, the average margin s, to be minimised:

.. math::
    \varphi(s) = \log\big(1 + (N-1)e^{-s}\big) + (\beta + 2\kappa)s, \qquad
    \beta = \tfrac{N-1}N \alpha, \quad \kappa = \sqrt{N(N-1)\lambda_W\lambda_H} .

In the paper, (25), (26) and the condition of Theorem 3.2 have :math:`\sqrt{(N-1)\lambda_W\lambda_H}` for kappa and 1
for the bound :math:`\frac{N-1}N` on :math:`\beta + 2\kappa`; the chapter on positive features measures the difference.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lib import checks
from lib.models.unconstrained import check_balanced, checked_decays


class Optimum(NamedTuple):
    r"""The global minimum of the layer-peeled model with non-negative features.

    W2, H2
        :math:`\|W\|_F^2` and :math:`\|H\|_F^2`, the latter over all N K columns.
    score
        The margin :math:`s = \langle w_n - w_m, h_n\rangle` of every sample against every other class.
    rho
        :math:`\|h_n\|^2` of a class mean.
    alignment
        The factor c in :math:`w_n = c\,(h_n - h)`, where h is the mean of all features.
    objective
        The minimum.
    """

    W2: float
    H2: float
    score: float
    rho: float
    alignment: float
    objective: float


def optimal_norms(N: int, K: int, lam_w: float, lam_h: float, alpha: float = 0.0) -> Optimum:
    r"""The norms of a global minimiser, (25) and (26) with corrected constants.

    With :math:`\beta = \frac{N-1}N\alpha` and :math:`\kappa = \sqrt{N(N-1)\lambda_W\lambda_H}`,

    .. math::
        s = \max\Big(0,\ \log\frac{(N-1)(1 - \beta - 2\kappa)}{\beta + 2\kappa}\Big), \qquad
        \lambda_W\|W\|^2 = \tfrac{\lambda_H}K\|H\|^2 = \kappa s .

    Source: Appendix B.4; the constants are this book's.

    Parameters
    ----------
    N, K
        Number of classes, and of samples per class; the dimension of the features is at least N.
    lam_w, lam_h
        Weight decays as in the objective: without factors 1/2, and with :math:`\lambda_H/K`.
    alpha
        Label smoothing.

    Raises
    ------
    ValueError
        For N < 2, K < 1, weight decays that are not positive, `alpha` outside [0, 1).

    Examples
    --------
    >>> found = optimal_norms(N=3, K=10, lam_w=0.01, lam_h=0.01)
    >>> round(found.score, 4), round(found.W2, 4), round(found.H2, 4)
    (3.6591, 8.9628, 89.6283)
    >>> smoothed = optimal_norms(N=3, K=10, lam_w=0.01, lam_h=0.01, alpha=0.1)
    >>> smoothed.score < found.score
    True
    """
    checks.integers(2, N=N)
    checks.integers(1, K=K)
    strength, kappa = _strength(N, lam_w, lam_h, alpha)
    s = math.log(max(1.0, (N - 1) * (1 - strength) / strength))
    return Optimum(
        W2=kappa * s / lam_w,
        H2=K * kappa * s / lam_h,
        score=s,
        rho=kappa * s / lam_h / N,
        alignment=math.sqrt(N * lam_h / ((N - 1) * lam_w)),
        objective=math.log1p((N - 1) * math.exp(-s)) + strength * s,
    )


def is_nonzero(N: int, lam_w: float, lam_h: float, alpha: float = 0.0) -> bool:
    r"""Whether the minimiser is not zero: :math:`\frac{N-1}N\alpha + 2\sqrt{N(N-1)\lambda_W\lambda_H} < \frac{N-1}N`.

    This is the condition of Theorem 3.2, corrected. ValueError as :func:`optimal_norms`.

    >>> is_nonzero(N=2, lam_w=0.1, lam_h=0.1), is_nonzero(N=2, lam_w=1.0, lam_h=1.0)
    (True, False)
    """
    checks.integers(2, N=N)
    return _strength(N, lam_w, lam_h, alpha)[0] < (N - 1) / N


def _strength(N: int, lam_w: float, lam_h: float, alpha: float) -> tuple[float, float]:
    """beta + 2 kappa, and kappa."""
    checks.positive(lam_w=lam_w, lam_h=lam_h)
    checks.shares(alpha=alpha)
    kappa = math.sqrt(N * (N - 1)) * math.sqrt(lam_w) * math.sqrt(lam_h)  # lam_w * lam_h may be 0 or inf
    return (N - 1) / N * alpha + 2 * kappa, kappa


def nc_configuration(
    N: int, K: int, M: int, lam_w: float, lam_h: float, alpha: float = 0.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    r"""A global minimiser drawn at random: `W: (N, M)` and `H: (M, N K)`, float64.

    The coordinates are dealt out to the classes, at least one each, and the mean of a class is a random positive vector
    on its own coordinates; :math:`w_n = c(h_n - h)`. Columns are organised by class, as
    :func:`lib.models.unconstrained.labels`. Both are zero where the minimiser is. ValueError as :func:`optimal_norms`,
    and for M < N.

    >>> W, H = nc_configuration(N=3, K=2, M=6, lam_w=0.01, lam_h=0.01)
    >>> gram = H[:, ::2].T @ H[:, ::2]
    >>> bool((H >= 0).all()), bool((gram - gram.diag().diag()).abs().max() < 1e-12)
    (True, True)
    >>> bool((H[:, 0] == H[:, 1]).all()), bool((W.sum(0).abs() < 1e-12).all())
    (True, True)
    """
    optimum = optimal_norms(N, K, lam_w, lam_h, alpha)
    checks.integers(N, M=M)  # N orthogonal means need as many dimensions
    rng = np.random.default_rng(seed)
    owner = rng.permutation(np.r_[np.arange(N), rng.integers(N, size=M - N)])
    means = np.zeros((M, N))
    means[np.arange(M), owner] = np.abs(rng.standard_normal(M)) + 0.1
    means *= math.sqrt(optimum.rho) / np.linalg.norm(means, axis=0)
    W = optimum.alignment * (means - means.mean(1, keepdims=True)).T
    return torch.from_numpy(W), torch.from_numpy(means).repeat_interleave(K, 1)


class Distance(NamedTuple):
    """How far a pair `W`, `H` is from Definition 3.1, one number per condition; all are zero exactly if it holds.

    within
        (i): largest entry of a feature minus its class mean, relative to the largest entry of the means.
    frame
        (ii): largest entry of the Gram matrix of the means, over its mean diagonal entry, minus the identity.
    duality
        (iii): largest entry of W - C (h_n - h), with the best C, relative to the largest entry of W.
    factor
        The best C of (iii).
    """

    within: float
    frame: float
    duality: float
    factor: float


def nc_distance(W: Tensor, H: Tensor, y: Tensor) -> Distance:
    r"""How far `W: (N, M)` and `H: (M, N K)`, labels `y: (N K,)`, are from Definition 3.1.

    The definition writes :math:`P_{h^\perp} h_n` for what equals :math:`h_n - h` once (ii) holds; here the projection
    itself is evaluated. The result is nan where the means, or W, are zero. ValueError for several runs, shapes or
    labels that do not fit, and negative features.

    >>> W, H = nc_configuration(N=3, K=2, M=6, lam_w=0.01, lam_h=0.01)
    >>> distance = nc_distance(W, H, torch.tensor([0, 0, 1, 1, 2, 2]))
    >>> max(distance.within, distance.frame, distance.duality) < 1e-12
    True
    """
    if W.ndim != 2 or H.ndim != 2:
        raise ValueError(f"W has shape {tuple(W.shape)}, H {tuple(H.shape)}: the matrices of one run are needed")
    N = len(W)
    checked_decays(H, [W], y, 1.0, 1.0)
    check_balanced(y, N)
    if not bool((H >= 0).all()):
        raise ValueError("H has entries that are negative or nan: features have to be non-negative")
    means = torch.stack([H[:, y == n].mean(1) for n in range(N)], 1)
    h = means.mean(1, keepdim=True)
    gram = means.T @ means
    projected = (means - h @ (h.T @ means) / h.square().sum()).T
    factor = (W * projected).sum() / projected.square().sum()
    frame = gram / gram.diagonal().mean() - torch.eye(N, dtype=gram.dtype, device=gram.device)
    return Distance(
        within=_relative(H - means[:, y.long()], means),
        frame=frame.abs().max().item(),
        duality=_relative(W - factor * projected, W),
        factor=factor.item(),
    )


def _relative(part: Tensor, whole: Tensor) -> float:
    """The largest entry of a part in units of the largest entry of the whole."""
    return (part.abs().max() / whole.abs().max()).item()
