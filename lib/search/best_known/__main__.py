"""The command line, `python -m lib.search.best_known check FILE`: a solution evaluated anew, beside what is known."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from lib.search import best_known
from lib.search.best_known.files import TOLERANCE
from lib.theory import low_rank


def check(file: Path | str, folder: Path = best_known.FOLDER) -> str:
    """What a file holds, and whether its loss is below that of the stored solution, or of collapse where none is.

    ValueError for a file that cannot be read, and where the stored file of that name is of another decay.
    """
    found = best_known.load(file)
    K, L, lam, path = found.K, found.L, found.lam, folder / found.name
    collapse = low_rank.dnc_loss(K, L, lam, 1) if found.kind == "mse" else best_known.collapse_cross_entropy(K, L, lam)
    stored = best_known.load(path) if path.exists() else found._replace(loss=collapse)
    if not math.isclose(stored.lam, lam):
        raise ValueError(f"{path}: holds another problem, lam = {stored.lam!r} in place of {lam!r}")
    said = f"{found.kind}, K = {K}, L = {L}, lam = {lam:.8g}: ranks {best_known.ranks(found)}, "
    said += f"{best_known.describe(found)}\nfound {found.loss:.12f}, known {stored.loss:.12f}, collapse {collapse:.12f}"
    lower = found.loss < stored.loss - TOLERANCE
    return f"{said}\n" + (f"lower by {stored.loss - found.loss:.3g}: hand it in as {path}" if lower else "not lower")


if __name__ == "__main__":
    if sys.argv[1:2] != ["check"] or len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        print(check(sys.argv[2]))
    except ValueError as error:
        sys.exit(f"error: {error}")
