"""The command line: python -m lib.book build|execute|publish|pdf|status|claims|diff|record."""

from __future__ import annotations

import functools
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from lib.book import execute, folders
from lib.book.kernel import devices
from lib.book.kernel.profiles import PROFILES
from lib.book.page import BadInput, SiteError, chapters, pages, select

# The modules that make pages and judge claims load Jinja, nbformat and others, so the commands import them on demand.

SUMMARY = "Executes the chapters of the book, builds its site, and says what is stale and which claims held."
QUIET = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}
app = typer.Typer(help=SUMMARY, no_args_is_help=True, **QUIET)
console = Console(file=sys.stdout, soft_wrap=True, highlight=False, markup=False)

# What `make` was given, PROFILE=..., is in BOOK_PROFILE, ...
VARIABLES = ("PROFILE", "CHAPTER", "DEVICE", "SEED", "JOBS", "SCHEDULER", "OLD")
Profile = Annotated[Literal[PROFILES], typer.Option(envvar="BOOK_PROFILE", help="How much is computed.")]
Chapter = Annotated[str, typer.Option(envvar="BOOK_CHAPTER", help="Paths or globs, commas between; else all chapters.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(envvar="BOOK_DEVICE", help="Where it is computed.")]
Seed = Annotated[int | None, typer.Option(envvar="BOOK_SEED", min=0, max=2**62 - 1, help="Else each chapter's own.")]
SIDE_BY_SIDE = (
    "How many chapters are executed at the same time, with an equal share of the cores and of the memory of a GPU "
    f"each: by default one for each core, and at most {execute.MOST_JOBS}; with 1 a chapter has all to itself."
)
Jobs = Annotated[int | None, typer.Option(envvar="BOOK_JOBS", min=1, help=SIDE_BY_SIDE)]
Old = Annotated[str, typer.Option(envvar="BOOK_OLD", help="An older claims.json; else that of the last release.")]
Force = Annotated[bool, typer.Option("--force", help="Execute also what is up to date.")]
FILES = 256  # that a process opens at the same time, at most


def command(name: str):
    """Register a command: bad input ends it with status 2, a failure with 1, an interruption with 130."""

    def register(function):
        @functools.wraps(function)
        def guarded(**options):
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            try:
                for variable in VARIABLES:
                    if os.environ.get(f"BOOK_{variable}") == "":
                        raise BadInput(f"{variable} is given and empty: leave it out, or say what it is")
                if (files := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < FILES:
                    raise BadInput(f"a process may open only {files} files here: `ulimit -n {FILES}` allows enough")
                status = function(**options)
            except (BadInput, SiteError) as error:
                console.print(f"error: {error}", style="red")
                status = 2 if isinstance(error, BadInput) else 1
            except KeyboardInterrupt:
                console.print("interrupted: what is finished and the published site are kept, the next build goes on")
                sys.stdout.flush()
                os._exit(130)  # does not wait for threads that wait for a killed kernel
            raise typer.Exit(status or 0)

        return app.command(name, help=function.__doc__)(guarded)

    return register


@command("build")
def build_site(
    profile: Profile = "laptop",
    chapter: Chapter = "",
    device: Device = "auto",
    seed: Seed = None,
    jobs: Jobs = None,
    force: Force = False,
):
    """Execute the stale chapters and publish the site."""
    from lib.book.site import publish

    started = time.monotonic()
    selected, parameters = _selection(profile, chapter, device, seed)
    _check_declarations(whole=not chapter)
    with execute.lock(console.print):
        status = _execute(selected, parameters, jobs, force)
        if status:
            console.print("the published site is as it was")
            return status
        with console.status("building the site"):
            html, anew, missing, found = publish.publish(partial=bool(chapter))
    if missing:
        names = ", ".join(page.short for page in missing)
        console.print(f"shown without results, because never executed as they are now: {names} (run `make book`)")
    if found:
        console.print("\n".join(["Sphinx found, also where a reference leads into what is not shown:", *found]))
    state = "built" if anew else "unchanged"
    console.print(f"site {state} in {time.monotonic() - started:.1f} s: {html / 'index.html'}")


@command("execute")
def execute_chapters(
    profile: Profile = "laptop",
    chapter: Chapter = "",
    device: Device = "auto",
    seed: Seed = None,
    jobs: Jobs = None,
    force: Force = False,
):
    """Execute the stale chapters, and leave the site alone."""
    selected, parameters = _selection(profile, chapter, device, seed)
    _check_declarations(whole=not chapter)
    with execute.lock(console.print):
        return _execute(selected, parameters, jobs, force)


@command("publish")
def publish_site():
    """Build the site from the chapters as they were last executed."""
    from lib.book.site import publish

    _check_declarations()
    with execute.lock(console.print), console.status("building the site"):
        html, anew, *_ = publish.publish()
    console.print(f"site {'built' if anew else 'unchanged'}: {html / 'index.html'}")


@command("pdf")
def print_site():
    """Print the published site into one file, and a poster; the site's first page then offers both."""
    from lib.book.site import pdf

    html = folders.BUILD / "html"
    with execute.lock(console.print), console.status("printing the book"):
        sheets = pdf.publish(html)
    console.print(f"{sheets} pages: {html / pdf.NAME}")


@command("status")
def show_status(profile: Profile = "laptop", chapter: Chapter = "", device: Device = "auto", seed: Seed = None):
    """Say which chapters are stale, and why."""
    selected, parameters = _selection(profile, chapter, device, seed)
    stale = execute.stale(selected, parameters)
    table = Table("chapter", "state", "why", box=None)
    for page in selected:
        table.add_row(page.short, "stale" if page in stale else "current", "; ".join(stale.get(page, [])))
    console.print(table)


@command("claims")
def write_claims():
    """Write claims.json from the chapters as they were last executed, and print its summary."""
    from lib.book import records
    from lib.book.site import compose, publish

    _check_declarations()
    with execute.lock(console.print):
        rows = publish.write_claims(compose.collect(pages())[1], records.read())
    console.print(f"{len(rows)} claims: {_tally(rows)}; see {folders.BUILD / 'claims.json'}")


@command("diff")
def show_changes(old: Old = ""):
    """Say which verdicts and values changed since an older claims.json, or since the last release."""
    from lib.book.site import changes

    for line in changes.changes(Path(old or folders.ROOT / changes.RELEASE), folders.BUILD / "claims.json"):
        console.print(line)


@command("record")
def keep_records(chapter: Chapter = ""):
    """Keep what the chapters measured, as last executed in the paper or the night profile, in recorded/."""
    from lib.book import records

    _check_declarations(whole=False, recorded=False)
    selected = select(chapters(), chapter)
    with execute.lock(console.print):
        written = records.record(selected, announce=console.print)
    for taken in written:
        when = f"{taken['finished'][:10]} on {taken['machine']['name']}"
        console.print(f"{taken['chapter']}: recorded {_tally(taken['claims'])}, of {when}")


def _selection(profile: str, chapter: str, device: str, seed: int | None):
    """The selected chapters and the parameters to inject; raises BadInput for an unknown chapter or missing device."""
    if device == "cuda" and (why := devices.missing()):
        raise BadInput(f"device 'cuda' is not available: {why}; use auto or cpu")
    parameters = {"profile": profile, "device": device}
    if seed is not None:
        parameters["seed"] = seed
    return select(chapters(), chapter), parameters


def _check_declarations(whole: bool = True, recorded: bool = True) -> None:
    """End the command if declarations are damaged, claims are undeclared, misspelt or checked twice, or errata lack
    their section. A build of some chapters does not check the errata of all, and the command that makes records anew
    does not check those that there are."""
    from lib.book import records
    from lib.book.ledger import claims, errata

    try:
        if recorded:
            records.load()
        claims.check_sources(chapters())
        if whole:
            errata.check_sections(page.path for page in chapters())
    except ValueError as error:
        raise BadInput(str(error)) from error


def _execute(selected: list, parameters: dict, jobs: int | None, force: bool) -> int:
    """Execute what is stale and report it; returns the exit status."""
    from lib.book import records

    return _report(execute.execute(selected, parameters, jobs, console, force, records.seconds()))


def _report(outcomes: list[execute.Outcome]) -> int:
    """Print one line per chapter, then what failed; returns the exit status."""
    from lib.book.site import compose

    table = Table("chapter", "state", "time", "claims", box=None)
    for outcome in outcomes:
        judged = {} if outcome.state == "FAILED" else compose.collect([outcome.page])[1]
        seconds = f"{outcome.seconds:.1f} s" if outcome.seconds else ""
        table.add_row(outcome.page.short, outcome.state, seconds, _tally(judged.values()))
    console.print(table)
    failed = [outcome for outcome in outcomes if outcome.state == "FAILED"]
    for outcome in failed:
        console.print(f"\n{outcome.page.name}.md failed in {outcome.error}", style="red")
    return 1 if failed else 0


def _tally(judged: Iterable[dict]) -> str:
    counts = Counter(claim["verdict"] for claim in judged)
    return ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())


if __name__ == "__main__":
    app(prog_name="python -m lib.book")
