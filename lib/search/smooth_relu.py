r"""The deep unconstrained features model with a smooth ReLU (Súkeník et al., Definition 7, Theorem 8), and its minima.

As in :mod:`lib.theory.low_rank`, `lam` is the sequence :math:`(\lambda_{H_1}, \lambda_{W_1}, \dots, \lambda_{W_L})`,
and the N = K n columns of the features are organised by class. Leading dimensions are runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lib.checks import not_negative
from lib.models.unconstrained import checked_decays, labels, one_hot
from lib.search.rows import join, lbfgs_rows, split


def smooth_relu(z: Tensor, eps: float) -> Tensor:
    r""":math:`\sigma_\epsilon(z) = \epsilon\, s^2(2 - s)`, :math:`s = z/\epsilon`, on (0, eps); the ReLU elsewhere.

    It meets Definition 7: it is continuously differentiable, :math:`0 < \sigma_\epsilon(z) < z` on the open interval
    since :math:`z - \sigma_\epsilon(z) = z(1 - s)^2`, and its slope there, :math:`s(4 - 3s)`, is positive and at most
    4/3. `eps` = 0 is the ReLU. Entry by entry, for `z` of any shape. ValueError for a negative `eps`.

    >>> smooth_relu(torch.tensor([-1.0, 0.25, 0.5, 2.0]), eps=0.5).tolist()
    [0.0, 0.1875, 0.5, 2.0]
    """
    not_negative(eps=eps)
    if eps == 0:
        return z.clamp(min=0)
    s = (z / eps).clamp(0, 1)
    return torch.where(z < eps, eps * s * s * (2 - s), z)


def slope(z: Tensor, eps: float) -> Tensor:
    r"""The derivative of :func:`smooth_relu`, :math:`s(4 - 3s)` at :math:`s = z/\epsilon` in (0, 1).

    Entry by entry, for `z` of any shape; for the ReLU, the derivative at zero is 0.

    >>> slope(torch.tensor([-1.0, 0.25, 0.5, 2.0]), eps=0.5).tolist()
    [0.0, 1.25, 1.0, 1.0]
    """
    if eps == 0:
        return (z > 0).to(z.dtype)
    s = (z / eps).clamp(0, 1)
    return s * (4 - 3 * s)


def levels(H: Tensor, Ws: Sequence[Tensor], eps: float = 0.0) -> list[Tensor]:
    r"""The features :math:`H_1, \dots, H_L` of all layers, `H_1` of shape `(..., d_1, N)`.

    >>> H, W1, W2 = torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0]]), torch.tensor([[1.0]])
    >>> [level.tolist() for level in levels(H, [W1, W2])]
    [[[1.0, -1.0]], [[2.0, 0.0]]]
    """
    out = [H]
    for W in Ws[:-1]:
        out.append(smooth_relu(W @ out[-1], eps))
    return out


def value_and_gradient(
    factors: Sequence[Tensor],
    Y: Tensor,
    lam: Tensor,
    relu: Callable[[int, Tensor], tuple[Tensor, Tensor]],
    loss: str = "mse",
    ratios: Sequence[float] | None = None,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    r"""The objective of the deep model with any smoothing of its ReLUs, its gradient, and the slopes of the ReLUs.

    With a ReLU it is :func:`lib.models.unconstrained.objective`. The gradient is written out: on matrices this small,
    automatic differentiation would take most of the time.

    Parameters
    ----------
    factors
        :math:`H_1, W_1, \dots, W_L`: `(runs, d_1, N)`, then `(runs, d_(l+1), d_l)`, the last with K rows. Loss "exact"
        takes no :math:`W_L`.
    Y
        One-hot targets `(K, N)`; "exact" ignores them.
    lam, ratios
        The weight decay of each run, `(runs,)`, and that of each factor relative to it, 1 by default.
    relu
        `relu(i, z)`: value and derivative, in the shape of z, of the replacement for ReLU number i, counted from 0.
    loss
        "mse"; "ce"; or "exact", the limit of the squared loss for weak decay: the least decay of an exact fit,
        :math:`\frac\lambda2(\sum\|\cdot\|_F^2 + \operatorname{tr}(H_L^\top H_L)^{-1})`.

    Returns
    -------
    value, gradient, slopes
        `(runs,)`; one tensor for each factor; the derivatives that `relu` returned, `(runs, d_l, N)` each.

    Examples
    --------
    >>> factors, relu = [torch.zeros(1, 2, 3), torch.zeros(1, 3, 2)], lambda i, z: (z.clamp(min=0), (z > 0).to(z))
    >>> value, gradient, slopes = value_and_gradient(factors, torch.eye(3), torch.ones(1), relu)
    >>> value.tolist(), [tuple(g.shape) for g in gradient], slopes
    ([0.5], [(1, 2, 3), (1, 3, 2)], [])
    """
    inner = factors[1:] if loss == "exact" else factors[1:-1]
    features, slopes = [factors[0]], []
    for i, W in enumerate(inner):
        level, derivative = relu(i, W @ features[-1])
        features.append(level)
        slopes.append(derivative)
    ratios = [1.0] * len(factors) if ratios is None else ratios
    decays = [lam[:, None, None] * ratio for ratio in ratios]
    gradients, top = [], features[-1]
    if loss == "exact":
        inverse = torch.linalg.inv_ex(top.mT @ top)[0]
        trace = inverse.diagonal(dim1=-2, dim2=-1).sum(-1)
        value = torch.where(trace > 0, lam / 2 * trace, math.inf)
        back = -lam[:, None, None] * (top @ (inverse @ inverse))
    else:
        value, back = _fit(factors[-1] @ top, Y, loss)
        gradients.append(torch.baddbmm(factors[-1] * decays[-1], back, top.mT))
        back = factors[-1].mT @ back
    for i in reversed(range(len(inner))):
        back = back * slopes[i]
        gradients.append(torch.baddbmm(inner[i] * decays[i + 1], back, features[i].mT))
        back = inner[i].mT @ back
    gradients.append(back + decays[0] * factors[0])
    squares = sum(ratio * W.square().sum((-2, -1)) for ratio, W in zip(ratios, factors, strict=True))
    return value + lam / 2 * squares, gradients[::-1], slopes


def _fit(Z: Tensor, Y: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """The first term of the objective at the scores Z, and its derivative with respect to them."""
    N = Z.shape[-1]
    if loss == "mse":
        rest = Z - Y
        return rest.square().sum((-2, -1)) / (2 * N), rest / N
    logs = Z.logsumexp(-2, keepdim=True)
    value = (logs.squeeze(-2) - (Y * Z).sum(-2)).mean(-1)
    return value, ((Z - logs).exp() - Y) / N


def minimise(
    factors: Sequence[Tensor],
    lam: Sequence[float],
    n: int,
    schedule: Sequence[float] = (0.0,),
    signs: Tensor | None = None,
    iterations: int = 400,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    r"""Where L-BFGS ends from many starts, in float64: values of (1) `(runs,)`, features and weights.

    Each run has its own steps (:func:`lib.search.rows.lbfgs_rows`), so that a kink that stops one does not stop the
    others. Kinks stop a quasi-Newton method early; `schedule` therefore lists values of eps, for each of which L-BFGS
    continues from where it ended with the one before. The returned values are those with the last eps.

    Parameters
    ----------
    factors
        The starts :math:`H_1, W_1, \dots, W_L`, each with a leading dimension of runs.
    signs
        `(N,)`, plus or minus 1. With it the starts have one column of features per class, `(runs, d_1, K)`, and each of
        the n samples of a class is that column times its sign.
    iterations
        Iterations of L-BFGS for each value of eps.

    Raises
    ------
    ValueError
        Unless the starts have n columns for each of the K rows of the last weights and there are L + 1 positive decays.

    Examples
    --------
    >>> random = torch.Generator().manual_seed(0)
    >>> H, W = torch.randn(2, 4, 2, 2, generator=random, dtype=torch.float64)  # four runs
    >>> values, _, _ = minimise([H, W], lam=[0.1, 0.1], n=1)
    >>> values.round(decimals=6).tolist()  # Theorem 3.1 of Tirer & Bruna
    [0.18, 0.18, 0.18, 0.18]
    """
    K = factors[-1].shape[-2]
    checked_decays(factors[0], factors[1:], labels(K, n if signs is None else 1), lam)
    Y, shapes = one_hot(labels(K, n), K), [q.shape[1:] for q in factors]

    def model(x: Tensor) -> list[Tensor]:
        H, *Ws = split(x, shapes)
        return [H if signs is None else H.repeat_interleave(n, -1) * signs, *Ws]

    def risk(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        def relu(_: int, z: Tensor) -> tuple[Tensor, Tensor]:
            return smooth_relu(z, eps), slope(z, eps)

        value, gradient, _ = value_and_gradient(model(x), Y, x.new_ones(len(x)), relu, ratios=lam)
        if signs is not None:
            gradient[0] = (gradient[0] * signs).unflatten(-1, (K, n)).sum(-1)
        return value, join(gradient)

    x = join([q.double() for q in factors])
    for eps in schedule:
        x = lbfgs_rows(lambda x, eps=eps: risk(x, eps), x, iterations=iterations, tolerance=1e-12)
    H, *Ws = model(x)
    return risk(x, schedule[-1])[0], H, Ws
