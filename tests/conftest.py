"""One thread per test process, and the book in the `smoke` profile, built once for all tests that look at it."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: the processes share the cores

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Book:
    """A finished build: its folder, the site, and what the command printed."""

    build: Path
    html: Path
    output: str


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What looks at the smoke book comes first and goes to one process, which builds it while the other one tests.

    The other files go to a process each, with what takes longest at the front.
    """
    for item in items:
        group = "smoke book" if "smoke_book" in item.fixturenames else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: ("smoke_book" not in item.fixturenames, item.path.parent.name != "book"))


@pytest.fixture(scope="session")
def smoke_book(tmp_path_factory) -> Book:
    """This book, executed in the `smoke` profile and published, in a folder of its own."""
    build = tmp_path_factory.mktemp("smoke-book")
    environment = {**os.environ, "BOOK_BUILD": str(build), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "lib.book", "build", "--profile", "smoke", "--device", "cpu"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, f"the book does not build in the smoke profile:\n{done.stdout}\n{done.stderr}"
    return Book(build, build / "html", done.stdout)
