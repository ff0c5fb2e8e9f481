"""Losses of scores `(N, K)` against labels `(N,)`, as the papers write them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def squared_error(scores: Tensor, y: Tensor) -> Tensor:
    r"""Squared error against one-hot targets, :math:`\frac{1}{2N} \sum_{i=1}^N \|s_i - e_{y_i}\|^2`.

    With :math:`S = WH` and :math:`N = Kn` it is the data term :math:`\frac{1}{2Kn}\|WH - Y\|_F^2` of Tirer & Bruna,
    eq. 5. PyTorch's `mse_loss` averages over the :math:`K` outputs as well: it is :math:`2/K` of this.

    Parameters
    ----------
    scores
        `(N, K)`.
    y
        Labels `(N,)`, `0..K-1`.

    Returns
    -------
    A scalar tensor that follows the dtype of `scores`.

    Raises
    ------
    ValueError
        If the shapes do not fit, or a label is not in `0..K-1`. The labels themselves are looked at on the CPU only: on
        a GPU that would make every training step wait.
    """
    if scores.ndim != 2 or y.shape != scores.shape[:1]:
        raise ValueError(f"scores {tuple(scores.shape)} and y {tuple(y.shape)}: (N, K) and (N,) are needed")
    K = scores.shape[1]
    if y.device.type == "cpu" and len(y) and (y.min() < 0 or y.max() >= K):
        raise ValueError(f"y has labels from {int(y.min())} to {int(y.max())}: they have to be in 0..{K - 1}")
    targets = torch.zeros_like(scores).scatter_(1, y[:, None], 1)
    return F.mse_loss(scores, targets, reduction="sum") / (2 * len(y))
