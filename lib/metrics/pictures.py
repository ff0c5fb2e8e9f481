"""Pictures of what `measure` and `Tracker` found, in the style that matplotlib is set to; imported by who draws."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf, isfinite

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ._checks import one_of

#: What the panels say of each column of the table.
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
#: Drawn on a logarithmic axis.
LOGARITHMIC = ("nc1", "nc1_chance", "dilation", "trace_ratio", "trace_ratio_debiased", "cdnv", "condition_number")
#: Drawn unless others are asked for.
USUAL = ("nc1", "dilation", "trace_ratio", "relative_spread", "nc2_etf", "nc3", "nc4", "numerical_rank")
#: Layers that are named on one axis.
MOST_NAMES = 14
# The palette of Okabe and Ito without black and yellow, which vanish on a dark or on a white page.
_BLUE, _VERMILLION, _GREEN, _PURPLE, _ORANGE, _SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
_GREY = "#767676"
_LAYERS = (_VERMILLION, _ORANGE, _GREEN, _BLUE, _PURPLE, _SKY)  # from the first to the last
_MARKERS = ("o", "s", "^", "D", "v", "P")  # so that no picture speaks by colour alone


def over_layers(measures) -> Figure:
    """Four panels over the layers of a :class:`~lib.metrics.Measures`, whose names stand under the lower two.

    ValueError if there are no rows.
    """
    if not measures:
        raise ValueError("there is no row to draw")
    places = range(len(measures))
    fig, (nc1, spread, geometry, rank) = _panels(4, (3.0, 2.7))

    def line(ax, column, label, color, marker, **look):
        values = [row.get(column) for row in measures]
        there = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
        if there:
            ax.plot(*zip(*there, strict=True), label=label, color=color, marker=marker, **look)

    line(nc1, "nc1_chance", "random labels", _GREY, None, linestyle="--")
    line(nc1, "nc1", "NC1", _BLUE, "o")
    line(nc1, "dilation", "dilation", _VERMILLION, "s")
    nc1.set(title="NC1")
    line(spread, "trace_ratio", "ratio of traces", _BLUE, "o")
    line(spread, "cdnv", "CDNV", _GREEN, "^")
    line(spread, "relative_spread", "relative spread", _ORANGE, "D")
    spread.set(title="spread of the classes")
    for ax in (nc1, spread):
        _logarithmic(ax, [value for drawn in ax.get_lines() for value in drawn.get_ydata()], room=0.6)
        ax.legend(fontsize=10, loc="upper right")
    line(geometry, "nc2_etf", "NC2 simplex", _BLUE, "o")
    line(geometry, "nc2_of", "NC2 orthogonal", _VERMILLION, "s")
    line(geometry, "nc3", "NC3", _GREEN, "^", linestyle="none")
    line(geometry, "nc4", "NC4", _PURPLE, "D", linestyle="none")
    heights = [row[column] for row in measures for column in ("nc2_etf", "nc2_of", "nc3")]
    highest = max((height for height in heights if height and isfinite(height)), default=1)
    geometry.set(title="NC2 to NC4", ylim=(-0.04 * highest, 1.75 * highest))
    geometry.legend(fontsize=10, ncols=2, loc="upper center", columnspacing=0.8, handletextpad=0.4)
    line(rank, "numerical_rank", "rank", _BLUE, "o")
    if measures.K:
        rank.axhline(measures.K - 1, color=_GREY, linestyle="--", linewidth=1.2)
        rank.annotate("$K-1$", (places[0], measures.K - 1), (0, 6), textcoords="offset points", color=_GREY)
    highest = max((measures.K or 1) - 1, *(row["numerical_rank"] for row in measures), 1)
    rank.set(title="rank of the means", ylim=(0, 1.2 * highest))
    rank.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    _name_layers((nc1, spread, geometry, rank), [row["layer"] for row in measures])
    return fig


def side_by_side(comparison) -> Figure:
    """Four panels over the layers of a :class:`~lib.metrics.Comparison`, one line for each of the two."""
    fig, axes = _panels(4, (3.0, 2.7))
    for ax, column in zip(axes, ("nc1", "trace_ratio", "relative_spread", "nc2_etf"), strict=True):
        for i, (name, color, marker) in enumerate(zip(comparison.names, (_GREY, _BLUE), _MARKERS, strict=False)):
            values = [pair[i].get(column) for pair in comparison.pairs]
            there = [(place, value) for place, value in enumerate(values) if value is not None]
            if there:
                ax.plot(*zip(*there, strict=True), color=color, marker=marker, label=name)
        if column in LOGARITHMIC:
            _logarithmic(ax, [value for line in ax.get_lines() for value in line.get_ydata()])
        else:
            ax.set_ylim(0, None)
        ax.set(title=TITLES[column])
    axes[0].legend(fontsize=10)
    _name_layers(axes, [row["layer"] for row, _ in comparison.pairs])
    return fig


def over_epochs(tracker, columns: Iterable[str] | None = None) -> Figure:
    """One panel for each column of a :class:`~lib.metrics.Tracker`, one line for each layer that has it.

    ValueError if nothing was measured, and for a column that no layer has.
    """
    if not tracker.rows:
        raise ValueError("nothing was measured yet")
    rows = {row["layer"]: row for row in tracker.last}
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
        drawn = []
        for i, (layer, row) in enumerate(rows.items()):
            if row.get(column) is None:
                continue
            epochs, values = tracker.curve(column, layer)
            size = 3.5 + 4 * (1 - i / len(rows))  # so that of lines that coincide all are seen
            ax.plot(epochs, values, color=colors[i], marker=_MARKERS[i % len(_MARKERS)], markersize=size, label=layer)
            drawn += values
        if column in LOGARITHMIC:
            _logarithmic(ax, drawn)
        elif column != "uniformity":  # which is negative
            ax.set_ylim(0, 1.1 * max([value for value in drawn if isfinite(value)] + [1e-3]))
        if column == "numerical_rank":
            ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set(title=TITLES[column], xlabel="epoch")
    if len(rows) > 1:
        handles, labels = max((ax.get_legend_handles_labels() for ax in axes), key=lambda found: len(found[1]))
        fig.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=10)
    return fig


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
        labels = [names[place] for place in shown]
        ax.set_xticks(shown, labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=10)


def _logarithmic(ax, values, room: float = 0) -> None:
    """A logarithmic axis whose ticks are plain numbers; a linear one where nothing is positive.

    Above the values there is `room` for a legend, as a share of what they take.
    """
    values = [value for value in values if value is not None and 0 < value < inf]
    if not values:
        return
    low, high = min(values), max(values)
    ax.set_yscale("log")
    ax.set_ylim(low / 1.5, high * 1.5 * (2 * high / low) ** room)
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 50 * low else (1,)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())
