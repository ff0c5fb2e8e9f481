"""The device of a chapter: which one it is, what is said where there is none, and what is noted of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lib.runs import devices

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    for name in ("COLLAPSE_NOTES", "COLLAPSE_GPU_SHARE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_card(monkeypatch):
    """A machine with everything that a GPU needs, except the GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(devices, "has_driver", lambda: True)


@pytest.fixture
def card(monkeypatch):
    """A machine with a GPU, as far as this module asks; the fractions that it is limited to."""
    fractions = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fractions.append)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A Card")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60, 80))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return fractions


def test_auto_is_the_processor_where_there_is_no_card(no_card):
    assert devices.choose() == devices.choose("auto") == devices.choose("cpu") == "cpu"


def test_auto_is_the_card_where_there_is_one(card):
    assert devices.choose() == devices.choose("cuda") == "cuda"
    assert devices.choose("cpu") == "cpu"


def test_a_card_that_is_not_there_is_refused_with_what_is_missing(no_card):
    with pytest.raises(ValueError, match=r"device = 'cuda': there is a driver, but torch \S+ finds no device"):
        devices.choose("cuda")


def test_an_unknown_device_is_refused():
    with pytest.raises(ValueError, match="device = 'gpu': 'auto', 'cpu' or 'cuda' is needed"):
        devices.choose("gpu")


def test_each_thing_that_a_card_needs_is_named_where_it_is_missing(no_card, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.missing() == "CUDA_VISIBLE_DEVICES = '' hides every device"
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(devices, "has_driver", lambda: False)
    driver, built, _ = devices.missing().split("; ")
    assert driver == "there is no driver of a GPU (none of /dev/nvidiactl, /dev/dxg, /dev/kfd)"
    assert built == f"torch {torch.__version__} is built without CUDA"


def test_visible_devices_are_not_said_to_be_hidden(no_card, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert "CUDA_VISIBLE_DEVICES" not in devices.missing()


def test_with_a_card_nothing_is_missing(card):
    assert devices.missing() == "nothing is missing: torch finds a GPU"


def test_a_driver_is_found_by_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "DRIVERS", (str(tmp_path / "one"), str(tmp_path / "two")))
    assert not devices.has_driver()
    (tmp_path / "two").touch()
    assert devices.has_driver()


def test_a_chapter_takes_its_share_of_the_card_alone(card, monkeypatch):
    devices.choose("cuda")
    assert card == [], "nothing is limited where no share is given"
    monkeypatch.setenv("COLLAPSE_GPU_SHARE", "0.25")
    devices.choose("cpu")
    assert card == []
    devices.choose("auto")
    assert card == [0.25]


@pytest.mark.parametrize("share", ["0", "1.5", "-1", "half", "nan"])
def test_a_share_that_is_none_is_refused(card, monkeypatch, share):
    monkeypatch.setenv("COLLAPSE_GPU_SHARE", share)
    with pytest.raises(ValueError, match=f"COLLAPSE_GPU_SHARE = '{share}'"):
        devices.choose("cuda")


def test_the_choice_is_noted_with_what_the_record_says_about_the_device(card, tmp_path, monkeypatch):
    path = tmp_path / "notes"
    monkeypatch.setenv("COLLAPSE_NOTES", str(path))
    for device in ("auto", "cpu"):
        devices.choose(device)
    gpu, cpu = map(json.loads, path.read_text().splitlines())
    assert gpu.items() >= {"kind": "device", "device": "cuda", "name": "A Card", "memory": 80, "cuda": "13.0"}.items()
    assert (cpu["device"], cpu["name"], cpu["cuda"]) == ("cpu", devices.name("cpu"), None)
    assert gpu["torch"] == cpu["torch"] == torch.__version__
    assert gpu["python"] == ".".join(map(str, sys.version_info[:3]))


def test_the_processor_has_a_name_and_memory():
    assert devices.name("cpu").strip()
    free, total = devices.memory("cpu")
    assert 0 <= free <= total
    if Path("/proc/meminfo").exists():
        assert free > 0


def test_asking_for_a_driver_does_not_import_torch():
    code = "import sys; from lib import devices; devices.has_driver(), devices.no_driver(), devices.name('cpu')"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], cwd=ROOT, check=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_share_of_a_real_card_is_all_that_can_be_taken(monkeypatch):
    monkeypatch.setenv("COLLAPSE_GPU_SHARE", "0.1")
    device = devices.choose("cuda")
    _, total = devices.memory(device)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(total // 5, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
