"""The computations that take the book's time, each against the loops that one writes first, on the device at hand.

All sides of a row take turns in one process; ratios are medians within a round. Beside them stands the floor of
`bench.cost`. The table is kept in chapters/back/cost/, where the page on costs reads it.
"""

from __future__ import annotations

import datetime
import functools
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from numpy import median
from torch import Tensor, nn

from bench.cost import operations, rates, seconds
from lib.book.atomic import atomically
from lib.book.kernel.devices import name as name_of
from lib.data.sentences import sentence_task
from lib.models.losses import label_smoothing, squared_error
from lib.models.networks import mlp, resnet18, resnet20
from lib.models.sentences import empirical_risk, initial_weights
from lib.models.unconstrained import labels, one_hot, scores
from lib.training import perceptrons, resnets
from lib.training.cuda_graphs import rounding_to_tf32
from lib.training.sentence_descent import SentenceSGD, sentence_sgd
from lib.training.sgd import SGD, train
from lib.training.unconstrained import Descent, gradient_descent, random_runs

KEPT = Path(__file__).resolve().parents[1] / "chapters" / "back" / "cost"
ROUNDS, CLASSES, DEPTH = 5, 10, 9


class Sizes(NamedTuple):
    """How large the computations are, and how many steps are timed: of the book, and of a plain loop."""

    sentences: tuple = (3, 1200, 15, 1000, 100, 5)  # n_c, words, length, classes, width, sentences of each class
    sentence_steps: tuple = (40, 20)
    runs: int = 10  # of the unconstrained features models
    deep: tuple = (10, 50, 30, 4, 0.004, 0.5)  # K, n, width, layers, decay, rate: Figure 2 (top) of Sukenik et al.
    two_layers: tuple = (4, 50, 20, 2, 0.005, 0.1)  # Figure 3 of Tirer & Bruna, without ReLU
    descent_steps: tuple = (100, 200)
    mlps: tuple = (24, 64, 64, 640, 196)  # runs, width, batch, samples, inputs
    resnets: tuple = (16, 200, 8, 1 / 4, 50)  # runs, samples, side, width, batch
    resnet: tuple = (960, 1, 14, 1 / 4, 32)  # samples, channels, side, width, batch


PAPERS = {"mlps": (24, 2048, 512, 5120, 3072), "resnet": (10_240, 1, 28, 1.0, 128), "runs": 40}
PAPERS |= {"sentence_steps": (5000, 500), "descent_steps": (2000, 300)}
SIZES = {"cpu": Sizes(), "cuda": Sizes(**PAPERS)}
SMALLER = """On a processor three things are smaller than in the papers: the perceptrons ({mlps[0]} of width {mlps[1]},
{mlps[4]} inputs, batches of {mlps[2]}), the ResNets (width {resnet[3]:g}; {resnets[2]} × {resnets[2]} pixels and
batches of {resnets[4]} for ResNet20, {resnet[2]} × {resnet[2]} and {resnet[4]} for ResNet18), and the number of runs.
The sentence task and the unconstrained models have the papers' sizes."""


class Kernel(NamedTuple):
    """Jobs that train the same networks, each with the number of steps of one network that it makes."""

    name: str
    book: tuple[Callable[[], object], int]
    plain: tuple[Callable[[], object], int]  # autograd and an optimiser, one run after the other
    batched: tuple[Callable[[], object], int] | None = None  # the same for all runs at once, with a leading dimension
    kind: str = "float32"  # of number in the products
    least: Callable[[], object] | None = None  # one step with all operations that have to be; otherwise as in `plain`


def run() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = "one thread" if torch.get_num_threads() == 1 else f"{torch.get_num_threads()} threads"
    about = {"device": name_of(device), "torch": torch.__version__, "cores": os.cpu_count(), "threads": threads}
    about |= {"date": datetime.date.today().isoformat(), "sizes": "All sizes are the paper's.", "rates": rates(device)}
    if device == "cpu":
        sizes = SIZES["cpu"]
        about["sizes"] = SMALLER.format(**sizes._asdict())
    about["rows"] = [measured(kernel, about["rates"], device) for kernel in computations(device, SIZES[device])]
    with atomically(KEPT / f"{device}.json") as partial:
        partial.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def measured(kernel: Kernel, best: dict[str, float], device: str, rounds: int = ROUNDS) -> dict:
    """A row of the table: operations, their floor, and for each job the seconds of a step; ratios to the book's."""
    work = operations(kernel.least) if kernel.least else operations(kernel.plain[0]) / kernel.plain[1]
    jobs = {"book": kernel.book, "plain": kernel.plain, "batched": kernel.batched}
    times = {name: [] for name, job in jobs.items() if job}
    for number in range(rounds + 1):
        for name, found in times.items():
            job, steps = jobs[name]
            taken = seconds(job, device) / steps
            if number:  # the first round warms up
                found.append(taken)
    row = {"name": kernel.name, "operations": work, "floor": work / best[kernel.kind]}
    row |= {name: median(found) for name, found in times.items()}
    for name, ratio in (("plain", "ratio"), ("batched", "batched_ratio")):
        if name in times:
            row[ratio] = median([b / a for a, b in zip(times["book"], times[name], strict=True)])
    print(", ".join(f"{name}: {value:.3g}" if name != "name" else value for name, value in row.items()), flush=True)
    return row


def computations(device: str, sizes: Sizes) -> list[Kernel]:
    """The rows of the table on one kind of device."""
    makers = _sentences, _gradient_descent, _perceptrons, _resnets, _resnet
    return [kernel for make in makers for kernel in make(device, sizes)]


def _sentences(device: str, sizes: Sizes) -> list[Kernel]:
    n_c, n_w, L, K, d, n_spl = sizes.sentences
    x, y = (part.to(device) for part in sentence_task(n_c, n_w, L, K, "zipf", seed=0).sample(n_spl, seed=1))
    start = [part.to(device) for part in initial_weights(n_w, K, L, d, 0, 1e-3)]
    steps, plain_steps = sizes.sentence_steps

    def book(normalize, tf32):
        W, U = (part.clone() for part in start)
        order = torch.Generator().manual_seed(0)
        with rounding_to_tf32(tf32):
            sentence_sgd(W, U, x, y, SentenceSGD(1e-3, 0.1, 100, steps, normalize), order)

    def plain(normalize):
        W, U = (part.clone().requires_grad_() for part in start)
        groups = [{"params": [W], "weight_decay": 0.0 if normalize else 1e-3}, {"params": [U], "weight_decay": 1e-3}]
        optimiser = torch.optim.SGD(groups, lr=0.1)
        for step in range(plain_steps):
            position = 100 * step % len(x)
            if position == 0:
                order = torch.randperm(len(x)).to(device)
            batch = order[position : position + 100]
            optimiser.zero_grad()
            empirical_risk(W, U, x[batch], y[batch], 0.0, normalize).backward()
            optimiser.step()

    kernels = []
    for kind in ("float32", "tf32") if device == "cuda" else ("float32",):
        for name, normalize in (("h", False), ("h*", True)):
            jobs = functools.partial(book, normalize, kind == "tf32"), functools.partial(plain, normalize)
            name = f"sentence task, {name}" + ", TF32" * (kind == "tf32")
            kernels.append(Kernel(name, (jobs[0], steps), (jobs[1], plain_steps), kind=kind))
    return kernels


def _gradient_descent(device: str, sizes: Sizes) -> list[Kernel]:
    """With a ReLU while samples differ and when those of a class have come together; without, rotated."""
    runs, kernels = sizes.runs, []
    for name, (K, n, d, layers, decay, rate), equal, relu, factor in (
        ("DUFM, {} runs, all samples", sizes.deep, False, True, 1),
        ("DUFM, {} runs, class means", sizes.deep, True, True, 10),
        ("two linear layers, {} runs", sizes.two_layers, False, False, 10),
    ):
        y = labels(K, n, device)
        start = random_runs(K, n, d, layers, range(runs), [d**-0.5] * layers + [1.0])
        H, Ws = start.H.to(device), [W.to(device) for W in start.Ws]
        if equal:
            H = H.unflatten(-1, (K, n)).mean(-1).repeat_interleave(n, -1)
        start, first = start._replace(H=H, Ws=Ws), [part[:1] for part in (H, *Ws)]
        columns = K if equal else len(y) if relu else K + d  # as many as have to be carried
        least = [first[0][..., :columns], *first[1:]], torch.arange(columns, device=device) % K
        steps, plain_steps = sizes.descent_steps[0] * factor, sizes.descent_steps[1]
        book = functools.partial(gradient_descent, start, y, Descent(rate, steps, decay, relu=relu))
        loop = functools.partial(_loop, lam=decay, rate=rate, relu=relu, steps=plain_steps)
        plain, batched = functools.partial(loop, first, y), functools.partial(loop, [H, *Ws], y)
        jobs = (book, runs * steps), (plain, plain_steps), (batched, runs * plain_steps)
        kernels.append(Kernel(name.format(runs), *jobs, "float64", functools.partial(loop, *least, steps=1)))
    return kernels


def _loop(parts: list[Tensor], y: Tensor, lam: float, rate: float, relu: bool, steps: int) -> None:
    """The objective of all runs that the parts have, its gradient by autograd, a step."""
    parts = [part.clone().requires_grad_() for part in parts]
    Y = one_hot(y, parts[-1].shape[-2])
    for _ in range(steps):
        value = (scores(parts[0], parts[1:], relu=relu) - Y).square().sum() / (2 * len(y))
        gradients = torch.autograd.grad(value + lam / 2 * sum(part.square().sum() for part in parts), parts)
        with torch.no_grad():
            for part, gradient in zip(parts, gradients, strict=True):
                part.sub_(gradient, alpha=rate)


def _perceptrons(device: str, sizes: Sizes) -> list[Kernel]:
    runs, width, batch, samples, inputs = sizes.mlps
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, inputs, generator=generator).to(device)
    y = torch.randint(CLASSES, (runs, samples), generator=generator).to(device)
    weights = perceptrons.initialise(range(runs), inputs, width, CLASSES, width, DEPTH, device=device)
    models = [mlp(inputs, width, CLASSES, width, DEPTH, seed=seed).to(device) for seed in range(runs)]
    names = ([("ce", 0.0), ("ls", 0.1)] * runs)[:runs]
    sgd = SGD(2, 0.02, weight_decay=1e-3, nesterov=True, batch_size=batch)
    book = functools.partial(perceptrons.train_perceptrons, weights, x, y, names, sgd)
    loss, steps = functools.partial(label_smoothing, alpha=0.1), math.ceil(samples / batch)
    plain, batched = plain_loops(models, x, y[0], loss, sgd)
    kind = "tf32" if device == "cuda" else "float32"
    name = f"{runs} perceptrons of width {width}"
    return [Kernel(name, (book, 2 * runs * steps), (plain, steps), (batched, runs * steps), kind)]


def _resnets(device: str, sizes: Sizes) -> list[Kernel]:
    runs, samples, side, width, batch = sizes.resnets
    x, y = _images(samples, 3, side, device)
    models = [resnet20(CLASSES, 3, width, 4, seed=seed).to(device) for seed in range(runs)]
    ensemble, steps = resnets.Ensemble(models, device), samples // batch
    schedule = resnets.Schedule(steps, 1e-3, 5e-3, batch_size=batch)
    book = functools.partial(resnets.train_resnets, ensemble, x, y, schedule)
    sgd = SGD(1, 1e-3, weight_decay=5e-3, batch_size=batch)
    plain, batched = plain_loops(models, x, y, squared_error, sgd)
    kind = "bfloat16" if device == "cuda" else "float32"
    name = f"{runs} ResNet20s of width {width:g}, {side} × {side}"
    return [Kernel(name, (book, runs * steps), (plain, steps), (batched, runs * steps), kind)]


def _resnet(device: str, sizes: Sizes) -> list[Kernel]:
    samples, channels, side, width, batch = sizes.resnet
    x, y = _images(samples, channels, side, device)
    models = [resnet18(CLASSES, channels, width, bias=False).to(device) for _ in range(2)]
    sgd, steps = SGD(1, 1e-3, weight_decay=5e-4, batch_size=batch), math.ceil(samples / batch)
    book = functools.partial(train, models[0], x, y, squared_error, sgd)
    plain, _ = plain_loops(models[1:], x, y, squared_error, sgd)
    kind = "bfloat16" if device == "cuda" else "float32"
    return [Kernel(f"ResNet18 of width {width:g}, {side} × {side}", (book, steps), (plain, steps), kind=kind)]


def _images(samples: int, channels: int, side: int, device: str) -> tuple[Tensor, Tensor]:
    x = torch.randn(samples, channels, side, side, generator=torch.Generator().manual_seed(0))
    return x.to(device), (torch.arange(samples) % CLASSES).to(device)


def plain_loops(models: list[nn.Module], x: Tensor, y: Tensor, loss, sgd: SGD) -> tuple[Callable, Callable]:
    """An epoch of the first network, and one of all of them, which `torch.func.vmap` runs with a leading dimension."""

    def epoch(parameters, risk):
        settings = {"momentum": sgd.momentum, "weight_decay": sgd.weight_decay, "nesterov": sgd.nesterov}
        optimiser = torch.optim.SGD(parameters, sgd.learning_rate, **settings)
        for batch in torch.randperm(len(y)).to(x.device).split(sgd.batch_size):
            optimiser.zero_grad()
            risk(x[batch], y[batch]).backward()
            optimiser.step()
        return parameters

    weights, buffers = torch.func.stack_module_state(models)

    def of_one(weights, buffers, x):
        return torch.func.functional_call(models[0], (weights, buffers), (x,))

    def of_all(x, y):
        found = torch.func.vmap(of_one, (0, 0, None))(weights, buffers, x)
        return len(found) * loss(found.flatten(0, 1), y.repeat(len(found)))  # the sum over runs

    plain = functools.partial(epoch, list(models[0].parameters()), lambda x, y: loss(models[0](x), y))
    return plain, functools.partial(epoch, list(weights.values()), of_all)
