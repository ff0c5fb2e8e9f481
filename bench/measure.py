"""Collapse of 60,000 features of width 512 against one product of the feature matrix with itself."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from lib.metrics import ClassStatistics, measure

ROOT = Path(__file__).resolve().parents[1]
N, D, K = 60_000, 512, 10
BATCHES = (1_000, 10_000, 60_000)
ROUNDS = 7
NOTE = """float32, {threads} threads, medians of {rounds} rounds that measure everything in turn. The product is H^T H
of the whole matrix. measure() looks at the input of a linear layer, whose own product it pays for. Memory: by how much
the largest resident size of a fresh process grows while measure() reads batches that are made one at a time, the batch
itself included; in brackets, over the size of a batch. The scatter matrices alone take {scatter:.0f} MiB."""


def run(console: Console) -> None:
    H, y = torch.randn(N, D, generator=torch.Generator().manual_seed(0)) + 3, torch.arange(N) % K
    model = nn.Sequential(nn.Identity(), nn.Linear(D, K))
    jobs = {"product": lambda: H.T @ H}
    for size in BATCHES:
        batches = list(zip(H.split(size), y.split(size), strict=True))
        jobs["statistics", size] = lambda batches=batches: _statistics(batches)
        jobs["measure", size] = lambda batches=batches: measure(model, batches)
    seconds = {name: [] for name in jobs}
    for number in range(ROUNDS + 1):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - began)
    # a ratio within each round, so that both sides had the machine in one state
    ratio = {
        name: statistics.median(a / b for a, b in zip(seconds[name], seconds["product"], strict=True)) for name in jobs
    }
    product = statistics.median(seconds["product"])
    table = Table(title=f"Class statistics of {N:,} features of width {D}, over one product H^T H ({product:.2f} s)")
    for column in ("batch", "statistics alone", "measure()", "memory of measure()"):
        table.add_column(column, justify="right")
    for size in BATCHES:
        grown, batch = _memory(size), size * D * 4 / 2**20
        memory = f"{grown:.0f} MiB ({grown / batch:.1f})"
        table.add_row(f"{size:,}", f"{ratio['statistics', size]:.2f}", f"{ratio['measure', size]:.2f}", memory)
    console.print(table)
    scatter = D * D * (8 + 4) / 2**20
    console.print(NOTE.format(threads=torch.get_num_threads(), rounds=ROUNDS, scatter=scatter), highlight=False)


def _statistics(batches) -> float:
    collected = ClassStatistics(K, D)
    for H, y in batches:
        collected.update(H, y)
    return collected.nc1()


def _memory(size: int) -> float:
    """MiB by which the peak of a fresh process grows; nan where there is no /proc to read it from."""
    if not Path("/proc/self/status").exists():
        return math.nan
    command = [sys.executable, "-m", "bench.measure", str(size)]
    return float(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def _grow(size: int) -> float:
    def batches(samples, size):
        generator = torch.Generator().manual_seed(0)
        for _ in range(samples // size):
            yield torch.randn(size, D, generator=generator), torch.arange(size) % K

    model = nn.Sequential(nn.Identity(), nn.Linear(D, K))
    measure(model, lambda: batches(64, 32))  # libraries set up their own buffers at first use
    before = _peak()
    measure(model, lambda: batches(N, size))
    return _peak() - before


def _peak() -> float:
    """Largest resident size so far, in MiB; getrusage would report the parent's where that was larger."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**10


if __name__ == "__main__":
    print(_grow(int(sys.argv[1])))
