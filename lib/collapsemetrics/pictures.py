"""Pictures of what `measure` and `Tracker` found, in matplotlib's current style; imported only to draw."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf, isfinite

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ._checks import one_of
from .table import named

#: What the panels call each column of the table.
TITLES = {
    "nc1": "NC1",
    "nc1_chance": "NC1, random labels",
    "dilation": "dilation",
    "trace_ratio": "ratio of traces",
    "trace_ratio_debiased": "ratio of traces, debiased",
    "cdnv": "CDNV",
    "relative_spread": "relative spread",
    "nc2_etf": "NC2, simplex",
    "nc2_of": "NC2, orthogonal",
    "uniformity": "uniformity",
    "nc3": "NC3",
    "duality": "uniform duality",
    "nc4": "NC4",
    "nc5": "NC5",
    "numerical_rank": "rank of the means",
    "condition_number": "condition number",
}
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
#: Largest number of layers named on one axis.
MOST_NAMES = 14
# The palette of Okabe and Ito without black and yellow, which vanish on a dark or on a white page.
_BLUE, _VERMILLION, _GREEN, _PURPLE, _ORANGE, _SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
_GREY = "#767676"
_LAYERS = (_VERMILLION, _ORANGE, _GREEN, _BLUE, _PURPLE, _SKY)  # from the first to the last
_MARKERS = ("o", "s", "^", "D", "v", "P")  # so that no picture speaks by colour alone


def over_layers(measures) -> Figure:
    """Four panels over the layers of a :class:`~collapsemetrics.Measures`, with their names under the lower two panels.

    ValueError if there are no rows.
    """
    if not measures:
        raise ValueError("there is no row to draw")
    fig, axes = _panels(4, (3.0, 2.7))
    for ax, (title, columns) in zip(axes, PANELS.items(), strict=True):
        for column, color, marker in zip(columns, (_BLUE, _VERMILLION, _GREEN, _PURPLE), _MARKERS, strict=False):
            line = {"nc1_chance": "--", "nc3": "none", "nc4": "none"}.get(column, "-")
            _line(ax, measures, column, TITLES[column], color=color, marker=marker, linestyle=line)
        ax.set(title=title)
        if columns[0] in LOGARITHMIC:
            _logarithmic(ax, room=0.6)
            ax.legend(fontsize=10, loc="upper right")
    _, _, geometry, rank = axes
    highest = max((height for height in _drawn(geometry) if isfinite(height)), default=1) or 1
    geometry.set(ylim=(-0.04 * highest, 1.75 * highest))
    geometry.legend(fontsize=10, ncols=2, loc="upper center", columnspacing=0.8, handletextpad=0.4)
    if measures.K:
        rank.axhline(measures.K - 1, color=_GREY, linestyle="--", linewidth=1.2)
        rank.annotate("$K-1$", (0, measures.K - 1), (0, 6), textcoords="offset points", color=_GREY)
    rank.set(ylim=(0, 1.2 * max(1, *_drawn(rank))))
    rank.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    _name_layers(axes, [row["layer"] for row in measures])
    return fig


def side_by_side(comparison) -> Figure:
    """Four panels over the layers of a :class:`~collapsemetrics.Comparison`, a line for each measurement."""
    fig, axes = _panels(4, (3.0, 2.7))
    sides = list(zip(comparison.names, zip(*comparison.pairs, strict=True), (_GREY, _BLUE), _MARKERS, strict=False))
    for ax, column in zip(axes, ("nc1", "trace_ratio", "relative_spread", "nc2_etf"), strict=True):
        for name, rows, color, marker in sides:
            _line(ax, rows, column, name, color=color, marker=marker)
        _logarithmic(ax) if column in LOGARITHMIC else _from_zero(ax)
        ax.set(title=TITLES[column])
    axes[0].legend(fontsize=10)
    _name_layers(axes, [row["layer"] for row, _ in comparison.pairs])
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
    colors = _LAYERS
    if len(rows) > len(_LAYERS):
        colors = mpl.colormaps["viridis"]([0.1 + 0.8 * i / (len(rows) - 1) for i in range(len(rows))])
    fig, axes = _panels(len(columns), (3.0, 2.6))
    for ax, column in zip(axes, columns, strict=True):
        for i, (layer, row) in enumerate(rows.items()):
            if row.get(column) is not None:
                size = 3.5 + 4 * (1 - i / len(rows))  # so that lines that coincide are all seen
                look = {"color": colors[i], "marker": _MARKERS[i % len(_MARKERS)], "markersize": size}
                ax.plot(*tracker.curve(column, layer), label=named(layer), **look)
        if column in LOGARITHMIC:
            _logarithmic(ax)
        elif column != "uniformity":  # which is negative
            _from_zero(ax)
        if column == "numerical_rank":
            ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set(title=TITLES[column], xlabel="epoch")
    if len(rows) > 1:
        handles, labels = max((ax.get_legend_handles_labels() for ax in axes), key=lambda found: len(found[1]))
        fig.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=10)
    return fig


def _line(ax, rows, column: str, label: str, **look) -> None:
    """Draw a column over the places of the rows that have it."""
    values = {place: row[column] for place, row in enumerate(rows) if row.get(column) is not None}
    if values:
        ax.plot(list(values), list(values.values()), label=label, **look)


def _drawn(ax) -> list[float]:
    return [value for line in ax.get_lines() for value in line.get_ydata()]


def _panels(n: int, size: tuple[float, float]) -> tuple[Figure, list]:
    """A figure with n axes, two in a row."""
    columns, rows = min(n, 2), ceil(n / 2)
    size = (size[0] * columns, size[1] * rows) if n > 1 else (5.2, 3.6)
    fig, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for unused in axes.flat[n:]:
        unused.remove()
    return fig, list(axes.flat[:n])


def _name_layers(axes, names: list[str]) -> None:
    """The layers along the axes, with their names under the last two."""
    step = ceil(len(names) / MOST_NAMES)
    shown = [place for place in range(len(names)) if (len(names) - 1 - place) % step == 0]
    for ax in axes:
        ax.set_xlim(-0.4, len(names) - 0.6)
        ax.set_xticks(shown, [""] * len(shown))
    for ax in axes[-2:]:
        labels = [named(names[place]) for place in shown]
        ax.set_xticks(shown, labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=10)


def _from_zero(ax) -> None:
    ax.set_ylim(0, 1.1 * max([value for value in _drawn(ax) if isfinite(value)] + [1e-3]))


def _logarithmic(ax, room: float = 0) -> None:
    """A logarithmic axis whose ticks are plain numbers; a linear one where nothing is positive.

    Above the values, `room` is left for a legend, as a share of the height that they take.
    """
    values = [value for value in _drawn(ax) if 0 < value < inf]
    if not values:
        return
    low, high = min(values), max(values)
    ax.set_yscale("log")
    ax.set_ylim(low / 1.5, high * 1.5 * (2 * high / low) ** room)
    few = MaxNLocator(5, steps=(1, 2, 5, 10)) if high < 2 * low else LogLocator(subs=(1, 2, 5))
    ax.yaxis.set_major_locator(few if high < 50 * low else LogLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())
