"""torchvision is importable beside any torch, and from one place only."""

import gc
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from lib.data.vision import torchvision

ROOT = Path(__file__).resolve().parents[2]


def with_torchvision_from(folder, monkeypatch):
    """What lib/data/vision.py defines when it finds the torchvision of this folder."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    try:
        return runpy.run_path(str(ROOT / "lib" / "data" / "vision.py"))
    finally:
        sys.modules.pop("torchvision", None)


def test_data_sets_and_models_of_torchvision_work():
    gc.collect()
    assert torch.ops.torchvision.nms and torchvision.datasets.MNIST
    assert torchvision.models.resnet18(num_classes=3).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 3)


def test_a_torchvision_that_imports_is_left_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "torchvision.py").write_text("works = True")
    found = with_torchvision_from(tmp_path, monkeypatch)
    assert found["torchvision"].works
    assert "_schemas" not in found


def test_another_error_of_the_import_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('compiled for another CUDA version')")
    with pytest.raises(RuntimeError, match="another CUDA version"):
        with_torchvision_from(tmp_path, monkeypatch)


def test_torchvision_is_imported_in_one_module_only():
    direct = re.compile(r"^\s*(import torchvision|from torchvision)", re.MULTILINE)
    sources = [path for folder in ("lib", "chapters", "bench") for path in (ROOT / folder).rglob("*") if path.is_file()]
    found = [path for path in sources if path.suffix in (".py", ".md") and direct.search(path.read_text("utf8"))]
    assert found == [ROOT / "lib" / "data" / "vision.py"]
