"""Measured values as a table: printed, shown in a notebook, saved, and compared with another one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from ._checks import one_of
from .columns import COLUMNS, GROUPS, best, named

PRINTED = 95  # characters in a line of a printed table; layers that do not fit go below


class ClassMeans(NamedTuple):
    """Class means `(K, d)`, samples `(K,)` and mean squared distances from the mean `(K,)` of one layer, float64.

    `classes`: the labels of these classes, `(K,)`.
    """

    means: Tensor
    counts: Tensor
    variances: Tensor
    classes: Tensor


class _Table:
    """A table made of `_cells`, rows of cells that begin with the row of heads, and of `notes` that stand below."""

    def __str__(self) -> str:
        labels, *columns = zip(*self._cells(), strict=True)
        width = max(map(len, labels))
        labels = [label.ljust(width) for label in labels]
        blocks = [labels]
        for column in columns:
            width = 2 + max(map(len, column))
            if len(blocks[-1][0]) + width > PRINTED and blocks[-1] is not labels:
                blocks.append(labels)
            blocks[-1] = [line + cell.rjust(width) for line, cell in zip(blocks[-1], column, strict=True)]
        return "\n\n".join("\n".join(lines) for lines in blocks) + "".join(f"\n({note})" for note in self.notes)

    def _repr_html_(self) -> str:
        head, *body = self._cells()
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
        rows = ""
        for name, *cells in body:
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            rows += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{notes}"


class Measures(_Table, list):
    """What :func:`measure` found: one dictionary for each layer, printed as a table and shown as one in a notebook.

    Attributes
    ----------
    K
        Number of classes that were measured.
    head
        Name of the classifier, None where none was needed.
    centre
        What class means are centred with, `"classes"` or `"samples"`.
    notes
        Sentences that stand below the table: what it rests on, and what may mislead.
    statistics
        The :class:`ClassMeans` of each layer. Not saved.
    """

    def __init__(
        self, rows: Iterable[dict] = (), K: int | None = None, head: str | None = None, centre="classes", notes=()
    ):
        super().__init__(rows)
        self.K, self.head, self.centre, self.notes = K, head, centre, list(notes)
        self.statistics: dict[str, ClassMeans] = {}

    def plot(self):
        """A matplotlib figure over the layers: NC1 (and dilation), relative spread, NC2 to NC4, rank of the means."""
        from .pictures import over_layers  # matplotlib is imported only to draw

        return over_layers(self)

    def worst(self, layer: str) -> dict:
        r"""The class and the pair of classes of a layer that are least told apart, which an average hides.

        By :func:`cdnv` of each pair, :math:`(v_k + v_l) / 2\|\mu_k - \mu_l\|^2`: `pair` and `pair_cdnv` are the pair
        where it is largest, `class` and `class_cdnv` the class where its mean over the other classes is. Labels are
        those of the samples. ValueError for a layer without `statistics`, as after loading.

        >>> import torch
        >>> from collapsemetrics import measure
        >>> x, y = torch.tensor([[0.0], [2.0], [3.0], [5.0], [90.0], [92.0]]), torch.tensor([0, 0, 1, 1, 2, 2])
        >>> worst = measure(torch.nn.Linear(1, 3), [(x, y)]).worst("penultimate")
        >>> worst["class"], worst["pair"], round(worst["pair_cdnv"], 4)  # class variances 1, means 1, 4 and 91
        (1, (0, 1), 0.1111)
        """
        one_of(self.statistics, layer=layer)
        means, _, variances, classes = self.statistics[layer]
        found = []
        for k, mean in enumerate(means):
            apart = (variances + variances[k]) / (2 * (means - mean).square().sum(1))
            apart[k] = 0
            found.append((apart.sum().item() / (len(means) - 1), apart.max().item(), k, int(apart.argmax())))
        mean, _, k, _ = max(found, key=lambda of_class: of_class[0])
        _, most, *pair = max(found, key=lambda of_class: of_class[1])
        return {"class": int(classes[k]), "class_cdnv": mean, "pair": tuple(classes[pair].tolist()), "pair_cdnv": most}

    def to_frame(self):
        """The rows as a `pandas.DataFrame`."""
        import pandas as pd

        return pd.DataFrame(list(self))

    def save(self, path: str | Path) -> None:
        """Write all but the class means to a `.json` file; ValueError for other files.

        A number that is not finite becomes the word nan, inf or -inf, which every reader of JSON accepts.
        """
        path = _json(path)
        rows = [{name: _written(value) for name, value in row.items()} for row in self]
        content = {"K": self.K, "head": self.head, "centre": self.centre, "notes": self.notes, "rows": rows}
        path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Measures:
        """What :meth:`save` wrote, without `statistics`; ValueError for a file of another kind."""
        content = json.loads(_json(path).read_text(encoding="utf-8"))
        rows = ({name: _read(value) for name, value in row.items()} for row in content["rows"])
        return cls(rows, content["K"], content["head"], content["centre"], content["notes"])

    def _cells(self) -> list[list[str]]:
        return _grouped(["layer", *(named(row.get("layer", "")) for row in self)], self, self.K)


class LayerShapes(_Table, dict):
    """What :func:`layers` found: the shape of the output of each layer, by its name."""

    notes = ()

    def _cells(self) -> list[list[str]]:
        return [["layer", "output"], *([name, str(shape)] for name, shape in self.items())]


class Comparison(_Table):
    """Two :class:`Measures` side by side, over the layers that both have; made by :func:`compare`, errors as there."""

    def __init__(self, a: Measures, b: Measures, names: Sequence[str]):
        known = {row["layer"]: row for row in b}
        self.pairs = [(row, known[row["layer"]]) for row in a if row["layer"] in known]
        self.names, self.K = tuple(names), a.K
        self.notes = [note for note in a.notes if note in b.notes]
        for name, found in zip(names, (a, b), strict=True):
            self.notes += [f"{name}: {note}" for note in found.notes if note not in self.notes]
        if not self.pairs:
            raise ValueError("the two have no layer in common")

    def plot(self):
        """A matplotlib figure: a panel for each of four measures over the layers, a line for each of the two."""
        from .pictures import side_by_side

        return side_by_side(self)

    def _cells(self) -> list[list[str]]:
        heads = [f"{named(row['layer'])}: {name}" for row, _ in self.pairs for name in self.names]
        rows = [row for pair in self.pairs for row in pair]
        return _grouped(["", *heads], rows, self.K)


def compare(a: Measures, b: Measures, names: Sequence[str] = ("before", "after")) -> Comparison:
    """Two measurements side by side, as a printed table and a picture: of two times, two models or two data sets.

    Layers are matched by name; ValueError if they have none in common.

    >>> a = Measures([{"layer": "fc", "d": 4, "nc1": 0.5}])
    >>> b = Measures([{"layer": "fc", "d": 4, "nc1": 0.25}])
    >>> print(compare(a, b))  # doctest: +NORMALIZE_WHITESPACE
                                fc: before  fc: after
    d                                    4          4
    how spread
      nc1                   -> 0       0.5       0.25
    """
    return Comparison(a, b, names)


def _grouped(heads: list[str], rows: Sequence[dict], K: int | None) -> list[list[str]]:
    """The cells of the rows below their heads: a line for each measure that a row has, below that of its group."""
    cells, lead = [heads], max(map(len, COLUMNS))
    for group, names in {"": "d samples", **GROUPS}.items():
        there = [name for name in names.split() if any(row.get(name) is not None for row in rows)]
        cells += [[group, *[""] * len(rows)]] if group and there else []
        for name in there:
            label = f"  {name:{lead}}  {best(name, K)}" if group else name
            cells.append([label, *(_cell(row.get(name)) for row in rows)])
    return cells


def _json(path: str | Path) -> Path:
    path = Path(path)
    one_of((".json",), suffix=path.suffix)
    return path


def _written(value):
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _read(value):
    return float(value) if value in ("nan", "inf", "-inf") else value


def _cell(value) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
