"""What `make bench` counts and keeps."""

import json

import pytest
import torch

from bench import cost, kernels
from lib.book.folders import ROOT


@pytest.mark.parametrize(("function", "expected"), [
    (lambda: torch.ones(2, 3) @ torch.ones(3, 5), 60),
    (lambda: torch.zeros(4, 2, 5).baddbmm_(torch.ones(4, 2, 3), torch.ones(4, 3, 5)), 240),
    (lambda: torch.zeros(2, 5).addmm_(torch.ones(2, 3), torch.ones(3, 5)), 60),
    (lambda: torch.conv2d(torch.ones(1, 3, 6, 6), torch.ones(7, 3, 3, 3)), 2 * 7 * 4 * 4 * 27),
    (lambda: torch.nn.functional.linear(torch.ones(2, 3), torch.ones(5, 3).requires_grad_()).sum().backward(), 120),
    (lambda: torch.ones(2, 3).sin(), 0),
])  # fmt: skip
def test_operations_are_those_of_products_and_convolutions(function, expected):
    assert cost.operations(function) == expected


@pytest.mark.parametrize("path", sorted((ROOT / "chapters/back/cost").glob("*.json")), ids=lambda path: path.name)
def test_what_is_kept_names_its_machine_and_no_time_is_below_its_floor(path):
    kept = json.loads(path.read_text("utf-8"))
    assert {"device", "torch", "threads", "date", "sizes", "rates", "rows"} <= kept.keys()
    assert all(0 < row["floor"] < row["book"] and row["plain"] > 0 for row in kept["rows"])
    if path.stem == "cpu" or torch.cuda.is_available():  # the makers build on their device
        assert [row["name"] for row in kept["rows"]] == [each.name for each in kernels.computations(path.stem)]
