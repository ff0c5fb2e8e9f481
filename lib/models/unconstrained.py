r"""Unconstrained features models: the features are free variables (Tirer & Bruna, equations 3-5, 14, 23, 24).

As in the paper, features are columns, `H: (..., d, N)`, and weights act from the left; `Ws = [W_1, ..., W_L]` lists
them from the features to the scores. Leading dimensions are runs. :mod:`collapsemetrics` expects rows: pass it `H.mT`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lib import checks

#: The names of the losses that :func:`objective` knows, the squared error and the cross-entropy.
LOSSES = ("mse", "ce")


def labels(K: int, n: int, device: torch.device | str | None = None) -> Tensor:
    r"""The classes `(K n,)` of organised features :math:`[h_{1,1}, \dots, h_{1,n}, h_{2,1}, \dots, h_{K,n}]`.

    >>> labels(K=3, n=2).tolist()
    [0, 0, 1, 1, 2, 2]
    """
    return torch.arange(K, device=device).repeat_interleave(n)


def one_hot(y: Tensor, K: int, dtype: torch.dtype = torch.float64) -> Tensor:
    r"""The targets `(K, N)`: column i is the unit vector of class `y[i]`; :math:`I_K \otimes 1_n^T` in class order.

    >>> one_hot(torch.tensor([0, 1, 1]), K=2).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]
    """
    return F.one_hot(y.long(), K).T.to(dtype)


def activations(H: Tensor, Ws: Sequence[Tensor], relu: bool = False) -> list[Tensor]:
    r"""What each layer of weights multiplies: :math:`H_1 = H`, :math:`H_{l+1} = \sigma(W_l H_l)` for :math:`l < L`.

    `H: (..., d, N)`; :math:`\sigma` is the ReLU with `relu`, the identity otherwise. The last is the deepest level of
    features, which the classifier :math:`W_L` reads. `Ws`: `(..., d_out, d_in)`, from the first to the last.

    >>> W1, W2 = torch.tensor([[1.0, -1.0], [-2.0, 0.0]]), torch.ones(3, 2)
    >>> [level.tolist() for level in activations(torch.eye(2), [W1, W2], relu=True)]
    [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]]]
    """
    levels = [H]
    for W in Ws[:-1]:
        Z = W @ levels[-1]
        levels.append(Z.clamp(min=0) if relu else Z)
    return levels


def scores(H: Tensor, Ws: Sequence[Tensor], b: Tensor | None = None, relu: bool = False) -> Tensor:
    r"""The scores :math:`W_L\,\sigma(W_{L-1} \cdots \sigma(W_1 H)) + b 1_N^T`, `(..., K, N)`; `b: (..., K)` or `None`.

    Other arguments as for :func:`activations`.

    >>> W, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.5, 0.0])
    >>> scores(torch.eye(2), [W], b).tolist()
    [[1.5, 2.5], [3.0, 4.0]]
    """
    Z = Ws[-1] @ activations(H, Ws, relu)[-1]
    return Z if b is None else Z + b[..., None]


def objective(
    H: Tensor,
    Ws: Sequence[Tensor],
    y: Tensor,
    lam_w: float | Sequence[float],
    lam_h: float | None = None,
    b: Tensor | None = None,
    lam_b: float = 0.0,
    relu: bool = False,
    loss: str = "mse",
) -> Tensor:
    r"""The regularised risk of an unconstrained features model.

    .. math::
        \frac1N \sum_{i=1}^N \ell\big(W_L\,\sigma(\cdots\sigma(W_1 h_i)) + b,\, y_i\big)
        + \sum_{l=1}^L \frac{\lambda_{W_l}}2 \|W_l\|_F^2 + \frac{\lambda_H}2 \|H\|_F^2 + \frac{\lambda_b}2 \|b\|^2

    with :math:`\ell(z, y) = \frac12\|z - y\|^2` or the cross-entropy. One layer is (5), with `b` (3) and, for
    `lam_b` = 0, (14); two layers are (23), with `relu` (24).

    Parameters
    ----------
    H, Ws, b
        Features `(..., d, N)`; weights from the first to the last, `(..., d_out, d_in)`, the last with K rows; bias
        `(..., K)` or `None`.
    y
        Classes `(N,)` in `0..K-1`.
    lam_w, lam_h, lam_b
        Weight decays: of the weights (one number, or one per layer from the first to the last), features and bias.
        Without `lam_h`, `lam_w` holds those of all factors: one number, or one each for :math:`H, W_1, \dots, W_L`.
    relu
        A ReLU after every layer but the last.
    loss
        `"mse"` or `"ce"`.

    Returns
    -------
    Tensor
        One value per run, differentiable in `H`, `Ws` and `b`.

    Raises
    ------
    ValueError
        For shapes that do not fit, labels outside `0..K-1` or not integers, a class without samples, fewer than two
        classes, weight decays that are not positive (`lam_b` may be 0), an unknown loss. Values of `H`, `Ws` and `b`
        are not checked: nan in one run makes the objective of that run nan. Leading dimensions broadcast; those that do
        not raise PyTorch's RuntimeError.

    Examples
    --------
    >>> H, W, y = torch.zeros(3, 4), torch.zeros(2, 3), labels(K=2, n=2)
    >>> objective(H, [W], y, lam_w=0.1, lam_h=0.1).item()  # of a one-hot vector
    0.5
    >>> round(objective(H, [W], y, lam_w=0.1, lam_h=0.1, loss="ce").item(), 4)  # log 2
    0.6931
    >>> round(objective(H + 1, [W], y, lam_w=0.1, lam_h=0.1).item(), 4)  # 0.5 + 12 * 0.05
    1.1
    """
    lam_h, *decays = checked_decays(H, Ws, y, lam_w, lam_h, b, lam_b)
    checks.one_of(LOSSES, loss=loss)
    Z, K, N = scores(H, Ws, b, relu), Ws[-1].shape[-2], H.shape[-1]
    if loss == "mse":
        data = (Z - one_hot(y, K, Z.dtype).to(Z.device)).square().sum((-2, -1)) / (2 * N)
    else:
        own = Z.gather(-2, y.long().to(Z.device).expand(*Z.shape[:-2], 1, N)).squeeze(-2)
        data = (Z.logsumexp(-2) - own).mean(-1)
    for W, lam in zip(Ws, decays, strict=True):
        data = data + lam / 2 * W.square().sum((-2, -1))
    if b is not None:
        data = data + lam_b / 2 * b.square().sum(-1)
    return data + lam_h / 2 * H.square().sum((-2, -1))


def checked_decays(
    H: Tensor,
    Ws: Sequence[Tensor],
    y: Tensor,
    lam_w: float | Sequence[float],
    lam_h: float | None = None,
    b: Tensor | None = None,
    lam_b: float = 0.0,
) -> list[float]:
    r"""The weight decays of :math:`H, W_1, \dots, W_L`, after a check that all is as :func:`objective` requires.

    Arguments and shapes are those of :func:`objective`, and so is the ValueError that names what does not fit.

    >>> H, W1, W2, y = torch.zeros(3, 4), torch.zeros(5, 3), torch.zeros(2, 5), labels(2, 2)
    >>> checked_decays(H, [W1, W2], y, lam_w=0.1, lam_h=0.2)
    [0.2, 0.1, 0.1]
    >>> checked_decays(H, [W2], y, lam_w=0.1, lam_h=0.2)
    Traceback (most recent call last):
    ValueError: W_1 has shape (2, 5): a matrix per run is needed, with 3 columns
    """
    if isinstance(Ws, Tensor) or len(Ws) == 0:
        raise ValueError("Ws is empty or no list: at least the classifier is needed")
    width = 0  # of what a factor multiplies
    for name, part in {"H": H, **{f"W_{i}": W for i, W in enumerate(Ws, 1)}}.items():
        if part.ndim < 2 or (width and part.shape[-1] != width):
            columns = f", with {width} columns" if width else ""
            raise ValueError(f"{name} has shape {tuple(part.shape)}: a matrix per run is needed{columns}")
        width = part.shape[-2]
    checks.integers(2, K=width)
    checks.labels(y, H.shape[-1], width)
    if b is not None and b.shape[-1:] != (width,):
        raise ValueError(f"b has shape {tuple(b.shape)}: K = {width} entries are needed")
    (decays,) = checks.each(len(Ws) + (lam_h is None), lam_w=lam_w)
    checks.not_negative(lam_b=lam_b)
    if lam_h is None:
        return decays
    checks.positive(lam_h=lam_h)
    return [lam_h, *decays]


def layer_peeled(
    W: Tensor,
    H: Tensor,
    y: Tensor,
    lam_w: float,
    lam_h: float,
    alpha: float = 0.0,
    b: Tensor | None = None,
    lam_b: float = 0.0,
) -> Tensor:
    r"""The layer-peeled model with non-negative features and label smoothing (Nguyen et al., :math:`P_\alpha`).

    .. math::
        \frac1{NK} \sum_{n=1}^N \sum_{k=1}^K \ell_\alpha\big(W h_n^{(k)} + b,\, n\big)
        + \lambda_W \|W\|_F^2 + \frac{\lambda_H}K \|H\|_F^2 + \lambda_b \|b\|^2, \qquad H \ge 0,

    with :math:`\ell_\alpha(z, n) = -\sum_m y_{nm}^{(\alpha)} \log \mathrm{softmax}(z)_m` and
    :math:`y_n^{(\alpha)} = (1 - \alpha) e_n + \frac\alpha N 1_N`. As printed, the decays have no factor 1/2; here N is
    the number of classes and K that of samples per class.

    Parameters
    ----------
    W, H, b
        Classifier `(..., N, M)`; features `(..., M, N K)`; bias `(..., N)` or `None`. Leading dimensions are runs.
    y
        Classes `(N K,)` in `0..N-1`, K samples of each, in any order.
    lam_w, lam_h, lam_b
        Positive; `lam_b` may be 0 and is not in the paper.
    alpha
        Label smoothing in [0, 1); 0 is cross-entropy.

    Returns
    -------
    Tensor
        One value per run, differentiable in `W`, `H` and `b`.

    Raises
    ------
    ValueError
        As for :func:`objective`; also for `alpha` outside [0, 1) and classes of different sizes. Negative features are
        not detected: the constraint is left to the minimiser.

    Examples
    --------
    >>> W, H, y = torch.zeros(3, 5), torch.zeros(5, 6), labels(K=3, n=2)
    >>> round(layer_peeled(W, H, y, lam_w=0.1, lam_h=0.1, alpha=0.2).item(), 4)  # log 3
    1.0986
    """
    checked_decays(H, [W], y, lam_w, lam_h, b, lam_b)
    checks.shares(alpha=alpha)
    N = W.shape[-2]
    check_balanced(y, N)
    Z, K = scores(H, [W], b), len(y) // N
    target = (1 - alpha) * one_hot(y, N, Z.dtype).to(Z.device) + alpha / N
    risk = (Z.logsumexp(-2) - (target * Z).sum(-2)).mean(-1)
    if b is not None:
        risk = risk + lam_b * b.square().sum(-1)
    return risk + lam_w * W.square().sum((-2, -1)) + lam_h / K * H.square().sum((-2, -1))


def check_balanced(y: Tensor, N: int) -> None:
    """ValueError unless all N classes have equally many labels in `y: (samples,)`.

    >>> check_balanced(torch.tensor([0, 0, 1]), N=2)
    Traceback (most recent call last):
    ValueError: y has 1 to 2 samples of a class: K of each are needed
    """
    counts = torch.bincount(y, minlength=N)
    if counts.min() != counts.max():
        raise ValueError(f"y has {int(counts.min())} to {int(counts.max())} samples of a class: K of each are needed")
