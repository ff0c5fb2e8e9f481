"""Executing chapters: papermill runs each stale one; finished notebooks are kept one by one, and so are finished
runs inside one.

A kernel's environment says where it reports and where it keeps things: COLLAPSE_NOTES, a file for `kernel.notes`, and
COLLAPSE_UNFINISHED, a folder for `lib.book.resume` that belongs to one key of the chapter. Where chapters run side by
side, COLLAPSE_GPU_SHARE is the part of the GPU's memory that `kernel.devices` leaves to each.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import functools
import json
import logging
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from lib.book import folders, inputs
from lib.book.atomic import atomically
from lib.book.inputs import sha, version
from lib.book.kernel import devices, notes
from lib.book.page import BadInput, Page

MOST_JOBS = 4  # chapters side by side: each takes its share of the memory, too
RESULT = "executed.ipynb"  # what papermill writes, in the folder of a running chapter
GPU_MEMORY = 0.95  # the part of a GPU's memory that is shared; the rest is for what the driver takes for each process


class Outcome(NamedTuple):
    """What became of a chapter: `state` is executed, up to date or FAILED."""

    page: Page
    state: str
    seconds: float = 0.0
    error: str = ""


# -------------------------------------------------------------------------------------------------- what there is


def executed_path(page: Page, folder: str = "executed") -> Path:
    """Where the executed notebook of a chapter lies, or, in the folder `failed`, what there is of one."""
    return folders.BUILD / folder / f"{page.name}.ipynb"


def executed_notebook(page: Page):
    """The executed notebook of a chapter, or None if :func:`noted` knows of none."""
    import nbformat

    return nbformat.read(executed_path(page), as_version=4) if noted(page) else None


def noted(page: Page) -> dict:
    """What is noted about the execution that made the kept notebook of a chapter: its key, the machine, the time.

    Empty if there is no notebook, or if it was cut off or is of another version of this module.
    """
    try:
        book = json.loads(executed_path(page).read_text(encoding="utf8"))["metadata"]["book"]
        known = {"code", "parameters", "lib", "versions", "files", "data"} <= book["key"].keys()
        return book if known and {"finished", "seconds", "machine", "data"} <= book.keys() else {}
    except (OSError, ValueError, KeyError):
        return {}


def keep(page: Page, notebook) -> None:
    """Write the executed notebook of a chapter."""
    import nbformat

    with atomically(executed_path(page)) as partial:
        nbformat.write(notebook, partial)


def stale(pages: list[Page], parameters: dict) -> dict[Page, list[str]]:
    """Why each of these chapters has to be executed; those that need not be are left out.

    Each data set is looked at once for all of them.
    """
    look, reasons = functools.cache(inputs.fingerprint), {}
    for page in pages:
        before = noted(page).get("key")
        reasons[page] = inputs.differences(before, inputs.key(page, parameters, before, look))
    return {page: why for page, why in reasons.items() if why}


# ----------------------------------------------------------------------------------------------------- the machine


@contextlib.contextmanager
def lock(announce):
    """One build at a time in a build folder; a second one waits, and says so through `announce`. BadInput where the
    folder is not the book's, before anything in it is touched."""
    try:
        if problem := folders.refused(folders.BUILD):
            raise BadInput(problem)
        folders.take(folders.BUILD)
        descriptor = os.open(folders.BUILD / ".lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        problem = f"the build folder {folders.BUILD} cannot be written to: {error}"
        raise BadInput(f"{problem}; the variable BOOK_BUILD can name another") from error
    with open(descriptor) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            announce(f"another build is at work in {folders.BUILD}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cores() -> int:
    """How many processors this process may use, by its affinity and by the limits of its container."""
    import joblib

    return joblib.cpu_count()


def _set_environment(root: Path, jobs: int) -> None:
    """Set what kernels inherit: the running interpreter, the root of the repository, no settings of the user's own, and
    their shares of the machine if there are several jobs."""
    os.chdir(root)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    os.environ["IPYTHONDIR"] = str(folders.BUILD / ".ipython")
    os.environ["MPLCONFIGDIR"] = str(folders.BUILD / ".matplotlib")
    os.environ.pop("MATPLOTLIBRC", None)
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    if jobs > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // jobs)))
        os.environ.setdefault("COLLAPSE_GPU_SHARE", f"{GPU_MEMORY / jobs:.3f}")
    logging.getLogger("papermill").setLevel(logging.ERROR)


# ------------------------------------------------------------------------------------------------ many chapters


def execute(
    selected: list[Page],
    parameters: dict,
    jobs: int | None,
    console: Console,
    force: bool = False,
    recorded: dict[str, float] | None = None,
) -> list[Outcome]:
    """Execute those selected chapters that are stale, at most `jobs` at a time; the longest begin first.

    jobs: None for one per core, and at most `MOST_JOBS`.
    recorded: {chapter: seconds} of the records, which tell the longest where a chapter was never executed.

    A failing chapter leaves its partial notebook in `failed/` and stops no other. After a KeyboardInterrupt finished
    chapters stay, and kernels end with this process.
    """
    if parameters.get("profile") == "paper":
        _download(selected)  # first, since which sets there are decides what is stale
    todo = selected if force else stale(selected, parameters)
    seconds = {page: noted(page).get("seconds") or (recorded or {}).get(page.short, math.inf) for page in todo}
    todo = sorted(todo, key=lambda page: -seconds[page])  # what is unknown may be the longest
    on_auto = parameters.get("device") == "auto" and any("device" in page.declared for page in todo)
    if on_auto and (why := devices.missing()):
        console.print(f"device auto: the CPU, because {why}")
    outcomes = {page: Outcome(page, "up to date") for page in selected}
    if todo:
        jobs = jobs or min(MOST_JOBS, cores())
        outcomes |= {outcome.page: outcome for outcome in _execute_all(todo, parameters, jobs, console)}
    return [*outcomes.values()]


def _download(selected: list[Page]) -> None:
    """Fetch the image sets that the claims of these chapters name. What fails, that command says."""
    from lib.book.ledger import claims

    names = claims.data_sets(page for page in selected if page.declared.get("dataset") == "auto")
    if names:
        subprocess.run([sys.executable, "-m", "lib.data.image_files", "fetch", *names], cwd=selected[0].root)


def _execute_all(todo: list[Page], parameters: dict, jobs: int, console: Console) -> list[Outcome]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from lib.book import forks  # which loads jupyter_client

    _set_environment(todo[0].root, jobs)
    forks.prepare({name for page in todo for name in inputs.imports(page)})
    shutil.rmtree(folders.BUILD / "running", ignore_errors=True)  # what an interrupted build left
    done: list[Outcome] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    pool = ThreadPoolExecutor(max_workers=jobs)
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            whole = progress.add_task("chapters", total=len(todo))
            pending = {pool.submit(_execute_one, page, parameters, progress) for page in todo}
            while pending:
                # not for ever: an interrupt that another thread receives is only seen when this one wakes
                finished, pending = wait(pending, timeout=1, return_when=FIRST_COMPLETED)
                for future in finished:
                    done.append(one := future.result())
                    progress.advance(whole)
                    progress.print(f"[{len(done)}/{len(todo)}] {one.page.short}: {one.state} in {one.seconds:.1f} s")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    shutil.rmtree(folders.BUILD / "running", ignore_errors=True)  # what is kept of it is in `executed` or `failed`
    return done


# ---------------------------------------------------------------------------------------------------- one chapter


def _execute_one(page: Page, parameters: dict, progress) -> Outcome:
    """Execute one chapter, and keep its notebook or what there is of it. If a disk is full, this chapter fails."""
    started = time.monotonic()
    running = folders.BUILD / "running" / page.name
    try:
        key = inputs.key(page, parameters)
        unfinished = unfinished_runs(page, key)
        running.mkdir(parents=True, exist_ok=True)
        error = _run(page, parameters, running, unfinished, progress)
        seconds = time.monotonic() - started
        if not error:
            _finish(page, running, facts(page, key, notes.read(running / "notes"), seconds))
            shutil.rmtree(unfinished, ignore_errors=True)  # its runs are in the notebook
            return Outcome(page, "executed", seconds)
        if (running / RESULT).exists():
            failed = executed_path(page, "failed")
            failed.parent.mkdir(parents=True, exist_ok=True)
            os.replace(running / RESULT, failed)
            error += f"\nthe notebook up to there: {failed}"
        if unfinished.exists():
            error += "\nits finished runs are kept: the next build goes on from them, unless the code changes"
    except OSError as problem:
        error = f"the files that its execution needs or leaves, in {folders.BUILD}: {problem}"
    return Outcome(page, "FAILED", time.monotonic() - started, error)


def _run(page: Page, parameters: dict, running: Path, unfinished: Path, progress) -> str:
    """Run the cells in a kernel, into a notebook in the folder `running`; returns where and why this failed, if so."""
    import nbformat
    import papermill
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    source, log = running / "source.ipynb", running / "log"
    nbformat.write(page.notebook, source)
    declared = {name: value for name, value in parameters.items() if name in page.declared}
    reports = {"COLLAPSE_NOTES": str(running / "notes"), "COLLAPSE_UNFINISHED": str(unfinished)}
    bar = progress.add_task(f"  {page.short}", total=len(page.code) + bool(declared))
    begun: list = []  # cells
    options = {
        "parameters": declared,
        "kernel_name": "python3",
        "progress_bar": False,
        "config": Config(BookProvisioner={"environment": reports, "stderr": str(log)}),
        "on_cell_execute": lambda cell, **_: begun.append(cell),
        "on_cell_executed": lambda **_: progress.advance(bar),
    }
    try:
        papermill.execute_notebook(source, running / RESULT, **options)
        return ""
    except PapermillExecutionError as failure:
        lines = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(failure.traceback)).split("Cell In")[-1]
        error = "".join(re.findall(r"(?m)^-+> *(\d+ .*\n)", lines)[:1]) + f"{failure.ename}: {failure.evalue}"
    except Exception as failure:  # a kernel that died, a notebook that papermill refuses
        last = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
        error = "\n".join([f"{type(failure).__name__}: {failure}", *last])
    finally:
        progress.remove_task(bar)
    return _place(begun, len(page.code)) + error


def unfinished_runs(page: Page, key: dict) -> Path:
    """The folder for the runs that a chapter with this key has finished. Folders of another state of the code, the
    versions or the data are removed; those of other parameters wait for a build with these parameters."""
    if "dataset" in page.declared:  # it may read any of the data
        key = {**key, "all data": inputs.fingerprint(str(notes.data_folder()))}
    parameters = sha(json.dumps(key["parameters"], sort_keys=True).encode())[:16]
    whole = sha(json.dumps(key, sort_keys=True).encode())[:16]
    folder = folders.BUILD / "unfinished" / page.name / parameters / whole
    for other in folder.parent.glob("*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def facts(page: Page, key: dict, told: dict[str, list[dict]], seconds: float) -> dict:
    """What is kept about an execution.

    key: of the chapter as it began. told: what its kernel noted since, as `notes.read` has it. What it read becomes a
    part of the key; a chapter that chose no device used the CPU.
    """
    told = {"device": [], "data": [], "resumed": [], "read": [], **told}
    chosen = sorted(told["device"], key=lambda fact: fact["device"] == "cuda")  # a GPU last, if one was used as well
    device = chosen[-1] if chosen else {"device": "cpu", "name": devices.name("cpu")}
    files = [fact["file"] for fact in told["read"] if "file" in fact]
    sets = [fact["data"] for fact in told["read"] if "data" in fact]
    key["files"] |= {name: inputs.content(page.root / name) for name in files}
    key["data"] |= inputs.data_read(sets, None, inputs.fingerprint)
    return {
        "chapter": page.name,
        "key": key,
        "seconds": round(seconds + sum(fact["seconds"] for fact in told["resumed"]), 1),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            **{name: device.get(name) for name in ("device", "name", "cuda")},
            **{name: version(name) for name in ("torch", "numpy")},
            "python": platform.python_version(),
        },
        "data": {fact["name"]: {"files": fact["files"], "sha256": fact["sha256"]} for fact in told["data"]},
        "resumed": sum(fact["runs"] for fact in told["resumed"]),
    }


def _finish(page: Page, running: Path, book: dict) -> None:
    """Keep the notebook that papermill has written, with what is noted about its execution."""
    import nbformat

    notebook = nbformat.read(running / RESULT, as_version=4)
    for name in ("input_path", "output_path"):  # where it was executed is nobody's business
        notebook.metadata.papermill.pop(name, None)
    notebook.metadata["book"] = book
    keep(page, notebook)
    executed_path(page, "failed").unlink(missing_ok=True)  # of an earlier try


def _place(begun: list, number: int) -> str:
    """Which of a number of cells failed, namely the last one begun, and its first lines."""
    begun = [cell for cell in begun if "injected-parameters" not in cell.metadata.get("tags", [])]
    if not begun:
        return ""
    lines = begun[-1].source.strip().splitlines()
    head = "\n".join(f"    {line}" for line in lines[:5]) + ("\n    ..." if len(lines) > 5 else "")
    return f"code cell {len(begun)} of {number}:\n{head}\n"
