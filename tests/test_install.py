"""`pip install .` from a checkout: the measures work far from it, under their own name, in any project."""

import re
import shutil
import subprocess
import sys
import textwrap
import zipfile

import pytest

from lib.book.folders import ROOT

SAMPLES = """
import sys, torch
from torch import nn
torch.manual_seed(0)
y = torch.arange(12) % 3
"""
MODELS = """
from vision import torchvision
from transformers import GPT2Config, GPT2ForSequenceClassification
resnet = torchvision.models.resnet18(num_classes=3)
x = torch.randn(12, 3, 32, 32)
sizes = {"vocab_size": 9, "n_positions": 6, "n_embd": 8, "n_layer": 1, "n_head": 2}
gpt2 = GPT2ForSequenceClassification(GPT2Config(**sizes, num_labels=3, pad_token_id=0))
tokens = torch.randint(1, 9, (12, 6))
tokens[::2, 4:] = 0
batch = {"input_ids": tokens, "attention_mask": (tokens > 0).long(), "labels": y}
for model, layers, loader, test_loader in (
    (resnet, ["layer3", "layer4"], [(x, y)], [(x + 1, y)]),
    (gpt2, ["transformer.h.0", "transformer.ln_f"], [batch], [batch]),
):
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


def run(program, installed, folder):
    environment = {"PYTHONPATH": str(installed), "MPLBACKEND": "agg", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_what_measures_and_nothing_else(installed):
    ours = {path.name for path in (ROOT / "lib" / "collapsemetrics").glob("*.py")}
    assert {path.name for path in (installed / "collapsemetrics").iterdir()} == ours
    assert not (installed / "lib").exists()


@pytest.mark.parametrize("package", [True, False], ids=["with __init__", "without"])
def test_a_project_with_a_lib_of_its_own_keeps_it(installed, tmp_path, package):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "own.py").write_text("here = True\n")
    if package:
        (tmp_path / "lib" / "__init__.py").touch()
    program = SAMPLES + (
        "before = set(sys.modules)\n"
        "import collapsemetrics, lib.own\n"
        "x = torch.randn(12, 5)\n"
        "found = collapsemetrics.measure(nn.Linear(5, 3), [(x, y)], nc4=True, test_loader=[(x + 1, y)])\n"
        "heavy = {'matplotlib', 'IPython', 'sklearn', 'scipy', 'networkx', 'torchvision', 'PIL', 'pandas'}\n"
        "print(sorted((set(sys.modules) - before) & heavy), lib.own.here)\n"
        "found.plot().savefig('picture.png')\n"
        "tracker = collapsemetrics.Tracker(nn.Linear(5, 3), [(x, y)])\n"
        "tracker(0)\n"
        "tracker.plot().savefig('curves.png')\n"
        "print(collapsemetrics.__file__)\n"
    )
    imported, where = run(program, installed, tmp_path).splitlines()
    assert imported == "[] True" and where == str(installed / "collapsemetrics" / "__init__.py")
    assert (tmp_path / "picture.png").stat().st_size > 5000 and (tmp_path / "curves.png").stat().st_size > 5000


def test_the_five_lines_of_the_readme_work_with_any_model(installed, tmp_path):
    shutil.copy(ROOT / "lib" / "data" / "vision.py", tmp_path)  # torchvision beside any torch
    readme = (ROOT / "README.md").read_text("utf8")
    lines = re.search(r"```python\n(from collapsemetrics .*?)```", readme, re.DOTALL)[1]
    assert len(lines.strip().splitlines()) <= 5
    lines = lines.replace('"layer3", "layer4"', "*layers") + "print(found.head, found[-1]['d'], 'nc4' in found[-1])"
    printed = run(SAMPLES + MODELS + textwrap.indent(lines, "    "), installed, tmp_path)
    assert [line for line in printed.splitlines() if line.endswith("True")] == ["fc 512 True", "score 8 True"]
