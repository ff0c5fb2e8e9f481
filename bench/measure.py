"""The measures against two other packages that have them: times, memory and numbers.

A row's sides take turns in one process, on one thread; ratios are medians within a round. All is kept in
chapters/synthesis/own-network/peers.json, where the page on measuring one's own network reads it.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from numpy import median
from threadpoolctl import threadpool_limits
from torch import nn

import collapsemetrics as metrics
from collapsemetrics import ClassStatistics
from lib.book.atomic import atomically
from lib.book.kernel.devices import name as name_of

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "chapters" / "synthesis" / "own-network" / "peers.json"
PEERS = {"neural-collapse": "neural_collapse", "nc-toolbox": "nc_toolbox"}
BATCH, BATCHES, ROUNDS = 128, 32, 7
SIZES = [(d, K, number) for d, number in ((512, BATCHES), (2048, BATCHES), (2048, 8)) for K in (10, 100, 1000)]
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
NOTE = f"""float32, one thread, milliseconds for a batch of {BATCH} features, medians of {ROUNDS} rounds, from the
first batch to the scatter of every class. neural-collapse passes over the data twice, for means and for the covariance;
nc-toolbox takes no batches, and has all features in memory. Product: H^T H of all features at once, of which here about
five eighths are computed. The ratio is the median over rounds. Goals: at most 0.9 of neural-collapse's time, at most
all of it with 1,024 samples, and no more memory. Memory, in MiB: by how much the largest resident size of a fresh
process grows over {BATCHES} batches that are made one at a time, median of nine processes."""


def run() -> None:
    if not all(map(importlib.util.find_spec, PEERS.values())):
        print(f"{' and '.join(PEERS)} are not installed: the extra `bench` has them")
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):  # NumPy's
        found = [times(*size) for size in SIZES]
    torch.set_num_threads(threads)
    kept = {
        "date": datetime.date.today().isoformat(), "device": name_of("cpu"), "torch": torch.__version__,
        "about": NOTE, "data": DATA.splitlines(), "times": found, "values": values(),
    }  # fmt: skip
    with atomically(KEPT) as partial:
        partial.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def times(d: int, K: int, number: int, rounds: int = ROUNDS, processes: int = 9) -> dict:
    """Milliseconds for each of `number` batches and each side, and the MiB that two of them need."""
    import nc_toolbox

    generator = torch.Generator().manual_seed(0)
    H = torch.randn(number * BATCH, d, generator=generator) + 3
    y = torch.randperm(number * BATCH, generator=generator) % K
    batches = list(zip(H.split(BATCH), y.split(BATCH), strict=True))

    def at_once():
        means = nc_toolbox.class_embedding_means(H.numpy(), y.numpy()).astype("float32")
        nc_toolbox.within_class_covariance(H.numpy(), y.numpy(), means)

    jobs = {
        "ours": lambda: _ours(lambda: batches, d, K), "neural-collapse": lambda: _accumulated(lambda: batches, d, K),
        "nc-toolbox": at_once, "product": lambda: H.T @ H,
    }  # fmt: skip
    seconds = {name: [] for name in jobs}
    for count in range(rounds + 1):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            if count:  # the first round warms up
                seconds[name].append(time.perf_counter() - began)
    row = {"d": d, "K": K, "samples": number * BATCH}
    row |= {name: float(median(found)) / number * 1e3 for name, found in seconds.items()}
    row["ratio"] = float(median([a / b for a, b in zip(seconds["ours"], seconds["neural-collapse"], strict=True)]))
    if number == BATCHES:
        row["MiB"] = {name: _memory(name, d, K, processes) for name in ("ours", "peer")}
    print(row, flush=True)
    return row


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


def _memory(who: str, d: int, K: int, processes: int) -> float:
    command = [sys.executable, "-m", "bench.measure", who, str(d), str(K)]
    runs = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True) for _ in range(processes)]
    return float(median([float(run.stdout) for run in runs]))  # it varies by how the allocator maps pages


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
    job(d, K, BATCHES)
    return _peak() - before


def _peak() -> float:
    """Largest resident size so far, in MiB; getrusage would report the parent's where that was larger."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**10


def values() -> list[dict]:
    """Every number of the peers beside ours, with the reason where they differ."""
    import nc_toolbox as toolbox
    import neural_collapse.accumulate as accumulate
    import neural_collapse.kernels as kernels
    import neural_collapse.measure as peer

    made: dict = {}
    exec(DATA, made)
    H, y, W, b, outside = (made[name] for name in ("H", "y", "W", "b", "outside"))

    def accumulated(kind, *arguments, **options):
        found = kind(10, 64, dtype=torch.float64, **options)
        found.accumulate(H, y, *arguments)
        return found

    M, G = accumulated(accumulate.MeanAccumulator).compute()
    V = accumulated(accumulate.CovarAccumulator, M, M=M).compute()
    v = accumulated(accumulate.VarNormAccumulator, M, M=M).compute()[0]
    decisions = accumulated(accumulate.DecAccumulator, W, M, M=M, W=W)
    h, labels, w, m, g = H.numpy(), y.numpy(), W.numpy(), M.numpy(), H.numpy().mean(0)
    spread = toolbox.class_embedding_variances(h, labels, m)
    head = nn.Linear(64, 10, dtype=torch.float64)
    head.load_state_dict({"weight": W, "bias": b})
    (ours,) = metrics.measure(head, [(H, y)], nc4=True, outside_loader=[(outside, y[:200])])
    of_samples, first, second = 'centre="samples"', *PEERS
    rows = [
        # what, ours, package, its name, its value; where it differs: why
        ("NC1", "nc1", first, "covariance_ratio", peer.covariance_ratio(V, M, G)),
        ("NC1", "nc1", first, "covariance_ratio(svd)", peer.covariance_ratio(V, M, G, "svd")),
        ("NC1", "nc1", second, "nc1_strong", toolbox.nc1_strong(h, labels, m, g), of_samples),
        ("ratio of traces", "trace_ratio", first, "covariance_ratio(quotient)",
         peer.covariance_ratio(V, M, G, "quotient")),
        ("share of the variance within classes", "trace_ratio", second, "nc1_weak",
         toolbox.nc1_weak(h, labels, m, g)[1], f"r / (1 + r) with {of_samples}"),
        ("CDNV", "cdnv", first, "variability_cdnv", peer.variability_cdnv(v, M)),
        ("CDNV", "cdnv", second, "nc1_cdnv", toolbox.nc1_cdnv(m, spread), "variances over n - 1"),
        ("NC2, simplex", "nc2_etf", first, "simplex_etf_error", peer.simplex_etf_error(M, G)),
        ("spread of the norms", "nc2_norms", second, "nc2_equinormness", toolbox.nc2_equinormness(m, g),
         f"mean difference of log norms, by sign; {of_samples}"),
        ("cosines, less that of a simplex", "nc2_angles", second, "nc2_equiangularity",
         toolbox.nc2_equiangularity(m, g), f"their mean, here that of their sizes; {of_samples}"),
        ("uniformity", "uniformity", first, "kernel_stats(log_kernel)",
         kernels.kernel_stats(M, G, kernels.log_kernel)[0]),
        ("uniformity", "uniformity", second, "gnc2_hypershperical_uniformity",
         toolbox.gnc2_hypershperical_uniformity(m, g), of_samples),
        ("NC3", "nc3", second, "nc3_self_duality", toolbox.nc3_self_duality(w, m, g),
         "the means centred at that of all samples, as nc3(W, means - centre)"),
        ("duality, distance from a simplex", "nc3", first, "self_duality_error", peer.self_duality_error(W, M, G),
         "of all products of weights and centred means"),
        ("duality, distance of each class", "nc3", first, "distance_norms", peer.distance_norms(W, M, G).mean(),
         "weights and centred means each of norm 1, mean over classes"),
        ("duality, cosine of each class", "duality", first, "similarities(cos)",
         peer.similarities(W, M, G, True).mean(), "the mean; here the coefficient of variation"),
        ("uniform duality", "duality", second, "unc3_uniform_duality", toolbox.unc3_uniform_duality(w, m, g),
         f"mean cosine of weights and means of different classes; {of_samples}"),
        ("NC4", "nc4", second, "nc4_classifier_agreement", toolbox.nc4_classifier_agreement(h, w, b.numpy(), m),
         "share that agrees"),
        ("NC4", "nc4", first, "clf_ncc_agreement", peer.clf_ncc_agreement(decisions),
         "share that agrees, without the bias of the classifier"),
        ("NC5", "nc5", first, "orthogonality_deviation", peer.orthogonality_deviation(M, outside.mean(0))),
        ("mean length of the centred means", None, first, "mean_norms", peer.mean_norms(M, G).mean(),
         "in the unit of the features"),
    ]  # fmt: skip
    found = []
    for what, name, package, theirs, given, *why in rows:
        here, given = ours.get(name), float(given)
        agrees = here is not None and abs(here - given) <= 1e-6 * max(abs(given), 1)
        if agrees == bool(why):
            raise AssertionError(f"{what}: {here} here and {given} there, whose reason is {why}")
        entry = {"what": what, "ours": {"name": name, "value": here} if name else None, **dict.fromkeys(PEERS)}
        entry[package] = {"name": theirs, "value": given}
        found.append(entry | {"agrees": agrees, "why": why[0] if why else None})
    return found


if __name__ == "__main__":
    print(_grow(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
