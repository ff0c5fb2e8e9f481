r"""How far representations have collapsed: class means, spreads around them, and the geometry of the means.

Features are one cloud `H: (n_samples, d)` with labels `y: (n_samples,)` in `0..K-1`; class means are `(K, d)`. Results
follow the dtype of the input.
"""

from __future__ import annotations

import torch
from torch import Tensor


def class_means(H: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    r"""Class means :math:`\mu_k = \frac1{n_k}\sum_{y_i = k} h_i` and the global mean :math:`\frac1n\sum_i h_i`.

    Parameters
    ----------
    H
        Features `(n_samples, d)`.
    y
        Labels `(n_samples,)`, `0..K-1` with `K` one more than the largest.

    Returns
    -------
    (means, global_mean)
        `(K, d)` and `(d,)`.

    Raises
    ------
    ValueError
        If a feature is not finite, the lengths differ, a label is negative, or there is no sample, or none in a class.
    """
    counts = _class_counts(H, y)
    sums = H.new_zeros(len(counts), H.shape[1]).index_add_(0, y, H)
    return sums / counts[:, None].to(H), H.mean(0)


def relative_spread(H: Tensor, y: Tensor) -> float:
    r"""Root-mean-square distance to the class mean over the root-mean-square norm of the class mean.

    .. math:: \Big( \sum_i \|h_i - \mu_{y_i}\|^2 \Big/ \sum_i \|\mu_{y_i}\|^2 \Big)^{1/2}

    Zero exactly when each class sits in one point: collapse in direction and in norm. Arguments and errors as
    :func:`class_means`.
    """
    means = class_means(H, y)[0][y]
    return ((H - means).square().sum() / means.square().sum()).sqrt().item()


def directional_spread(H: Tensor, y: Tensor) -> float:
    r"""Root-mean-square angle, in radians, between a feature and the mean direction of its class.

    The mean direction of a class is that of :math:`\sum_{y_i=k} h_i/\|h_i\|`. Zero exactly when the features of a
    class are positive multiples of one vector: directional collapse. Arguments and errors as :func:`class_means`,
    and ValueError if a feature is zero.
    """
    _class_counts(H, y)
    norms = H.norm(dim=1, keepdim=True)
    if (norms == 0).any():
        raise ValueError(f"{int((norms == 0).sum())} features are zero and have no direction")
    directions = H / norms
    means = torch.nn.functional.normalize(class_means(directions, y)[0], dim=1)[y]
    # the chord is exact at small angles, where the cosine is rounded to 1
    angles = 2 * torch.asin(((directions - means).norm(dim=1) / 2).clamp(max=1))
    return angles.square().mean().sqrt().item()


def equiangularity(means: Tensor) -> float:
    r"""Largest deviation of the means' cosines from those of equiangular vectors.

    .. math:: \max_{a \ne b} \Big| \frac{\langle \mu_a, \mu_b\rangle}{\|\mu_a\|\|\mu_b\|} + \frac1{K-1} \Big|

    `means`: `(K, d)`. ValueError for fewer than two. Source: Laurent et al., equation (4), whose vectors have norm 1.
    """
    K = len(means)
    if K < 2:
        raise ValueError(f"means has {K} rows: an angle needs two")
    directions = torch.nn.functional.normalize(means, dim=1)
    cosines = directions @ directions.T
    off_diagonal = ~torch.eye(K, dtype=torch.bool, device=means.device)
    return (cosines[off_diagonal] + 1 / (K - 1)).abs().max().item()


def principal_singular_values(H: Tensor) -> Tensor:
    """Singular values `(min(n, d),)` of the centred cloud `H: (n, d)`, largest first, as a PCA reports them."""
    return torch.linalg.svdvals(H - H.mean(0))


def _class_counts(H: Tensor, y: Tensor) -> Tensor:
    """Samples of each class, `(K,)`, once features and labels are found to be what :func:`class_means` asks for."""
    if H.ndim != 2 or y.shape != H.shape[:1] or len(H) == 0:
        raise ValueError(f"H has shape {tuple(H.shape)}, y {tuple(y.shape)}; (n_samples, d) and (n_samples,) needed")
    if not torch.isfinite(H).all():
        raise ValueError(f"H has {int((~torch.isfinite(H)).sum())} entries that are not finite")
    if y.min() < 0:
        raise ValueError(f"y has the label {int(y.min())}: labels are 0..K-1")
    counts = torch.bincount(y)
    if (counts == 0).any():
        raise ValueError(f"class {int((counts == 0).nonzero()[0])} has no sample")
    return counts
