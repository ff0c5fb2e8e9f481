r"""SGD on many small ResNet20s at once: the runs stand side by side as groups of channels.

The networks are those of :func:`lib.models.networks.resnet20`, all of one shape. Maps of all runs are one tensor
`(B, R C, height, width)`, a convolution of all runs is one with R groups, and batch normalisation works channel by
channel anyway. Every run has its own weights, order of the samples, learning rate and weight decay, and ends where it
would have ended alone, up to rounding. Small networks gain most: alone, they are bound by the number of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lib import checks
from lib.models.networks import ResNet20
from lib.training.cuda_graphs import rounding_to_tf32
from lib.training.sgd import fastest_convolutions

_EPS, _FORGET = 1e-5, 0.1  # of nn.BatchNorm2d


class Look(NamedTuple):
    """What R networks do with N samples, in float64."""

    layers: list[Tensor]  #: :math:`H_1, \tilde H_2, \dots, \tilde H_{L+1}` as rows, `(R, N, width)`; the last: scores
    weights: list[Tensor]  #: :math:`W_1, \dots, W_L`, each `(R, out, in)`


class Ensemble:
    """R networks of :func:`lib.models.networks.resnet20`, of one shape, side by side, made of copies of their weights.

    >>> from lib.models.networks import resnet20
    >>> ensemble = Ensemble([resnet20(K=3, width=1 / 4, seed=seed) for seed in (0, 1)])
    >>> H, scores = ensemble.forward(torch.zeros(2, 5, 3, 8, 8))
    >>> tuple(H.shape), tuple(scores.shape)
    ((2, 5, 16), (2, 5, 3))
    """

    def __init__(self, models: Sequence[ResNet20], device: torch.device | str = "cpu"):
        weights = [dict(model.named_parameters()) for model in models]
        self._template, self.runs = models[0], len(models)
        self.parameters = {}  #: convolutions and batch normalisation `(R out, ...)`, the head `(R, out, in)`
        for name in weights[0]:
            parts = [own[name].detach() for own in weights]
            joined = torch.stack(parts) if name.startswith("head") else torch.cat(parts)
            self.parameters[name] = joined.to(device).requires_grad_()
        self.depth, self.classes = len(models[0].head), models[0].head[-1].out_features

    def forward(self, x: Tensor, mixed_precision: bool = False) -> list[Tensor]:
        r"""Images `(R, B, C, height, width)` to :math:`H_1, \tilde H_2, \dots`, each `(R, B, width)`.

        Batch normalisation uses the statistics of this batch. With `mixed_precision` the maps of the backbone and the
        factors of its convolutions are bfloat16; the features are means over these maps in the dtype of `x`, and the
        head, in which ranks are counted, computes in that dtype.
        """
        with torch.autocast(x.device.type, torch.bfloat16, enabled=mixed_precision):
            maps = self._maps(x)
        found = [maps.to(x.dtype).mean((2, 3)).reshape(x.shape[1], self.runs, -1).transpose(0, 1)]
        for layer in range(self.depth):
            H = found[-1].relu() if layer else found[-1]
            found.append(H @ self.parameters[f"head.{layer}.weight"].mT)
        return found

    def _maps(self, x: Tensor) -> Tensor:
        """The backbone's maps `(B, R maps, rows, columns)` of images `(R, B, C, height, width)`."""
        p, R = self.parameters, self.runs

        def convolution(x, name, stride=1):
            return F.conv2d(x, p[f"{name}.weight"], stride=stride, padding=1, groups=R)

        def normalised(x, name):
            return F.batch_norm(x, None, None, p[f"{name}.weight"], p[f"{name}.bias"], True, _FORGET, _EPS)

        # on a processor batch normalisation of small maps is faster with the channels next to each other
        order = torch.channels_last if x.device.type == "cpu" else torch.contiguous_format
        B = x.shape[1]
        x = x.transpose(0, 1).reshape(B, -1, *x.shape[3:]).contiguous(memory_format=order)
        x = normalised(convolution(x, "conv1"), "bn1").relu_()
        for stage in ("layer1", "layer2", "layer3"):
            for position, block in enumerate(getattr(self._template, stage)):
                name, stride = f"{stage}.{position}", block.stride
                out = normalised(convolution(x, f"{name}.conv1", stride), f"{name}.bn1").relu_()
                out = normalised(convolution(out, f"{name}.conv2"), f"{name}.bn2")
                if block.new_maps or stride > 1:
                    shortcut = x[:, :, ::stride, ::stride].unflatten(1, (R, -1))
                    x = F.pad(shortcut, (0, 0, 0, 0, 0, block.new_maps)).flatten(1, 2).contiguous(memory_format=order)
                x = (out + x).relu_()
        return x

    @torch.no_grad()
    def look(self, x: Tensor, batch_size: int = 1000) -> Look:
        """All runs on the same images `(N, C, height, width)`, each batch normalised with its own statistics."""
        with rounding_to_tf32(False):  # a look measures ranks and spreads, which that rounding would hide
            batches = [self.forward(part.expand(self.runs, *part.shape)) for part in x.split(batch_size)]
        layers = [torch.cat(parts, 1).double() for parts in zip(*batches, strict=True)]
        heads = [self.parameters[f"head.{layer}.weight"].detach() for layer in range(self.depth)]
        return Look(layers, [W.to(torch.float64, copy=True) for W in heads])  # training goes on in place


class Schedule(NamedTuple):
    """The settings of :func:`train_resnets`; where a sequence is allowed, it has one number for each run."""

    steps: int
    learning_rate: float | Sequence[float]
    weight_decay: float | Sequence[float]
    feature_decay: float | Sequence[float] | None = None
    momentum: float = 0.9
    batch_size: int = 50
    warmup: int = 0  #: number of first steps over which the learning rates grow linearly to their values
    #: number of first steps over which the weight decay grows exponentially, from a thousandth of its value
    slow_start: int | Sequence[int] = 0
    feature_slow_start: int | Sequence[int] = 0  #: the same for the feature decay
    drop: int | None = None  #: number of steps after which the learning rates are divided by ten


def train_resnets(
    ensemble: Ensemble,
    x: Tensor,
    y: Tensor,
    schedule: Schedule,
    seeds: Sequence[int] | None = None,
    looks: Sequence[int] = (),
    callback: Callable[[int], object] | None = None,
    mixed_precision: bool | None = None,
) -> list[int | None]:
    r"""Train all runs in place by SGD with momentum on the squared error, in the scale of the model.

    With `feature_decay` the objective has the model's regularisation, which does not act on the backbone's weights,

    .. math:: \frac1{2N} \sum_i \|f(x_i) - e_{y_i}\|^2 + \frac{\lambda_{H_1}}2 \|H_1\|_F^2
              + \sum_l \frac{\lambda}2 \|W_l\|_F^2,

    where a batch of B samples stands for all N, so that its features count N/B times; without it the standard one,

    .. math:: \frac1{2N} \sum_i \|f(x_i) - e_{y_i}\|^2 + \frac\lambda2 \|\theta\|^2,

    with :math:`\theta` all parameters, those of batch normalisation included. Within an epoch nothing is copied to the
    device, or read from it, except for the looks.

    Parameters
    ----------
    x, y
        Images `(N, C, height, width)` and labels `(N,)` of all runs, on the ensemble's device.
    schedule
        The settings.
    seeds
        One for each run, by default its number, for the random orders in which the run goes through the samples in
        batches; a remainder that does not fill a batch is left out.
    looks, callback
        `callback(step)` is called after these numbers of steps, 0 meaning before the first.
    mixed_precision
        Whether the backbone computes in bfloat16 (:meth:`Ensemble.forward`); by default on a GPU only. Weights, their
        momentum, and what a look shows have the dtype of `x` in any case.

    Returns
    -------
    list
        For each run None, or the first of the looks (or the end) at which its weights were not finite.

    Raises
    ------
    ValueError
        For a number out of its range or data that do not fit. A run that diverges raises nothing: it is reported, and
        the others go on.
    """
    _check(ensemble, x, y, schedule, looks)
    R, N, size = ensemble.runs, len(y), schedule.batch_size
    drop = schedule.steps if schedule.drop is None else schedule.drop
    mixed_precision = x.device.type == "cuda" if mixed_precision is None else mixed_precision
    rates, decays, feature_decays = _of_each_step(schedule, R, N, x)
    targets = F.one_hot(y, ensemble.classes).to(x.dtype)
    parts = list(ensemble.parameters.values())
    velocities, downhill = [torch.zeros_like(part) for part in parts], [_spread(-rates, part) for part in parts]
    # with a decay of the features the weights of the backbone do not decay
    decayed = [feature_decays is None or name.startswith("head") for name in ensemble.parameters]
    seeds = range(R) if seeds is None else seeds
    generators = [torch.Generator().manual_seed(own) for _, own in zip(range(R), seeds, strict=True)]
    diverged: list[int | None] = [None] * R

    def report(step: int) -> None:
        sums = torch.stack([part.detach().reshape(R, -1).sum(1) for part in parts]).sum(0)
        for run, fine in enumerate(torch.isfinite(sums).tolist()):
            if not fine and diverged[run] is None:
                diverged[run] = step
        if callback and step in looks:
            callback(step)

    report(0)
    for step in range(schedule.steps):
        position = step % (N // size)
        if position == 0:
            order = torch.stack([torch.randperm(N, generator=generator) for generator in generators]).to(x.device)
        batch = order[:, position * size : (position + 1) * size]
        price = None if feature_decays is None else feature_decays[step]
        gradients = _gradients(ensemble, x[batch], targets[batch], price, mixed_precision)
        with torch.no_grad():
            for gradient, part, chosen in zip(gradients, parts, decayed, strict=True):
                if chosen:
                    gradient.addcmul_(_spread(decays[step], part), part)
            torch._foreach_mul_(velocities, schedule.momentum)
            torch._foreach_add_(velocities, gradients)
            share = min(1.0, (step + 1) / (schedule.warmup or 1)) * (0.1 if step >= drop else 1.0)
            torch._foreach_addcmul_(parts, velocities, downhill, share)
        if step + 1 in looks or step + 1 == schedule.steps:
            report(step + 1)
    return diverged


def _gradients(
    ensemble: Ensemble, x: Tensor, targets: Tensor, price: Tensor | None, mixed_precision: bool
) -> list[Tensor]:
    """Of the objective on a batch, without the decay of the weights; `price: (R,)` times the squared features."""
    with fastest_convolutions():
        layers = ensemble.forward(x, mixed_precision)
        value = (layers[-1] - targets).square().sum() / (2 * x.shape[1])
        if price is not None:
            value = value + (price * layers[0].square().sum((1, 2))).sum()
        return list(torch.autograd.grad(value, list(ensemble.parameters.values())))


def _check(ensemble: Ensemble, x: Tensor, y: Tensor, schedule: Schedule, looks: Sequence[int]) -> None:
    """ValueError for settings that have one number and are out of their range, and for data that do not fit."""
    checks.positive_integers(steps=schedule.steps, batch_size=schedule.batch_size)
    checks.shares(momentum=schedule.momentum)
    checks.not_negative(warmup=schedule.warmup, drop=schedule.drop or 0)
    if not schedule.batch_size <= len(y) == len(x):
        counts = f"{len(x)} images, {len(y)} labels, batch_size = {schedule.batch_size}"
        raise ValueError(f"{counts}: as many labels as images are needed, and no larger batches")
    if any(not 0 <= step <= schedule.steps for step in looks):
        raise ValueError(f"looks = {list(looks)}: they have to lie between 0 and steps = {schedule.steps}")
    checks.labels(y, len(y), ensemble.classes)


def _of_each_step(schedule: Schedule, R: int, N: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Learning rates `(R,)`, weight decays `(steps, R)`, and what the squared features of a batch cost `(steps, R)`."""

    def of_runs(zero: bool = True, **setting) -> Tensor:
        return torch.tensor(*checks.each(R, zero, **setting), device=like.device, dtype=torch.float64)

    def growing(slow_start: Tensor) -> Tensor:
        numbers = torch.arange(1, schedule.steps + 1, device=like.device)[:, None]
        return 1000 ** (numbers / slow_start - 1).clamp(max=0)

    rates, decays = of_runs(False, learning_rate=schedule.learning_rate), of_runs(weight_decay=schedule.weight_decay)
    decays = decays.to(like) * growing(of_runs(slow_start=schedule.slow_start)).to(like)
    times = growing(of_runs(feature_slow_start=schedule.feature_slow_start)) * N / schedule.batch_size / 2
    if schedule.feature_decay is None:
        return rates.to(like), decays, None
    return rates.to(like), decays, times.to(like) * of_runs(feature_decay=schedule.feature_decay).to(like)


def _spread(values: Tensor, part: Tensor) -> Tensor:
    """One number per run, `(R,)`, shaped to multiply a parameter whose first dimension holds one run after another."""
    return values.repeat_interleave(len(part) // len(values)).reshape(-1, *[1] * (part.ndim - 1))
