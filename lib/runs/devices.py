"""The device that a chapter computes on: chosen in one place, kept to its share of the memory, noted for the record.

torch is imported by what needs it, not by this module: the build asks for driver files without waiting for torch.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from lib.ledger.notes import note

#: What the drivers of NVIDIA's cards, of the same under Windows, and of AMD's leave in the file system.
DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def choose(device: str = "auto") -> str:
    """The device to compute on, `"cuda"` or `"cpu"`: what `"auto"` stands for, or `device` itself.

    `"auto"` is a GPU where torch finds one, otherwise the CPU. On a GPU this process may take the part of its memory
    that the environment variable COLLAPSE_GPU_SHARE says, a number in (0, 1]; `lib.book` sets it where chapters share
    a card. The choice is noted for the record of the build (:func:`lib.ledger.notes.note`).

    Raises ValueError for another name, for `"cuda"` where there is none (with what :func:`missing` says), and for a
    share out of range.

    >>> choose("cpu")
    'cpu'
    """
    import torch

    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device = {device!r}: 'auto', 'cpu' or 'cuda' is needed")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device = 'cuda': {missing()}")
        share = os.environ.get("COLLAPSE_GPU_SHARE")
        if share:
            torch.cuda.set_per_process_memory_fraction(_fraction(share))
    facts = {"device": device, "name": name(device), "memory": memory(device)[1]}
    cuda = torch.version.cuda if device == "cuda" else None
    note("device", **facts, torch=torch.__version__, cuda=cuda, python=platform.python_version())
    return device


def missing() -> str:
    """What a GPU needs and what is not here, in words; says so where nothing is missing.

    Looked for are the files of a driver, a torch that was built for GPUs, and devices that CUDA_VISIBLE_DEVICES does
    not hide.
    """
    import torch

    if torch.cuda.is_available():
        return "nothing is missing: torch finds a GPU"
    lacking = [] if has_driver() else [no_driver()]
    if torch.version.cuda is None and torch.version.hip is None:
        lacking.append(f"torch {torch.__version__} is built without CUDA")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        lacking.append(f"CUDA_VISIBLE_DEVICES = {visible!r} hides every device")
    built = f"torch {torch.__version__} finds no device; the driver may be too old for CUDA {torch.version.cuda}"
    return "; ".join(lacking or [f"there is a driver, but {built}"])


def has_driver() -> bool:
    """Has the driver of a GPU left one of its files (`DRIVERS`)? Asked without torch."""
    return any(Path(path).exists() for path in DRIVERS)


def no_driver() -> str:
    """That none of the files of :func:`has_driver` is there, in words."""
    return f"there is no driver of a GPU (none of {', '.join(DRIVERS)})"


def name(device: str) -> str:
    """The model of the card, or of the processor where `device` is `"cpu"`."""
    if device != "cpu":
        import torch

        return torch.cuda.get_device_name(device)
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine() or "unknown processor"


def memory(device: str) -> tuple[int, int]:
    """Free and total memory of the device in bytes; for `"cpu"` that of the machine, (0, 0) where it does not say."""
    if device != "cpu":
        import torch

        return torch.cuda.mem_get_info(device)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = {entry: int(rest.split()[0]) for entry, _, rest in (line.partition(":") for line in lines)}
        return 1024 * kilobytes["MemAvailable"], 1024 * kilobytes["MemTotal"]
    except (OSError, KeyError, ValueError):  # not Linux
        return 0, 0


def _fraction(share: str) -> float:
    try:
        fraction = float(share)
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= 1:
        raise ValueError(f"COLLAPSE_GPU_SHARE = {share!r}: a number above 0, at most 1, is needed")
    return fraction
