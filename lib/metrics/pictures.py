"""Pictures of what `measure` and `Tracker` found, in the book's style; imported only where one is drawn."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, isfinite

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from lib import figures
from lib.checks import one_of
from lib.figures import COLORS, GREY, LAYERS, LOOK, MARKERS

#: What the panels say of each column of the table.
TITLES = {
    "nc1": "NC1",
    "dilation": "dilation",
    "relative_spread": "relative spread",
    "nc2_etf": "NC2, simplex",
    "nc2_of": "NC2, orthogonal",
    "nc3": "NC3",
    "nc4": "NC4",
    "numerical_rank": "rank of the means",
    "condition_number": "condition number",
}
#: Drawn on a logarithmic axis.
LOGARITHMIC = ("nc1", "dilation", "condition_number")
#: Layers that are named on one axis.
MOST_NAMES = 14


def over_layers(measures) -> Figure:
    """Four panels over the layers of :class:`lib.metrics.Measures`; the names of the layers stand under the lower two.

    ValueError if there are no rows.
    """
    if not measures:
        raise ValueError("there is no row to draw")
    names, places = [row["layer"] for row in measures], range(len(measures))
    with figures.styled():
        fig, (spread, relative, geometry, rank) = figures.panels(4, columns=2, size=(3.0, 2.7))

        def line(ax, column, **look):
            values = [row.get(column) for row in measures]
            there = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
            if there:
                ax.plot(*zip(*there, strict=True), **look)

        blue, second = {"marker": "o", **LOOK["measured"]}, {"color": COLORS["vermillion"], "marker": "s"}
        tested = any("dilation" in row for row in measures)
        line(spread, "nc1", **blue, label="NC1")
        line(spread, "dilation", **second, label="dilation")
        spread.set(title="NC1 and dilation" if tested else "NC1")
        _logarithmic(spread, [row.get(column) for row in measures for column in ("nc1", "dilation")])
        if tested:
            spread.legend(fontsize=10)
        line(relative, "relative_spread", **blue)
        relative.set(title="relative spread", ylim=(0, None))
        line(geometry, "nc2_etf", **blue, label="NC2 simplex")
        line(geometry, "nc2_of", **second, label="NC2 orthogonal")
        line(geometry, "nc3", color=COLORS["green"], marker="^", linestyle="none", label="NC3")
        line(geometry, "nc4", color=COLORS["purple"], marker="D", linestyle="none", label="NC4")
        heights = [row[column] for row in measures for column in ("nc2_etf", "nc2_of", "nc3")]
        highest = max((height for height in heights if height and isfinite(height)), default=1)
        geometry.set(title="NC2 to NC4", ylim=(-0.04 * highest, 1.75 * highest))
        geometry.legend(fontsize=10, ncols=2, loc="upper center", columnspacing=0.8, handletextpad=0.4)
        line(rank, "numerical_rank", **blue)
        if measures.K:
            rank.axhline(measures.K - 1, **LOOK["reference"], linewidth=1.2)
            rank.annotate("$K-1$", (places[0], measures.K - 1), (0, 6), textcoords="offset points", color=GREY)
        highest = max((measures.K or 1) - 1, *(row["numerical_rank"] for row in measures), 1)
        rank.set(title="rank of the means", ylim=(0, 1.2 * highest))
        rank.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        step = -(-len(names) // MOST_NAMES)
        shown = [place for place in places if (places[-1] - place) % step == 0]
        for ax in (spread, relative, geometry, rank):
            ax.set_xlim(-0.4, places[-1] + 0.4)
            ax.set_xticks(shown, [""] * len(shown))
        for ax in (geometry, rank):
            labels = [names[place] for place in shown]
            ax.set_xticks(shown, labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=10)
    return fig


def over_epochs(tracker, columns: Iterable[str] | None = None) -> Figure:
    """One panel for each column of a :class:`lib.metrics.Tracker`, one line for each layer that has it.

    ValueError if nothing was measured, and for a column that no layer has.
    """
    if not tracker.rows:
        raise ValueError("nothing was measured yet")
    rows = {row["layer"]: row for row in tracker.last}
    known = [column for column in TITLES if any(row.get(column) is not None for row in rows.values())]
    columns = [name for name in known if name not in ("nc2_of", "condition_number")] if columns is None else columns
    columns = [columns] if isinstance(columns, str) else list(columns)
    for column in columns:
        one_of(known, column=column)
    colors = LAYERS
    if len(rows) > len(LAYERS):
        colors = mpl.colormaps["viridis"]([0.1 + 0.8 * i / (len(rows) - 1) for i in range(len(rows))])
    with figures.styled():
        fig, axes = figures.panels(len(columns), size=(3.0, 2.6))
        for ax, column in zip(axes, columns, strict=True):
            drawn = []
            for i, (layer, row) in enumerate(rows.items()):
                if row.get(column) is None:
                    continue
                epochs, values = tracker.curve(column, layer)
                size = 3.5 + 4 * (1 - i / len(rows))  # so that of lines that coincide all are seen
                ax.plot(epochs, values, color=colors[i], marker=MARKERS[i % len(MARKERS)], markersize=size, label=layer)
                drawn += values
            if column in LOGARITHMIC:
                _logarithmic(ax, drawn)
            else:
                ax.set_ylim(0, 1.1 * max([value for value in drawn if isfinite(value)] + [1e-3]))
            if column == "numerical_rank":
                ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
            ax.set(title=TITLES[column], xlabel="epoch")
        if len(rows) > 1:
            handles, labels = max((ax.get_legend_handles_labels() for ax in axes), key=lambda found: len(found[1]))
            fig.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=10)
    return fig


def _logarithmic(ax, values) -> None:
    """A logarithmic axis whose ticks are plain numbers; a linear one where nothing is positive."""
    values = [value for value in values if value is not None and 0 < value < inf]
    if not values:
        return
    low, high = min(values), max(values)
    ax.set_yscale("log")
    ax.set_ylim(low / 1.5, high * 1.5)
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 50 * low else (1,)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())
