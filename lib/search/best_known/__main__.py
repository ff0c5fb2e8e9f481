"""The command line: check a solution, hand in a lower one, and search every cell of the table."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

from lib.search import best_known
from lib.search.best_known import Solution
from lib.search.best_known.files import TOLERANCE, keep_effort
from lib.theory import low_rank

app = typer.Typer(help="Check and beat the stored solutions.", add_completion=False, rich_markup_mode=None)
Folder = Annotated[Path, typer.Option(help="where the stored solutions are")]


@app.command()
def check(file: Path, folder: Folder = best_known.FOLDER) -> None:
    """Evaluate a file anew, describe what it holds, and compare it with what is stored."""
    found = best_known.load(file)
    print(f"{found.name}: ranks {best_known.ranks(found)}, {best_known.describe(found)}")
    _offer(found, folder, store=False)


@app.command()
def submit(file: Path, folder: Folder = best_known.FOLDER) -> None:
    """Check a file that was made by any means, and store it if it is lower than what is there."""
    _offer(best_known.load(file), folder)


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
        efforts = best_known.efforts(folder).get(best_known.file_name(K, L, lam, loss))
        done = 0 if efforts is None else int(efforts[-1, 0])
        if done < descents:
            before = _stored(K, L, lam, loss, folder)
            known = [before.factors] if before and not fresh else []
            found, effort = best_known.search(K, L, lam, loss, descents - done, seed + done, known=known)
            keep_effort(found, effort, folder)
            _offer(found, folder)


def _stored(K: int, L: int, lam: float, kind: str, folder: Path) -> Solution | None:
    path = folder / best_known.file_name(K, L, lam, kind)
    before = best_known.load(path) if path.exists() else None
    if before and not (before.name == path.name and math.isclose(before.lam, lam)):
        raise ValueError(f"{path}: holds another problem, lam = {before.lam!r} in place of {lam!r}")
    return before


def _offer(found: Solution, folder: Path, store: bool = True) -> None:
    """Compare a solution with the stored one, or with collapse where none is stored, and store it if it is lower."""
    sizes = found.K, found.L, found.lam
    if found.kind == "mse":
        collapse = low_rank.dnc_loss(*sizes, 1)
    else:
        collapse = best_known.collapse_cross_entropy(*sizes)
    before = _stored(*sizes, found.kind, folder)
    bar = before.loss if before else collapse
    print("{}, K = {}, L = {}, lam = {:.8g}: ".format(found.kind, *sizes), end="")
    print(f"found {found.loss:.12f}, known {bar:.12f}, collapse {collapse:.12f}")
    if found.loss < bar - TOLERANCE:
        path = best_known.save(found, folder) if store else "not stored by `check`"
        print(f"lower by {bar - found.loss:.3g}: {best_known.describe(found)}; {path}", flush=True)
    else:
        print("not lower: nothing is stored", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Ends with the exit status: 0, or 2 for a file that cannot be read and for wrong arguments."""
    torch.set_num_threads(1)  # the matrices are tiny
    try:
        app(arguments)
    except ValueError as error:
        print(f"error: {error}")
        sys.exit(2)


if __name__ == "__main__":
    main()
