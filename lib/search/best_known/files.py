"""Solutions as files: one compressed NumPy archive for each, evaluated anew whenever it is read."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch

from lib import checks
from lib.book.atomic import atomically
from lib.models.unconstrained import LOSSES, labels, objective
from lib.search.best_known.problem import Solution, check_sizes, standard_decay

#: Where the solutions are kept.
FOLDER = Path(__file__).resolve().parents[3] / "chapters" / "synthesis" / "best-known"
#: A file's loss may differ from that of its matrices by at most this.
TOLERANCE = 1e-9

#: The numbers of classes in the table; with cross-entropy those up to ten.
CLASSES = (*range(2, 11), 15)
#: The numbers of layers in the table; with cross-entropy those up to four.
LAYERS = range(2, 7)

_SCALARS = ("K", "L", "n", "lam", "kind", "loss", "how")


def save(solution: Solution, folder: Path = FOLDER) -> Path:
    """Write a solution as a compressed file and return its path; ValueError where :func:`load` would raise it."""
    matrices = dict(zip(_names(solution.L), (q.numpy() for q in solution.factors), strict=True))
    scalars = {"n": 1} | {key: getattr(solution, key) for key in _SCALARS if key != "n"}
    path = Path(folder) / solution.name
    with atomically(path) as partial:
        np.savez_compressed(partial, **matrices, **scalars)
        load(partial)
    return path


def load(path: Path | str) -> Solution:
    """Read a solution and evaluate the objective at its matrices.

    ValueError naming the file if it cannot be read, a key is missing or unknown, a shape does not fit, an entry is not
    finite, or the loss that it states differs from that of its matrices by more than
    :data:`~lib.search.best_known.files.TOLERANCE`.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            found = dict(file)
        if missing := [key for key in _SCALARS if key not in found]:
            raise ValueError(f"{', '.join(missing)} missing")
        K, L, n, lam, kind, claimed, how = (found.pop(key).item() for key in _SCALARS)
        check_sizes(K, L)
        checks.one_of((1,), n=n)
        checks.one_of(LOSSES, kind=kind)
        if set(found) != set(_names(L)):
            raise ValueError(f"has {', '.join(sorted(found))}: for L = {L} {', '.join(_names(L))} are needed")
        for name, matrix in found.items():
            if matrix.dtype != np.float64 or matrix.ndim != 2 or not np.isfinite(matrix).all():
                raise ValueError(f"{name} has to be a matrix of finite float64 numbers")
        H, *Ws = factors = [torch.from_numpy(found[name]) for name in _names(L)]
        loss = objective(H, Ws, labels(K, 1), lam, relu=True, loss=kind).item()
        if not abs(loss - claimed) <= TOLERANCE:
            raise ValueError(f"states the loss {claimed!r}, its matrices have {loss!r}")
    except Exception as error:  # a damaged archive raises one of ten kinds, depending on where it is damaged
        raise ValueError(f"{path}: {error}") from error
    return Solution(K, L, lam, kind, factors, loss, how)


def stored(kind: str = "mse", folder: Path = FOLDER) -> list[Solution]:
    """Every stored solution of one kind of loss, each evaluated anew, ordered by L, K and decay."""
    solutions = [load(path) for path in Path(folder).glob(f"{kind}-*.npz")]
    return sorted(solutions, key=lambda s: (s.L, s.K, s.lam))


def cells(folder: Path = FOLDER) -> list[tuple[int, int, float, str]]:
    """The problems `(K, L, lam, loss)` of the table: those of the grid, then those of files with another decay.

    >>> [(K, L, loss) for K, L, _, loss in cells()[:3]]
    [(2, 2, 'mse'), (3, 2, 'mse'), (4, 2, 'mse')]
    """
    grid = [(K, L, "mse") for L in LAYERS for K in CLASSES]
    grid += [(K, L, "ce") for L in LAYERS for K in CLASSES if K <= 10 and L <= 4]
    found = [(K, L, standard_decay(K, L, loss), loss) for K, L, loss in grid]
    others = [s for loss in LOSSES for s in stored(loss, folder) if "lam" in s.name or (s.K, s.L, loss) not in grid]
    return found + [(s.K, s.L, s.lam, s.kind) for s in others]


def efforts(folder: Path = FOLDER) -> dict[str, np.ndarray]:
    """The content of `effort.csv`: by solution file name, rows of descents and lowest loss so far, `(rows, 2)`."""
    found: dict[str, list] = {}
    if (path := Path(folder) / "effort.csv").exists():
        with open(path, newline="") as file:
            for name, *row in csv.reader(file):
                found.setdefault(name, []).append([float(value) for value in row])
    return {name: np.array(rows) for name, rows in found.items()}


def _names(L: int) -> list[str]:
    return ["M1", *(f"W{i}" for i in range(1, L + 1))]
