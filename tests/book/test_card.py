"""Every chapter that computes on the device of its choice runs on a card of paper, the way of the `paper` profile goes.

The sizes are those of `smoke`.
There it shows where a chapter, or what it calls, mixes devices, draws random numbers on the card, hands its tensors to
numpy, or reads numbers back within a recorded step. What a chapter prints there is that of a processor.
"""

import concurrent.futures
import linecache
import sys
import warnings
from pathlib import Path

import jupytext
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
import paper_card  # noqa: E402

from lib import cost
from lib.runs import devices  # noqa: E402

CHAPTERS = [path for path in sorted(ROOT.glob("chapters/*/*.md")) if "devices.choose(" in path.read_text("utf-8")]


class OneThread:
    """An executor whose only thread is the caller's: other threads know nothing of the card."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def map(self, function, *items):
        return [function(*arguments) for arguments in zip(*items, strict=False)]

    def submit(self, function, *arguments, **named):
        done = concurrent.futures.Future()
        done.set_result(function(*arguments, **named))
        return done


def code_of(path):
    """The code cells with their tags, the sizes of `smoke` chosen; commands to the notebook itself are left out."""
    for cell in jupytext.read(path).cells:
        if cell.cell_type == "code":
            lines = [line for line in cell.source.splitlines() if not line.startswith("%")]
            yield "\n".join(lines).replace(".index(profile)", '.index("smoke")'), cell.metadata.get("tags", [])


@pytest.mark.parametrize("path", CHAPTERS, ids=[f"{p.parent.name}/{p.stem}" for p in CHAPTERS])
def test_a_chapter_runs_on_a_card(path, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("COLLAPSE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("COLLAPSE_UNFINISHED", str(tmp_path / "unfinished"))
    for scheme in ("http_proxy", "https_proxy"):  # a data set that is not there is not downloaded
        monkeypatch.setenv(scheme, "http://127.0.0.1:9")
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(concurrent.futures, "ThreadPoolExecutor", OneThread)
    monkeypatch.setattr(devices, "choose", lambda device="auto": "cuda")
    monkeypatch.setattr(devices, "name", lambda device: "a card of paper")
    monkeypatch.setattr(cost, "rates", lambda *_: cost.H200_PUBLISHED)
    fork = torch.random.fork_rng
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices=(), **options: fork(devices=[], **options))
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    names, default = {"__name__": "__main__", "In": [""]}, torch.get_default_dtype()
    try:
        card = paper_card.Device(draws=path.stem == "own-network")  # whose reader's network has dropout
        with warnings.catch_warnings(), paper_card.installed(), card:
            warnings.simplefilter("ignore")
            for number, (code, tags) in enumerate(code_of(path)):
                file = f"<{path.stem}, code cell {number}>"
                linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
                names["In"].append(code)
                exec(compile(code, file, "exec"), names)
                if "parameters" in tags:
                    names |= {"profile": "paper", "device": "cuda"}
    finally:
        torch.set_default_dtype(default)
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")
