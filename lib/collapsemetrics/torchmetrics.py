r"""Measures of collapse as a metric of `torchmetrics`."""

from __future__ import annotations

from functools import partial
from math import nan

import torch
from torch import Tensor
from torchmetrics import Metric

from .streaming import ClassStatistics

_NAMES = (
    *("nc1", "trace_ratio", "trace_ratio_debiased", "cdnv", "relative_spread", "nc2_etf", "nc2_of", "uniformity"),
    *("numerical_rank", "condition_number"),
)


class ClassCollapse(Metric):
    """How far features have collapsed, over all batches and all processes, in bounded memory::

        metric = ClassCollapse(K=10, d=512).to(device)
        for x, y in loader:
            metric.update(features(x), y)
        metric.compute()["nc1"]

    The state is one float64 tensor, all that :class:`~collapsemetrics.ClassStatistics` keeps laid end to end:
    `torchmetrics` reduces one tensor of the state at a time, and means and scatter can be merged only together. So
    processes, `merge_state` and `forward` all merge with the same function.

    Parameters
    ----------
    K, d
        Number of classes and width of the features.
    options
        Options of every `torchmetrics.Metric`, such as `process_group`.

    Raises
    ------
    ValueError
        As :class:`~collapsemetrics.ClassStatistics`, when made and at each update.
    """

    is_differentiable = False
    full_state_update = False

    def __init__(self, K: int, d: int, **options):
        super().__init__(**options)
        self.K, self.d = K, d
        self.add_state("statistics", _packed(ClassStatistics(K, d)), dist_reduce_fx=partial(_merged, K=K, d=d))

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Take in features `(n_samples, d)` with their labels."""
        statistics = _unpacked(self.statistics, self.K, self.d)
        statistics.update(features, labels)
        self.statistics = _packed(statistics)

    def compute(self) -> dict[str, float]:
        """What :meth:`~collapsemetrics.ClassStatistics.measures` finds, by name; nan while a class has no sample."""
        statistics = _unpacked(self.statistics, self.K, self.d)
        if not statistics.counts.all():
            return dict.fromkeys(_NAMES, nan)
        return {name: float(value) for name, value in statistics.measures().items()}


def _packed(statistics: ClassStatistics) -> Tensor:
    state = statistics.state_dict()
    return torch.cat([value.to(statistics.counts.device, torch.float64).flatten() for value in state.values()])


def _unpacked(packed: Tensor, K: int, d: int) -> ClassStatistics:
    statistics = ClassStatistics(K, d, packed.device)
    state = statistics.state_dict()
    parts = packed.split([value.numel() for value in state.values()])
    for (name, value), part in zip(state.items(), parts, strict=True):
        part = part.view(value.shape)
        typed = part.to(value.dtype)
        state[name] = typed if torch.equal(typed.double(), part) else part  # the centres of float64 features
    statistics.load_state_dict(state)
    return statistics


def _merged(several: Tensor, K: int, d: int) -> Tensor:
    first, *others = (_unpacked(packed, K, d) for packed in several)
    for other in others:
        first.merge(other)
    return _packed(first)
