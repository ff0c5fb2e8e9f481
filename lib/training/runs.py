"""The results of many runs: as one thing for each run, or as one for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def stack(runs: Sequence, dim: int = 0):
    """The results of several runs as one: each tensor or array gets the runs as a new dimension.

    A result is a tensor, an array, a number or a word, or a dictionary or a list of results; all runs have the same
    form. Tensors stay tensors, whatever else becomes an array, a tuple becomes a list. ValueError if there is no run,
    or the lists of two runs differ in length.

    >>> stack([{"loss": 1.5, "levels": [torch.zeros(2)]}, {"loss": 0.5, "levels": [torch.ones(2)]}])
    {'loss': array([1.5, 0.5]), 'levels': [tensor([[0., 0.],
            [1., 1.]])]}
    """
    if len(runs) == 0:
        raise ValueError("there is no run to stack")
    first = runs[0]
    if isinstance(first, dict):
        return {name: stack([run[name] for run in runs], dim) for name in first}
    if isinstance(first, (list, tuple)):
        return [stack(parts, dim) for parts in zip(*runs, strict=True)]
    if torch.is_tensor(first):
        return torch.stack(list(runs), dim)
    return np.stack(runs, dim)


def unstack(results, dim: int = 0) -> list:
    """One result for each run, the inverse of :func:`stack`: `dim` is the dimension of the runs, in every tensor.

    ValueError if two parts hold different numbers of runs.

    >>> unstack({"loss": torch.tensor([1.5, 0.5]), "levels": [torch.eye(2)]})[1]
    {'loss': tensor(0.5000), 'levels': [tensor([0., 1.])]}
    """
    if isinstance(results, dict):
        parts = zip(*(unstack(part, dim) for part in results.values()), strict=True)
        return [dict(zip(results, run, strict=True)) for run in parts]
    if isinstance(results, (list, tuple)):
        return [list(run) for run in zip(*(unstack(part, dim) for part in results), strict=True)]
    return list(results.movedim(dim, 0) if torch.is_tensor(results) else np.moveaxis(results, dim, 0))
