"""The device that a chapter computes on: chosen in one place, kept to its share of the memory, noted for the record.

The functions that need torch import it, not this module: the build asks for driver files without waiting for torch.
"""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

from lib.book.kernel.notes import note
from lib.checks import one_of

#: Files that the drivers leave, of NVIDIA's cards, of the same under Windows, and of AMD's cards.
DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def choose(device: str = "auto") -> str:
    """The device to compute on, `"cuda"` or `"cpu"`: what `"auto"` stands for, or `device` itself.

    `"auto"` is a GPU where torch finds one, otherwise the CPU. On a GPU this process may take the share of GPU memory
    that the environment variable COLLAPSE_GPU_SHARE gives, a number in (0, 1]; `lib.book` sets it where chapters share
    a card. The choice is noted for the record of the build (:func:`lib.book.kernel.notes.note`).

    Raises ValueError for another name, and for `"cuda"` where there is no GPU, with what :func:`missing` says.

    >>> choose("cpu")
    'cpu'
    """
    import torch

    one_of(("auto", "cpu", "cuda"), device=device)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device = 'cuda': {missing()}")
        if share := os.environ.get("COLLAPSE_GPU_SHARE"):
            torch.cuda.set_per_process_memory_fraction(float(share))
    note("device", device=device, name=name(device), cuda=torch.version.cuda if device == "cuda" else None)
    return device


def missing() -> str:
    """What keeps torch from finding a GPU, in words; empty if it finds one. torch is asked only if a driver exists."""
    if not any(Path(path).exists() for path in DRIVERS):
        return f"there is no driver of a GPU (none of {', '.join(DRIVERS)})"
    import torch

    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    return f"torch {torch.__version__} finds no device; CUDA_VISIBLE_DEVICES is {visible!r}, the driver may be too old"


def name(device: str) -> str:
    """The model of the card, or of the processor where `device` is `"cpu"`."""
    if device != "cpu":
        import torch

        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError):  # not Linux
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown processor"
