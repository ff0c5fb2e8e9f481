"""Gradient descent on the unconstrained features models of two papers against a loop with autograd for each run."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from rich.console import Console
from rich.table import Table

from lib.models.unconstrained import labels, one_hot, scores
from lib.training.unconstrained import Descent, Runs, gradient_descent, random_runs, select, together

#          K, n, decays of W_1 ... W_L, of H, bias, ReLU, scales of W_L ... W_1, H, runs in the book
FIGURES = {
    "1": (4, 50, [0.005], 0.005, False, False, [1.0, 1.0], 10),
    "2": (4, 50, [0.005], 0.005, True, False, [1.0, 1.0], 10),
    "3": (4, 50, [0.005, 0.005], 0.005, False, False, [0.1, 0.1, 0.1], 10),
    "4": (4, 50, [0.005, 0.005], 0.005, False, True, [0.1, 0.1, 0.1], 8),
    "6": (5, 100, [0.005], 0.001, False, False, [1.0, 1.0], 10),
    "7": (5, 100, [0.005], 0.001, True, False, [1.0, 1.0], 10),
    "8": (5, 100, [0.0025, 0.005], 0.001, False, False, [0.1, 0.1, 0.1], 10),
    "9": (5, 100, [0.0025, 0.005], 0.001, False, True, [0.1, 0.1, 0.2], 4),
}
D, RATE, STEPS, ROUNDS = 20, 0.1, 300, 5
NOTE = """Medians of {rounds} rounds of {steps} steps from the paper's starts; ratios are medians within a round. The
loop is autograd on the written-out objective, with targets prepared and parameters updated in place, {threads}. Both
end in the same weights to {error:.0e}."""

# Figure 2 (top) of Sukenik et al.: K, n, width, layers, decay of everything, learning rate, runs, steps
DEEP = (10, 50, 30, 4, 0.004, 0.5, 10, 200_000)
DEEP_NOTE = """The loop carries {samples} samples, one run at a time, {threads}; the ensemble takes half of the runs in
each of two threads. Rates are medians of {rounds} rounds of {steps} steps; the totals are {runs} runs of {total:,}
steps at these rates. All samples: as long as they differ within a class, which from independent samples may be to the
end. Class means: from the first step where a start has equal samples, else from their collapse on. Means, loop: what
is left of the ratio if the loop, too, is given one sample for each class. Weights after {compared} steps differ by
{error:.0e} at most."""


def run(console: Console, full: bool = False) -> None:
    _shallow(console)
    _deep(console, full)


def _shallow(console: Console) -> None:
    before, errors, settings = torch.get_num_threads(), [], set()
    table = Table(title="A step of gradient descent, in microseconds for one run")
    for column in ("Figure", "loop", "one run", "ratio", "the book's runs", "ratio"):
        table.add_column(column, justify="right")
    total = {"loop": 0.0, "alone": 0.0, "batch": 0.0}
    try:
        for name, figure in FIGURES.items():
            threads, loop, alone, batch, error = _compare(figure, before)
            settings.add(threads), errors.append(error)
            cells = [f"{statistics.median(part) * 1e6 / STEPS:.1f}" for part in (loop, alone, batch)]
            ratios = [f"{statistics.median(map(float.__truediv__, loop, part)):.1f}" for part in (alone, batch)]
            table.add_row(name, cells[0], cells[1], ratios[0], cells[2], ratios[1])
            for key, part in zip(total, (loop, alone, batch), strict=True):
                total[key] += statistics.median(part) * figure[-1]
    finally:
        torch.set_num_threads(before)
    ratios = [f"{total['loop'] / total[key]:.1f}" for key in ("alone", "batch")]
    table.add_row("all, as run in the book", "", "", ratios[0], "", ratios[1])
    console.print(table)
    threads = "on " + " or ".join("one thread" if n == 1 else f"{n} threads" for n in sorted(settings))
    threads += ", whichever is faster" if before > 1 else ""
    console.print(NOTE.format(rounds=ROUNDS, steps=STEPS, threads=threads, error=max(errors)), highlight=False)


def _compare(figure, all_threads):
    """Threads of the loop, seconds for each run in each round (loop, one run, batch), largest difference of weights."""
    K, n, lam_w, lam_h, bias, relu, scales, runs = figure
    y = labels(K, n)
    start = random_runs(K, n, D, len(lam_w), range(runs), scales, bias)
    one = Runs(start.H[:1], [W[:1] for W in start.Ws], None if start.b is None else start.b[:1])

    def ours(part):
        return gradient_descent(part, y, Descent(RATE, STEPS, lam_w, lam_h, relu=relu))

    def theirs(threads):
        torch.set_num_threads(threads)
        found = _seconds(lambda: _loop(one, y, lam_w, lam_h, relu, STEPS))
        torch.set_num_threads(1)
        return found

    threads = min({1, all_threads}, key=lambda number: min(theirs(number)[0] for _ in range(2)))
    loop, alone, batch = [], [], []
    for _ in range(ROUNDS):
        seconds, plain = theirs(threads)
        loop.append(seconds)
        seconds, end = _seconds(lambda: ours(one))
        alone.append(seconds)
        batch.append(_seconds(lambda: ours(start))[0] / runs)
    weights = [end.H[0], *(W[0] for W in end.Ws), *([end.b[0]] if bias else [])]
    return threads, loop, alone, batch, max((a - b).abs().max().item() for a, b in zip(weights, plain, strict=True))


def _seconds(job):
    began = time.perf_counter()
    result = job()
    return time.perf_counter() - began, result


def _deep(console, full):
    K, n, d, L, lam, rate, runs, total = DEEP
    before, y = torch.get_num_threads(), labels(K, n)
    spread = random_runs(K, n, d, L, range(runs), [d**-0.5] * L + [1.0])
    equal = spread._replace(H=spread.H.unflatten(-1, (K, n)).mean(-1).repeat_interleave(n, -1))
    halves = [list(range(0, runs, 2)), list(range(1, runs, 2))]

    def ours(start, steps):
        with ThreadPoolExecutor(2) as threads:
            return together(list(threads.map(
                lambda half: gradient_descent(select(start, half), y, Descent(rate, steps, lam, relu=True)), halves
            )))  # fmt: skip

    def theirs(start, y, steps, threads=1):
        torch.set_num_threads(threads)
        one = select(start, [0])
        found = _seconds(lambda: _loop(one, y, [lam] * L, lam if len(y) > K else n * lam, True, steps, rate))
        torch.set_num_threads(1)
        return found

    few = equal._replace(H=equal.H[..., ::n])
    try:
        torch.set_num_threads(1)
        threads = min({1, before}, key=lambda number: min(theirs(spread, y, 100, number)[0] for _ in range(2)))
        times = {"loop": [], "means, loop": [], "all samples": [], "class means": []}
        for _ in range(ROUNDS):
            times["loop"].append(theirs(spread, y, STEPS, threads)[0] * runs)
            times["means, loop"].append(theirs(few, labels(K, 1), STEPS)[0] * runs)
            times["all samples"].append(_seconds(lambda: ours(spread, STEPS))[0])
            times["class means"].append(_seconds(lambda: ours(equal, 10 * STEPS))[0] / 10)
        plain = _loop(select(equal, [0]), y, [lam] * L, lam, True, 100, rate)
        mine = ours(equal, 100)
        taken = _seconds(lambda: ours(equal, total))[0] if full else None
    finally:
        torch.set_num_threads(before)
    error = max((a - b).abs().max().item() for a, b in zip(plain, [mine.H[0], *(W[0] for W in mine.Ws)], strict=True))
    table = Table(title=f"{runs} runs of the {L}-layer model with a ReLU (Figure 2, top, of Sukenik et al.)")
    for column in ("what", "a step of all runs, ms", f"{total:,} steps, s", "ratio to the loop"):
        table.add_column(column, justify="right")
    for name, seconds in times.items():
        median = statistics.median(seconds)
        ratio = statistics.median(a / b for a, b in zip(times["loop"], seconds, strict=True))
        table.add_row(name, f"{median * 1e3 / STEPS:.2f}", f"{median * total / STEPS:.0f}", f"{ratio:.1f}")
    if full:
        table.add_row(f"class means, all {total:,} steps", f"{taken * 1e3 / total:.2f}", f"{taken:.0f}", "")
    console.print(table)
    threads = "on one thread" if threads == 1 else f"on {threads} threads"
    note = DEEP_NOTE.format(samples=K * n, threads=threads, rounds=ROUNDS, steps=STEPS, runs=runs, total=total,
                            compared=100, error=error)  # fmt: skip
    console.print(note, highlight=False)


def _loop(start, y, lam_w, lam_h, relu, steps, rate=RATE):
    """What one writes first: the objective of one run, its gradient by autograd, a step; bias not regularised."""
    parts = [part[0].clone().requires_grad_() for part in (start.H, *start.Ws)]
    b = None if start.b is None else start.b[0].clone().requires_grad_()
    H, Ws, Y, N = parts[0], parts[1:], one_hot(y, start.Ws[-1].shape[-2]), len(y)
    parts += [] if b is None else [b]
    for _ in range(steps):
        value = (scores(H, Ws, b, relu) - Y).square().sum() / (2 * N) + lam_h / 2 * H.square().sum()
        for W, lam in zip(Ws, lam_w, strict=True):
            value = value + lam / 2 * W.square().sum()
        gradients = torch.autograd.grad(value, parts)
        with torch.no_grad():
            for part, gradient in zip(parts, gradients, strict=True):
                part.sub_(gradient, alpha=rate)
    return [part.detach() for part in parts]
