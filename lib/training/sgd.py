"""The training loop of every network in the book: stochastic gradient descent on data that lie on the device."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lib import checks

#: A function of scores `(N, K)` and labels `(N,)` that returns a scalar.
Loss = Callable[[Tensor, Tensor], Tensor]


class SGD(NamedTuple):
    """The settings of stochastic gradient descent, as :class:`torch.optim.SGD` and `MultiStepLR` have them.

    >>> SGD(epochs=10, learning_rate=0.1, momentum=1.5).check()
    Traceback (most recent call last):
    ValueError: momentum = 1.5: a number in [0, 1) is needed
    """

    epochs: int
    learning_rate: float
    milestones: Sequence[int] = ()  #: epochs after each of which the learning rate is multiplied by `gamma`
    gamma: float = 0.1
    weight_decay: float = 0.0  #: of all parameters, those of batch normalisation included
    momentum: float = 0.9
    nesterov: bool = False  #: whether the momentum is Nesterov's
    batch_size: int = 128  #: the largest size of a batch

    def check(self) -> None:
        """ValueError that names the first setting which is out of its range."""
        checks.positive_integers(epochs=self.epochs, batch_size=self.batch_size)
        checks.positive(learning_rate=self.learning_rate, gamma=self.gamma)
        checks.not_negative(weight_decay=self.weight_decay)
        checks.shares(momentum=self.momentum)
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov = True: momentum = 0 has no Nesterov form, a number in (0, 1) is needed")
        if any(a >= b for a, b in zip([0, *self.milestones], self.milestones, strict=False)):
            raise ValueError(f"milestones = {list(self.milestones)}: increasing numbers of epochs from 1 are needed")


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Loss,
    sgd: SGD,
    seed: int = 0,
    callback: Callable[[int], Mapping | None] | None = None,
    mixed_precision: bool | None = None,
    channels_last: bool | None = None,
) -> list[dict]:
    r"""Train `model` in place by SGD on the regularised risk, and return what happened, epoch by epoch.

    .. math::

       \frac1N \sum_{i=1}^N \ell(f_\theta(x_i), y_i) + \frac{\lambda}{2} \|\theta\|^2,

    with :math:`\lambda` the weight decay and :math:`\theta` all parameters, those of batch normalisation included. An
    epoch is a random order of the samples, cut into batches whose sizes differ by at most one. The order is drawn on
    the CPU, so that it is the same on every device. The device is that of `x`; nothing is copied to it, or read from
    it, within an epoch.

    Parameters
    ----------
    model
        Moved to the device of `x`. A model that draws random numbers itself (dropout) uses PyTorch's global generator.
    x, y
        Inputs `(N, ...)` and labels `(N,)`, on one device.
    loss
        Function of scores `(batch, K)`, never in half precision, and labels that returns the mean over the batch.
    sgd
        The settings.
    seed
        Seed of the order of the samples.
    callback
        Called with the number of each finished epoch, and with 0 before the first. It may return a mapping
        (with names other than those of the row), which becomes part of that epoch's row.
    mixed_precision
        Autocast to bfloat16 in the network; by default on a GPU only.
    channels_last
        Memory order of images `(N, C, H, W)` and weights; by default on a GPU only.

    Returns
    -------
    list
        One row per epoch: `epoch`; `loss` and `accuracy`, means over the batches as they were trained on; `objective`,
        that loss plus :math:`\frac\lambda2\|\theta\|^2` at the end of the epoch; `lr`; `seconds` of training, without
        the callback's; and what the callback returned. A callback's mapping for epoch 0 makes a row without a loss.

    Raises
    ------
    ValueError
        For a setting out of its range, and labels that do not fit.
    FloatingPointError
        If the loss of an epoch, or the objective at its end, is not finite, even if the inputs are the
        cause; it names the epoch.

    Examples
    --------
    >>> x, y, model = torch.eye(2), torch.tensor([0, 1]), nn.Linear(2, 2)
    >>> history = train(model, x, y, nn.functional.cross_entropy, SGD(epochs=50, learning_rate=1))
    >>> len(history), history[-1]["accuracy"], history[-1]["loss"] < history[0]["loss"]
    (50, 1.0, True)
    """
    sgd.check()
    on_gpu = x.device.type == "cuda"
    mixed_precision = on_gpu if mixed_precision is None else mixed_precision
    # on a CPU it is faster too, but oneDNN's backward pass of a strided 1x1 convolution of fewer than 16 channels then
    # writes where it should not, with an odd batch and several threads (torch 2.13)
    channels_last = (on_gpu if channels_last is None else channels_last) and x.ndim == 4
    model.to(x.device)
    if channels_last:  # batches that are gathered from the images keep their order in memory
        model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        K = model.eval()(x[:1]).shape[-1]
    model.train()
    checks.labels(y, len(x), K, every=False)

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    settings = {"momentum": sgd.momentum, "weight_decay": sgd.weight_decay, "nesterov": sgd.nesterov}
    optimiser = torch.optim.SGD(parameters, sgd.learning_rate, **settings, fused=True)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, list(sgd.milestones), sgd.gamma)
    generator, history = torch.Generator().manual_seed(seed), []

    def report(row: dict) -> None:
        found = (callback(row["epoch"]) if callback else None) or {}
        if found or row["epoch"]:
            history.append(row | found)

    report({"epoch": 0})
    for epoch in range(1, sgd.epochs + 1):
        began, lr = time.perf_counter(), schedule.get_last_lr()[0]
        shuffled = torch.randperm(len(y), generator=generator).to(x.device)
        batches = shuffled.tensor_split(math.ceil(len(y) / sgd.batch_size))
        mean_loss, accuracy = _epoch(model, x, y, batches, loss, optimiser, mixed_precision)
        schedule.step()
        objective = mean_loss + penalty(model, sgd.weight_decay)
        if not math.isfinite(objective):  # weights that the last step blew up show here, and only here
            what = f"the loss is {mean_loss}, the objective {objective}"
            raise FloatingPointError(f"epoch {epoch}: {what}; learning_rate = {lr} may be too large")
        row = {"epoch": epoch, "objective": objective, "loss": mean_loss, "accuracy": accuracy, "lr": lr}
        report(row | {"seconds": time.perf_counter() - began})
    return history


def _epoch(model, x, y, batches, loss, optimiser, mixed_precision) -> list[float]:
    """A step for each batch; the mean loss and the share of correct answers."""
    model.train()
    total = torch.zeros(2, dtype=torch.float64, device=x.device)  # loss and correct answers, summed over samples
    with fastest_convolutions():
        for batch in batches:
            labels = y[batch]
            with torch.autocast(x.device.type, torch.bfloat16, enabled=mixed_precision):
                scores = model(x[batch])
            value = loss(scores.float() if mixed_precision else scores, labels)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            with torch.no_grad():
                total += torch.stack([value * len(batch), (scores.argmax(1) == labels).sum()])
    return (total / len(y)).tolist()


def penalty(model: nn.Module, weight_decay: float) -> float:
    r"""The weight decay's part of the objective, :math:`\frac{\lambda}{2} \|\theta\|^2` over all trained parameters.

    >>> layer = nn.Linear(3, 2)
    >>> _ = nn.init.ones_(layer.weight), nn.init.ones_(layer.bias)
    >>> penalty(layer, weight_decay=0.5)  # 8 parameters
    2.0
    """
    squares = [p.detach().double().square().sum() for p in model.parameters() if p.requires_grad]
    return weight_decay / 2 * torch.stack(squares).sum().item()


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor, loss: Loss, batch_size: int = 1000) -> dict[str, float]:
    """Mean `loss` and `accuracy` of the model in evaluation mode on inputs `(N, ...)` and labels `(N,)`.

    >>> scores, y = torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])
    >>> found = evaluate(nn.Identity(), scores, y, nn.functional.cross_entropy)
    >>> round(found["loss"], 4), found["accuracy"]  # log 2; class 0 for all
    (0.6931, 0.75)
    """
    total, training = torch.zeros(2, dtype=torch.float64, device=x.device), model.training
    model.eval()
    for images, labels in zip(x.split(batch_size), y.split(batch_size), strict=True):
        scores = model(images)
        total += torch.stack([loss(scores, labels) * len(labels), (scores.argmax(1) == labels).sum()])
    model.train(training)
    mean_loss, accuracy = (total / len(y)).tolist()
    return {"loss": mean_loss, "accuracy": accuracy}


@contextlib.contextmanager
def fastest_convolutions():
    """Let cuDNN try its algorithms on each new shape and keep the fastest; a CPU is not affected.

    >>> with fastest_convolutions():
    ...     torch.backends.cudnn.benchmark
    True
    """
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
