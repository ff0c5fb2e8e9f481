"""What a step must cost: its operations, as PyTorch counts them, at the rate of large matrix products on this machine.

Operations are those of matrix products and convolutions, a multiplication with the addition that follows it counting
two. No program is faster than operations / rate; passes over memory and calls come on top.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from numpy import median
from torch.utils.flop_counter import FlopCounterMode

from lib.training.cuda_graphs import rounding_to_tf32

ON_CARDS = {"tf32": torch.float32, "bfloat16": torch.bfloat16}  # kinds of numbers that only their matrix units have


def operations(function: Callable[[], object]) -> int:
    """Floating-point operations of the products and convolutions that a call executes."""

    def batched(into, left, right, **_):
        return 2 * left[0] * left[1] * left[2] * right[2]

    def plain(into, left, right, **_):
        return 2 * left[0] * left[1] * right[1]

    in_place = {torch.ops.aten.baddbmm_: batched, torch.ops.aten.addmm_: plain}  # PyTorch's counter passes over them
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        function()
    return counter.get_total_flops()


def seconds(function: Callable[[], object], device: str) -> float:
    """Time of one call, with what it left to do on a GPU."""
    _wait(device)
    began = time.perf_counter()
    function()
    _wait(device)
    return time.perf_counter() - began


def rates(device: str) -> dict[str, float]:
    """Operations per second in products of random matrices of a size that fills the device, by kind of number.

    Medians of five. On a GPU also with float32 rounded to TF32, and in bfloat16.
    """
    n = 8192 if device == "cuda" else 1024
    found = {}
    for kind, dtype in {"float64": torch.float64, "float32": torch.float32, **(ON_CARDS if n > 1024 else {})}.items():
        A, B = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        with rounding_to_tf32(kind == "tf32"):
            times = [seconds(lambda A=A, B=B: A @ B, device) for _ in range(6)]
        found[kind] = 2 * n**3 / median(times[1:])
    return found


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
