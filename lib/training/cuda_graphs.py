"""Steps that a GPU repeats by itself: recorded once as a CUDA graph, then replayed with a single call for many steps.

A GPU makes a small step in less time than the CPU needs to launch its kernels one by one. A graph launches all
kernels of several steps at once. It reads and writes the same memory whenever it is replayed, so a step has to
leave its results where it found its inputs, must not read numbers back, and takes whatever changes from tensors on
the device. On a CPU the same step is simply called.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import torch

_WARM_UP = 2  # real steps before the recording, in which libraries load their kernels and allocate their workspaces


def recorded(step: Callable[[], object], device: torch.device | str, unroll: int = 10) -> Callable[[int], None]:
    """A function `advance(steps)` that makes exactly `steps` steps.

    On a GPU a graph holds `unroll` steps. It is recorded in the first call with enough steps and kept for all later
    calls; the steps before the recording, and those that do not fill a graph, are plain calls. `step` must not make
    the calling thread wait for the GPU: no `.item()`, no shape that depends on values, no copy from the CPU.

    >>> total = torch.zeros(())
    >>> advance = recorded(lambda: total.add_(1), device="cpu")
    >>> advance(25), advance(3), total.item()
    (None, None, 28.0)
    """
    device, graph = torch.device(device), None

    def advance(steps: int) -> None:
        nonlocal graph
        if device.type == "cuda":
            if graph is None and steps >= _WARM_UP + unroll:
                graph = _record(step, unroll, device)
                steps -= _WARM_UP
            if graph is not None:
                for _ in range(steps // unroll):
                    graph.replay()
                steps %= unroll
        for _ in range(steps):
            step()

    return advance


def _record(step: Callable[[], object], unroll: int, device: torch.device) -> torch.cuda.CUDAGraph:
    """A graph of `unroll` steps. Recording executes none of them; the `_WARM_UP` steps before it are real."""
    side, current = _stream(device), torch.cuda.current_stream(device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            step()
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # what libraries do in threads of their own meanwhile is no error
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        for _ in range(unroll):
            step()
    return graph


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which all recordings are made, since the libraries have a workspace for each stream."""
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def rounding_to_tf32(allowed: bool = True):
    """Set whether a GPU may round factors of float32 products and convolutions to TF32, then restore the setting.

    >>> before = torch.backends.cudnn.conv.fp32_precision
    >>> with rounding_to_tf32(False):
    ...     torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision
    ('ieee', 'ieee')
    >>> torch.backends.cudnn.conv.fp32_precision == before
    True
    """
    kinds = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = [kind.fp32_precision for kind in kinds]
    try:
        for kind in kinds:
            kind.fp32_precision = "tf32" if allowed else "ieee"
        yield
    finally:
        for kind, precision in zip(kinds, before, strict=True):
            kind.fp32_precision = precision
