"""Processes that tests of sweeps and searches start, and kill."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def start():
    """Start Python processes that can import lib and the tasks; whatever is left of them is killed afterwards."""
    started = []

    def process(*arguments, seconds=0.0):
        path = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
        environment = {**os.environ, "PYTHONPATH": path, "SWEEP_TASK_SECONDS": str(seconds)}
        started.append(
            subprocess.Popen(
                [sys.executable, *map(str, arguments)], env=environment, cwd=ROOT, start_new_session=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip
        return started[-1]

    yield process
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        one.wait()


@pytest.fixture
def two_threads():
    """For torch in this process."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def wait_for():
    """Wait until a condition holds."""

    def wait(condition, seconds=60):
        end = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.01)
        return found

    return wait
