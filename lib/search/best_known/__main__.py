"""The command line: check the stored solutions, and beat them."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

from lib.search import best_known
from lib.search.best_known import Solution, problem
from lib.theory import low_rank

app = typer.Typer(help="Check and beat the stored solutions.", add_completion=False, rich_markup_mode=None)
Folder = Annotated[Path, typer.Option(help="where the files are")]


@app.command()
def check(folder: Folder = best_known.FOLDER) -> None:
    """Evaluate every file anew, one line for each; fails if one cannot be read or holds what belongs elsewhere."""
    failed = False
    for path in sorted(folder.glob("*.npz")):
        try:
            s = best_known.load(path)
            if s.name != path.name:
                raise ValueError(f"{path}: what it holds belongs into {s.name}")
        except ValueError as error:
            print(f"FAILED  {error}")
            failed = True
        else:
            seen = f"ranks {best_known.ranks(s)}, {best_known.describe(s)}"
            print(f"{s.name}: loss {s.loss:.10f} at lam {s.lam:.8g}, {seen}")
    if failed:
        raise typer.Exit(1)


@app.command()
def search(
    K: int,
    L: int,
    descents: Annotated[int, typer.Option(help="how many, 48 at a time")] = 1000,
    seed: int = 0,
    width: Annotated[int | None, typer.Option(help="units per level")] = None,
    loss: Annotated[str, typer.Option(help="mse or ce")] = "mse",
    lam: Annotated[float | None, typer.Option(help="another weight decay than the standard one")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="do not start from the stored solution")] = False,
    folder: Folder = best_known.FOLDER,
) -> None:
    """Search for a lower loss at K classes and L layers, store what is lower than the file, and note the effort."""
    lam = problem.standard_decay(K, L, loss) if lam is None else lam
    _search(K, L, lam, loss, descents, seed, width, fresh, folder)


@app.command()
def sweep(
    descents: Annotated[int, typer.Option(help="how many each cell is to have, with those that effort.csv counts")],
    seed: int = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="do not start from the stored solutions")] = False,
    folder: Folder = best_known.FOLDER,
) -> None:
    """Search every cell of the table until each has had as many descents; where it was stopped it goes on.

    Each search has random numbers of its own: they depend on the descents that its cell had before.
    """
    for K, L, lam, loss in best_known.cells(folder):
        efforts = best_known.efforts(folder).get(problem.file_name(K, L, lam, loss))
        done = 0 if efforts is None else int(efforts[-1, 0])
        if done < descents:
            _search(K, L, lam, loss, descents - done, seed + done, None, fresh, folder)


def _search(K, L, lam, loss, descents, seed, width, fresh, folder) -> None:
    before = _stored(K, L, lam, loss, folder)
    known = [before.factors] if before and not fresh else []
    found, effort = best_known.search(K, L, lam, loss, descents, seed, width, known)
    best_known.keep_effort(found, effort, folder)
    _offer(found, before, folder)


@app.command()
def submit(file: Path, folder: Folder = best_known.FOLDER) -> None:
    """Check a file that was made by any means, say where it stands, and store it if it is lower than what is there."""
    found = best_known.load(file)
    _offer(found, _stored(found.K, found.L, found.lam, found.kind, folder), folder)


def _stored(K: int, L: int, lam: float, kind: str, folder: Path) -> Solution | None:
    path = folder / problem.file_name(K, L, lam, kind)
    before = best_known.load(path) if path.exists() else None
    if before and not (before.name == path.name and math.isclose(before.lam, lam)):
        raise ValueError(f"{path}: holds another problem, lam = {before.lam!r} in place of {lam!r}")
    return before


def _offer(found: Solution, before: Solution | None, folder: Path) -> None:
    """Compare a solution with the stored one, or with collapse where none is stored, and store it if it is lower."""
    problem_of = found.K, found.L, found.lam
    collapse = (
        low_rank.dnc_loss(*problem_of, 1) if found.kind == "mse" else best_known.collapse_cross_entropy(*problem_of)
    )
    bar = before.loss if before else collapse
    print("{}, K = {}, L = {}, lam = {:.8g}: ".format(found.kind, *problem_of), end="")
    print(f"found {found.loss:.12f}, known {bar:.12f}, collapse {collapse:.12f}")
    if found.loss < bar - best_known.TOLERANCE:
        print(f"lower by {bar - found.loss:.3g}: {best_known.describe(found)}; {best_known.save(found, folder)}")
    else:
        print("not lower: nothing is stored", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Ends with the exit status: 0, 1 for a file that fails, 2 for wrong arguments."""
    torch.set_num_threads(1)  # the matrices are tiny
    try:
        app(arguments)
    except ValueError as error:
        print(f"error: {error}")
        sys.exit(2)


if __name__ == "__main__":
    main()
