"""Pictures of what `measure` and `Tracker` found, in matplotlib's current style; imported only to draw."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, isfinite

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from ._checks import one_of
from .columns import TITLES, named

#: What is drawn over the layers, by the title of the panel.
PANELS = {
    "NC1": ("nc1", "dilation", "nc1_chance"),
    "spread of the classes": ("trace_ratio", "relative_spread", "cdnv"),
    "NC2 to NC4": ("nc2_etf", "nc2_of", "nc3", "nc4"),
    "rank of the means": ("numerical_rank",),
}
#: Drawn on a logarithmic axis.
LOGARITHMIC = ("nc1", "nc1_chance", "dilation", "trace_ratio", "trace_ratio_debiased", "cdnv", "condition_number")
#: Drawn unless others are asked for.
USUAL = ("nc1", "dilation", "trace_ratio", "relative_spread", "nc2_etf", "nc3", "nc4", "numerical_rank")
#: One for each line, so that no picture speaks by colour alone.
MARKERS = ("o", "s", "^", "D", "v", "P")
#: What is no line of numbers, legible on a white and on a dark page.
GREY = "0.46"
#: Largest number of layers named on one axis.
MOST_NAMES = 14


def over_layers(measures) -> Figure:
    """Four panels over the layers of a :class:`~collapsemetrics.Measures`, with their names under the lower two panels.

    ValueError if there are no rows.
    """
    if not measures:
        raise ValueError("there is no row to draw")
    fig, axes = _panels(4, sharex=True)
    for ax, (title, columns) in zip(axes, PANELS.items(), strict=True):
        for i, column in enumerate(columns):
            _line(ax, measures, column, TITLES[column], i, linestyle="--" if column == "nc1_chance" else "-")
        several = len(columns) > 1
        _scaled(ax, columns[0], room=0.6 if several else 0)
        ax.set(title=title)
        if several:
            ax.legend(fontsize=9, loc="upper right", ncols=2 if len(columns) > 3 else 1, columnspacing=0.8)
    if measures.K:
        axes[-1].axhline(measures.K - 1, color=GREY, linestyle="--")
        axes[-1].annotate("$K-1$", (0, measures.K - 1), (0, 6), textcoords="offset points", color=GREY)
    _name_layers(axes, [row["layer"] for row in measures])
    return fig


def side_by_side(comparison) -> Figure:
    """Four panels over the layers of a :class:`~collapsemetrics.Comparison`, a line for each measurement."""
    fig, axes = _panels(4, sharex=True)
    sides = list(zip(*comparison.pairs, strict=True))
    for ax, column in zip(axes, ("nc1", "trace_ratio", "relative_spread", "nc2_etf"), strict=True):
        for i, (name, rows) in enumerate(zip(comparison.names, sides, strict=True)):
            _line(ax, rows, column, name, i)
        _scaled(ax, column)
        ax.set(title=TITLES[column])
    axes[0].legend(fontsize=9)
    _name_layers(axes, [row["layer"] for row in sides[0]])
    return fig


def over_epochs(tracker, columns: Iterable[str] | None = None) -> Figure:
    """One panel for each column of a :class:`~collapsemetrics.Tracker`, one line for each layer that has it.

    ValueError if nothing was measured, and for a column that no layer has.
    """
    if not tracker.rows:
        raise ValueError("nothing was measured yet")
    rows = {row["layer"]: row for row in tracker.rows}
    known = [column for column in TITLES if any(row.get(column) is not None for row in rows.values())]
    columns = [name for name in known if name in USUAL] if columns is None else columns
    columns = [columns] if isinstance(columns, str) else list(columns)
    for column in columns:
        one_of(known, column=column)
    colors = [f"C{i}" for i in range(len(rows))]
    if len(rows) > len(MARKERS):
        colors = mpl.colormaps["viridis"]([0.1 + 0.8 * i / (len(rows) - 1) for i in range(len(rows))])
    fig, axes = _panels(len(columns))
    for ax, column in zip(axes, columns, strict=True):
        for i, (layer, row) in enumerate(rows.items()):
            if row.get(column) is not None:
                size = 3.5 + 4 * (1 - i / len(rows))  # so that lines that coincide are all seen
                look = {"color": colors[i], "marker": MARKERS[i % len(MARKERS)], "markersize": size}
                ax.plot(*tracker.curve(column, layer), label=named(layer), **look)
        _scaled(ax, column)
        ax.set(title=TITLES[column], xlabel="epoch")
    if len(rows) > 1:
        handles, labels = max((ax.get_legend_handles_labels() for ax in axes), key=lambda found: len(found[1]))
        fig.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=10)
    return fig


def _panels(n: int, sharex: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure with n axes, two in a row, perhaps with one horizontal axis for all, named under the lowest."""
    columns, rows = min(n, 2), ceil(n / 2)
    size = (3.0 * columns, 2.7 * rows) if n > 1 else (5.2, 3.6)
    fig, axes = plt.subplots(rows, columns, figsize=size, sharex=sharex, squeeze=False, layout="constrained")
    for unused in axes.flat[n:]:
        unused.remove()
    return fig, list(axes.flat[:n])


def _line(ax: Axes, rows, column: str, label: str, i: int, **look) -> None:
    """The i-th line of a panel: a column over the places of the rows that have it."""
    values = {place: row[column] for place, row in enumerate(rows) if row.get(column) is not None}
    if values:
        ax.plot(list(values), list(values.values()), label=label, color=f"C{i}", marker=MARKERS[i], **look)


def _name_layers(axes: list[Axes], layers: list[str]) -> None:
    """The layers along the axes, the last and others at equal steps, with their names under the last two."""
    step = ceil(len(layers) / MOST_NAMES)
    shown = range((len(layers) - 1) % step, len(layers), step)
    names = [named(layers[place]) for place in shown]
    axes[0].set_xlim(-0.4, len(layers) - 0.6)
    for ax in axes[-2:]:
        ax.set_xticks(shown, names, rotation=45, ha="right", rotation_mode="anchor", fontsize=10)


def _scaled(ax: Axes, column: str, room: float = 0) -> None:
    """The vertical axis that suits a column, once its lines are drawn; its ticks are plain numbers.

    Above the lines, `room` is left for a legend, as a share of the height that they take.
    """
    drawn = [value for line in ax.get_lines() for value in line.get_ydata() if isfinite(value)]
    positive = [value for value in drawn if value > 0]
    if column in LOGARITHMIC and positive:
        low, high = min(positive), max(positive)
        ax.set_yscale("log")
        ax.set_ylim(low / 1.5, 1.5 * high * (2 * high / low) ** room)
        few = MaxNLocator(5, steps=(1, 2, 5, 10)) if high < 2 * low else LogLocator(subs=(1, 2, 5))
        ax.yaxis.set_major_locator(few if high < 50 * low else LogLocator())
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_locator(NullLocator())
    elif column != "uniformity":  # which is negative
        highest = max(drawn, default=1) or 1
        ax.set_ylim(-0.03 * highest, (1.1 + room) * highest)
    if column == "numerical_rank":
        ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
