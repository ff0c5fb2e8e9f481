"""Executing chapters: papermill on each stale one, finished notebooks kept one by one, and finished runs inside one.

A kernel finds in its environment what it reports to and keeps things in: COLLAPSE_NOTES, a file for `lib.ledger.notes`, and
COLLAPSE_UNFINISHED, a folder for `lib.runs.kept` that belongs to one key of the chapter. Where chapters run side by side,
COLLAPSE_GPU_SHARE is the part of the GPU's memory that `lib.runs.devices` leaves to each.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import functools
import hashlib
import json
import logging
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lib.book.chapters import BUILD, BadInput, Page, differences, version
from lib.ledger.claims import ORIGINALS
from lib.ledger.notes import read as read_notes
from lib.runs import devices

MOST_JOBS = 4  # chapters side by side: each takes its share of the memory, too
GPU_MEMORY = 0.95  # of a GPU's memory is shared; the rest is for what the driver takes for each process


@dataclass
class Outcome:
    """What became of a chapter: `state` is executed, current (nothing to do) or failed."""

    page: Page
    state: str
    seconds: float = 0.0
    reasons: list[str] = field(default_factory=list)
    error: str = ""


def executed_path(page: Page) -> Path:
    return BUILD / "executed" / f"{page.name}.ipynb"


def _failed_path(page: Page) -> Path:
    return BUILD / "failed" / f"{page.name}.ipynb"


def executed_notebook(page: Page):
    """The executed notebook of a chapter, or None when there is none that can be read."""
    import nbformat

    try:
        notebook = nbformat.read(executed_path(page), as_version=4)
    except (OSError, ValueError, nbformat.reader.NotJSONError, nbformat.ValidationError):
        return None
    return notebook if "book" in notebook.metadata else None


def _execution(page: Page) -> dict:
    """What is noted about the execution that made the kept notebook of a chapter; empty when there is none."""
    try:
        noted = json.loads(executed_path(page).read_text(encoding="utf8"))["metadata"]["book"]
    except (OSError, ValueError, KeyError, TypeError):  # absent, cut off, or of another version
        return {}
    return noted if isinstance(noted, dict) else {}


def executed_key(page: Page) -> dict | None:
    """The key that the kept notebook of a chapter was executed with."""
    key = _execution(page).get("key")
    parts = {"code", "parameters", "lib", "versions", "data", "files"}
    return key if isinstance(key, dict) and parts <= key.keys() else None


def last_seconds(page: Page) -> float:
    """How long the last execution of a chapter took; infinity where none is known, which may be the longest."""
    seconds = _execution(page).get("seconds")
    return float(seconds) if isinstance(seconds, (int, float)) else math.inf


def stale(page: Page, parameters: dict) -> list[str]:
    """Why a chapter has to be executed; empty when it has not."""
    return differences(executed_key(page), page.key(parameters))


@contextlib.contextmanager
def lock(announce):
    """One build at a time in a build folder; a second one waits, and says so through `announce`."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / ".lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            announce(f"another build is at work in {BUILD}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_device(device: str) -> None:
    """Raises BadInput when the machine has no such device; torch is only asked when one is asked for by name."""
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise BadInput(f"device 'cuda' is not available: {devices.missing()}; use auto or cpu")


def cores() -> int:
    """How many processors this process may use, by its affinity and by the limits of its container."""
    import joblib

    return joblib.cpu_count()


def default_jobs() -> int:
    """How many chapters run side by side where nobody says: one per core, up to MOST_JOBS."""
    return min(cores(), MOST_JOBS)


def _why_cpu() -> str:
    """Why `auto` is the CPU, empty where it is a GPU. torch, slow to import, is only asked where there is a driver."""
    if not devices.has_driver():
        return devices.no_driver()
    import torch

    return "" if torch.cuda.is_available() else devices.missing()


def execute(selected: list[Page], parameters: dict, jobs: int, console, force: bool = False) -> list[Outcome]:
    """Execute the stale ones of the selected chapters, at most `jobs` at a time; the longest begin first.

    A failing chapter leaves its partial notebook in `failed/` and stops no other. On KeyboardInterrupt the kernels
    are killed before it is passed on; finished chapters stay.
    """
    stale_ones = functools.partial(_stale_ones, selected, parameters, force)
    todo = stale_ones()
    if _download([page for page, _ in todo], parameters, console):
        todo = stale_ones()  # what lies in the data folder counts
    outcomes = {}
    for page in {*selected} - {page for page, _ in todo}:
        outcomes[page.name] = Outcome(page, "current")
        _failed_path(page).unlink(missing_ok=True)
    if parameters.get("device") == "auto" and any("device" in page.declared for page, _ in todo):
        why = _why_cpu()
        if why:
            console.print(f"device auto: the CPU, because {why}")
    if jobs > 1:
        todo.sort(key=lambda entry: -last_seconds(entry[0]))
    if todo:
        for outcome in _execute_all(todo, parameters, jobs, console, force):
            outcomes[outcome.page.name] = outcome
    return [outcomes[page.name] for page in selected]


def _stale_ones(selected, parameters, force) -> list[tuple[Page, list[str]]]:
    reasons = [(page, ["asked for"] if force else stale(page, parameters)) for page in selected]
    return [(page, why) for page, why in reasons if why]


def _download(pages: list[Page], parameters: dict, console) -> bool:
    """Fetch the image sets that these chapters want in the paper profile; was anything fetched?

    It is done before any of them begins, since what lies in the data folder counts for all of them. A chapter whose
    code has `download=` in it wants the sets whose names its code has as texts. Where that fails, a line says so.
    """
    paper = parameters.get("profile") == "paper"
    wanted = {name for page in pages if paper and page.declared.get("dataset") == "auto" for name in _sets(page)}
    if not wanted:
        return False
    names = [name for name in ORIGINALS if name in wanted]
    with console.status(f"looking for {', '.join(names)}"):
        command = [sys.executable, "-m", "lib.data.image_sets", "fetch", *names]
        process = subprocess.run(command, cwd=pages[0].root, capture_output=True, text=True)
    for line in process.stderr.splitlines():
        if line.startswith("error: "):
            console.print(line.removeprefix("error: "))
    return "downloaded into" in process.stdout


def _sets(page: Page) -> list[str]:
    code = "\n".join(cell.source for cell in page.code)
    return re.findall(f"""["']({"|".join(ORIGINALS)})["']""", code) if "download=" in code else []


def _execute_all(todo, parameters, jobs, console, force) -> list[Outcome]:
    _prepare_environment(todo[0][0].root, jobs)
    shutil.rmtree(BUILD / "running", ignore_errors=True)  # what an interrupted build left
    done: list[Outcome] = []
    clients: set = set()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    pool = ThreadPoolExecutor(max_workers=jobs)
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            whole = progress.add_task("chapters", total=len(todo))
            pending = {
                pool.submit(_execute_one, page, reasons, parameters, progress, clients, force) for page, reasons in todo
            }
            while pending:
                # not for ever: an interrupt that another thread receives is only seen when this one wakes
                finished, pending = wait(pending, timeout=1, return_when=FIRST_COMPLETED)
                for future in finished:
                    outcome = future.result()
                    done.append(outcome)
                    progress.advance(whole)
                    progress.print(_progress_line(outcome, len(done), len(todo)), highlight=False, markup=False)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for client in list(clients):
            _kill_kernel(client)
        raise
    pool.shutdown()
    shutil.rmtree(BUILD / "running", ignore_errors=True)
    return done


def _execute_one(page: Page, reasons, parameters, progress, clients, force) -> Outcome:
    import nbformat
    import papermill
    from papermill.exceptions import PapermillExecutionError

    _register_engine()
    started = time.monotonic()
    key = page.key(parameters)
    running = BUILD / "running" / f"{page.name}.ipynb"
    source, log, notes = (running.with_suffix(suffix) for suffix in (".source.ipynb", ".log", ".notes"))
    unfinished = _unfinished(page, key, force)
    running.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(page.notebook, source)
    declared = {name: value for name, value in parameters.items() if name in page.declared}
    bar = progress.add_task(f"  {page.short}", total=len(page.code) + bool(declared))
    error = ""
    try:
        papermill.execute_notebook(
            source, running, parameters=declared, engine_name="book", kernel_name="python3",
            progress_bar=False, clients=clients, on_cell=lambda **_: progress.advance(bar), log=log,
            environment={
                "COLLAPSE_CHAPTER": page.short, "COLLAPSE_NOTES": str(notes), "COLLAPSE_UNFINISHED": str(unfinished)
            },
        )  # fmt: skip
    except PapermillExecutionError as failure:
        error = _failure(running, f"{failure.ename}: {failure.evalue}")
    except Exception as failure:  # a kernel that died, a notebook that papermill refuses
        last = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
        error = _failure(running, "\n".join([f"{type(failure).__name__}: {failure}", *last]))
    finally:
        progress.remove_task(bar)
    seconds = time.monotonic() - started
    failed = _failed_path(page)
    source.unlink(missing_ok=True)
    if error:
        failed.parent.mkdir(parents=True, exist_ok=True)
        if running.exists():
            os.replace(running, failed)
            error += f"\nthe notebook up to there: {failed}"
        if unfinished.exists():
            error += "\nits finished runs are kept: the next build goes on from them, unless the code changes"
        return Outcome(page, "failed", seconds, reasons, error)
    notebook = nbformat.read(running, as_version=4)
    for name in ("input_path", "output_path"):  # where it was executed is nobody's business
        notebook.metadata.papermill.pop(name, None)
    notebook.metadata["book"] = {"chapter": page.name, "key": key, **_facts(notes, seconds)}
    nbformat.write(notebook, running)
    final = executed_path(page)
    final.parent.mkdir(parents=True, exist_ok=True)
    os.replace(running, final)  # atomic: the chapter is either finished or not there
    failed.unlink(missing_ok=True)
    shutil.rmtree(unfinished, ignore_errors=True)
    return Outcome(page, "executed", seconds, reasons)


def _unfinished(page: Page, key: dict, anew: bool) -> Path:
    """The folder of the runs that a chapter with this key has finished. One of another state of the code, the versions
    or the data is removed; that of other parameters waits for a build with these."""
    parent = BUILD / "unfinished"
    digests = (hashlib.sha256(json.dumps(part, sort_keys=True).encode()) for part in (key["parameters"], key))
    parameters, whole = (digest.hexdigest()[:16] for digest in digests)
    mine = f"{page.name.replace('/', '.')}@{parameters}"
    folder = parent / f"{mine}-{whole}"
    for other in parent.glob(f"{mine}-*"):
        if anew or other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _facts(path: Path, seconds: float) -> dict:
    """What is kept about an execution, from what its kernel noted; a chapter that chose no device used the CPU."""
    by_kind = {"device": [], "data": [], "resumed": [], **read_notes(path)}
    chosen = sorted(by_kind["device"], key=lambda fact: fact["device"] == "cuda")  # a GPU, where one was used as well
    device = chosen[-1] if chosen else {"device": "cpu", "name": devices.name("cpu")}
    return {
        "seconds": round(seconds + sum(fact["seconds"] for fact in by_kind["resumed"]), 1),
        "finished": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "device": device["device"],
            "name": device["name"],
            "torch": version("torch"),
            "numpy": version("numpy"),
            "python": platform.python_version(),
            "cuda": device.get("cuda"),
        },
        "data": {fact["name"]: {"files": fact["files"], "sha256": fact["sha256"]} for fact in by_kind["data"]},
        "resumed": sum(fact["runs"] for fact in by_kind["resumed"]),
    }


def _failure(path: Path, message: str) -> str:
    """Which cell failed, its first lines, and the error, for the terminal."""
    import nbformat

    try:
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    except (OSError, ValueError):
        return message
    cells = [cell for cell in cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    begun = [
        number for number, cell in enumerate(cells, start=1) if cell.metadata.get("papermill", {}).get("start_time")
    ]
    if not begun:
        return message
    lines = cells[begun[-1] - 1].source.strip().splitlines()  # the last cell that was begun is the one that failed
    head = "\n".join(f"    {line}" for line in lines[:5]) + ("\n    ..." if len(lines) > 5 else "")
    return f"code cell {begun[-1]} of {len(cells)}:\n{head}\n{message}"


def _progress_line(outcome: Outcome, number: int, total: int) -> str:
    return f"[{number}/{total}] {outcome.page.short}: {outcome.state} in {outcome.seconds:.1f} s"


def _prepare_environment(root: Path, jobs: int) -> None:
    """Kernels inherit these: the interpreter that runs, the root of the repository, no settings of the user's own."""
    os.chdir(root)
    path = [str(root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    os.environ["IPYTHONDIR"] = str(BUILD / ".ipython")
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    os.environ.pop("MPLBACKEND", None)
    if jobs > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // jobs)))
        os.environ.setdefault("COLLAPSE_GPU_SHARE", f"{GPU_MEMORY / jobs:.3f}")
    logging.getLogger("papermill").setLevel(logging.ERROR)


_registration = threading.Lock()


def _register_engine() -> None:
    """Papermill's engine with two additions: cells are counted, and the kernel can be found to be killed."""
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NBClientEngine, papermill_engines

    class BookEngine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(
            cls, nb_man, kernel_name, clients, on_cell, environment, log, start_timeout=60, **_
        ):
            client = PapermillNotebookClient(
                nb_man, timeout=None, startup_timeout=start_timeout, kernel_name=kernel_name, on_cell_complete=on_cell
            )
            clients.add(client)
            try:
                with open(log, "w") as stderr:
                    client.execute(env={**os.environ, **environment}, stderr=stderr)
            finally:
                clients.discard(client)

    with _registration:
        if "book" not in papermill_engines._engines:
            papermill_engines.register("book", BookEngine)


def _kill_kernel(client) -> None:
    process = getattr(getattr(client.km, "provisioner", None), "process", None)
    if process is not None:
        with contextlib.suppress(OSError):  # kernels lead a session of their own, their children die with them
            os.killpg(process.pid, signal.SIGKILL)
