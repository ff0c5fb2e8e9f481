"""Interactive figures: their states, drawn by matplotlib, as JSON for the script `_static/figures.js`."""

import base64
import itertools
import json
import math
import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import HTML
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path

from lib.figures import GREY, panels, to_numpy


def tell(artist, texts, pictures=None, sets=None, rows=None, columns=None):
    """Let the marks of an artist in an interactive figure say something when pointed at; returns the artist.

    texts: one for each mark, in an image row by row; or one for all cells of an image, in which {row}, {column} (their
    names in `rows` and `columns`, or their numbers from 1 on) and {value} are filled in. pictures: small pictures
    (marks, height, width), from 0 to 1, shown beside the texts. sets: for some controls, by label, the values that they
    take when a mark is pointed at, one for each mark.
    """
    artist.told = {"texts": texts, "pictures": pictures, "sets": sets, "rows": rows, "columns": columns}
    return artist


def answering(name, draw, controls, start=None, n=1, size=(3.3, 2.9), alt="", caption=""):
    """The states of an interactive figure: JSON that the page's script shows in place of a still picture.

    name: of the still figure, which keeps its number, and stays in print and where there is no JavaScript. alt and
    caption: of the interactive figure, where those of the still one do not fit. `draw(axes, *values)` draws on n empty
    axes of `size` inches, and sets limits. controls: for each label the values that it runs through; numbers make a
    slider, words a list, True and False a box to tick. start: the initial values that are not the first ones of their
    lists. The script knows lines, markers, filled areas, images, texts, titles and ticks, in plain letters, no TeX.
    Raises ValueError for a start that is not a value of its control, or for TeX.
    """
    for label, value in (start := start or {}).items():
        if value not in controls.get(label, ()):
            raise ValueError(f"start = {{{label!r}: {value!r}}}: not among the values of {controls}")
    fig, axes = panels(n, size=size)
    parts, states = {}, []  # what several states share is written only once

    def part(content):
        return parts.setdefault(_json(content), len(parts))

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
    inputs = [_control(label, list(values), start) for label, values in controls.items()]
    rest = _json({"figure": name, "alt": alt, "caption": caption, "controls": inputs, "states": states})
    text = f'{rest[:-1]},"parts":[{",".join(parts)}]}}'.replace("</", r"<\/")
    if "$" in text:
        raise ValueError(f"{name} has TeX: {text[max(text.index('$') - 40, 0) : text.index('$') + 40]!r}")
    return HTML(f'<script type="application/json" class="answering">{text}</script>')


def _json(content):
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _control(label, values, start):
    """The kind of a control, its values as words, and the number of the one that it begins with."""
    kind = "box" if isinstance(values[0], bool) else "list" if isinstance(values[0], str) else "slider"
    words = [value if isinstance(value, str) else f"{value:g}" for value in values]
    return {"label": label, "kind": kind, "values": words, "start": values.index(start.get(label, values[0]))}


# What a figure function has drawn, for the script ---------------------------------------------------------------------


def _drawn(ax):
    """What a figure function has put on an axis, the lowest first."""
    return sorted([*ax.images, *ax.patches, *ax.collections, *ax.lines, *ax.texts], key=lambda one: one.get_zorder())


def _frame(ax, size):
    """The labels and ticks of an axis, and the ratio of its height to its width where that is fixed."""
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
    """(look, shape) of what the script draws for an artist: the look holds what stays when the artist moves."""
    if artist in ax.images:
        return [_cells(ax, artist)]
    if artist in ax.texts:
        return [_text(ax, artist)]
    if isinstance(artist, PathCollection):
        return [_scatter(ax, artist)]
    if artist in ax.lines:
        return _line(ax, artist)
    return _areas(ax, artist)  # patches, and what is filled between lines


def _packed(points):
    """Points as 16-bit integers, the least significant byte first, in base64."""
    return base64.b64encode(points.astype("<i2").tobytes()).decode()


def _cells(ax, image):
    values, (left, right, bottom, top) = np.ma.filled(image.get_array().astype(float), np.nan), image.get_extent()
    corners = [(left, top), (right, bottom)] if image.origin == "upper" else [(left, bottom), (right, top)]
    limits = [float(f"{limit:.4g}") for limit in image.get_clim()]
    colors = [to_hex(image.to_rgba(value), keep_alpha=True) for value in np.linspace(*limits, 65)]
    numbers = [None if math.isnan(value) else float(f"{value:.3g}") for value in values.ravel()]
    box = _places(ax, corners, ax.transData).ravel().astype(int).tolist()
    shape = {"box": box, "columns": values.shape[1], "values": numbers}
    return {"kind": "cells", "colors": colors, "limits": limits}, shape


def _text(ax, text):
    look = {"kind": "text", "color": _color(text.get_color(), text.get_alpha()), "size": round(text.get_fontsize(), 1)}
    look["anchor"] = {"left": "start", "right": "end"}.get(text.get_ha(), "middle")
    look["shift"] = {"top": 0.8, "bottom": -0.2, "baseline": 0}.get(text.get_va(), 0.35)
    look["turn"] = -round(text.get_rotation())
    place = _places(ax, [text.get_position()], text.get_transform())
    return look, {"at": _packed(place), "text": text.get_text()}


def _scatter(ax, dots):
    """A scatter plot of one colour and marker."""
    points = _places(ax, dots.get_offsets(), dots.get_offset_transform())
    path, face = dots.get_paths()[0], dots.get_facecolor()
    filled = len(face) > 0 and Path.CLOSEPOLY in path.codes
    color = face[0] if filled else dots.get_edgecolor()[0]
    return _marks(points, path, filled, _color(color, dots.get_alpha()), dots.get_sizes()[0] ** 0.5)


def _line(ax, line):
    """The line and its markers, whichever there are."""
    points = _places(ax, line.get_xydata(), line.get_transform())
    points, found = points[np.isfinite(points).all(1)], []
    if line.get_linestyle() not in ("None", "none", "", " "):
        color = _color(line.get_color(), line.get_alpha())
        dash = {"--": "7 4", ":": "2 3", "-.": "7 3 2 3"}.get(line.get_linestyle(), "")
        look = {"kind": "line", "color": color, "width": line.get_linewidth(), "dash": dash}
        found.append((look, {"at": _packed(points)}))
    if line.get_marker() not in ("None", None, ""):
        style, face = MarkerStyle(line.get_marker()), line.get_markerfacecolor()
        filled = style.is_filled() and str(face) != "none"
        color = _color(face if filled else line.get_markeredgecolor(), line.get_alpha())
        path = style.get_path().transformed(style.get_transform())
        found.append(_marks(points, path, filled, color, line.get_markersize()))
    return found


def _marks(points, path, filled, color, size):
    return {"kind": "marks", "color": color, "path": _svg_path(path, size), "filled": filled}, {"at": _packed(points)}


def _areas(ax, artist):
    face, edge = (np.atleast_2d(color) for color in (artist.get_facecolor(), artist.get_edgecolor()))
    look = {"kind": "area", "fill": _color(face[0]) if face.size else ["none", 0]}
    look["color"] = _color(edge[0]) if edge.size else ["none", 0]
    look["width"] = float(np.atleast_1d(artist.get_linewidth())[0])
    paths = artist.get_paths() if hasattr(artist, "get_paths") else [artist.get_path()]
    polygons = [polygon for path in paths for polygon in path.to_polygons()]
    return [(look, {"at": _packed(_places(ax, polygon, artist.get_transform()))}) for polygon in polygons]


def _told(artist, controls):
    """What `tell` has attached to an artist, for the script."""
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
    """The path, in hundredths of an inch, of a marker whose size is in points."""
    scaled = path.transformed(mpl.transforms.Affine2D().scale(size / 0.72, -size / 0.72))
    letters, words = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}, []
    for points, code in scaled.iter_segments(simplify=False):
        words.append(letters[code] + ("" if code == 79 else " ".join(f"{x:.1f}" for x in points)))
    return "".join(words)
