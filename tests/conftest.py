"""One thread per test process, and the book in the `smoke` profile, built once for all tests that look at it."""

import fcntl
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lib.book.folders import ROOT

for name in ("VENV", "MAKEFLAGS", "MAKEOVERRIDES", *(name for name in os.environ if name.startswith("BOOK_"))):
    os.environ.pop(name, None)  # of the `make` that runs the suite, whose tests call it with values of their own
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: the processes share the cores


def pytest_collection_modifyitems(items):
    """The longest file first, whose process builds the smoke book, while the other one does what needs no book; the
    other files that look at it come last, the longest of them first."""
    turns = {"test_every_page": 0, "test_site": 3, "test_downloads": 4, "test_figures_that_answer": 4}
    turns |= {"test_pages": 5, "test_pdf": 5}
    items.sort(key=lambda item: turns.get(item.path.stem, 1 if item.path.parent.name == "book" else 2))


@pytest.fixture(scope="session")
def smoke_book(tmp_path_factory):
    """This book, executed in the `smoke` profile and published, in a folder that later runs of the suite take up: that
    folder, `build`, and the site in it, `html`.

    As in any build, what is current is not executed again. The test processes share the folder: a second one that
    asks waits for the first one's build, and takes it.
    """
    build = ROOT / "_build" / "smoke"
    environment = {**os.environ, "BOOK_BUILD": str(build), "PYTHONPATH": str(ROOT)}
    environment["COLLAPSE_DATA"] = str(build / "no data")  # the digits everywhere, whatever this machine has
    environment["LOKY_MAX_CPU_COUNT"] = "1"  # for a chapter: to start processes takes longer than such short runs
    command = [sys.executable, "-m", "lib.book", "build", "--profile", "smoke", "--device", "cpu", "--jobs", "2"]
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", os.getpid())
    with open(tmp_path_factory.getbasetemp().parent / f"smoke-{run}", "a") as built:
        fcntl.flock(built, fcntl.LOCK_EX)
        if not os.fstat(built.fileno()).st_size:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200)
            assert done.returncode == 0, f"the smoke profile does not build:\n{done.stdout}\n{done.stderr}"
            built.write("built")
    return SimpleNamespace(build=build, html=build / "html")
