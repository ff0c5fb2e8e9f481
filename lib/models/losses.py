"""Losses of scores `(N, K)` against labels `(N,)`, as the papers write them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lib import checks


def squared_error(scores: Tensor, y: Tensor) -> Tensor:
    r"""Squared error against one-hot targets, :math:`\frac{1}{2N} \sum_{i=1}^N \|s_i - e_{y_i}\|^2`.

    With :math:`S = WH` and :math:`N = Kn` it is the data term :math:`\frac{1}{2Kn}\|WH - Y\|_F^2` of Tirer & Bruna,
    eq. 5. PyTorch's `mse_loss` averages over the :math:`K` outputs as well: it is :math:`2/K` times this.

    Parameters
    ----------
    scores
        `(N, K)`.
    y
        Labels `(N,)`, `0..K-1`.

    Returns
    -------
    Tensor
        A scalar that follows the dtype of `scores`.

    Raises
    ------
    ValueError
        If the shapes do not fit, or a label is not in `0..K-1`. The labels themselves are checked on the CPU only: on a
        GPU this would make every training step wait.

    Examples
    --------
    >>> scores, y = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 1])
    >>> squared_error(scores, y).item()  # (0 + 1/2) / 4
    0.125
    """
    _check_shapes(scores, y)
    targets = torch.zeros_like(scores).scatter_(1, y[:, None], 1)
    return F.mse_loss(scores, targets, reduction="sum") / (2 * len(y))


def label_smoothing(scores: Tensor, y: Tensor, alpha: float = 0.1) -> Tensor:
    r"""Cross-entropy against targets that spread the share :math:`\alpha` evenly over all classes.

    .. math::

       -\frac1N \sum_{i=1}^N \sum_{k=1}^K y_{ik}^{(\alpha)} \log p_{ik}, \qquad
       y_i^{(\alpha)} = (1 - \alpha)\, e_{y_i} + \frac{\alpha}{K} \mathbf 1, \qquad p_i = \mathrm{softmax}(s_i).

    With :math:`\alpha = 0` it is the cross-entropy.

    Source: Szegedy et al. (2016); Nguyen et al. (2023), section 3.

    Parameters
    ----------
    scores
        `(N, K)`, before the softmax.
    y
        Labels `(N,)`, `0..K-1`.
    alpha
        In `[0, 1)`.

    Returns
    -------
    Tensor
        A scalar in nats that follows the dtype of `scores`.

    Raises
    ------
    ValueError
        For an `alpha` out of its range, and as :func:`squared_error`.

    Examples
    --------
    >>> y = torch.tensor([2])
    >>> round(label_smoothing(torch.zeros(1, 4), y, alpha=0.3).item(), 4)  # log 4
    1.3863
    >>> confident = torch.tensor([[0.0, 0.0, 9.0, 0.0]])
    >>> [round(label_smoothing(confident, y, alpha).item(), 4) for alpha in (0.0, 0.1)]
    [0.0004, 0.6754]
    """
    _check_shapes(scores, y)
    checks.shares(alpha=alpha)
    return F.cross_entropy(scores, y, label_smoothing=alpha)


def _check_shapes(scores: Tensor, y: Tensor) -> None:
    if scores.ndim != 2 or y.shape != scores.shape[:1]:
        raise ValueError(f"scores {tuple(scores.shape)} and y {tuple(y.shape)}: (N, K) and (N,) are needed")
    if y.device.type == "cpu":
        checks.labels(y, *scores.shape, every=False)
