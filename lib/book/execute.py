"""Executing chapters: papermill runs each stale one; finished notebooks are kept one by one, and so are finished
runs inside one.

A kernel's environment says where it reports and where it keeps things: COLLAPSE_NOTES, a file for `kernel.notes`, and
COLLAPSE_UNFINISHED, a folder for `lib.runs.kept` that belongs to one key of the chapter. Where chapters run side by
side, COLLAPSE_GPU_SHARE is the part of the GPU's memory that `kernel.devices` leaves to each.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import functools
import glob
import json
import logging
import math
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from lib.book import folders, inputs
from lib.book.atomic import atomically
from lib.book.inputs import sha, version
from lib.book.kernel import devices
from lib.book.kernel.notes import read as read_notes
from lib.book.page import BadInput, Page

MOST_JOBS = 4  # chapters side by side: each takes its share of the memory, too
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

    Empty if there is no notebook, or if it was cut off or edited or is of another version of this module.
    """
    parts = {"code", "parameters", "lib", "versions", "files"}
    try:
        kept = json.loads(executed_path(page).read_text(encoding="utf8"))
        book = kept["metadata"]["book"]
        known = (
            parts <= book["key"].keys()
            and isinstance(book["key"]["data"], dict)
            and {"finished", "seconds", "machine", "data"} <= book.keys()
        )
        return book if book.pop("checksum") == checksum(kept) and known else {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def keep(page: Page, notebook) -> None:
    """Write the executed notebook of a chapter, with a checksum of everything else in it."""
    import nbformat

    kept = json.loads(nbformat.writes(notebook))
    kept["metadata"]["book"]["checksum"] = checksum(kept)
    with atomically(executed_path(page)) as partial:
        partial.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf8")


def checksum(record: dict) -> str:
    """SHA-256 of the canonical JSON of all that a record says besides its checksum."""
    rest = {name: value for name, value in record.items() if name != "checksum"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha(canonical.encode("utf-8", "surrogatepass"))


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


def _prepare_environment(root: Path, jobs: int) -> None:
    """Set what kernels inherit: the running interpreter, the root of the repository, no settings of the user's own."""
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


def execute(selected: list[Page], parameters: dict, jobs: int, console, force: bool = False) -> list[Outcome]:
    """Execute those selected chapters that are stale, at most `jobs` at a time; the longest begin first.

    A failing chapter leaves its partial notebook in `failed/` and stops no other. On KeyboardInterrupt the kernels
    are killed before it is passed on; finished chapters stay.
    """
    _download(selected, parameters, console)
    todo = selected if force else stale(selected, parameters)
    todo = sorted(todo, key=lambda page: -noted(page).get("seconds", math.inf))  # what is unknown may be the longest
    for page in todo:
        _ = page.notebook  # one that cannot be read is refused before any is executed
        if "claims.Ledger(" in page.text and "profile" not in page.declared:
            raise BadInput(f"{page.name}.md: no cell with the tag `parameters` sets `profile`")
    outcomes = {page: Outcome(page, "up to date") for page in selected}
    on_auto = parameters.get("device") == "auto" and any("device" in page.declared for page in todo)
    if on_auto and (why := devices.missing()):
        console.print(f"device auto: the CPU, because {why}")
    if todo:
        allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # of open files
        if allowed < (needed := 96 + 32 * min(jobs, len(todo))):  # for kernels side by side, with some to spare
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))
        outcomes |= {outcome.page: outcome for outcome in _execute_all(todo, parameters, jobs, console)}
    return [*outcomes.values()]


def _download(selected: list[Page], parameters: dict, console) -> None:
    """Fetch the image sets that the claims of the stale ones of these chapters name, in the paper profile.

    This is done before it is decided what to execute, since it counts which sets there are. If fetching fails, a line
    says so.
    """
    from lib.book.ledger import claims, declarations

    if parameters.get("profile") != "paper":
        return
    pages = [page for page in stale(selected, parameters) if page.declared.get("dataset") == "auto"]
    declared = declarations.read().claims
    names = sorted({name for claim in claims.checked(pages) for name in declared[claim].get("data", ())})
    if not names:
        return
    with console.status(f"looking for {', '.join(names)}"):
        command = [sys.executable, "-m", "lib.data.image_files", "fetch", *names]
        process = subprocess.run(command, cwd=selected[0].root, capture_output=True, text=True)
    for line in process.stderr.splitlines():
        if line.startswith("error: "):
            console.print(line.removeprefix("error: "))


def _execute_all(todo: list[Page], parameters, jobs, console) -> list[Outcome]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from lib.book import forks  # which loads jupyter_client

    _prepare_environment(todo[0].root, jobs)
    _register_engine()
    forks.prepare({name for page in todo for name in inputs.imports(page)})
    shutil.rmtree(folders.BUILD / "running", ignore_errors=True)  # what an interrupted build left
    done: list[Outcome] = []
    clients: set = set()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    pool = ThreadPoolExecutor(max_workers=jobs)
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            whole = progress.add_task("chapters", total=len(todo))
            pending = {pool.submit(_attempt, page, parameters, progress, clients) for page in todo}
            while pending:
                # not for ever: an interrupt that another thread receives is only seen when this one wakes
                finished, pending = wait(pending, timeout=1, return_when=FIRST_COMPLETED)
                for future in finished:
                    done.append(one := future.result())
                    progress.advance(whole)
                    progress.print(f"[{len(done)}/{len(todo)}] {one.page.short}: {one.state} in {one.seconds:.1f} s")
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for client in list(clients):
            # one that is just starting has no process yet; a kernel leads its own session, so its children die with it
            with contextlib.suppress(OSError, AttributeError):
                os.killpg(client.km.provisioner.process.pid, signal.SIGKILL)
        raise
    pool.shutdown()
    shutil.rmtree(folders.BUILD / "running", ignore_errors=True)  # what is kept of it is in `executed` or `failed`
    return done


# ---------------------------------------------------------------------------------------------------- one chapter


def _attempt(page: Page, *arguments) -> Outcome:
    """Execute one chapter. If a disk is full, it is this chapter that fails."""
    started = time.monotonic()
    try:
        return _execute_one(page, *arguments)
    except OSError as error:
        error = f"the files that its execution needs or leaves, in {folders.BUILD}: {error}"
        return Outcome(page, "FAILED", time.monotonic() - started, error)


def _execute_one(page: Page, parameters, progress, clients) -> Outcome:
    import nbformat
    import papermill
    from papermill.exceptions import PapermillExecutionError

    started = time.monotonic()
    key = inputs.key(page, parameters)
    everything = str(inputs.data_folder()) if "dataset" in page.declared else ""  # since it may read any of it
    unfinished = _unfinished(page, key | {"data": [key["data"], inputs.fingerprint(everything)]})
    running = folders.BUILD / "running" / page.name
    running.mkdir(parents=True, exist_ok=True)
    source, result, log, notes = (running / name for name in ("source.ipynb", "executed.ipynb", "log", "notes"))
    nbformat.write(page.notebook, source)
    declared = {name: value for name, value in parameters.items() if name in page.declared}
    bar = progress.add_task(f"  {page.short}", total=len(page.code) + bool(declared))
    begun: list = []  # cells
    error = ""
    reports = {"COLLAPSE_NOTES": str(notes), "COLLAPSE_UNFINISHED": str(unfinished)}
    try:
        papermill.execute_notebook(
            source, result, parameters=declared, engine_name="book", kernel_name="python3", progress_bar=False,
            clients=clients, environment=reports, log=log, on_cell_execute=lambda cell, **_: begun.append(cell),
            on_cell_executed=lambda **_: progress.advance(bar),
        )  # fmt: skip
    except PapermillExecutionError as failure:
        lines = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(failure.traceback)).split("Cell In")[-1]
        error = "".join(re.findall(r"(?m)^-+> *(\d+ .*\n)", lines)[:1]) + f"{failure.ename}: {failure.evalue}"
    except Exception as failure:  # a kernel that died, a notebook that papermill refuses
        last = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
        error = "\n".join([f"{type(failure).__name__}: {failure}", *last])
    finally:
        progress.remove_task(bar)
    seconds = time.monotonic() - started
    failed = executed_path(page, "failed")
    if error:
        error = _place(begun, len(page.code)) + error
        if result.exists():
            failed.parent.mkdir(parents=True, exist_ok=True)
            os.replace(result, failed)
            error += f"\nthe notebook up to there: {failed}"
        if unfinished.exists():
            error += "\nits finished runs are kept: the next build goes on from them, unless the code changes"
        return Outcome(page, "FAILED", seconds, error)
    notebook = nbformat.read(result, as_version=4)
    for name in ("input_path", "output_path"):  # where it was executed is nobody's business
        notebook.metadata.papermill.pop(name, None)
    read = read_notes(notes).get("read", [])
    key["files"] |= {fact["file"]: inputs.content(page.root / fact["file"]) for fact in read if "file" in fact}
    key["data"] |= inputs.data_read([fact["data"] for fact in read if "data" in fact], None, inputs.fingerprint)
    notebook.metadata["book"] = {"chapter": page.name, "key": key, **_facts(notes, seconds)}
    keep(page, notebook)
    failed.unlink(missing_ok=True)  # of an earlier try
    shutil.rmtree(unfinished, ignore_errors=True)  # its runs are in the notebook
    return Outcome(page, "executed", seconds)


def _register_engine() -> None:
    """Register papermill's engine with three additions: cells are counted, the kernel can be found and killed, and it
    has an environment of its own."""
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NBClientEngine, papermill_engines

    from lib.book import forks

    class BookEngine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, nb_man, kernel_name, clients, environment, log, start_timeout=60, **hooks):
            hooks = {name: hook for name, hook in hooks.items() if name.startswith("on_cell")}
            client = PapermillNotebookClient(
                nb_man, timeout=None, startup_timeout=start_timeout, kernel_name=kernel_name,
                kernel_manager_class=forks.MANAGER, **hooks,
            )  # fmt: skip
            clients.add(client)
            try:
                with open(log, "w") as stderr:
                    client.execute(env={**os.environ, **environment}, stderr=stderr)
            finally:
                clients.discard(client)

    papermill_engines.register("book", BookEngine)


def _unfinished(page: Page, key: dict) -> Path:
    """The folder for the runs that a chapter with this key has finished. Folders of another state of the code, the
    versions or the data are removed; those of other parameters wait for a build with these parameters."""
    parent = folders.BUILD / "unfinished"
    parameters, whole = (sha(json.dumps(part, sort_keys=True).encode())[:16] for part in (key["parameters"], key))
    mine = f"{page.name.replace('/', '.')}@{parameters}"
    folder = parent / f"{mine}-{whole}"
    for other in parent.glob(f"{glob.escape(mine)}-*"):  # of this chapter alone, whatever its name
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _facts(path: Path, seconds: float) -> dict:
    """What is kept about an execution, from what its kernel noted; a chapter that chose no device used the CPU."""
    by_kind = {"device": [], "data": [], "resumed": [], **read_notes(path)}
    chosen = sorted(by_kind["device"], key=lambda fact: fact["device"] == "cuda")  # a GPU last, if one was used as well
    device = chosen[-1] if chosen else {"device": "cpu", "name": devices.name("cpu")}
    return {
        "seconds": round(seconds + sum(fact["seconds"] for fact in by_kind["resumed"]), 1),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            **{name: device.get(name) for name in ("device", "name", "cuda")},
            **{name: version(name) for name in ("torch", "numpy")},
            "python": platform.python_version(),
        },
        "data": {fact["name"]: {"files": fact["files"], "sha256": fact["sha256"]} for fact in by_kind["data"]},
        "resumed": sum(fact["runs"] for fact in by_kind["resumed"]),
    }


def _place(begun: list, number: int) -> str:
    """Which of a number of cells failed, namely the last one begun, and its first lines."""
    begun = [cell for cell in begun if "injected-parameters" not in cell.metadata.get("tags", [])]
    if not begun:
        return ""
    lines = begun[-1].source.strip().splitlines()
    head = "\n".join(f"    {line}" for line in lines[:5]) + ("\n    ..." if len(lines) > 5 else "")
    return f"code cell {len(begun)} of {number}:\n{head}\n"
