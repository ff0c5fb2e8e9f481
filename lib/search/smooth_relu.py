r"""The deep unconstrained features model with a smooth ReLU (Súkeník et al., Definition 7, Theorem 8), and its search.

As in :mod:`lib.theory.low_rank`, `lam` is the sequence :math:`(\lambda_{H_1}, \lambda_{W_1}, \dots, \lambda_{W_L})`,
and the N = K n columns of the features are organised by class. Leading dimensions are runs. The gradient is written
out: on matrices this small automatic differentiation takes most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lib.models.unconstrained import check_positive, labels, one_hot


def smooth_relu(z: Tensor, eps: float) -> Tensor:
    r""":math:`\sigma_\epsilon(z) = \epsilon\, s^2(2 - s)`, :math:`s = z/\epsilon`, on (0, eps); the ReLU elsewhere.

    It meets Definition 7: it is continuously differentiable, :math:`0 < \sigma_\epsilon(z) < z` on the open interval
    since :math:`z - \sigma_\epsilon(z) = z(1 - s)^2`, and its slope there, :math:`s(4 - 3s)`, is positive and at most
    4/3. `eps` = 0 is the ReLU. Entry by entry, for `z` of any shape. ValueError for a negative `eps`.

    >>> smooth_relu(torch.tensor([-1.0, 0.25, 0.5, 2.0]), eps=0.5).tolist()
    [0.0, 0.1875, 0.5, 2.0]
    """
    if not eps >= 0:
        raise ValueError(f"eps={eps}: a number that is not negative is needed")
    if eps == 0:
        return z.clamp(min=0)
    s = (z / eps).clamp(0, 1)
    return torch.where(z < eps, eps * s * s * (2 - s), z)


def slope(z: Tensor, eps: float) -> Tensor:
    r"""The derivative of :func:`smooth_relu`, :math:`s(4 - 3s)` at :math:`s = z/\epsilon` in (0, 1).

    For `z` of any shape, entry by entry; that of the ReLU at zero is 0.

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
    H: Tensor, Ws: Sequence[Tensor], lam: Sequence[float], n: int, eps: float = 0.0, signs: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    r"""(1) with :math:`\sigma_\epsilon` for each run, and its derivatives by :math:`H_1, W_1, \dots, W_L`.

    With `signs`, `(N,)`, plus or minus 1, `H` has one column per class, each of the n samples of the class is that
    column times its sign, and the first derivative is by these columns.

    ValueError unless H has n columns for each of the K rows of the last weights, and there are L + 1 decays;
    with `signs`, unless there are n of them for each column.

    >>> H, W = torch.zeros(1, 2, 3), torch.zeros(1, 3, 2)
    >>> value, gradients = value_and_gradient(H, [W], lam=[0.1, 0.1], n=1)
    >>> value.tolist(), [tuple(g.shape) for g in gradients]
    ([0.5], [(1, 2, 3), (1, 3, 2)])
    """
    if signs is not None:
        if signs.shape != (H.shape[-1] * n,):
            raise ValueError(f"signs has shape {tuple(signs.shape)}: {n} for each of {H.shape[-1]} columns are needed")
        H = _repeated(H, n, signs)
    K, N = Ws[-1].shape[-2], H.shape[-1]
    if K * n != N:
        raise ValueError(f"H has {N} columns: K n = {K} * {n} are needed")
    if len(lam) != len(Ws) + 1:
        raise ValueError(f"lam has {len(lam)} entries for {len(Ws)} layers: one more is needed, for the features")
    check_positive(**{f"lam[{i}]": float(value) for i, value in enumerate(lam)})
    features, before = [H], []
    for W in Ws[:-1]:
        before.append(W @ features[-1])
        features.append(smooth_relu(before[-1], eps))
    rest = Ws[-1] @ features[-1] - one_hot(labels(K, n), K, H.dtype)
    value = rest.square().sum((-2, -1)) / (2 * N)
    for x, A in zip(lam, (H, *Ws), strict=True):
        value = value + x / 2 * A.square().sum((-2, -1))
    gradients, G = [], rest / N
    for i in range(len(Ws) - 1, -1, -1):
        gradients.append(G @ features[i].mT + lam[i + 1] * Ws[i])
        G = Ws[i].mT @ G
        if i:
            G = G * slope(before[i - 1], eps)
    G = G + lam[0] * H
    gradients.append(G if signs is None else (G * signs).unflatten(-1, (-1, n)).sum(-1))
    return value, gradients[::-1]


def descend(
    starts: Sequence[Tensor],
    lam: Sequence[float],
    n: int,
    schedule: Sequence[float] = (0.0,),
    signs: Tensor | None = None,
    evaluations: int = 400,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    r"""Where BFGS ends from many starts, in float64: values of (1) `(runs,)`, features and weights.

    Each run has its own inverse Hessian and step, so that a kink that stops one does not stop the others. Kinks stop a
    quasi-Newton method early; `schedule` therefore lists values of eps, each of which continues from the ends of the
    one before. The values are those of the last.

    Parameters
    ----------
    starts
        :math:`H_1, W_1, \dots, W_L`, each with a leading dimension of runs.
    signs
        `(N,)`, plus or minus 1. With it the starts have one column of features per class, `(runs, d_1, K)`, and each of
        the n samples of a class is that column times its sign.
    evaluations
        Of the objective, for each value of eps.

    Examples
    --------
    >>> random = torch.Generator().manual_seed(0)
    >>> H, W = torch.randn(2, 4, 2, 2, generator=random, dtype=torch.float64)  # four runs
    >>> values, _, _ = descend([H, W], lam=[0.1, 0.1], n=1)
    >>> values.round(decimals=6).tolist()  # Theorem 3.1 of Tirer & Bruna
    [0.18, 0.18, 0.18, 0.18]
    """
    shapes = [q.shape[1:] for q in starts]
    sizes = [shape.numel() for shape in shapes]

    def split(z: Tensor) -> tuple[Tensor, list[Tensor]]:
        H, *Ws = (q.reshape(-1, *shape) for q, shape in zip(z.split(sizes, 1), shapes, strict=True))
        return H, Ws

    def evaluate(z: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        H, Ws = split(z)
        value, gradients = value_and_gradient(H, Ws, lam, n, eps, signs)
        return value, torch.cat([g.flatten(1) for g in gradients], 1)

    z = torch.cat([q.double().flatten(1) for q in starts], 1)
    for eps in schedule:
        z = _bfgs(lambda z, eps=eps: evaluate(z, eps), z, evaluations)
    H, Ws = split(z)
    H = H if signs is None else _repeated(H, n, signs)
    return value_and_gradient(H, Ws, lam, n, schedule[-1])[0], H, Ws


def _repeated(columns: Tensor, n: int, signs: Tensor) -> Tensor:
    return columns.repeat_interleave(n, -1) * signs


def _bfgs(evaluate: Callable[[Tensor], tuple[Tensor, Tensor]], z: Tensor, evaluations: int) -> Tensor:
    """BFGS on the rows of z at once. Where a step is too long, that row tries a shorter one at the next evaluation, and
    after eight of them its gradient; a row rests where not even that leads down."""
    ends, rows = z.clone(), torch.arange(len(z))
    value, gradient = evaluate(z)
    eye = torch.eye(z.shape[1], dtype=z.dtype)
    inverse = (1 / gradient.norm(dim=1).clamp(min=1.0))[:, None, None] * eye  # Hessian
    fresh = torch.ones(len(z), dtype=torch.bool)  # rows whose inverse Hessian is a multiple of the identity
    step, direction = torch.ones_like(value), -(inverse @ gradient[..., None])[..., 0]
    for _ in range(evaluations):
        moved, drop = z + step[:, None] * direction, _dot(direction, gradient)
        new_value, new_gradient = evaluate(moved)
        down = (new_value <= value + 1e-4 * step * drop) & (drop < 0)
        s, y = moved - z, new_gradient - gradient
        sy, yy = _dot(s, y), _dot(y, y)
        curved = down & (sy > 1e-10 * yy)
        first = curved & fresh
        if first.any():
            inverse[first] = (sy / yy)[first, None, None] * eye
        rho = torch.where(curved, 1 / torch.where(curved, sy, 1.0), 0.0)[:, None]
        turned = (inverse @ y[..., None])[..., 0]
        half = (rho * ((1 + rho * _dot(y, turned)[:, None]) * s / 2 - turned))[..., None] @ s[:, None, :]
        inverse += half + half.mT
        z, gradient = torch.where(down[:, None], moved, z), torch.where(down[:, None], new_gradient, gradient)
        value, step = torch.where(down, new_value, value), torch.where(down, 1.0, 0.3 * step)
        failed = (step < 1e-4) | (drop >= 0)
        rests = (failed & fresh) | (gradient.abs().amax(1) < 1e-12)
        if failed.any():  # once more from the gradient
            inverse[failed] = (0.1 / gradient.norm(dim=1).clamp(min=1.0))[failed, None, None] * eye
            step[failed] = 1.0
        fresh = failed | (fresh & ~curved)
        if rests.any():
            ends[rows] = z
            on = ~rests
            if not on.any():
                return ends
            state = rows, z, value, gradient, inverse, fresh, step
            rows, z, value, gradient, inverse, fresh, step = (q[on] for q in state)
        direction = -(inverse @ gradient[..., None])[..., 0]
    ends[rows] = z
    return ends


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(1)
