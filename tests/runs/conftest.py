"""Processes that tests of sweeps and searches start, and kill."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from lib.book.folders import ROOT


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
