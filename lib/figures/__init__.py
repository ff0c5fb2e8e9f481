"""The look of the book's figures: one style, one palette, and the few drawings that several chapters share.

Figures are SVG with a transparent background and grey text, legible on a white page and on a dark one; in the site
their text takes the colour of the page (`lib.book.site.assets`).
A figure function takes data and an axis and returns the axis.
"""

import math

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_rgba
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

_RED, _BLUE = COLORS["vermillion"], COLORS["blue"]
#: For matrices. Red is negative, blue is positive, and zero shows the page, white or dark.
#:
#: :meta hide-value:
SIGNED = LinearSegmentedColormap.from_list(
    "signed", [(0, _RED), (0.5, to_rgba(_RED, 0)), (0.5, to_rgba(_BLUE, 0)), (1, _BLUE)], N=257
)  # an odd number of colours, of which the middle one is for zero

#: One colour per concept, for vegetable, dairy, meat, then further ones.
CONCEPTS = [COLORS[name] for name in ("green", "blue", "vermillion", "purple", "orange", "sky")]

#: One marker per concept, so that no figure speaks by colour alone.
MARKERS = ["o", "s", "^", "D", "v", "P"]

#: For axes, texts and anything shown only for comparison, legible on a white and on a dark page.
GREY = COLORS["grey"]

#: One look for each thing throughout the book, as keywords for `ax.plot`. Computed values are drawn solid, printed or
#: predicted ones dashed or dotted.
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

#: More marks than this are drawn as pixels in a figure (``rasterized=True``), since each weighs a tenth of a kilobyte.
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

    size: width and height of one panel in inches, by default 3.3 and 2.9, or 5.2 and 3.6 where there is one column.
    subplot_kw goes to every axis (``{"projection": "3d"}``). Returns (figure, list of n axes).
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


def headline(fig, message):
    """Give a figure its message as a title, bold and at the left."""
    fig.suptitle(message, x=0.01, ha="left", weight="bold", size=13)


def along(line, text, x=None, shift=None, **options):
    """Label a line of `ax.plot` where it runs, in its colour: above its point nearest to x, or at its end.

    shift: of the text from that point, in points of 1/72 inch, 5 points by default. options go to
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


def pca_scatter(ax, points, labels, size=22, basis=None, origin=False):
    """Scatter points (N, d) in the plane of their first two principal components, coloured by concept.

    labels: (N,) integers from 0, one colour and marker each. size: marker area. basis: what `pca` returned, to draw
    several clouds in one plane. origin: mark where the zero vector lands. The two
    axes have the same scale. Returns ax.
    """
    points, labels = to_numpy(points).astype(float), to_numpy(labels).astype(int)
    mean, directions = pca(points) if basis is None else basis
    plane = (points - mean) @ directions.T
    look = {"s": size, "alpha": 0.7, "linewidths": 0, "rasterized": len(points) > MANY}
    for label in np.unique(labels):
        color, marker = CONCEPTS[label % len(CONCEPTS)], MARKERS[label % len(MARKERS)]
        ax.scatter(*plane[labels == label].T, color=color, marker=marker, **look)
    if origin:
        ax.plot(*(directions @ -mean), marker="+", color=GREY, markersize=10, linestyle="none")
    ax.set(aspect="equal", xlabel="first component", ylabel="second component")
    return ax


def spectrum(ax, values, label=None, color=GREY, marker="o"):
    """Singular values (n,), largest first, against their rank. Returns ax."""
    values = np.sort(to_numpy(values).astype(float))[::-1]
    ax.plot(np.arange(1, len(values) + 1), values, marker=marker, linestyle="none", color=color, label=label)
    ax.set(yscale="log", xlabel="index $i$", ylabel=r"singular value $\sigma_i$")
    return ax


def gram(ax, vectors):
    """The matrix of cosines between the rows of vectors (N, d). Returns ax."""
    vectors = to_numpy(vectors).astype(float)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    limit = np.abs(cosines).max()
    image = ax.imshow(cosines, cmap=SIGNED, vmin=-limit, vmax=limit)
    ax.set(xticks=[], yticks=[])
    ax.figure.colorbar(image, ax=ax, shrink=0.8).outline.set_visible(False)
    return ax
