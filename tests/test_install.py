"""`pip install .` from a checkout: the library works from another folder, where there is no checkout."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import torch, lib
from lib.metrics import Tracker, measure
x, y = torch.randn(60, 5), torch.arange(60) % 3
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
found = measure(model, [(x, y)], ["0", "penultimate"], nc4=True, test_loader=[(x + 1, y)])
print(found)
found.plot().savefig("picture.png")
tracker = Tracker(model, [(x, y)])
tracker(0)
tracker.plot().savefig("curves.png")
print(lib.__file__)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with what the wheel of the checkout holds; built from a copy, for building writes beside the source."""
    pytest.importorskip("setuptools", "70.1")  # the first that makes wheels by itself
    copy, target = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("installed")
    shutil.copytree(ROOT / "lib", copy / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation"]
    done = subprocess.run([*command, "-w", target, copy], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = target.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(target)
    return target


def test_an_installed_library_measures_draws_and_tracks_far_from_the_checkout(installed, tmp_path):
    environment = {"PYTHONPATH": str(installed), "MPLBACKEND": "agg", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    header, first, second, where = done.stdout.splitlines()
    assert "dilation" in header and first.startswith("0 ") and second.startswith("penultimate")
    assert where == str(installed / "lib" / "__init__.py")
    assert (tmp_path / "picture.png").stat().st_size > 5000 and (tmp_path / "curves.png").stat().st_size > 5000


def test_every_module_of_the_library_is_installed_but_the_one_that_builds_the_book(installed):
    def modules(folder):
        return {path.relative_to(folder).as_posix() for path in (folder / "lib").rglob("*.py")}

    assert modules(installed) == {name for name in modules(ROOT) if not name.startswith("lib/book/")}
