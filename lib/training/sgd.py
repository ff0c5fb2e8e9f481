"""The training loop of every network in the book: stochastic gradient descent on data that lie on the device."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from lib.checks import positive_integers

#: A function of scores `(N, K)` and labels `(N,)` that returns a scalar.
Loss = Callable[[Tensor, Tensor], Tensor]
_COLUMNS = ("epoch", "objective", "loss", "accuracy", "lr", "seconds")  # of a row, before what the callback adds


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Loss,
    epochs: int,
    learning_rate: float,
    milestones: Sequence[int] = (),
    gamma: float = 0.1,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    batch_size: int = 128,
    seed: int = 0,
    callback: Callable[[int], Mapping | None] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1,
    resume: bool = True,
    mixed_precision: bool | None = None,
    channels_last: bool | None = None,
    progress: bool = False,
    nesterov: bool = False,
) -> list[dict]:
    r"""Train `model` in place by SGD on the regularised risk, and return what happened, epoch by epoch.

    .. math::

       \frac1N \sum_{i=1}^N \ell(f_\theta(x_i), y_i) + \frac{\lambda}{2} \|\theta\|^2,

    :math:`\lambda` the weight decay and :math:`\theta` all parameters, those of batch normalisation included. An epoch
    is a random order of the samples, cut into batches whose sizes differ by at most one. The order is drawn on the CPU,
    so that it is the same on every device. The device is that of `x`; nothing is copied to it, or read from it, within
    an epoch.

    Parameters
    ----------
    model
        Moved to the device of `x`. A model that draws random numbers itself (dropout) takes PyTorch's global generator.
    x, y
        Inputs `(N, ...)` and labels `(N,)`, on one device.
    loss
        Function of scores `(batch, K)`, never in half precision, and labels that returns the mean over the batch.
    epochs, learning_rate, milestones, gamma
        The learning rate is multiplied by `gamma` after each of the epochs in `milestones`.
    weight_decay, momentum
        As in :class:`torch.optim.SGD`.
    batch_size
        The largest size of a batch.
    seed
        Of the order of the samples.
    callback
        Called with the number of each finished epoch, and with 0 before the first; not again for the epochs of a
        checkpoint. The mapping that it may return (text to plain numbers, text, or lists and dictionaries of these;
        under other names than those of the row) becomes part of that epoch's row.
    checkpoint, checkpoint_every, resume
        A file that is replaced as a whole after every `checkpoint_every` epochs. If it exists and `resume` is true, the
        run goes on from there, on the CPU to exactly the result of a run that was never interrupted (unless the model
        draws random numbers itself).
    mixed_precision
        Autocast to bfloat16 in the network; by default on a GPU only.
    channels_last
        Memory order of images `(N, C, H, W)` and weights; by default on a GPU only.
    progress
        Show a progress bar.
    nesterov
        Whether the momentum is Nesterov's, as in :class:`torch.optim.SGD`.

    Returns
    -------
    list
        One row per epoch: `epoch`; `loss` and `accuracy`, means over the batches as they were trained on; `objective`,
        that loss plus :math:`\frac\lambda2\|\theta\|^2` at the end of the epoch; `lr`; `seconds` of training, the
        callback's not counted; and what the callback returned. A callback's mapping for epoch 0 makes a row without a
        loss.

    Raises
    ------
    ValueError
        For a number out of its range, inputs that are not finite, labels or shapes that do not fit, a callback's entry
        that cannot be kept, and a checkpoint that is damaged or belongs to another run.
    FloatingPointError
        If the loss of an epoch, or the objective at its end, is not finite; it names the epoch.

    Examples
    --------
    >>> x, y, model = torch.eye(2), torch.tensor([0, 1]), nn.Linear(2, 2)
    >>> history = train(model, x, y, nn.functional.cross_entropy, epochs=50, learning_rate=1)
    >>> len(history), history[-1]["accuracy"], history[-1]["loss"] < history[0]["loss"]
    (50, 1.0, True)
    """
    positive_integers(checkpoint_every=checkpoint_every)
    check_sgd(epochs, learning_rate, milestones, gamma, weight_decay, momentum, nesterov, batch_size)
    _check_data(x, y)
    device, on_gpu = x.device, x.device.type == "cuda"
    mixed_precision = on_gpu if mixed_precision is None else mixed_precision
    # on a CPU it is faster too, but oneDNN's backward pass of a strided 1x1 convolution of fewer than 16 channels then
    # writes where it should not, with an odd batch and several threads (torch 2.13)
    channels_last = (on_gpu if channels_last is None else channels_last) and x.ndim == 4
    model.to(device, memory_format=torch.channels_last if channels_last else torch.preserve_format)
    scores = _first_scores(model, x, y)

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.SGD(
        parameters, learning_rate, momentum, weight_decay=weight_decay, nesterov=nesterov, fused=True
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, list(milestones), gamma)
    order = torch.Generator().manual_seed(seed)
    history: list[dict] = []

    if checkpoint is not None:
        checkpoint = Path(checkpoint)
        run = {
            "epochs": epochs, "learning_rate": learning_rate, "milestones": list(milestones), "gamma": gamma,
            "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
            "batch_size": batch_size, "seed": seed,
            "loss": getattr(loss, "__name__", type(loss).__name__), "loss of fixed scores": _probe(loss, scores, y),
            "mixed_precision": mixed_precision,
            "data": _digest([x, y]), "initial weights": _digest(model.state_dict().values()),
        }  # fmt: skip
        if resume and checkpoint.exists():
            history = _restore(checkpoint, run, model, optimiser, schedule, order)

    def report(row: dict) -> None:
        found = (callback(row["epoch"]) if callback else None) or {}
        _check_found(found, row["epoch"], kept=checkpoint is not None)
        row.update(found)
        if len(row) > 1:
            history.append(row)

    # a gather from this memory order gives batches that are channels-last without a further copy
    inputs = x.permute(0, 2, 3, 1).contiguous() if channels_last else x
    first = history[-1]["epoch"] + 1 if history else 1
    if not history:
        report({"epoch": 0})
    for epoch in _bar(range(first, epochs + 1), epochs, progress):
        model.train()
        began, lr = time.perf_counter(), schedule.get_last_lr()[0]
        total = torch.zeros(2, dtype=torch.float64, device=device)  # loss and correct answers, summed over samples
        shuffled = torch.randperm(len(y), generator=order).to(device)
        with _fastest_convolutions():
            for batch in shuffled.tensor_split(math.ceil(len(y) / batch_size)):
                images, labels = inputs[batch], y[batch]
                with torch.autocast(device.type, torch.bfloat16, enabled=mixed_precision):
                    scores = model(images.permute(0, 3, 1, 2) if channels_last else images)
                scores = scores.float() if mixed_precision else scores
                value = loss(scores, labels)
                optimiser.zero_grad()
                value.backward()
                optimiser.step()
                with torch.no_grad():
                    total += torch.stack([value * len(batch), (scores.argmax(1) == labels).sum()])
        schedule.step()
        mean_loss, accuracy = (total / len(y)).tolist()
        objective = mean_loss + penalty(model, weight_decay)
        if not math.isfinite(objective):  # weights that the last step blew up show here, and only here
            what = f"the loss is {mean_loss}, the objective {objective}"
            raise FloatingPointError(f"epoch {epoch}: {what}; learning_rate = {lr} may be too large")
        seconds = time.perf_counter() - began
        report({"epoch": epoch, "objective": objective, "loss": mean_loss, "accuracy": accuracy, "lr": lr,
                "seconds": seconds})  # fmt: skip
        if checkpoint is not None and (epoch % checkpoint_every == 0 or epoch == epochs):
            _save(checkpoint, run, model, optimiser, schedule, order, history)
    return history


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
    total = torch.zeros(2, dtype=torch.float64, device=x.device)
    with _evaluating(model):
        for images, labels in zip(x.split(batch_size), y.split(batch_size), strict=True):
            scores = model(images)
            total += torch.stack([loss(scores, labels) * len(labels), (scores.argmax(1) == labels).sum()])
    mean_loss, accuracy = (total / len(y)).tolist()
    return {"loss": mean_loss, "accuracy": accuracy}


@contextlib.contextmanager
def _evaluating(model: nn.Module):
    """Evaluation mode, and afterwards the mode that each part of the model had."""
    training = {module: module.training for module in model.modules()}
    try:
        yield model.eval()
    finally:
        for module, mode in training.items():
            module.training = mode


@contextlib.contextmanager
def _fastest_convolutions():
    """cuDNN tries its algorithms on each new shape and keeps the fastest; a CPU does not notice."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def check_sgd(epochs, learning_rate, milestones, gamma, weight_decay, momentum, nesterov, batch_size) -> None:
    """ValueError that names the first setting of SGD which is out of its range; see :func:`train` for what they are.

    >>> check_sgd(10, 0.1, (), 0.1, 0.0, 1.5, False, 128)
    Traceback (most recent call last):
    ValueError: momentum = 1.5: a number in [0, 1) is needed
    """
    positive_integers(epochs=epochs, batch_size=batch_size)
    for name, value in (("learning_rate", learning_rate), ("gamma", gamma)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} = {value!r}: a positive number is needed")
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"weight_decay = {weight_decay!r}: a non-negative number is needed")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum = {momentum!r}: a number in [0, 1) is needed")
    if nesterov and not momentum:
        raise ValueError("nesterov = True: momentum = 0 has no Nesterov form, a number in (0, 1) is needed")
    if any(a >= b for a, b in zip([0, *milestones], milestones, strict=False)):
        raise ValueError(f"milestones = {list(milestones)}: increasing numbers of epochs from 1 are needed")


def _check_data(x: Tensor, y: Tensor) -> None:
    if y.ndim != 1 or len(x) != len(y) or len(y) == 0:
        raise ValueError(f"x {tuple(x.shape)} and y {tuple(y.shape)}: (N, ...) and (N,) with N >= 1 are needed")
    if x.device != y.device:
        raise ValueError(f"x is on {x.device} and y on {y.device}: one device is needed")
    if y.dtype != torch.int64:
        raise ValueError(f"y is {y.dtype}: labels are int64")
    if not torch.isfinite(x).all():
        raise ValueError(f"x has {int((~torch.isfinite(x)).sum())} entries that are not finite")


def _check_found(found: Mapping, epoch: int, kept: bool) -> None:
    """What a callback returned, before an epoch is lost to it."""
    for name, value in found.items():
        if name in _COLUMNS:
            raise ValueError(f"callback({epoch}) returned {name!r}: the row has a column of this name")
        if kept and not _is_plain(value):
            raise ValueError(
                f"callback({epoch}) returned {name!r} of type {type(value).__name__}: "
                "a checkpoint keeps plain numbers, text, and lists and dictionaries of these"
            )


def _is_plain(value) -> bool:
    if type(value) is dict:
        return all(_is_plain(part) for pair in value.items() for part in pair)
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return type(value) in (bool, int, float, str, type(None))  # not NumPy's float64, which is a float but loads as none


def _first_scores(model, x, y) -> Tensor:
    """Scores `(1, K)` of the first sample, once they are found to have a column for each label."""
    with torch.no_grad(), _evaluating(model):
        scores = model(x[:1])
    K = scores.shape[-1]
    low, high = y.min().item(), y.max().item()
    if low < 0 or high >= K:
        raise ValueError(f"y has labels from {low} to {high}: the model has {K} outputs, so 0..{K - 1} are allowed")
    return scores


def _bar(epochs, total, progress):
    if not progress:
        return epochs
    from rich.progress import track

    return track(epochs, "training", total=total, completed=epochs.start - 1)


# ------------------------------------------------------------------------------------------------------- checkpoints


@torch.no_grad()
def _probe(loss: Loss, scores: Tensor, y: Tensor) -> float:
    """A value that tells losses of one name apart: two lambdas, or one class with other options."""
    y = y[: scores.shape[-1]]
    fixed = torch.randn(len(y), scores.shape[-1], generator=torch.Generator().manual_seed(0), dtype=scores.dtype)
    return float(f"{loss(fixed.to(scores.device), y).item():.5g}")


def _digest(tensors) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy())
    return digest.hexdigest()


def _save(path, run, model, optimiser, schedule, order, history):
    state = {
        "run": run,
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "schedule": schedule.state_dict(),
        "order": order.get_state(),
        "history": history,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        torch.save(state, partial)
        os.replace(partial, path)  # a reader sees the old file or the new one, never half of one
    finally:
        partial.unlink(missing_ok=True)


def _restore(path, run, model, optimiser, schedule, order):
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        found = state["run"]
        for name in run:
            if found.get(name) != run[name]:
                raise ValueError(
                    f"{path}: this checkpoint has {name} = {found.get(name)!r}, the run {run[name]!r}; "
                    "give another path, or resume=False to start anew"
                )
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        schedule.load_state_dict(state["schedule"])
        order.set_state(state["order"])
        return state["history"]
    except ValueError:
        raise
    except Exception as error:  # whatever a damaged file makes of unpickling
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{path}: no readable checkpoint ({reason}); delete it, or give resume=False to start anew"
        ) from error
