"""Labels corrupted on purpose, with a record of which."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lib import checks


class Noise(NamedTuple):
    """Labels before and after, `(N,)` each, and the mask `(N,)` of the samples that the noise has picked."""

    y_true: Tensor
    y_observed: Tensor
    corrupted: Tensor

    @property
    def changed(self) -> Tensor:
        """Mask `(N,)` of the samples whose observed label is not the true one; a redrawn one may be."""
        return self.y_observed != self.y_true


def corrupt(y_true: Tensor, K: int, eta: float, seed: int) -> Noise:
    r"""Redraw each label with probability :math:`\eta`, independently, uniformly from all K labels.

    .. math:: P(\text{observed} \ne \text{true}) = \eta\, \frac{K - 1}{K},

    for a redrawn label may be the old one. `corrupted` marks the redrawn samples, those in the paper's sum, whether
    or not their label has changed.

    Source: Nguyen et al. (2023), section 4.1.

    Parameters
    ----------
    y_true
        Labels `(N,)`, `0..K-1`.
    K
        Number of classes, at least 2.
    eta
        In `[0, 1]`.
    seed
        Seed of a generator on the CPU, whatever the device. With one seed, a larger `eta` also redraws all labels that
        a smaller one does, to the same values.

    Returns
    -------
    Noise
        On the device of `y_true`.

    Raises
    ------
    ValueError
        For `eta` outside `[0, 1]`, and for labels of the wrong shape or dtype or outside `0..K-1`.

    Examples
    --------
    >>> noise = corrupt(torch.zeros(1000, dtype=torch.int64), K=10, eta=0.5, seed=0)
    >>> round(noise.corrupted.double().mean().item(), 1)
    0.5
    >>> bool((noise.changed <= noise.corrupted).all())  # a redrawn label may stay
    True
    """
    _check(y_true, K, eta)
    generator = torch.Generator().manual_seed(seed)
    corrupted = torch.rand(len(y_true), generator=generator, dtype=torch.float64) < eta
    redrawn = torch.randint(K, (len(y_true),), generator=generator)
    corrupted, redrawn = corrupted.to(y_true.device), redrawn.to(y_true.device)
    return Noise(y_true, torch.where(corrupted, redrawn, y_true), corrupted)


def latent_classes(y_true: Tensor, K: int, eta: float, seed: int) -> Noise:
    r"""Split off the share :math:`\eta` of each class k into an observed class of its own, :math:`K + k`.

    Of the :math:`n_k` samples of class k, exactly `round(eta * n_k)` (halves to the even number), chosen at random, get
    the observed label :math:`K + k`. There are then 2K observed classes, and k and K + k have the same kind of images:
    telling them apart is possible only sample by sample. `corrupted` marks the samples of the new classes.

    Parameters (labels `(N,)`), result and errors are those of :func:`corrupt`; `y_observed` is in `0..2K-1`. With one
    seed, a larger `eta` also splits off what a smaller one does.

    Source: Nguyen et al. (2023), appendix A.1.3.

    >>> y = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    >>> noise = latent_classes(y, K=2, eta=0.25, seed=0)
    >>> torch.bincount(noise.y_observed).tolist()
    [3, 3, 1, 1]
    """
    _check(y_true, K, eta)
    order = torch.randperm(len(y_true), generator=torch.Generator().manual_seed(seed)).to(y_true.device)
    corrupted = torch.zeros_like(y_true, dtype=torch.bool)
    for k in range(K):
        members = order[y_true[order] == k]
        corrupted[members[: round(eta * len(members))]] = True
    return Noise(y_true, torch.where(corrupted, y_true + K, y_true), corrupted)


def _check(y_true: Tensor, K: int, eta: float) -> None:
    checks.integers(2, K=K)
    if not 0 <= eta <= 1:
        raise ValueError(f"eta = {eta!r}: a number in [0, 1] is needed")
    checks.labels(y_true, len(y_true), K, every=False)
