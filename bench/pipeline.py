"""The build: each part cold, the whole book warm, and after a prose edit."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("feature-collapse", "extended-ufm", "memorization-dilation", "low-rank-bias", "synthesis")
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "_build", "__pycache__", ".pytest_cache", ".hypothesis", "*.ipynb")


def run(console: Console) -> None:
    table = Table(title="The pipeline, laptop profile")
    table.add_column("what")
    table.add_column("measured", justify="right")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "book"
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
        for part in PARTS:
            console.print(f"executing {part} ...")
            cold = _book(copy, "execute", "--chapter", f"{part}/*")
            table.add_row(f"{part}, cold: execution", f"{cold:.0f} s")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        table.add_row("    largest process", f"{peak:.2f} GiB")
        console.print("building the rest ...")
        table.add_row("everything else and the site, first time", f"{_book(copy, 'build'):.1f} s")
        warm = [_book(copy, "build") for _ in range(5)]
        table.add_row("warm build, nothing changed (median of 5)", f"{statistics.median(warm):.1f} s")
        executed = _notebooks(copy)
        edits = []
        for number in range(3):
            with open(copy / "chapters/feature-collapse/theorems.md", "a") as chapter:
                chapter.write(f"\nA sentence more, number {number}.\n")
            edits.append(_book(copy, "build"))
        assert _notebooks(copy) == executed, "a prose edit executed a chapter"
        table.add_row("after a prose edit, nothing executed (median of 3)", f"{statistics.median(edits):.1f} s")
    console.print(table)


def _book(folder: Path, *arguments: str) -> float:
    environment = {**os.environ, "PYTHONPATH": str(folder), "BOOK_BUILD": str(folder / "_build")}
    began = time.perf_counter()
    command = [sys.executable, "-m", "lib.book", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"lib.book {' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr}")
    return time.perf_counter() - began


def _notebooks(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted((folder / "_build/executed").rglob("*.ipynb"))}
