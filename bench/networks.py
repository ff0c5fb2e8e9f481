"""The book's training loop against the one that most tutorials show, and many small networks at once or one by one."""

from __future__ import annotations

import statistics
import time

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

from lib.models.losses import squared_error
from lib.models.networks import resnet18, resnet20
from lib.training import resnets
from lib.training.sgd import SGD, train

#           samples, channels, side, width, batch
SETTINGS = {
    "14 × 14, width 1/4": (960, 1, 14, 1 / 4, 32),
    "8 × 8, width 1/16": (960, 1, 8, 1 / 16, 16),
}
#           runs, side, width, batch
ENSEMBLES = {
    "8 × 8, width 1/4": (16, 8, 1 / 4, 50),
    "8 × 8, width 1/2": (16, 8, 1 / 2, 50),
}
REPETITIONS, STEPS = 5, 6
NOTE = """Steps per second, medians of {n} epochs each, the two loops in turns. 'plain loop': DataLoader over a
TensorDataset in the same process, torch.optim.SGD as it comes, loss and accuracy read with .item() after each step.
On a CPU nearly all of a step is the network itself; on a GPU the plain loop waits for the device at every step."""
ENSEMBLE_NOTE = """Steps per second of all runs together, medians of {n} times {steps} steps, in turns. 'one by one':
the same networks with autograd and torch.optim.SGD, one after the other. Small networks alone are bound by the number
of calls; the wider they are the less there is to gain."""


def run(console: Console) -> None:
    _loops(console)
    _ensembles(console)


def _ensembles(console: Console) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    table = Table(title=f"ResNet20s with a head of four layers, {device}")
    for column in ("", "runs", "side by side", "one by one", "ratio"):
        table.add_column(column, justify="right")
    for name, (runs, side, width, batch_size) in ENSEMBLES.items():
        console.print(f"{name} ...")
        x = torch.randn(200, 3, side, side, generator=torch.Generator().manual_seed(0)).to(device)
        y = (torch.arange(200) % 10).to(device)
        together, alone = [], []
        for repetition in range(REPETITIONS + 1):
            models = [resnet20(10, 3, width, 4, seed=seed).to(device) for seed in range(runs)]
            pair = _side_by_side(models, x, y, batch_size), _one_by_one(models, x, y, batch_size)
            if repetition:  # the first one warms up
                together.append(runs * STEPS / pair[0])
                alone.append(runs * STEPS / pair[1])
        ratio = statistics.median(a / b for a, b in zip(together, alone, strict=True))
        row = f"{statistics.median(together):.0f}", f"{statistics.median(alone):.0f}", f"{ratio:.1f}"
        table.add_row(name, str(runs), *row)
    console.print(table)
    console.print(ENSEMBLE_NOTE.format(n=REPETITIONS, steps=STEPS), highlight=False)


def _side_by_side(models, x, y, batch_size) -> float:
    ensemble = resnets.Ensemble(models, x.device)
    _wait(x)
    began = time.perf_counter()
    schedule = resnets.Schedule(STEPS, 1e-3, 5e-3, 1e-3, batch_size=batch_size)
    resnets.train_together(ensemble, x, y, schedule)
    _wait(x)
    return time.perf_counter() - began


def _one_by_one(models, x, y, batch_size) -> float:
    _wait(x)
    began = time.perf_counter()
    for model in models:
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-3)
        model.train()
        for batch in torch.randperm(len(y)).repeat(STEPS)[: STEPS * batch_size].split(batch_size):
            layers = model.layers(x[batch])
            loss = squared_error(layers[-1], y[batch]) + 1e-3 / 2 * layers[0].square().sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    _wait(x)
    return time.perf_counter() - began


def _wait(x) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def _loops(console: Console) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    table = Table(title=f"One epoch of SGD on a ResNet18, {device}")
    for column in ("", "book's loop", "plain loop", "ratio"):
        table.add_column(column, justify="right")
    for name, (N, channels, side, width, batch_size) in SETTINGS.items():
        console.print(f"{name} ...")
        x = torch.randn(N, channels, side, side, generator=torch.Generator().manual_seed(0)).to(device)
        y = (torch.arange(N) % 10).to(device)
        ours, plain = [], []
        for repetition in range(REPETITIONS + 1):
            pair = _ours(x, y, width, batch_size), _plain(x, y, width, batch_size)
            if repetition:  # the first one warms up
                ours.append(N / batch_size / pair[0])
                plain.append(N / batch_size / pair[1])
        ratio = statistics.median(a / b for a, b in zip(ours, plain, strict=True))
        table.add_row(name, f"{statistics.median(ours):.1f}", f"{statistics.median(plain):.1f}", f"{ratio:.2f}")
    console.print(table)
    console.print(NOTE.format(n=REPETITIONS), highlight=False)


def _network(x, width):
    return resnet18(10, x.shape[1], width, bias=False).to(x.device)


def _ours(x, y, width, batch_size) -> float:
    model = _network(x, width)
    history = train(model, x, y, squared_error, SGD(1, 1e-3, weight_decay=5e-4, batch_size=batch_size))
    return history[-1]["seconds"]


def _plain(x, y, width, batch_size) -> float:
    model = _network(x, width)
    loader = DataLoader(TensorDataset(x.cpu(), y.cpu()), batch_size, shuffle=True)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
    losses, correct = [], 0
    began = time.perf_counter()
    for images, labels in loader:
        images, labels = images.to(x.device), labels.to(x.device)
        optimiser.zero_grad()
        scores = model(images)
        loss = squared_error(scores, labels)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        correct += (scores.argmax(1) == labels).sum().item()
    return time.perf_counter() - began
