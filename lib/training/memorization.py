"""What networks that were trained with label noise have memorised: the measures of Nguyen et al. (2023), run by run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import collapsemetrics
from lib.data.label_noise import Noise

#: The readings of mem that :func:`memorization_sums` gives; the first is the printed one.
SUMS = "mem", "mem, training means", "mem, changed", "mem, changed, training means"


def memorization_sums(H: Tensor, noise: Noise, test_means: Tensor) -> dict[str, float]:
    r"""Memorization as printed, and as the paper's published code has it, in all four combinations (:data:`SUMS`).

    .. math:: \mathrm{mem} = \sum_{i \in S} \| h_i - m_{y^*_i} \|_2

    S holds the samples whose label was redrawn (printed) or those whose label has *changed*; :math:`m_k` is the mean of
    the test features of class k (printed) or of the *training* samples of the class that keep their label, and zero
    where there is none.

    Parameters
    ----------
    H
        Training features `(N, d)` of one run.
    noise
        Labels before and after, of the same samples.
    test_means
        Class means of the test features `(K, d)`.

    Examples
    --------
    >>> y, observed = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1])
    >>> noise = Noise(y, observed, corrupted=torch.tensor([False, True, False, True]))
    >>> H, test_means = torch.tensor([[0.0], [3.0], [4.0], [5.0]]), torch.tensor([[1.0], [4.0]])
    >>> list(memorization_sums(H, noise, test_means).values())  # distances 2 and 1 from test means, 3 and 0.5
    [3.0, 3.5, 2.0, 3.0]
    """
    unchanged = [H[(noise.y_true == k) & ~noise.changed].mean(0).nan_to_num() for k in range(len(test_means))]
    found = []
    for summed in (noise.corrupted, noise.changed):
        for means in (test_means, torch.stack(unchanged)):
            found.append(collapsemetrics.memorization(H[summed], noise.y_true[summed], means).item())
    return dict(zip(SUMS, found, strict=True))


def configuration(H: Tensor, y_observed: Tensor) -> str:
    """How the means of the training features lie: one word for a run in which two classes share two or more features.

    `"axes"` where the means of the observed classes are nearly orthogonal (every cosine below 0.3) and of similar
    length (the shortest above half of the longest), `"origin"` where one is far shorter than another (below a fifth),
    `"other"` for the rest. The limits are this book's. H is `(N, d)`, y_observed `(N,)`.

    >>> H, y = torch.tensor([[2.0, 0.1], [2.0, 0.1], [0.0, 1.5]]), torch.tensor([0, 0, 1])
    >>> configuration(H, y), configuration(H * torch.tensor([1.0, 0.1]), y)
    ('axes', 'origin')
    """
    means = torch.stack([H[y_observed == label].mean(0) for label in y_observed.unique()])
    lengths, directions = means.norm(dim=1), F.normalize(means)
    balance = lengths.min() / lengths.max()
    cosine = (directions @ directions.T).fill_diagonal_(-1).max()
    if cosine < 0.3 and balance > 0.5:
        return "axes"
    return "origin" if balance < 0.2 else "other"


def pairs_that_count(
    runs: Mapping[str, Mapping[str, np.ndarray]],
    losses: Sequence[str],
    shape: str | None = None,
    of_any_shape: Collection[str] = ("MSE",),
) -> np.ndarray:
    """Mask of the pairs (or triples) of runs, one with each of the losses, that are compared.

    A run counts if its dilation `"root"` is finite, a changed label was memorised (`"mem, changed"` is positive) and,
    where a shape is asked for, its `"shape"` is this one; the losses `of_any_shape` are exempt from the last. A pair
    counts if all its runs do.

    Parameters
    ----------
    runs
        `{loss: {quantity: array}}`; arrays of one shape, and a pair has one place in all of them.

    Examples
    --------
    >>> own = {"root": np.array([1.0, 2.0, np.nan]), "mem, changed": np.array([3.0, 3.0, 3.0])}
    >>> one, two = (own | {"shape": np.array(words)} for words in (["axes"] * 3, ["axes", "other", "axes"]))
    >>> pairs_that_count({"CE": one, "LS": two}, ("CE", "LS"), "axes").tolist()
    [True, False, False]
    """
    counts = []
    for loss in losses:
        own = runs[loss]
        counts.append(np.isfinite(own["root"]) & (own["mem, changed"] > 0))
        if shape and loss not in of_any_shape:
            counts.append(own["shape"] == shape)
    return np.logical_and.reduce(counts)
