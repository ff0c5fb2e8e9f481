"""What `make bench` counts and keeps, and that its computations run; no time is compared here."""

import json

import pytest
import torch

from bench import cost, kernels
from lib.book.folders import ROOT

STEPS = {"sentence_steps": (4, 3), "descent_steps": (2, 2), "runs": 3}
MODELS = {"sentences": (3, 12, 3, 4, 5, 30), "deep": (3, 2, 4, 3, 0.01, 0.1), "two_layers": (2, 3, 4, 2, 0.01, 0.1)}
NETWORKS = {"mlps": (2, 4, 4, 8, 5), "resnets": (2, 12, 4, 1 / 8, 4), "resnet": (8, 1, 4, 1 / 16, 4)}
TINY = kernels.Sizes(**STEPS, **MODELS, **NETWORKS)


OPERATIONS = [
    (lambda: torch.ones(2, 3) @ torch.ones(3, 5), 60),
    (lambda: torch.zeros(4, 2, 5).baddbmm_(torch.ones(4, 2, 3), torch.ones(4, 3, 5)), 240),
    (lambda: torch.zeros(2, 5).addmm_(torch.ones(2, 3), torch.ones(3, 5)), 60),
    (lambda: torch.conv2d(torch.ones(1, 3, 6, 6), torch.ones(7, 3, 3, 3)), 2 * 7 * 4 * 4 * 27),
    (lambda: torch.nn.functional.linear(torch.ones(2, 3), torch.ones(5, 3).requires_grad_()).sum().backward(), 120),
    (lambda: torch.ones(2, 3).sin(), 0),
]


@pytest.mark.parametrize(("function", "expected"), OPERATIONS)
def test_operations_are_those_of_products_and_convolutions(function, expected):
    assert cost.operations(function) == expected


def test_every_computation_runs_and_its_row_has_what_the_page_reads():
    """Runs of one shape are compared with a loop that advances all of them at once, too."""
    found = kernels.computations("cpu", TINY)
    for kernel in found:
        row = kernels.measured(kernel, {"float32": 1e9, "float64": 1e9}, "cpu", rounds=1)
        assert row["operations"] > 0 and min(row["floor"], row["book"], row["plain"], row["ratio"]) > 0
        several = "sentence" not in kernel.name and "ResNet18" not in kernel.name
        assert several == ("batched" in row) == ("batched_ratio" in row)


def test_the_plain_loops_of_one_network_and_of_all_take_the_same_steps():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 5, generator=generator), torch.arange(8) % 3
    models = [kernels.mlp(5, 4, 3, 4, 2, seed=seed) for seed in range(2)]
    sgd, before = kernels.SGD(1, 0.1, batch_size=8), [p.clone() for p in models[0].parameters()]
    plain, batched = kernels.plain_loops(models, x, y, torch.nn.functional.cross_entropy, sgd)
    plain()
    weights = batched()
    for old, alone, together in zip(before, models[0].parameters(), weights, strict=True):
        torch.testing.assert_close(together[0], alone, rtol=0, atol=1e-6)
        assert old.ndim == 1 or not torch.equal(alone, old)


@pytest.mark.parametrize("path", sorted((ROOT / "chapters/back/cost").glob("*.json")), ids=lambda path: path.name)
def test_what_is_kept_names_its_machine_and_no_time_is_below_its_floor(path):
    kept = json.loads(path.read_text("utf-8"))
    assert {"device", "torch", "threads", "date", "sizes", "rates", "rows"} <= kept.keys()
    assert all(0 < row["floor"] < row["book"] and row["plain"] > 0 for row in kept["rows"])
