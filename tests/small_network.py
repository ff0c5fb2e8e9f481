"""A small network and samples of three classes, for the tests of what measures and tracks a network."""

import torch
from torch import nn


def samples(n=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return torch.randn(n, 6, generator=generator) + 2 * torch.eye(3, 6)[y], y


def network(*between):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *between, nn.ReLU(), nn.Linear(8, 3))


def noisy_network():
    """One that depends on the mode and draws random numbers."""
    return network(nn.BatchNorm1d(8), nn.Dropout(0.4))


def in_two_processes(function, folder):
    """What `function(rank)` returns in two processes that know each other."""
    torch.multiprocessing.start_processes(_process, (function, folder), 2, start_method="fork")
    return [torch.load(folder / str(rank)) for rank in range(2)]


def _process(rank, function, folder):
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", world_size=2, rank=rank)
    torch.save(function(rank), folder / str(rank))
    torch.distributed.destroy_process_group()


def numbers(row):
    """Those that do not depend on the order of the samples, to which the random labels of chance are given."""
    return {name: value for name, value in row.items() if name not in ("layer", "nc1_chance") and value is not None}
