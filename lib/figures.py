"""The look of the book's figures: one style, one palette, and the few drawings that several chapters share.

Figures are SVG with a transparent background and grey text, legible on a white page and on a dark one; in the site
their text takes the colour of the page (`lib.book.assets`).
A figure function takes data and an axis and returns the axis.
"""

import base64
import hashlib
import itertools
import json
import math
import re
import tempfile
from html import escape
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import HTML
from matplotlib.animation import FuncAnimation, HTMLWriter
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path as Outline
from matplotlib_inline.config import InlineBackend

#: The palette of Okabe and Ito without black and yellow, which vanish on a dark or on a white page.
COLORS = {
    "green": "#009E73",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "grey": "#767676",
}

#: One colour per concept, for vegetable, dairy, meat, then further ones.
CONCEPTS = [COLORS[name] for name in ("green", "blue", "vermillion", "purple", "orange", "sky")]

#: One marker per concept, so that no figure speaks by colour alone.
MARKERS = ["o", "s", "^", "D", "v", "P"]

#: Of axes, texts and what is only compared with, legible on a white and on a dark page.
GREY = COLORS["grey"]

#: One look for one thing, through the whole book: keywords for `ax.plot`. What is computed is drawn solid, what is
#: printed or predicted is dashed or dotted.
LOOK = {
    "measured": {"color": COLORS["blue"], "linestyle": "-"},
    "corrected": {"color": COLORS["blue"], "linestyle": "-"},
    "printed": {"color": COLORS["vermillion"], "linestyle": "--"},
    "reference": {"color": GREY, "linestyle": "--"},
    "cross-entropy": {"color": COLORS["vermillion"], "linestyle": "-", "marker": "o"},
    "label smoothing": {"color": COLORS["blue"], "linestyle": "-", "marker": "s"},
    "collapse": {"color": COLORS["vermillion"], "linestyle": "--"},
    "graph solution": {"color": COLORS["green"], "linestyle": ":"},
}

#: So many marks are drawn as pixels inside a figure (``rasterized=True``): each weighs a tenth of a kilobyte.
MANY = 400

#: One colour per layer or block, from the first to the last.
LAYERS = [COLORS[name] for name in ("vermillion", "orange", "green", "blue", "purple", "sky")]

_STYLE = {
    "figure.figsize": (5.2, 3.6),
    "figure.dpi": 180,
    "figure.facecolor": "none",
    "figure.constrained_layout.use": True,
    "savefig.transparent": True,
    "axes.facecolor": "none",
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.titlesize": 13,
    "axes.labelsize": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": mpl.cycler(color=CONCEPTS),
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.formatter.min_exponent": 3,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "legend.frameon": False,
    "legend.fontsize": 12,
    "font.size": 12.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "image.cmap": "cividis",
    "animation.embed_limit": 40,
    "svg.hashsalt": "the same figure gives the same file",
}


def use():
    """Make the book's style the default of every figure that follows, and SVG its format in a notebook."""
    mpl.rcParams.update(_STYLE)
    inline = InlineBackend.instance()
    inline.print_figure_kwargs.update(metadata={"Date": None})
    inline.figure_formats = {"svg"}


def panels(n, columns=2, size=None, subplot_kw=None):
    """A figure with n axes in rows of `columns`, the last row centred.

    size: width and height of one panel in inches, 3.3 and 2.9 unless told otherwise, or 5.2 and 3.6 where there is one
    column. subplot_kw goes to every axis (``{"projection": "3d"}``). Returns (figure, list of n axes).
    """
    columns = min(columns, n)
    rows = math.ceil(n / columns)
    width, height = size or ((5.2, 3.6) if columns == 1 else (3.3, 2.9))
    fig = plt.figure(figsize=(width * columns, height * rows))
    grid = fig.add_gridspec(rows, 2 * columns)
    axes = []
    for i in range(n):
        row, column = divmod(i, columns)
        in_this_row = min(columns, n - row * columns)
        start = (columns - in_this_row) + 2 * column
        axes.append(fig.add_subplot(grid[row, start : start + 2], **(subplot_kw or {})))
    return fig, axes


def along(line, text, x=None, shift=None, **options):
    """Write what a line of `ax.plot` is where it runs, in its colour: above its point nearest to x, or at its end.

    shift: of the text from that point, in points of 1/72 inch, 5 points unless told otherwise. options go to
    `ax.annotate`. Returns the text.
    """
    xs, ys = line.get_data(orig=False)
    if x is None:
        at, beside, place = -1, (5, 0), {"ha": "left", "va": "center"}
    else:
        at, beside, place = np.abs(xs - x).argmin(), (0, 5), {"ha": "center", "va": "bottom"}
    look = {"color": line.get_color(), "fontsize": 11, "annotation_clip": False, **place, **options}
    return line.axes.annotate(text, (xs[at], ys[at]), shift or beside, textcoords="offset points", **look)


def to_numpy(values):
    """`values` as a numpy array; a torch tensor is detached and brought to the CPU first.

    >>> to_numpy([1, 2]).tolist()
    [1, 2]
    """
    return values.numpy(force=True) if hasattr(values, "numpy") else np.asarray(values)


def pca(points):
    """The centre and the first two principal directions of a cloud of points.

    points: (N, d) with N >= 1 and d >= 2. Returns (mean (d,), directions (2, d)): the right singular vectors of
    the centred points for the largest singular values, each with its largest entry positive, so that the picture
    of the same cloud is never mirrored.

    >>> mean, directions = pca([[0, 0], [2, 1], [4, 0]])
    >>> mean.round(6).tolist(), directions.round(6).tolist()
    ([2.0, 0.333333], [[1.0, 0.0], [0.0, 1.0]])
    """
    points = to_numpy(points).astype(float)
    mean = points.mean(axis=0)
    directions = np.linalg.svd(points - mean, full_matrices=len(points) < 2)[2][:2]
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1)
    return mean, directions * np.where(largest < 0, -1.0, 1.0)


def pca_scatter(ax, points, labels, names=None, size=22, basis=None, origin=False):
    """Scatter points (N, d) in the plane of their first two principal components, coloured by concept.

    labels: (N,) integers from 0, one colour and marker each. names: one word per label, shown in a legend.
    size: marker area. basis: what `pca` returned, to draw several clouds in one plane (the frames of an animation,
    say). origin: mark where the zero vector lands. The two axes have the same scale. Returns ax.
    """
    points, labels = to_numpy(points).astype(float), to_numpy(labels).astype(int)
    mean, directions = pca(points) if basis is None else basis
    plane = (points - mean) @ directions.T
    for label in np.unique(labels):
        chosen = labels == label
        ax.scatter(
            *plane[chosen].T,
            s=size,
            color=CONCEPTS[label % len(CONCEPTS)],
            marker=MARKERS[label % len(MARKERS)],
            alpha=0.7,
            linewidths=0,
            rasterized=len(points) > MANY,
            label=None if names is None else names[label],
        )
    if origin:
        ax.plot(*(directions @ -mean), marker="+", color=GREY, markersize=10, linestyle="none")
    ax.set(aspect="equal", xlabel="first component", ylabel="second component")
    if names is not None:
        ax.legend(markerscale=1.3, handletextpad=0.2)
    return ax


def spectrum(ax, values, label=None, color=GREY, marker="o"):
    """Singular values (n,), largest first, against their rank. Returns ax."""
    values = np.sort(to_numpy(values).astype(float))[::-1]
    ax.plot(np.arange(1, len(values) + 1), values, marker=marker, linestyle="none", color=color, label=label)
    ax.set(yscale="log", xlabel="index $i$", ylabel=r"singular value $\sigma_i$")
    return ax


def gram(ax, vectors):
    """The matrix of cosines of the rows of vectors (N, d). Returns ax."""
    vectors = to_numpy(vectors).astype(float)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    limit = np.abs(cosines).max()
    image = ax.imshow(cosines, cmap="PuOr_r", vmin=-limit, vmax=limit)
    ax.set(xticks=[], yticks=[])
    ax.figure.colorbar(image, ax=ax, shrink=0.8).outline.set_visible(False)
    return ax


_SYMBOLS = {
    "fa fa-minus": "−",
    "fa fa-fast-backward": "|‹",
    "fa fa-step-backward": "‹",
    "fa fa-play fa-flip-horizontal": "◀︎",
    "fa fa-pause": "❚❚",
    "fa fa-play": "▶︎",
    "fa fa-step-forward": "›",
    "fa fa-fast-forward": "›|",
    "fa fa-plus": "+",
}


def animation(fig, update, frames, alt, fps=12, dpi=110):
    """An animation as one piece of HTML that plays in the page without a network.

    update(frame) redraws fig for each of `frames` (a number or a sequence). alt: the message of the animation, for
    those who do not see it. The figure is closed, so that it is not shown a second time. The player is matplotlib's,
    without the icon font that it would fetch from elsewhere, and with names that depend on the frames alone, so that
    the same frames give the same HTML.
    """
    player = FuncAnimation(fig, update, frames)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "player.html"
        player.save(page, _TransparentFrames(fps, embed_frames=True, default_mode="once"), dpi=dpi)
        html = page.read_text(encoding="utf-8")
    plt.close(fig)
    return HTML(_offline(html, escape(alt)))


class _TransparentFrames(HTMLWriter):
    """matplotlib's player; matplotlib paints every frame on white, which a dark page would show as a white box."""

    def grab_frame(self, **options):
        super().grab_frame(**{**options, "facecolor": "none", "transparent": True})


def _offline(html, alt):
    """matplotlib's player with text for icons, alt text, a picture before JavaScript, and nothing from elsewhere."""
    html = re.sub(r"<link\b[^>]*>|<style>.*?</style>", "", html, flags=re.DOTALL)  # the book's own style sheet has it
    html = re.sub(r'<i class="([^"]*)"></i>', lambda found: _SYMBOLS[found[1]], html)
    html = html.replace('type="range"', 'type="range" aria-label="Frame"')
    pictures = re.findall(r'frames\[\d+\] = "([^"]*)"', html)
    first = pictures[0].replace("\\\n", "")
    html = html.replace("<img ", f'<img alt="{alt}" src="{first}" ')
    name = re.search(r'_anim_img(\w+)"', html)[1]
    return html.replace(name, hashlib.sha256("".join([*pictures, alt]).encode()).hexdigest())


def tell(artist, texts, pictures=None, sets=None, rows=None, columns=None):
    """Let the marks of an artist in a figure that answers say something when they are pointed at; returns the artist.

    texts: one for each mark, for an image row by row; or one for all cells of an image, in which {row}, {column} (their
    names in `rows` and `columns`, or their numbers from 1 on) and {value} are filled in. pictures: small pictures
    (marks, height, width), from 0 to 1, shown beside the texts. sets: for some controls, by label, the value that they
    take when a mark is pointed at, one for each mark.
    """
    artist.told = {"texts": texts, "pictures": pictures, "sets": sets, "rows": rows, "columns": columns}
    return artist


def answering(name, draw, controls, start=None, n=1, size=(3.3, 2.9)):
    """The states of a figure that answers to the hand: JSON that the page's script shows in place of a still picture.

    name: of the still figure, which keeps its number and its caption, and stays where there is no JavaScript, and in
    print. `draw(axes, *values)` draws on n empty axes of `size` inches, and sets limits. controls: for each label
    the values that it runs through; numbers make a slider, words a list, True and False a box to tick. start: the
    values that are not the first ones of their lists at the beginning. The script knows lines, markers, filled areas,
    images, texts, titles and ticks, with plain letters and no TeX. ValueError for a start that is no value of its
    control, or TeX.
    """
    for label, value in (start := start or {}).items():
        if value not in controls.get(label, ()):
            raise ValueError(f"start = {{{label!r}: {value!r}}}: not among the values of {controls}")
    fig, axes = panels(n, size=size)
    parts, states = {}, []  # what several states share is written once

    def part(content):
        return parts.setdefault(json.dumps(content, ensure_ascii=False, separators=(",", ":")), len(parts))

    for values in itertools.product(*controls.values()):
        for ax in axes:
            for artist in _drawn(ax):
                artist.remove()
        draw(axes, *values)
        states.append([[part(ax.get_title()), part(_frame(ax, size))] for ax in axes])
        for ax, numbers in zip(axes, states[-1], strict=True):
            for artist in _drawn(ax):
                told = part(_told(artist, controls))
                numbers += [part({**at, "look": part(look), "told": told}) for look, at in _layers(ax, artist)]
    plt.close(fig)
    inputs = []
    for label, values in controls.items():
        kind = "box" if isinstance(values[0], bool) else "list" if isinstance(values[0], str) else "slider"
        words = [value if isinstance(value, str) else f"{value:g}" for value in values]
        inputs.append({"label": label, "kind": kind, "values": words})
        inputs[-1]["start"] = list(values).index(start.get(label, values[0]))
    rest = json.dumps({"figure": name, "controls": inputs, "states": states}, ensure_ascii=False, separators=(",", ":"))
    text = f'{rest[:-1]},"parts":[{",".join(parts)}]}}'.replace("</", r"<\/")
    if "$" in text:
        raise ValueError(f"{name} has TeX: {text[max(text.index('$') - 40, 0) : text.index('$') + 40]!r}")
    return HTML(f'<script type="application/json" class="answering">{text}</script>')


def _drawn(ax):
    """What a figure function has put on an axis, the lowest first."""
    return sorted([*ax.images, *ax.patches, *ax.collections, *ax.lines, *ax.texts], key=lambda one: one.get_zorder())


def _frame(ax, size):
    """The labels and ticks of an axis, and its height over its width where that is fixed."""
    frame = {"size": [round(100 * length) for length in size]}
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    if ax.get_aspect() != "auto":
        frame["ratio"] = round(ax.get_aspect() * abs((high - low) / (right - left)), 3)
    if not ax.axison:
        return frame
    for axis, label, spine, place in (("x", ax.get_xlabel(), "bottom", 0), ("y", ax.get_ylabel(), "left", 1)):
        at = getattr(ax, f"get_{axis}ticks")()
        words = getattr(ax, f"{axis}axis").get_major_formatter().format_ticks(at)
        points = np.zeros((len(at), 2)) + [left, low]
        points[:, place] = at
        places = _places(ax, points, ax.transData)[:, place]
        ticks = [
            [int(p), _plain(str(word))] for p, word in zip(places, words, strict=True) if -1 <= p <= 1001 and word != ""
        ]
        labels = getattr(ax, f"get_{axis}ticklabels")()
        letters = round(1.08 * labels[0].get_fontsize(), 1) if labels else 13
        frame[axis] = {"label": label, "ticks": ticks, "letters": letters, "line": ax.spines[spine].get_visible()}
    return frame


def _places(ax, points, transform):
    """Points in thousandths of the axis, from its upper left corner."""
    unit = ax.transAxes.inverted().transform(transform.transform(np.asarray(points, float)))
    return np.round(1000 * np.c_[unit[:, 0], 1 - unit[:, 1]]).clip(-9999, 9999)


def _plain(word):
    """A label of a tick without TeX."""
    above = str.maketrans("-−0123456789", "⁻⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    word = re.sub(r"\\mathdefault\{(.*)\}", r"\1", word.replace("$", "")).replace(r"\times", "·")
    return re.sub(r"\^\{(.*?)\}", lambda power: power[1].translate(above), word)


def _color(color, alpha=None):
    """A colour for the script, and how opaque it is; the book's grey is the page's own."""
    red, green, blue, opaque = mpl.colors.to_rgba(color, alpha)
    word = to_hex((red, green, blue)).upper()
    return ["" if word == GREY else word if opaque else "none", round(opaque, 2)]


def _layers(ax, artist):
    """(look, shape) of what the script draws for an artist: the look has what stays when the artist moves."""

    def packed(points):  # 16-bit integers, the least significant byte first
        return base64.b64encode(points.astype("<i2").tobytes()).decode()

    def marks(points, path, filled, color, size):
        look = {"kind": "marks", "color": color, "path": _svg_path(path, size), "filled": filled}
        return look, {"at": packed(points)}

    alpha = artist.get_alpha()
    if artist in ax.images:
        values, (left, right, bottom, top) = np.ma.filled(artist.get_array().astype(float), np.nan), artist.get_extent()
        corners = [(left, top), (right, bottom)] if artist.origin == "upper" else [(left, bottom), (right, top)]
        limits = [float(f"{limit:.4g}") for limit in artist.get_clim()]
        colors = [to_hex(artist.to_rgba(value)) for value in np.linspace(*limits, 65)]
        numbers = [None if math.isnan(value) else float(f"{value:.3g}") for value in values.ravel()]
        box = _places(ax, corners, ax.transData).ravel().astype(int).tolist()
        shape = {"box": box, "columns": values.shape[1], "values": numbers}
        yield {"kind": "cells", "colors": colors, "limits": limits}, shape
    elif artist in ax.texts:
        look = {"kind": "text", "color": _color(artist.get_color(), alpha), "size": round(artist.get_fontsize(), 1)}
        look["anchor"] = {"left": "start", "right": "end"}.get(artist.get_ha(), "middle")
        look["shift"] = {"top": 0.8, "bottom": -0.2, "baseline": 0}.get(artist.get_va(), 0.35)
        look["turn"] = -round(artist.get_rotation())
        place = _places(ax, [artist.get_position()], artist.get_transform())
        yield look, {"at": packed(place), "text": artist.get_text()}
    elif isinstance(artist, PathCollection):  # a scatter plot of one colour and marker
        points = _places(ax, artist.get_offsets(), artist.get_offset_transform())
        path, face = artist.get_paths()[0], artist.get_facecolor()
        filled = len(face) > 0 and Outline.CLOSEPOLY in path.codes
        color = _color(face[0] if filled else artist.get_edgecolor()[0], alpha)
        yield marks(points, path, filled, color, artist.get_sizes()[0] ** 0.5)
    elif artist in ax.lines:
        points = _places(ax, artist.get_xydata(), artist.get_transform())
        points = points[np.isfinite(points).all(1)]
        if artist.get_linestyle() not in ("None", "none", "", " "):
            look = {"kind": "line", "color": _color(artist.get_color(), alpha), "width": artist.get_linewidth()}
            look["dash"] = {"--": "7 4", ":": "2 3", "-.": "7 3 2 3"}.get(artist.get_linestyle(), "")
            yield look, {"at": packed(points)}
        if artist.get_marker() not in ("None", None, ""):
            style = MarkerStyle(artist.get_marker())
            path, filled = style.get_path().transformed(style.get_transform()), style.is_filled()
            face = artist.get_markerfacecolor() if filled else artist.get_markeredgecolor()
            filled = filled and str(face) != "none"
            color = _color(face if filled else artist.get_markeredgecolor(), alpha)
            yield marks(points, path, filled, color, artist.get_markersize())
    else:  # patches, and what is filled between lines
        paths = artist.get_paths() if hasattr(artist, "get_paths") else [artist.get_path()]
        face, edge = (np.atleast_2d(color) for color in (artist.get_facecolor(), artist.get_edgecolor()))
        look = {"kind": "area", "fill": _color(face[0]) if face.size else ["none", 0]}
        look["color"] = _color(edge[0]) if edge.size else ["none", 0]
        look["width"] = float(np.atleast_1d(artist.get_linewidth())[0])
        for path in paths:
            for polygon in path.to_polygons():
                yield look, {"at": packed(_places(ax, polygon, artist.get_transform()))}


def _told(artist, controls):
    """What `tell` has said about an artist, for the script."""
    told = {key: value for key, value in getattr(artist, "told", {}).items() if value is not None}
    if "sets" in told:
        labels = list(controls)
        told["sets"] = [
            [labels.index(label), [list(controls[label]).index(value) for value in values]]
            for label, values in told["sets"].items()
        ]
    if "pictures" in told:
        grey = np.round(15 * to_numpy(told["pictures"])).astype(int)
        told["pictures"] = ["".join("0123456789abcdef"[one] for one in picture.ravel()) for picture in grey]
        told["width"] = grey.shape[2]
    return told


def _svg_path(path, size):
    """The path of a marker of a size in points, in hundredths of an inch."""
    scaled = path.transformed(mpl.transforms.Affine2D().scale(size / 0.72, -size / 0.72))
    letters, words = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}, []
    for points, code in scaled.iter_segments(simplify=False):
        words.append(letters[code] + ("" if code == 79 else " ".join(f"{x:.1f}" for x in points)))
    return "".join(words)
