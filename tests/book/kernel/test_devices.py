"""The device of a chapter: which one it is, what is said where there is none, and what is noted of it."""

import json

import pytest
import torch

from lib.book.kernel import devices


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    for name in ("COLLAPSE_NOTES", "COLLAPSE_GPU_SHARE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_card(monkeypatch, tmp_path):
    """A machine with everything that a GPU needs, except the GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(devices, "DRIVERS", (str(tmp_path / "driver"), str(tmp_path)))


@pytest.fixture
def card(monkeypatch, no_card):
    """A machine with a GPU, as far as this module asks; the fractions that it is limited to."""
    fractions = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fractions.append)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A Card")
    return fractions


def test_auto_is_the_processor_where_there_is_no_card(no_card):
    assert devices.choose() == devices.choose("auto") == devices.choose("cpu") == "cpu"


@pytest.mark.parametrize("device", ["gpu", "cuda"])
def test_a_device_that_is_unknown_or_not_there_is_refused(no_card, device):
    with pytest.raises(ValueError, match=f"device = '{device}'"):
        devices.choose(device)


def test_what_a_card_needs_is_named_where_it_is_missing(card, monkeypatch):
    assert devices.missing() == ""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "CUDA_VISIBLE_DEVICES is '-1'" in devices.missing()
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert "without CUDA" in devices.missing()
    monkeypatch.setattr(devices, "DRIVERS", ("/dev/no such file",))
    assert "no driver" in devices.missing() and "/dev/no such file" in devices.missing()


def test_a_chapter_takes_its_share_of_the_card_alone(card, monkeypatch):
    devices.choose("cuda")
    assert card == [], "nothing is limited where no share is given"
    monkeypatch.setenv("COLLAPSE_GPU_SHARE", "0.25")
    devices.choose("cpu")
    assert card == []
    devices.choose("auto")
    assert card == [0.25]


def test_auto_is_the_card_where_there_is_one_and_the_choice_is_noted_with_its_name(card, tmp_path, monkeypatch):
    path = tmp_path / "notes"
    monkeypatch.setenv("COLLAPSE_NOTES", str(path))
    assert [devices.choose(device) for device in ("auto", "cpu")] == ["cuda", "cpu"]
    gpu, cpu = map(json.loads, path.read_text().splitlines())
    assert gpu == {"kind": "device", "device": "cuda", "name": "A Card", "cuda": "13.0"}
    assert cpu == {"kind": "device", "device": "cpu", "name": devices.name("cpu"), "cuda": None}
    assert devices.name("cpu").strip()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_share_of_a_real_card_is_all_that_can_be_taken(monkeypatch):
    monkeypatch.setenv("COLLAPSE_GPU_SHARE", "0.1")
    device = devices.choose("cuda")
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(torch.cuda.mem_get_info(device)[1] // 5, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
