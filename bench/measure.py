"""The measures against two other packages that have them, where these are installed: times, memory and every number.

A row's sides take turns in one process, on one thread; ratios are medians within a round. Times and numbers are kept in
chapters/synthesis/own-network/peers.json, where the page on measuring one's own network reads them.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits
from torch import nn

import collapsemetrics as metrics
from collapsemetrics import ClassStatistics, Tracker, formulas
from lib.book.atomic import atomically
from lib.book.kernel.devices import name as name_of

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "chapters" / "synthesis" / "own-network" / "peers.json"
PEERS = {"neural-collapse": "neural_collapse", "nc-toolbox": "nc_toolbox"}
SIZES = [(d, K) for d in (512, 2048) for K in (10, 100, 1000)]
BATCH, BATCHES, ROUNDS, GOAL = 128, {512: 64, 2048: 32}, 7, 0.9
# What both pages and peers compute from; lines, so that the page can show and run them.
DATA = """import torch

generator = torch.Generator().manual_seed(0)
means = torch.randn(10, 64, generator=generator, dtype=torch.float64)
sizes = torch.tensor([40, 60, 80, 100, 100, 100, 100, 120, 140, 160])
y = torch.arange(10).repeat_interleave(sizes)
H = means[y] + torch.randn(1000, 64, generator=generator, dtype=torch.float64)
W = means + torch.randn(10, 64, generator=generator, dtype=torch.float64)
b = torch.randn(10, generator=generator, dtype=torch.float64)
outside = torch.randn(200, 64, generator=generator, dtype=torch.float64) + 0.5"""
NOTE = """float32, one thread, milliseconds for a batch of {batch} features, medians of {rounds} rounds, from the
first batch to the scatter of every class. neural-collapse passes over the data twice, for means and for the
covariance; nc-toolbox takes no batches, and has all features in memory. Product: H^T H of all features at once, of
which here about five eighths are computed. The ratio is the median over rounds. Goal: at most {goal} of
neural-collapse's time, and no more memory. Memory, in MiB: by how much the largest resident size of a fresh process
grows over {few} batches that are made one at a time, median of nine processes."""


def run(console: Console) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        nearest, tracker = _nearest(), _tracker()
        console.print(f"NC4 of 10,000 features, d = 512, K = 1,000: {nearest:.2f} of the time of all distances")
        console.print("A pass of a tracker over a pass of the network alone: " + ", ".join(f"{r:.2f}" for r in tracker))
        if not all(map(importlib.util.find_spec, PEERS.values())):
            console.print(f"{' and '.join(PEERS)} are not installed: the extra `bench` has them")
            return
        with threadpool_limits(1):  # NumPy's
            times = [_times(d, K) for d, K in SIZES]
    finally:
        torch.set_num_threads(threads)
    table = Table(title="Class statistics, milliseconds for a batch, and memory")
    for column in ("d", "K", "here", *PEERS, "product", "of neural-collapse", "MiB here", "MiB neural-collapse"):
        table.add_column(column, justify="right")
    for row in times:
        cells = [f"{row[name]:.2f}" for name in ("ours", *PEERS, "product", "ratio")]
        table.add_row(str(row["d"]), str(row["K"]), *cells, *(f"{mebibytes:.0f}" for mebibytes in row["MiB"].values()))
    console.print(table)
    about = NOTE.format(batch=BATCH, rounds=ROUNDS, goal=GOAL, few=BATCHES[2048])
    console.print(about, highlight=False)
    kept = {
        "date": datetime.date.today().isoformat(), "device": name_of("cpu"), "torch": torch.__version__,
        "about": about, "data": DATA.splitlines(), "times": times, "nc4": nearest, "tracker": tracker,
        "values": _values(),
    }  # fmt: skip
    with atomically(KEPT) as partial:
        partial.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _times(d: int, K: int) -> dict:
    generator, number = torch.Generator().manual_seed(0), BATCHES[d]
    H = torch.randn(number * BATCH, d, generator=generator) + 3
    y = torch.randperm(number * BATCH, generator=generator) % K
    batches = list(zip(H.split(BATCH), y.split(BATCH), strict=True))
    jobs = {
        "ours": lambda: _ours(lambda: batches, d, K),
        "neural-collapse": lambda: _accumulated(lambda: batches, d, K),
        "nc-toolbox": lambda: _at_once(H.numpy(), y.numpy()),
        "product": lambda: H.T @ H,
    }
    seconds = {name: [] for name in jobs}
    for count in range(ROUNDS + 1):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            if count:  # the first round warms up
                seconds[name].append(time.perf_counter() - began)
    row = {name: statistics.median(times) / number * 1e3 for name, times in seconds.items()}
    ratio = statistics.median(a / b for a, b in zip(seconds["ours"], seconds["neural-collapse"], strict=True))
    return {"d": d, "K": K} | row | {"ratio": ratio, "MiB": {name: _memory(name, d, K) for name in ("ours", "peer")}}


def _ours(batches, d: int, K: int):
    collected = ClassStatistics(K, d)
    for H, y in batches():
        collected.update(H, y)
    return collected.variances


def _accumulated(batches, d: int, K: int):
    from neural_collapse.accumulate import CovarAccumulator, MeanAccumulator

    means = MeanAccumulator(K, d)
    for H, y in batches():
        means.accumulate(H, y)
    M, _ = means.compute()
    covariance = CovarAccumulator(K, d, M=M)
    for H, y in batches():
        covariance.accumulate(H, y, M)
    return covariance.compute()


def _at_once(H: np.ndarray, y: np.ndarray):
    import nc_toolbox

    return nc_toolbox.within_class_covariance(H, y, nc_toolbox.class_embedding_means(H, y).astype(H.dtype))


def _memory(who: str, d: int, K: int) -> float:
    command = [sys.executable, "-m", "bench.measure", who, str(d), str(K)]
    runs = (subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True) for _ in range(9))
    return statistics.median(float(run.stdout) for run in runs)  # it varies by how the allocator maps pages


def _grow(who: str, d: int, K: int) -> float:
    def batches(d, K, number):
        generator = torch.Generator().manual_seed(0)
        for i in range(number):
            y = torch.arange(i * BATCH, (i + 1) * BATCH) % K
            yield torch.randn(BATCH, d, generator=generator), y

    def job(d, K, number):
        collect = _ours if who == "ours" else _accumulated
        collect(lambda: batches(d, K, number), d, K)

    torch.set_num_threads(1)
    job(64, 10, 8)  # libraries set up their own buffers at first use
    before = _peak()
    job(d, K, BATCHES[2048])
    return _peak() - before


def _peak() -> float:
    """Largest resident size so far, in MiB; getrusage would report the parent's where that was larger."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**10


def _nearest() -> float:
    """Time of the nearest class mean by centred scores, over that by all distances."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(1000, 512, generator=generator)
    H = means[torch.arange(10_000) % 1000] + torch.randn(10_000, 512, generator=generator)
    ratios = []
    for _ in range(3):
        began = time.perf_counter()
        found = formulas.nearest(H, means)
        between = time.perf_counter()
        exact = torch.cdist(H, means, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
        ratios.append((between - began) / (time.perf_counter() - between))
        assert torch.equal(found, exact)
    return statistics.median(ratios)


def _tracker() -> list[float]:
    """Time of the first call of a tracker and of a later one, each over a pass of the network alone."""
    torch.manual_seed(0)
    blocks = [part for _ in range(4) for part in (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, 32, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    loader = [(torch.randn(BATCH, 3, 24, 24), torch.arange(BATCH) % 10) for _ in range(8)]
    ratios = []
    for _ in range(5):
        tracker, seconds = Tracker(model, loader, nc4=True), []
        with torch.no_grad():
            for job in (lambda: [model.eval()(x) for x, _ in loader], lambda: tracker(0), lambda: tracker(1)):  # noqa: B023
                began = time.perf_counter()
                job()
                seconds.append(time.perf_counter() - began)
        ratios.append([seconds[1] / seconds[0], seconds[2] / seconds[0]])
    return [statistics.median(column) for column in zip(*ratios, strict=True)]


def _values() -> list[dict]:
    """Every number of the peers beside ours; where they differ the reason, of which the last entry is the proof.

    That is the peer's number as our formulas give it with the peer's convention.
    """
    import nc_toolbox as toolbox
    import neural_collapse.accumulate as accumulate
    import neural_collapse.kernels as kernels
    import neural_collapse.measure as peer

    made: dict = {}
    exec(DATA, made)
    H, y, W, b, outside = (made[name] for name in ("H", "y", "W", "b", "outside"))
    K, options = 10, {"dtype": torch.float64}
    means = accumulate.MeanAccumulator(K, 64, **options)
    means.accumulate(H, y)
    M, G = means.compute()
    covariance = accumulate.CovarAccumulator(K, 64, M=M, **options)
    covariance.accumulate(H, y, M)
    norms = accumulate.VarNormAccumulator(K, 64, M=M, **options)
    norms.accumulate(H, y, M)
    decisions = accumulate.DecAccumulator(K, 64, M=M, W=W, **options)
    decisions.accumulate(H, y, W, M)
    V, v = covariance.compute(), norms.compute()[0]
    h, labels, w, m, g = H.numpy(), y.numpy(), W.numpy(), M.numpy(), H.numpy().mean(0)
    (ours,) = found = metrics.measure(_linear(W, b), [(H, y)], nc4=True, outside_loader=[(outside, y[:200])])
    (by_samples,) = metrics.measure(_linear(W, b), [(H, y)], centre="samples")
    means, n, variances = found.statistics["penultimate"]
    C, Cs = means - means.mean(0), means - H.mean(0)
    ours["equiangularity"] = metrics.equiangularity(C)
    cosine = nn.functional.cosine_similarity
    off = torch.ones(K, K).triu(1).bool()
    share = 1 / (1 + 1 / by_samples["trace_ratio"])
    pairs = nn.functional.normalize(C, dim=1)
    frame = (torch.eye(K) - 1 / K).double() / (K - 1) ** 0.5
    product = W @ C.T
    gap = nn.functional.normalize(W, dim=1) - pairs
    logs = Cs.norm(dim=1).log()
    k, other = torch.triu_indices(K, K, 1)
    of_samples = 'centre="samples"'
    first, second = PEERS
    rows = [
        # what, ours, package, its name, its value; where it differs: why, our formula with the peer's convention
        ("NC1", "nc1", first, "covariance_ratio", peer.covariance_ratio(V, M, G)),
        ("NC1", "nc1", first, "covariance_ratio(svd)", peer.covariance_ratio(V, M, G, "svd")),
        ("NC1", "nc1", second, "nc1_strong", toolbox.nc1_strong(h, labels, m, g), of_samples, by_samples["nc1"]),
        ("ratio of traces", "trace_ratio", first, "covariance_ratio(quotient)",
         peer.covariance_ratio(V, M, G, "quotient")),
        ("share of the variance within classes", "trace_ratio", second, "nc1_weak",
         toolbox.nc1_weak(h, labels, m, g)[1], f"r / (1 + r) with {of_samples}", share),
        ("CDNV", "cdnv", first, "variability_cdnv", peer.variability_cdnv(v, M)),
        ("CDNV", "cdnv", second, "nc1_cdnv", toolbox.nc1_cdnv(m, toolbox.class_embedding_variances(h, labels, m)),
         "variances over n - 1", formulas.over_distances(means, variances * n / (n - 1)).item()),
        ("NC2, simplex", "nc2_etf", first, "simplex_etf_error", peer.simplex_etf_error(M, G)),
        ("spread of the norms", None, second, "nc2_equinormness", toolbox.nc2_equinormness(m, g),
         "mean difference of log norms, by sign", (logs[k] - logs[other]).mean().item()),
        ("mean cosine, less that of a simplex", "equiangularity", second, "nc2_equiangularity",
         toolbox.nc2_equiangularity(m, g), f"the mean, here the largest; {of_samples}",
         (cosine(Cs[k], Cs[other]) + 1 / (K - 1)).mean().item()),
        ("uniformity", "uniformity", first, "kernel_stats(log_kernel)",
         kernels.kernel_stats(M, G, kernels.log_kernel)[0]),
        ("uniformity", "uniformity", second, "gnc2_hypershperical_uniformity",
         toolbox.gnc2_hypershperical_uniformity(m, g), of_samples, by_samples["uniformity"]),
        ("NC3", "nc3", second, "nc3_self_duality", toolbox.nc3_self_duality(w, m, g),
         "the means centred at that of all samples, as nc3(W, means - centre)", formulas.nc3(W, Cs).item()),
        ("duality, distance from a simplex", "nc3", first, "self_duality_error", peer.self_duality_error(W, M, G),
         "of all products of weights and centred means", (product / product.norm() - frame).norm().item()),
        ("duality, distance of each class", "nc3", first, "distance_norms", peer.distance_norms(W, M, G).mean().item(),
         "weights and centred means each of norm 1, mean over classes", gap.norm(dim=1).mean().item()),
        ("duality, cosine of each class", "duality", first, "similarities(cos)",
         peer.similarities(W, M, G, True).mean().item(), "the mean; here the coefficient of variation",
         cosine(W, C, dim=1).mean().item()),
        ("uniform duality", "duality", second, "unc3_uniform_duality", toolbox.unc3_uniform_duality(w, m, g),
         f"mean cosine of weights and means of different classes; {of_samples}",
         (nn.functional.normalize(W, dim=1) @ nn.functional.normalize(Cs, dim=1).T)[off].mean().item()),
        ("NC4", "nc4", second, "nc4_classifier_agreement", toolbox.nc4_classifier_agreement(h, w, b.numpy(), m),
         "share that agrees", 1 - ours["nc4"]),
        ("NC4", "nc4", first, "clf_ncc_agreement", peer.clf_ncc_agreement(decisions),
         "share that agrees, without the bias of the classifier", 1 - formulas.nc4(H, W, None, means).item()),
        ("NC5", "nc5", first, "orthogonality_deviation", peer.orthogonality_deviation(M, outside.mean(0))),
        ("mean length of the centred means", None, first, "mean_norms", peer.mean_norms(M, G).mean().item(),
         "in the unit of the features", C.norm(dim=1).mean().item()),
    ]  # fmt: skip
    values = []
    for what, name, package, theirs, given, *difference in rows:
        here, (why, proof) = ours.get(name), difference or (None, math.nan)
        agrees = here is not None and abs(here - given) <= 1e-6 * max(abs(given), 1)
        if not agrees and not abs(proof - given) <= 1e-6 * max(abs(given), 1):
            raise AssertionError(f"{what}: {here} here and {given} there, {proof} with its convention")
        entry = {"what": what, "ours": {"name": name, "value": here} if name else None} | dict.fromkeys(PEERS)
        entry[package] = {"name": theirs, "value": given}
        values.append(entry | {"agrees": agrees, "why": None if agrees else why})
    return values


def _linear(W, b) -> nn.Linear:
    head = nn.Linear(W.shape[1], W.shape[0], dtype=W.dtype)
    head.weight.data, head.bias.data = W.clone(), b.clone()
    return head


if __name__ == "__main__":
    print(_grow(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
