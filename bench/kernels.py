"""The computations that take the book's time, each against the loop that one writes first, on the device at hand.

Both sides of a row take turns in one process; ratios are medians within a round. Beside them stands the floor of
`bench.cost`. The table is kept in chapters/back/cost/, where the page on costs reads it.
"""

from __future__ import annotations

import datetime
import functools
import json
import math
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from bench.cost import operations, rates, seconds
from bench.solver import LAM, N_SPL, N_W, D, K, L, _plain_sgd
from lib.book.atomic import atomically
from lib.book.kernel.devices import name as name_of
from lib.data.sentences import sentence_task
from lib.models.losses import label_smoothing, squared_error
from lib.models.networks import mlp, resnet18, resnet20
from lib.models.sentences import initial_weights
from lib.models.unconstrained import labels, one_hot, scores
from lib.training import perceptrons, resnets
from lib.training.cuda_graphs import rounding_to_tf32
from lib.training.sentences import SentenceSGD, sentence_sgd
from lib.training.sgd import SGD, train
from lib.training.unconstrained import Descent, gradient_descent, random_runs

KEPT = Path(__file__).resolve().parents[1] / "chapters" / "back" / "cost"
ROUNDS = 5
#            on a GPU, on a processor
RUNS = (40, 10)  # of the unconstrained features models
DEEP = (10, 50, 30, 4, 0.004, 0.5)  # K, n, width, layers, decay, rate: Figure 2 (top) of Sukenik et al.
TWO_LAYERS = (4, 50, 20, 2, 0.005, 0.1)  # Figure 3 of Tirer & Bruna, without ReLU
MLPS = ((24, 2048, 512, 5120, 3072), (24, 64, 64, 640, 196))  # runs, width, batch, samples, inputs
DEPTH, CLASSES = 9, 10
RESNETS = (16, 200, 8, 1 / 4, 50)  # runs, samples, side, width, batch
RESNET = ((10_240, 1, 28, 1.0, 128), (960, 1, 14, 1 / 4, 32))  # samples, channels, side, width, batch
NOTE = """Device: {device}; torch {torch}, {threads} of {cores} cores. Medians of {rounds} rounds after a first one that
warms up, a step is one of one network or run, set-up and recording of graphs included. 'plain loop': autograd and an
optimiser step in Python, float32 as torch has it (float64 for the unconstrained model, as in the book), data on the
device, one run after the other, nothing read back. {sizes} Ratios of an H200 that the book aims at: 10 for the sentence
task, 20 for the unconstrained model, 5 for the perceptrons, 2 for the ResNet."""
SMALLER = """On a processor the perceptrons, the ResNet, its images, and the number of runs are smaller than the paper's
({mlps}; {resnet}; {runs} runs); the sentence task and the unconstrained model have the paper's sizes. One run of the
plain loop stands for all of them."""


class Kernel(NamedTuple):
    """Two jobs, and how many steps of one network each of them makes."""

    name: str
    ours: Callable[[], object]
    our_steps: int
    plain: Callable[[], object]
    plain_steps: int
    kind: str = "float32"  # of number in the products
    least: Callable[[], object] | None = None  # one step with all operations that have to be; otherwise as in `plain`


def run(console: Console) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    best, rows = rates(device), []
    table = Table(title=f"Seconds for a step, {name_of(device)}")
    for column in ("", "operations", "floor", "the book", "of the floor", "plain loop", "of the book", "between"):
        table.add_column(column, justify="right")
    for kernel in computations(device):
        console.print(f"{kernel.name} ...")
        work = operations(kernel.least) if kernel.least else operations(kernel.plain) / kernel.plain_steps
        ours, plain = _times(kernel, device)
        ratios = [b / a for a, b in zip(ours, plain, strict=True)]
        row = {
            "name": kernel.name, "operations": work, "floor": work / best[kernel.kind],
            "book": statistics.median(ours), "plain": statistics.median(plain), "ratio": statistics.median(ratios),
        }  # fmt: skip
        rows.append(row)
        cells = f"{work:.2e}", f"{row['floor']:.2e}", f"{row['book']:.2e}", f"{row['book'] / row['floor']:.1f}"
        span = f"{min(ratios):.1f} to {max(ratios):.1f}"
        table.add_row(kernel.name, *cells, f"{row['plain']:.2e}", f"{row['ratio']:.1f}", span)
    console.print(table)
    sizes = "All sizes are the paper's."
    if device == "cpu":
        runs, width, batch, _, inputs = MLPS[1]
        _, _, side, factor, resnet_batch = RESNET[1]
        sizes = SMALLER.format(
            mlps=f"{runs} of width {width}, {inputs} inputs, batches of {batch}",
            resnet=f"width {factor:g}, {side} × {side} pixels, batches of {resnet_batch}", runs=RUNS[1],
        )  # fmt: skip
    threads = "one thread" if torch.get_num_threads() == 1 else f"{torch.get_num_threads()} threads"
    about = {"device": name_of(device), "torch": torch.__version__, "threads": threads, "cores": os.cpu_count()}
    console.print(NOTE.format(**about, rounds=ROUNDS, sizes=sizes), highlight=False)
    about |= {"date": datetime.date.today().isoformat(), "sizes": sizes, "rates": best, "rows": rows}
    with atomically(KEPT / f"{device}.json") as partial:
        partial.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def computations(device: str) -> list[Kernel]:
    """The rows of the table on one kind of device."""
    makers = _sentences, _gradient_descent, _perceptrons, _resnets, _resnet
    return [kernel for make in makers for kernel in make(device)]


def _times(kernel: Kernel, device: str) -> tuple[list[float], list[float]]:
    """Seconds of both sides for a step, in each round."""
    ours, plain = [], []
    for number in range(ROUNDS + 1):
        pair = seconds(kernel.ours, device) / kernel.our_steps, seconds(kernel.plain, device) / kernel.plain_steps
        if number:  # the first round warms up
            ours.append(pair[0])
            plain.append(pair[1])
    return ours, plain


def _sentences(device: str) -> list[Kernel]:
    x, y = (part.to(device) for part in sentence_task(3, N_W, L, K, "zipf", seed=0).sample(N_SPL, seed=1))
    start = [part.to(device) for part in initial_weights(N_W, K, L, D, 0, 1e-3)]
    steps, plain_steps = (5000, 500) if device == "cuda" else (40, 20)

    def ours(normalize, tf32):
        W, U = (part.clone() for part in start)
        order = torch.Generator().manual_seed(0)
        with rounding_to_tf32(tf32):
            sentence_sgd(W, U, x, y, SentenceSGD(LAM, 0.1, 100, steps, normalize), order)

    def kernel(name, normalize, tf32=False):
        plain = functools.partial(_plain_sgd, start, x, y, normalize, plain_steps)
        kind = "tf32" if tf32 else "float32"
        return Kernel(f"sentence task, {name}", lambda: ours(normalize, tf32), steps, plain, plain_steps, kind)

    rounded = [kernel("h, TF32", False, True), kernel("h*, TF32", True, True)] if device == "cuda" else []
    return [kernel("h", False), kernel("h*", True), *rounded]


def _gradient_descent(device: str) -> list[Kernel]:
    """With a ReLU while samples differ and when those of a class have come together; without, rotated."""
    runs, kernels = RUNS[device == "cpu"], []
    for name, (classes, n, d, layers, lam, rate), equal, relu, factor in (
        ("DUFM, {} runs, all samples", DEEP, False, True, 1),
        ("DUFM, {} runs, class means", DEEP, True, True, 10),
        ("two linear layers, {} runs", TWO_LAYERS, False, False, 10),
    ):
        y = labels(classes, n, device)
        start = random_runs(classes, n, d, layers, range(runs), [d**-0.5] * layers + [1.0])
        start = start._replace(H=start.H.to(device), Ws=[W.to(device) for W in start.Ws])
        if equal:
            start = start._replace(H=start.H.unflatten(-1, (classes, n)).mean(-1).repeat_interleave(n, -1))
        columns = classes if equal else len(y) if relu else classes + d  # as many as have to be carried
        least = start._replace(H=start.H[..., :columns]), torch.arange(columns, device=device) % classes
        steps, plain_steps = (2000 * factor, 300) if device == "cuda" else (100 * factor, 200)
        ours = functools.partial(gradient_descent, start, y, Descent(rate, steps, lam, relu=relu))
        plain = functools.partial(_loop, start, y, lam, relu, plain_steps, rate)
        one = functools.partial(_loop, *least, lam, relu, 1, rate)
        kernels.append(Kernel(name.format(runs), ours, runs * steps, plain, plain_steps, "float64", one))
    return kernels


def _loop(start, y, lam, relu, steps, rate) -> None:
    """What one writes first: the objective of one run, its gradient by autograd, a step."""
    parts = [part[0].clone().requires_grad_() for part in (start.H, *start.Ws)]
    Y = one_hot(y, start.Ws[-1].shape[-2])
    for _ in range(steps):
        value = (scores(parts[0], parts[1:], relu=relu) - Y).square().sum() / (2 * len(y))
        gradients = torch.autograd.grad(value + lam / 2 * sum(part.square().sum() for part in parts), parts)
        with torch.no_grad():
            for part, gradient in zip(parts, gradients, strict=True):
                part.sub_(gradient, alpha=rate)


def _perceptrons(device: str) -> list[Kernel]:
    runs, width, batch, samples, inputs = MLPS[device == "cpu"]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, inputs, generator=generator).to(device)
    y = torch.randint(CLASSES, (runs, samples), generator=generator).to(device)
    weights = perceptrons.initialise(range(runs), inputs, width, CLASSES, width, DEPTH, device=device)
    model = mlp(inputs, width, CLASSES, width, DEPTH, seed=0).to(device)
    steps = math.ceil(samples / batch)
    names = ([("ce", 0.0), ("ls", 0.1)] * runs)[:runs]

    def ours():
        sgd = SGD(2, 0.02, weight_decay=1e-3, nesterov=True, batch_size=batch)
        perceptrons.train_together(weights, x, y, names, sgd)

    def plain():
        optimiser = torch.optim.SGD(model.parameters(), 0.02, 0.9, weight_decay=1e-3, nesterov=True)
        _epoch(model, x, y[0], functools.partial(label_smoothing, alpha=0.1), optimiser, batch)

    kind = "tf32" if device == "cuda" else "float32"
    return [Kernel(f"{runs} perceptrons of width {width}", ours, 2 * runs * steps, plain, steps, kind)]


def _resnets(device: str) -> list[Kernel]:
    runs, samples, side, width, batch = RESNETS
    x = torch.randn(samples, 3, side, side, generator=torch.Generator().manual_seed(0)).to(device)
    y = (torch.arange(samples) % CLASSES).to(device)
    models = [resnet20(CLASSES, 3, width, 4, seed=seed) for seed in range(runs)]
    ensemble, model, steps = resnets.Ensemble(models, device), models[0].to(device), samples // batch

    def ours():
        resnets.train_together(ensemble, x, y, resnets.Schedule(steps, 1e-3, 5e-3, batch_size=batch))

    def plain():
        optimiser = torch.optim.SGD(model.parameters(), 1e-3, 0.9, weight_decay=5e-3)
        _epoch(model, x, y, squared_error, optimiser, batch)

    kind = "bfloat16" if device == "cuda" else "float32"
    return [Kernel(f"{runs} ResNet20s of width {width:g}, {side} × {side}", ours, runs * steps, plain, steps, kind)]


def _resnet(device: str) -> list[Kernel]:
    samples, channels, side, width, batch = RESNET[device == "cpu"]
    x = torch.randn(samples, channels, side, side, generator=torch.Generator().manual_seed(0)).to(device)
    y = (torch.arange(samples) % CLASSES).to(device)
    one, other = (resnet18(CLASSES, channels, width, bias=False).to(device) for _ in range(2))
    steps = math.ceil(samples / batch)

    def ours():
        train(one, x, y, squared_error, SGD(1, 1e-3, weight_decay=5e-4, batch_size=batch))

    def plain():
        optimiser = torch.optim.SGD(other.parameters(), 1e-3, 0.9, weight_decay=5e-4)
        _epoch(other, x, y, squared_error, optimiser, batch)

    kind = "bfloat16" if device == "cuda" else "float32"
    return [Kernel(f"ResNet18 of width {width:g}, {side} × {side}", ours, steps, plain, steps, kind)]


def _epoch(model, x, y, loss, optimiser, batch_size) -> None:
    model.train()
    for batch in torch.randperm(len(y)).to(x.device).split(batch_size):
        optimiser.zero_grad()
        loss(model(x[batch]), y[batch]).backward()
        optimiser.step()
