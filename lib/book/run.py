"""Executing chapters: papermill on each stale one, finished notebooks kept one by one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import shutil
import signal
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lib.book.chapters import BUILD, BadInput, Page, differences

MOST_JOBS = 4  # chapters side by side: each takes its share of the memory, too


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
            raise BadInput("device 'cuda' is not available on this machine; use auto or cpu")


def cores() -> int:
    """How many processors this process may use, by its affinity and by the limits of its container."""
    import joblib

    return joblib.cpu_count()


def default_jobs(device: str) -> int:
    """How many chapters run side by side where nobody says: one per core up to MOST_JOBS, one alone on a GPU."""
    return 1 if device == "cuda" or (device == "auto" and _finds_gpu()) else min(cores(), MOST_JOBS)


def _finds_gpu() -> bool:
    """Will a chapter's device `auto` be a GPU? torch, slow to import, is only asked where there is a driver for one."""
    if not any(Path(name).exists() for name in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")):
        return False
    import torch

    return torch.cuda.is_available()


def execute(selected: list[Page], parameters: dict, jobs: int, console, force: bool = False) -> list[Outcome]:
    """Execute the stale ones of the selected chapters, at most `jobs` at a time; the longest begin first.

    A failing chapter leaves its partial notebook in `failed/` and stops no other. On KeyboardInterrupt the kernels
    are killed before it is passed on; finished chapters stay.
    """
    outcomes = {}
    todo = []
    for page in selected:
        reasons = ["asked for"] if force else stale(page, parameters)
        if reasons:
            todo.append((page, reasons))
        else:
            outcomes[page.name] = Outcome(page, "current")
            _failed_path(page).unlink(missing_ok=True)
    if jobs > 1:
        todo.sort(key=lambda entry: -last_seconds(entry[0]))
    if todo:
        for outcome in _execute_all(todo, parameters, jobs, console):
            outcomes[outcome.page.name] = outcome
    return [outcomes[page.name] for page in selected]


def _execute_all(todo, parameters, jobs, console) -> list[Outcome]:
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
                pool.submit(_execute_one, page, reasons, parameters, progress, clients) for page, reasons in todo
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


def _execute_one(page: Page, reasons, parameters, progress, clients) -> Outcome:
    import nbformat
    import papermill
    from papermill.exceptions import PapermillExecutionError

    _register_engine()
    started = time.monotonic()
    key = page.key(parameters)
    running = BUILD / "running" / f"{page.name}.ipynb"
    source, log = running.with_suffix(".source.ipynb"), running.with_suffix(".log")
    running.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(page.notebook, source)
    declared = {name: value for name, value in parameters.items() if name in page.declared}
    bar = progress.add_task(f"  {page.short}", total=len(page.code) + bool(declared))
    error = ""
    try:
        papermill.execute_notebook(
            source, running, parameters=declared, engine_name="book", kernel_name="python3",
            progress_bar=False, clients=clients, on_cell=lambda **_: progress.advance(bar), chapter=page.short, log=log,
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
        return Outcome(page, "failed", seconds, reasons, error)
    notebook = nbformat.read(running, as_version=4)
    for name in ("input_path", "output_path"):  # where it was executed is nobody's business
        notebook.metadata.papermill.pop(name, None)
    notebook.metadata["book"] = {"chapter": page.name, "key": key, "seconds": round(seconds, 1)}
    nbformat.write(notebook, running)
    final = executed_path(page)
    final.parent.mkdir(parents=True, exist_ok=True)
    os.replace(running, final)  # atomic: the chapter is either finished or not there
    failed.unlink(missing_ok=True)
    return Outcome(page, "executed", seconds, reasons)


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
    logging.getLogger("papermill").setLevel(logging.ERROR)


_registration = threading.Lock()


def _register_engine() -> None:
    """Papermill's engine with two additions: cells are counted, and the kernel can be found to be killed."""
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NBClientEngine, papermill_engines

    class BookEngine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, nb_man, kernel_name, clients, on_cell, chapter, log, start_timeout=60, **_):
            client = PapermillNotebookClient(
                nb_man, timeout=None, startup_timeout=start_timeout, kernel_name=kernel_name, on_cell_complete=on_cell
            )
            clients.add(client)
            try:
                with open(log, "w") as stderr:
                    client.execute(env={**os.environ, "COLLAPSE_CHAPTER": chapter}, stderr=stderr)
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
