"""torchvision is importable beside any torch, and from one place only."""

import gc
import re

import torch

from lib.book.folders import ROOT
from lib.data.vision import torchvision


def test_data_sets_and_models_of_torchvision_work():
    gc.collect()
    assert torch.ops.torchvision.nms and torchvision.datasets.MNIST


def test_torchvision_is_imported_in_one_module_only():
    direct = re.compile(r"^\s*(import torchvision|from torchvision)", re.MULTILINE)
    sources = [path for folder in ("lib", "chapters", "bench") for path in (ROOT / folder).rglob("*") if path.is_file()]
    found = [path for path in sources if path.suffix in (".py", ".md") and direct.search(path.read_text("utf8"))]
    assert found == [ROOT / "lib" / "data" / "vision.py"]
