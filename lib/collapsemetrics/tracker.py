r"""Measures of collapse while a network trains, from any training loop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from operator import length_hint

import torch
from torch import nn

from ._checks import integers, one_of
from .columns import TITLES, named
from .network import measure
from .passes import Layers, Loader
from .table import Measures


class Tracker:
    """Measures a model each time it is called, and keeps what it found::

        tracker = Tracker(model, loader)
        for epoch in range(epochs):
            ...  # one epoch of any training loop
            tracker(epoch)
        tracker.plot()

    Called between epochs or between steps, it leaves training as it was: the mode of every part of the model, its
    buffers, gradients, the iterator of the loader and the random number generators (:func:`measure`). Pickling a
    tracker leaves model and loaders behind: the unpickled copy can draw, but no longer measure.

    Parameters
    ----------
    model, loader, layers
        As in :func:`measure`. A loader that can be read once only is refused.
    every
        A number, so that only epochs that are multiples of it are measured, or a collection of the epochs to measure.
        With 1, the default, every call measures: epochs may then be steps, or fractions.
    options
        Everything else that :func:`measure` takes. The head is looked for only once.

    Attributes
    ----------
    rows
        One dictionary for each epoch and layer: `epoch`, and a row of :func:`measure`.
    last
        :class:`Measures` of the last call that measured, None before the first.

    Raises
    ------
    ValueError
        For an `every` that is not a positive number and a loader that can be read only once; at a call, as
        :func:`measure`.

    Examples
    --------
    >>> import torch
    >>> model, x, y = nn.Linear(3, 3), torch.eye(3), torch.tensor([0, 1, 2])
    >>> tracker = Tracker(model, [(x, y)], every=5)
    >>> for epoch in range(11):
    ...     found = tracker(epoch)  # after an epoch of training
    >>> tracker.curve("nc1")
    ([0, 5, 10], [0.0, 0.0, 0.0])
    """

    def __init__(
        self, model: nn.Module, loader: Loader, layers: Layers = None, *, every: int | Collection[int] = 1, **options
    ):
        for name, given in {"loader": loader, **options}.items():
            if isinstance(given, Iterator):
                raise ValueError(f"{name} can be read once only: give a DataLoader, a list or a function")
        if not isinstance(every, Collection):
            integers(1, every=every)
        self.model, self.loader, self.every, self.options = model, loader, every, options
        self.layers = layers if layers is None or isinstance(layers, str | nn.Module) else list(layers)
        self.rows: list[dict] = []
        self.last: Measures | None = None

    def __call__(self, epoch: float) -> dict[str, float]:
        """Measure the model now and return the numbers, under names like `"nc1/penultimate"`; none if not due."""
        due = epoch in self.every if isinstance(self.every, Collection) else self.every == 1 or epoch % self.every == 0
        if not due:
            return {}
        if self.model is None:
            raise ValueError("this tracker was pickled, without its model: it can draw, but not measure")
        self.last = measure(self.model, self.loader, self.layers, **self.options)
        self.options.setdefault("head", self.last.head)
        self.rows += [{"epoch": epoch} | row for row in self.last]
        return self.numbers()

    def numbers(self) -> dict[str, float]:
        """The numbers of the last epoch that was measured, under names like `"nc1/penultimate"`; none before."""
        found, last = {}, [row for row in self.rows if row["epoch"] == self.rows[-1]["epoch"]]
        for row in last:
            for column in TITLES:
                if row.get(column) is not None:
                    found[f"{column}/{named(row['layer'])}"] = row[column]
        return found

    def state_dict(self) -> dict[str, list[dict]]:
        """The rows, for a checkpoint."""
        return {"rows": list(self.rows)}

    def load_state_dict(self, state: dict[str, list[dict]]) -> None:
        """Go on with the rows of a :meth:`state_dict`."""
        self.rows = list(state["rows"])

    def __getstate__(self) -> dict:
        return self.__dict__ | {"model": None, "loader": None, "layers": None, "options": {}}

    def to_frame(self):
        """The rows as a `pandas.DataFrame`."""
        return Measures(self.rows).to_frame()

    def curve(self, column: str, layer: str | None = None) -> tuple[list[float], list[float]]:
        """Epochs and values of one column for one layer, by default the last.

        ValueError if nothing was measured, for a layer that is not tracked, and for a column that it has no numbers in.
        """
        if not self.rows:
            raise ValueError("nothing was measured yet")
        layer = self.rows[-1]["layer"] if layer is None else layer
        one_of(dict.fromkeys(row["layer"] for row in self.rows), layer=layer)
        rows = [row for row in self.rows if row["layer"] == layer]
        one_of([name for name, value in rows[-1].items() if value is not None and name != "layer"], column=column)
        return [row["epoch"] for row in rows], [row[column] for row in rows]

    def plot(self, columns: Iterable[str] | None = None):
        """A matplotlib figure over the epochs: a panel for each column, by default the usual ones, a line per layer.

        ValueError if nothing was measured, and for a column that no layer has.
        """
        from .pictures import over_epochs  # matplotlib is imported only to draw

        return over_epochs(self, columns)


def of_trainer(model: nn.Module, loader: Loader, layers: Layers, processes: int, options: dict) -> Tracker:
    """A tracker for the callback of a trainer, whose processes measure together unless the options name a group.

    ValueError if the loader has no length, and may never end, and the options do not say how many batches to read.
    """
    if options.get("batches") is None and not callable(loader) and length_hint(loader, -1) < 0:
        raise ValueError("the loader has no length and may never end: say how many batches to read, batches=...")
    if processes > 1:
        options = {"group": torch.distributed.group.WORLD} | options
    return Tracker(model, loader, layers, **options)
