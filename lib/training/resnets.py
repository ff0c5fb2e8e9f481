r"""SGD on many small ResNet20s at once: the runs stand side by side as groups of channels.

The networks are those of :func:`lib.models.networks.resnet20`, of one shape. Maps of all runs are one tensor
`(B, R C, height, width)`, a convolution of all runs is one with R groups, and batch normalisation works channel by
channel anyway. Every run has its own weights, order of the samples, learning rate and weight decay, and ends where it
would have ended alone, up to rounding. Small networks gain most: alone, they are bound by the number of calls.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.checks import positive_integers
from lib.models.networks import _ResNet20
from lib.training.sgd import fastest_convolutions

_EPS, _FORGET = 1e-5, 0.1  # of nn.BatchNorm2d


class Look(NamedTuple):
    r"""What R networks do with N samples.

    Attributes
    ----------
    layers
        :math:`H_1, \tilde H_2, \dots, \tilde H_{L+1}` as rows, each `(R, N, width)`, float64; the last are the scores.
    weights
        :math:`W_1, \dots, W_L`, each `(R, out, in)`, float64.
    squared_norm
        Of all parameters, :math:`\|\theta\|^2`, `(R,)`.
    """

    layers: list[Tensor]
    weights: list[Tensor]
    squared_norm: Tensor


class Ensemble:
    """R networks side by side; made of copies of their weights, which `networks` gives back.

    ValueError for networks that are not those of :func:`lib.models.networks.resnet20` or of more than one shape.

    >>> from lib.models.networks import resnet20
    >>> ensemble = Ensemble([resnet20(K=3, width=1 / 4, seed=seed) for seed in (0, 1)])
    >>> H, scores = ensemble.forward(torch.zeros(2, 5, 3, 8, 8))
    >>> tuple(H.shape), tuple(scores.shape)
    ((2, 5, 16), (2, 5, 3))
    """

    def __init__(self, models: Sequence[nn.Module], device: torch.device | str = "cpu"):
        if not models or not all(isinstance(model, _ResNet20) for model in models):
            raise ValueError("models: at least one network of lib.models.networks.resnet20 is needed, and no other")
        weights = [dict(model.named_parameters()) for model in models]
        shapes = [{name: tuple(p.shape) for name, p in own.items()} for own in weights]
        for run, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise ValueError(f"models[{run}] has other shapes than models[0]: networks of one shape are needed")
        self._template, self.runs = models[0], len(models)
        self.parameters = {}  #: convolutions and batch normalisation `(R out, ...)`, the head `(R, out, in)`
        for name in shapes[0]:
            parts = [own[name].detach() for own in weights]
            joined = torch.stack(parts) if name.startswith("head") else torch.cat(parts)
            self.parameters[name] = joined.to(device).requires_grad_()
        self.depth = len(models[0].head)

    def forward(self, x: Tensor, mixed_precision: bool = False) -> list[Tensor]:
        r"""Images `(R, B, C, height, width)` to :math:`H_1, \tilde H_2, \dots`, each `(R, B, width)`.

        Batch normalisation takes the statistics of this batch. With `mixed_precision` the maps of the backbone and the
        factors of its convolutions are bfloat16; the features are means over these maps in the dtype of `x`, and the
        head, in which ranks are counted, computes with that.
        """
        with torch.autocast(x.device.type, torch.bfloat16, enabled=mixed_precision):
            maps = self._maps(x)
        found = [maps.to(x.dtype).mean((2, 3)).reshape(x.shape[1], self.runs, -1).transpose(0, 1)]
        for layer in range(self.depth):
            H = found[-1].relu() if layer else found[-1]
            found.append(H @ self.parameters[f"head.{layer}.weight"].mT)
        return found

    def _maps(self, x: Tensor) -> Tensor:
        """What the backbone makes of images `(R, B, C, height, width)`: `(B, R maps, rows, columns)`."""
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
        """All runs at the same images `(N, C, height, width)`, each batch normalised with the statistics of its own."""
        batches = [self.forward(part.expand(self.runs, *part.shape)) for part in x.split(batch_size)]
        layers = [torch.cat(parts, 1).double() for parts in zip(*batches, strict=True)]
        weights = [
            self.parameters[f"head.{layer}.weight"].detach().to(torch.float64, copy=True) for layer in range(self.depth)
        ]
        squares = [part.double().square().reshape(self.runs, -1).sum(1) for part in self.parameters.values()]
        return Look(layers, weights, torch.stack(squares).sum(0))

    def networks(self, x: Tensor) -> list[nn.Module]:
        """The R networks one by one, in evaluation mode with the statistics of the images `x`."""
        found = []
        for run in range(self.runs):
            model = copy.deepcopy(self._template).to(x.device)
            with torch.no_grad():
                for name, part in model.named_parameters():
                    joined = self.parameters[name]
                    part.copy_(joined[run] if name.startswith("head") else joined.unflatten(0, (self.runs, -1))[run])
                norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
                for layer in norms:
                    layer.momentum = 1.0
                model.train()(x)
                for layer in norms:
                    layer.momentum = _FORGET
            found.append(model.eval())
        return found


def train(
    ensemble: Ensemble,
    x: Tensor,
    y: Tensor,
    steps: int,
    learning_rate: float | Sequence[float],
    weight_decay: float | Sequence[float],
    feature_decay: float | Sequence[float] | None = None,
    momentum: float = 0.9,
    batch_size: int = 50,
    seed: int = 0,
    looks: Sequence[int] = (),
    callback: Callable[[int], object] | None = None,
    warmup: int = 0,
    slow_start: int | Sequence[int] = 0,
    feature_slow_start: int = 0,
    drop: int | None = None,
    mixed_precision: bool | None = None,
) -> list[int | None]:
    r"""Train all runs in place by SGD with momentum on the squared error, in the scale of the model.

    With `feature_decay` the model's regularisation, which the weights of the backbone do not feel,

    .. math:: \frac1{2N} \sum_i \|f(x_i) - e_{y_i}\|^2 + \frac{\lambda_{H_1}}2 \|H_1\|_F^2
              + \sum_l \frac{\lambda}2 \|W_l\|_F^2,

    where a batch of B samples stands for all N, so that its features count N/B times; without it the standard one,

    .. math:: \frac1{2N} \sum_i \|f(x_i) - e_{y_i}\|^2 + \frac\lambda2 \|\theta\|^2,

    :math:`\theta` all parameters, those of batch normalisation included. Within an epoch nothing is copied to the
    device, or read from it, but for the looks.

    Parameters
    ----------
    x, y
        Images `(N, C, height, width)` and labels `(N,)` of all runs, on the ensemble's device.
    steps
        Number of steps. Run r goes through random orders of the samples, of the generator of seed `seed + r`, in
        batches of `batch_size`; a rest that fills no batch is left out.
    learning_rate, weight_decay, feature_decay
        One number, or one for each run.
    looks, callback
        `callback(step)` is called after these numbers of steps, 0 for before the first.
    warmup
        Number of first steps over which the learning rates grow linearly to their values.
    slow_start, feature_slow_start
        Numbers of first steps over which the weight decay and the feature decay grow to their values, exponentially
        from a thousandth of them; the first may be one for each run.
    drop
        Number of steps after which the learning rates are divided by ten.
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
    positive_integers(steps=steps, batch_size=batch_size)
    R, N = ensemble.runs, len(y)
    if len(x) != N or batch_size > N:
        counts = f"{len(x)} images, {N} labels, batch_size = {batch_size}"
        raise ValueError(f"{counts}: as many labels as images are needed, and no larger batches")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum = {momentum!r}: a number in [0, 1) is needed")
    counts = {"warmup": warmup, "feature_slow_start": feature_slow_start, "drop": 0 if drop is None else drop}
    for name, value in counts.items():
        if value < 0:
            raise ValueError(f"{name} = {value!r}: a number of steps is needed, not a negative one")
    if any(not 0 <= step <= steps for step in looks):
        raise ValueError(f"looks = {list(looks)}: they have to lie between 0 and steps = {steps}")
    device = x.device
    rates = _per_run("learning_rate", learning_rate, R, x)
    decays = _per_run("weight_decay", weight_decay, R, x, zero=True)
    lam_h = None if feature_decay is None else _per_run("feature_decay", feature_decay, R, x, zero=True)
    K = ensemble.parameters[f"head.{ensemble.depth - 1}.weight"].shape[1]
    if y.dtype != torch.int64 or not 0 <= y.min() <= y.max() < K:
        raise ValueError(f"y is {y.dtype}, from {y.min()} to {y.max()}: int64 from 0 to {K - 1} is needed")
    targets = F.one_hot(y, K).to(x.dtype)
    parts = list(ensemble.parameters.values())
    velocities = [torch.zeros_like(part) for part in parts]
    decayed = [lam_h is None or name.startswith("head") for name in ensemble.parameters]
    downhill = [_spread(-rates, part) for part in parts]
    slow = _per_run("slow_start", slow_start, R, x, zero=True).tolist()
    share_of_decay = torch.tensor(  # a row for each step in which some run's decay still grows, and one for the rest
        [[_grown(step, number) for number in slow] for step in range(min(steps, math.ceil(max(slow))) + 1)],
        device=device, dtype=x.dtype,
    )  # fmt: skip
    mixed_precision = device.type == "cuda" if mixed_precision is None else mixed_precision
    generators = [torch.Generator().manual_seed(seed + run) for run in range(R)]
    diverged: list[int | None] = [None] * R

    def report(step):
        sums = torch.stack([part.detach().reshape(R, -1).sum(1) for part in parts]).sum(0)
        for run, fine in enumerate(torch.isfinite(sums).tolist()):
            if not fine and diverged[run] is None:
                diverged[run] = step
        if callback and step in looks:
            callback(step)

    report(0)
    per_epoch = N // batch_size
    for step in range(steps):
        if step % per_epoch == 0:
            order = torch.stack([torch.randperm(N, generator=generator) for generator in generators]).to(device)
        batch = order[:, step % per_epoch * batch_size :][:, :batch_size]
        share = min(1.0, (step + 1) / (warmup or 1)) * (0.1 if drop is not None and step >= drop else 1.0)
        with fastest_convolutions():
            layers = ensemble.forward(x[batch], mixed_precision)
            value = (layers[-1] - targets[batch]).square().sum() / (2 * batch_size)
            if lam_h is not None:
                price = _grown(step, feature_slow_start) * N / batch_size / 2 * lam_h
                value = value + (price * layers[0].square().sum((1, 2))).sum()
            gradients = list(torch.autograd.grad(value, parts))
        with torch.no_grad():
            grown = decays * share_of_decay[min(step, len(share_of_decay) - 1)]
            for gradient, part, chosen in zip(gradients, parts, decayed, strict=True):
                if chosen:
                    gradient.addcmul_(_spread(grown, part), part)
            torch._foreach_mul_(velocities, momentum)
            torch._foreach_add_(velocities, gradients)
            torch._foreach_addcmul_(parts, velocities, downhill, share)
        if step + 1 in looks or step + 1 == steps:
            report(step + 1)
    return diverged


def _per_run(name: str, value, R: int, like: Tensor, zero: bool = False) -> Tensor:
    """`value` for each of R runs, positive or, with `zero`, not negative."""
    value = value.tolist() if isinstance(value, Tensor) else value
    numbers = [float(number) for number in (value if isinstance(value, Sequence) else [value] * R)]
    needed = "non-negative" if zero else "positive"
    fine = all(number < math.inf and (number > 0 or zero and number == 0) for number in numbers)
    if len(numbers) != R or not fine:
        raise ValueError(f"{name} = {value!r}: a {needed} number, or one for each of the {R} runs, is needed")
    return torch.tensor(numbers, device=like.device, dtype=like.dtype)


def _grown(step: int, slow_start: float) -> float:
    """The share of a decay in this step, counted from 0."""
    return 1000 ** min(0.0, (step + 1) / slow_start - 1) if slow_start else 1.0


def _spread(values: Tensor, part: Tensor) -> Tensor:
    """A number per run `(R,)` in a shape that multiplies a parameter whose first dimension has the runs in turn."""
    return values.repeat_interleave(len(part) // len(values)).reshape(-1, *[1] * (part.ndim - 1))
