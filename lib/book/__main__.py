"""The command line: python -m lib.book build|execute|publish|pdf|status|claims|diff|record."""

from __future__ import annotations

import functools
import os
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

from lib.book import execute as run
from lib.book import folders
from lib.book import page as chapters
from lib.book.kernel import devices
from lib.book.kernel.profiles import PROFILES

# The modules that make pages and judge claims load Jinja, nbformat and others, so the commands import them on demand.

app = typer.Typer(
    help="Executes the chapters of the book, builds its site, and says what is stale and which claims held.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip
console = Console(file=sys.stdout, soft_wrap=True, highlight=False, markup=False)

VARIABLES = ("PROFILE", "CHAPTER", "DEVICE", "SEED", "JOBS", "OLD")  # what `make` was given, in BOOK_PROFILE, ...
Profile = Annotated[Literal[PROFILES], typer.Option(envvar="BOOK_PROFILE", help="How much is computed.")]
Chapter = Annotated[str, typer.Option(envvar="BOOK_CHAPTER", help="Paths or globs, commas between; else all chapters.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(envvar="BOOK_DEVICE", help="Where it is computed.")]
Seed = Annotated[int | None, typer.Option(envvar="BOOK_SEED", min=0, max=2**62 - 1, help="Else each chapter's own.")]
Jobs = Annotated[int | None, typer.Option(
    envvar="BOOK_JOBS", min=1,
    help="How many chapters are executed at the same time, with an equal share of the cores and of the memory of a GPU "
    f"each: by default one for each core, and at most {run.MOST_JOBS}; with 1 a chapter has all to itself.",
)]  # fmt: skip
Old = Annotated[str, typer.Option(envvar="BOOK_OLD", help="An older claims.json; else that of the last release.")]
Force = Annotated[bool, typer.Option("--force", help="Execute also what is up to date.")]


def command(function):
    """Register a command: bad input ends it with status 2, a failure with 1, an interruption with 130."""

    @functools.wraps(function)
    def guarded(**options):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            for name in VARIABLES:
                if os.environ.get(f"BOOK_{name}") == "":
                    raise chapters.BadInput(f"{name} is given and empty: leave it out, or say what it is")
            status = function(**options)
        except (chapters.BadInput, chapters.SiteError) as error:
            console.print(f"error: {error}", style="red")
            status = 2 if isinstance(error, chapters.BadInput) else 1
        except KeyboardInterrupt:
            console.print("interrupted: what is finished and the published site are kept, the next build goes on")
            sys.stdout.flush()
            os._exit(130)  # does not wait for threads that wait for a killed kernel
        raise typer.Exit(status or 0)

    return app.command(help=function.__doc__)(guarded)


@command
def build(profile: Profile = "laptop", chapter: Chapter = "", device: Device = "auto", seed: Seed = None,
          jobs: Jobs = None, force: Force = False):  # fmt: skip
    """Execute the stale chapters and publish the site."""
    from lib.book.site import publish as site

    started = time.monotonic()
    selected, parameters, jobs = _settings(profile, chapter, device, seed, jobs)
    with run.lock(console.print):
        outcomes = run.execute(selected, parameters, jobs, console, force)
        status = _report(outcomes)
        if status:
            console.print("the published site is as it was")
            return status
        with console.status("building the site"):
            html, anew, missing, found = site.publish(partial=bool(chapter))
    if missing:
        names = ", ".join(page.short for page in missing)
        console.print(f"shown without results, because never executed as they are now: {names} (run `make book`)")
    if found:
        console.print("\n".join(["Sphinx found, also where a reference leads into what is not shown:", *found]))
    state = "built" if anew else "unchanged"
    console.print(f"site {state} in {time.monotonic() - started:.1f} s: {html / 'index.html'}")


@command
def execute(profile: Profile = "laptop", chapter: Chapter = "", device: Device = "auto", seed: Seed = None,
            jobs: Jobs = None, force: Force = False):  # fmt: skip
    """Execute the stale chapters, and leave the site alone."""
    selected, parameters, jobs = _settings(profile, chapter, device, seed, jobs)
    with run.lock(console.print):
        return _report(run.execute(selected, parameters, jobs, console, force))


@command
def publish():
    """Build the site from the chapters as they were last executed."""
    from lib.book.site import publish as site

    _validate_claims()
    with run.lock(console.print), console.status("building the site"):
        html, anew, *_ = site.publish()
    console.print(f"site {'built' if anew else 'unchanged'}: {html / 'index.html'}")


@command
def pdf():
    """Print the published site into one file, and a poster; the site's first page then offers both."""
    from lib.book.site.pdf import NAME, publish

    html = folders.BUILD / "html"
    with run.lock(console.print), console.status("printing the book"):
        sheets = publish(html)
    console.print(f"{sheets} pages: {html / NAME}")


@command
def status(profile: Profile = "laptop", chapter: Chapter = "", device: Device = "auto", seed: Seed = None):
    """Say which chapters are stale, and why."""
    selected, parameters = _selection(profile, chapter, device, seed)
    stale = run.stale(selected, parameters)
    table = Table("chapter", "state", "why", box=None)
    for page in selected:
        table.add_row(page.short, "stale" if page in stale else "current", "; ".join(stale.get(page, [])))
    console.print(table)


@command
def claims():
    """Write claims.json from the chapters as they were last executed, and print its summary."""
    from lib.book import records
    from lib.book.site import compose
    from lib.book.site import publish as site

    _validate_claims()
    with run.lock(console.print):
        rows = site.write_claims(compose.collect(chapters.pages())[1], records.read())
    table = Table("claim", "verdict", "profile", "chapter", box=None)
    for row in rows:
        table.add_row(row["id"], row["verdict"], row["profile"] or "", row["chapter"] or "")
    console.print(table)
    console.print(f"{len(rows)} claims: {_tally(rows)}")
    console.print(str(folders.BUILD / "claims.json"))


@command
def diff(old: Old = ""):
    """Say which verdicts and values changed since an older claims.json, or since the last release."""
    from lib.book.site.changes import RELEASE, changes

    for line in changes(Path(old or folders.ROOT / RELEASE), folders.BUILD / "claims.json"):
        console.print(line)


@command
def record(chapter: Chapter = ""):
    """Keep what the chapters measured, as last executed in the paper or the night profile, in recorded/."""
    from lib.book import records

    _validate_claims(partial=True, recorded=False)
    selected = chapters.select(chapters.chapters(), chapter)
    with run.lock(console.print):
        written = records.record(selected, announce=console.print)
    for taken in written:
        when = f"{taken['finished'][:10]} on {taken['machine']['name']}"
        console.print(f"{taken['chapter']}: recorded {_tally(taken['claims'])}, of {when}")


def _selection(profile: str, chapter: str, device: str, seed: int | None):
    """The selected chapters and the parameters to inject; raises BadInput for an unknown chapter or missing device."""
    if device == "cuda" and (why := devices.missing()):
        raise chapters.BadInput(f"device 'cuda' is not available: {why}; use auto or cpu")
    given = {"profile": profile, "device": device, "seed": seed}
    parameters = {name: value for name, value in given.items() if value is not None}
    return chapters.select(chapters.chapters(), chapter), parameters


def _settings(profile: str, chapter: str, device: str, seed: int | None, jobs: int | None):
    """What `_selection` gives, and the number of jobs; raises BadInput, also for claims and errata, before any work."""
    selected, parameters = _selection(profile, chapter, device, seed)
    _validate_claims(partial=bool(chapter))
    return selected, parameters, jobs or min(run.MOST_JOBS, run.cores())


def _validate_claims(partial: bool = False, recorded: bool = True) -> None:
    """End the command if declarations are damaged, claims are undeclared, misspelt or checked twice, or errata lack
    their section. A build of some chapters does not check the errata of all, and the command that makes a damaged
    record anew does not check the existing records first."""
    from lib.book import records
    from lib.book.ledger import claims as ledger
    from lib.book.ledger import errata

    try:
        if recorded:
            records.check()
        everything = chapters.chapters()
        ledger.check_sources(everything)
        if not partial:
            errata.check(page.path for page in everything)
    except ValueError as error:
        raise chapters.BadInput(str(error)) from error


def _report(outcomes: list[run.Outcome]) -> int:
    """Print one line per chapter, then what failed; returns the exit status."""
    from lib.book.site import compose

    table = Table("chapter", "state", "time", "claims", box=None)
    for outcome in outcomes:
        records = {} if outcome.state == "FAILED" else compose.collect([outcome.page])[1]
        seconds = f"{outcome.seconds:.1f} s" if outcome.seconds else ""
        table.add_row(outcome.page.short, outcome.state, seconds, _tally(records.values()))
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
