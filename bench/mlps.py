"""Many multilayer perceptrons as one batched model against the book's training loop, one network after the other."""

from __future__ import annotations

import functools
import math
import statistics

import torch
from rich.console import Console
from rich.table import Table

from lib.cost import rates, seconds
from lib.models.losses import label_relaxation, label_smoothing, one_hot_error
from lib.models.networks import mlp
from lib.training.cuda_graphs import rounding_to_tf32
from lib.training.perceptrons import initialise, train_together
from lib.training.sgd import SGD, train

DEPTH, CLASSES, EPOCHS = 9, 10, 2
#    runs, width, batch, samples, inputs
LAPTOP = [
    (140, 64, 100, 500, 196),  # Figure 1 of memorization-dilation, for one data set
    (24, 64, 64, 640, 196), (48, 96, 64, 640, 196), (24, 128, 128, 1024, 196),
]  # fmt: skip
PAPER = [(24, 2048, 512, 5120, 3072)]
LOSSES = {
    ("ce", 0.0): functools.partial(label_smoothing, alpha=0.0),
    ("ls", 0.1): label_smoothing,
    ("lr", 0.1): label_relaxation,
    ("mse", 0.0): one_hot_error,
}
ROUNDS = 5
NOTE = """Steps of one network per second, medians of {rounds} rounds in which both take turns; ratios are medians
within a round. Depth {depth}, {threads}. A quarter of the runs has each loss, and the loop trains one network with
each. FLOP/s count the linear maps and their gradients over the time of whole steps. 'matrix rate' is that of one
product of two large matrices{tf32}, 'products' that of the three batched products of a layer by themselves, both the
best of several."""


def run(console: Console) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rate = rates(device).matrix["tf32" if device == "cuda" else "float32"]
    table = Table(title=f"SGD on multilayer perceptrons, {device}; matrix rate {_flops(rate)}")
    columns = ["runs", "width", "batch", "together", "loop", "ratio", "together", "loop", "of matrix rate", "products"]
    for column in columns:
        table.add_column(column, justify="right")
    for setting in LAPTOP + (PAPER if device == "cuda" else []):
        runs, width, batch, samples, inputs = setting
        console.print(f"{runs} runs of width {width}, batches of {batch} ...")
        together, alone = _compare(*setting, device)
        ratio = statistics.median(map(float.__truediv__, together, alone))
        work = _work(width, batch, inputs)
        together, alone = statistics.median(together), statistics.median(alone)
        products = _products(runs, width, batch, inputs, device)
        table.add_row(
            str(runs), str(width), str(batch), f"{together:.0f}", f"{alone:.0f}", f"{ratio:.1f}",
            _flops(work * together), _flops(work * alone), f"{work * together / rate:.0%}", f"{products / rate:.0%}",
        )  # fmt: skip
    console.print(table)
    threads = "the GPU" if device == "cuda" else f"{torch.get_num_threads()} threads"
    tf32 = " (all products in TF32)" if device == "cuda" else ""
    console.print(NOTE.format(rounds=ROUNDS, depth=DEPTH, threads=threads, tf32=tf32), highlight=False)


def _compare(runs, width, batch, samples, inputs, device) -> tuple[list[float], list[float]]:
    """Steps per second of one network, together and in the loop, in each round."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, inputs, generator=generator).to(device)
    y = torch.randint(CLASSES, (runs, samples), generator=generator).to(device)
    steps = EPOCHS * math.ceil(samples / batch)
    names = sorted(list(LOSSES) * math.ceil(runs / len(LOSSES)))[:runs]
    weights = initialise(range(runs), inputs, width, CLASSES, width, DEPTH, device=device)
    models = [mlp(inputs, width, CLASSES, width, DEPTH, seed=seed).to(device) for seed in range(len(LOSSES))]
    sgd = SGD(EPOCHS, 0.02, weight_decay=1e-3, nesterov=True, batch_size=batch)

    def ours():
        train_together(weights, x, y, names, sgd)

    def theirs():
        for run, (model, loss) in enumerate(zip(models, LOSSES.values(), strict=True)):
            train(model, x, y[run], loss, sgd, mixed_precision=False)

    together, alone = [], []
    with rounding_to_tf32():
        for number in range(ROUNDS + 1):
            pair = runs * steps / seconds(ours, device), len(models) * steps / seconds(theirs, device)
            if number:  # the first round warms up
                together.append(pair[0])
                alone.append(pair[1])
    return together, alone


def _work(width: int, batch: int, inputs: int) -> float:
    """Floating-point operations of the linear maps in one step of one network."""
    others = (DEPTH - 1) * width * width + width * CLASSES
    return 2.0 * batch * (2 * inputs * width + 3 * others)


def _products(runs, width, batch, inputs, device) -> float:
    """Operations per second of the three batched products of a layer in the middle, by themselves."""
    A, H, G = (torch.randn(runs, rows, width, device=device) for rows in (width, batch, batch))
    Z, gradient = torch.empty_like(H), torch.zeros_like(A)

    def products():
        torch.bmm(H, A.mT, out=Z)
        torch.bmm(G, A, out=Z)
        gradient.baddbmm_(G.mT, H, beta=0.9)

    with rounding_to_tf32():
        return 6.0 * runs * batch * width * width / min(seconds(products, device) for _ in range(30))


def _flops(rate: float) -> str:
    return f"{rate / 1e12:.0f} TFLOP/s" if rate > 2e12 else f"{rate / 1e9:.0f} GFLOP/s"
