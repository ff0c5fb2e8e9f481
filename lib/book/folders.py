"""The two folders that the book empties, its environment and its build folder, and whether they are its own.

A folder that VENV, BOOK_BUILD or a link names may hold anything. It is the book's if it was new or empty when the book
took it: then it holds a mark, which is written before all else. Nothing is deleted in another.

The Makefile calls this before there is an environment (`python -m lib.book.folders set-up FOLDER`, or `clean`), so it
needs no more than some Python 3.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BOOK_BUILD") or ROOT / "_build").expanduser().absolute()
MARK = ".how-representations-collapse"
# Where a build deletes or replaces files, and all that lies in a build folder.
REPLACED = ("doctrees", "executed", "failed", "running", "sites", "source", "unfinished")
MADE = (*REPLACED, "html", "claims.json", "results", "smoke", ".ipython", ".matplotlib", ".lock")


def _vacant(folder: Path) -> bool:
    """Whether nothing is there, or a folder without content (its mark is none)."""
    return not os.path.lexists(folder) or os.path.isdir(folder) and not {*os.listdir(folder)} - {MARK}


def _around(folder: Path) -> bool:
    """Whether it is the checkout or contains it, also through links."""
    return os.path.exists(folder) and any(os.path.samefile(folder, place) for place in (ROOT, *ROOT.parents))


def refused(build: Path) -> str:
    """Why nothing is written to this build folder, and nothing deleted in it; empty if it may be used."""
    reason, html = "", build / "html"
    if _around(build):
        reason = "is the folder of the book, or contains it"
    elif not (_vacant(build) or (build / MARK).exists() or _only_runs(build)):
        reason = "holds what no build has made"
    elif links := [name for name in REPLACED if (build / name).is_symlink()]:
        reason = f"has a link at {links[0]}, where builds delete files"
    elif glob.escape(str(build)) != str(build):
        reason = "has one of [ ] * ? in its path, which Sphinx takes for a pattern"
    elif html.is_symlink() and html.resolve().parent != (build / "sites").resolve():
        reason = f"has a link at html that leads to {os.readlink(html)}, no site of the book"
    return reason and f"BOOK_BUILD = '{build}' {reason}: a new or empty folder is needed, or one that a build has made"


def _only_runs(build: Path) -> bool:
    """Whether it is the default folder, in which the suite or a chapter in JupyterLab has put something first."""
    default = build == ROOT / "_build" and not build.is_symlink()
    return default and {*os.listdir(build)} <= {"results", "smoke"}


def take(folder: Path) -> None:
    """Make a folder where there is none, and mark it as the book's, before anything else is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()


def clean(build: Path) -> str:
    """Remove by name what builds make, and the folder if nothing else is in it. Returns why it is refused."""
    if problem := refused(build):
        return problem
    for name in MADE:  # so that what a reader has put beside it stays
        _remove(build / name)
    if not _vacant(build):
        take(build)
        print(f"{build} stays, for what no build has made: {', '.join(sorted({*os.listdir(build)} - {MARK}))}")
    elif build.is_dir():
        _remove(build / MARK)
        if not build.is_symlink():
            build.rmdir()
    return ""


def set_up(folder: Path) -> str:
    """Make the environment if there is none; the book's own is emptied and made anew if it does not work.

    Returns why a folder is refused.
    """
    reason = ""
    if _around(folder):
        reason = "is the folder of the book, or contains it"
    elif not _vacant(folder) and not (folder / "pyvenv.cfg").is_file():
        reason = "is no virtual environment"
    elif _works(folder):
        return ""
    elif not _vacant(folder) and not (folder / MARK).exists():
        reason = "has no pip that works, and `make` has not made it"
    if reason:
        return f"VENV = '{folder}' {reason}: a new or empty folder is needed, or a virtual environment that works"
    take(folder)
    for name in {*os.listdir(folder)} - {MARK}:  # of an environment that this made and that does not work
        _remove(folder / name)
    return "python -m venv failed" if subprocess.call([sys.executable, "-m", "venv", str(folder.absolute())]) else ""


def _works(environment: Path) -> bool:
    try:
        command = [str(environment.absolute() / "bin" / "python"), "-m", "pip", "--version"]
        return not subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return False


def _remove(path: Path) -> None:
    """Remove a file, a folder with all in it, or a link, but never what a link leads to."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


if __name__ == "__main__":
    try:
        sys.exit((clean(BUILD) if sys.argv[1] == "clean" else set_up(Path(sys.argv[2]))) or None)
    except OSError as error:
        sys.exit(str(error))
