"""Figures are legible on both themes, drawn the same way every time, and need nothing from elsewhere."""

import base64
import json
import re
from types import SimpleNamespace

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import figures
from lib.figures import answers


@pytest.fixture(autouse=True)
def style():
    with mpl.rc_context():
        figures.use()
        yield
    plt.close("all")


def luminance(color):
    """Relative luminance of a colour as WCAG 2 defines it."""
    channels = np.array(mpl.colors.to_rgb(color))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", "#14181e"])
def test_text_and_axes_stand_out_on_a_white_and_on_a_dark_page(page):
    for key in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
        assert contrast(mpl.rcParams[key], page) >= 3.8


def test_the_same_figure_gives_the_same_svg_in_a_notebook():
    from IPython.core.formatters import DisplayFormatter
    from IPython.core.pylabtools import select_figure_formats
    from matplotlib_inline.config import InlineBackend

    shell, inline = SimpleNamespace(display_formatter=DisplayFormatter()), InlineBackend.instance()
    select_figure_formats(shell, inline.figure_formats, **inline.print_figure_kwargs)

    def drawn():
        fig, axes = figures.panels(1)
        axes[0].plot([0, 1], [0, 1], "o-")
        return shell.display_formatter.format(fig)[0]

    one = drawn()
    assert "image/png" not in one and "<svg" in one["image/svg+xml"]
    assert drawn()["image/svg+xml"] == one["image/svg+xml"]


def test_many_marks_are_drawn_as_pixels():
    fig, axes = figures.panels(2)
    for ax, number in zip(axes, (figures.MANY, figures.MANY + 1), strict=True):
        figures.pca_scatter(ax, np.random.default_rng(0).normal(size=(number, 2)), np.zeros(number))
    assert [ax.collections[0].get_rasterized() for ax in axes] == [False, True]


@given(st.integers(1, 9), st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_panels_gives_as_many_axes_as_asked_for_and_they_do_not_overlap(n, columns):
    fig, axes = figures.panels(n, columns)
    assert len(axes) == len(fig.axes) == n
    boxes = [ax.get_position() for ax in axes]
    assert all(not first.overlaps(second) for i, first in enumerate(boxes) for second in boxes[i + 1 :])
    plt.close(fig)


@given(st.integers(2, 30), st.integers(2, 8), st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_principal_directions_are_orthonormal_and_keep_the_most_variance(n, d, seed):
    points = np.random.default_rng(seed).normal(size=(n, d)) * np.arange(1, d + 1)
    mean, directions = figures.pca(points)
    assert np.allclose(directions @ directions.T, np.eye(2), atol=1e-10)
    assert np.allclose(mean, points.mean(axis=0))
    variances = np.sort(np.linalg.eigvalsh(np.cov(points.T, bias=True)))[::-1]
    assert np.allclose(((points - mean) @ directions.T).var(axis=0), variances[:2])
    assert (directions[[0, 1], np.abs(directions).argmax(axis=1)] > 0).all()


def test_a_scatter_shows_every_point_once_at_one_scale_in_the_plane_that_it_is_given_or_its_own():
    points = torch.randn(30, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.arange(3).repeat_interleave(10)
    mean, directions = basis = figures.pca(points)
    for cloud, plane in ((points, None), (2 * points, basis)):
        _, (ax,) = figures.panels(1)
        assert figures.pca_scatter(ax, cloud, labels, basis=plane, origin=True) is ax
        shown = np.concatenate([collection.get_offsets() for collection in ax.collections])
        assert ax.get_aspect() == 1
        assert np.allclose(shown, (cloud.detach().numpy() - mean) @ directions.T)


def test_a_line_is_labelled_in_its_colour_where_it_runs():
    _, (ax,) = figures.panels(1)
    (line,) = ax.plot([0, 1, 2], [5, 6, 7], color=figures.COLORS["green"])
    inside, end = figures.along(line, "inside", 0.9), figures.along(line, "end")
    assert (inside.xy, end.xy) == ((1, 6), (2, 7))
    assert inside.get_color() == end.get_color() == line.get_color()


def states(html):
    """The JSON of a figure that answers, and the parts that each panel of each state has."""
    found = json.loads(re.fullmatch(r"<script [^>]*>(.*)</script>", html, re.DOTALL)[1])
    return found, [[[found["parts"][i] for i in panel] for panel in state] for state in found["states"]]


def test_a_figure_that_answers_has_a_state_for_every_setting_and_writes_what_they_share_once():
    def draw(axes, at, dashed):
        axes[0].plot([0, 10], [0, 0], "--" if dashed else "-", color=figures.GREY)
        dots = axes[0].plot([at], [1], "o")[0]
        answers.tell(dots, ["a point </script>"], sets={"at": [5]})
        axes[0].set(xlim=(0, 10), ylim=(0, 4), title=f"at {at}")
        answers.tell(axes[1].imshow([[0, 1], [np.nan, 3]]), "{row}, {column}: {value}")

    controls = {"at": [0, 5, 10], "dashed": [True, False]}
    found, drawn = states(answers.answering("fig-x", draw, controls, {"at": 5}, n=2).data)
    assert [(one["kind"], one["start"]) for one in found["controls"]] == [("slider", 1), ("box", 0)]
    assert len(drawn) == 6
    assert len({tuple(state[1]) for state in found["states"]}) == 1  # the image is always the same
    (title, _, _, dots), (_, _, cells) = drawn[2]  # at 5, dashed
    assert title == "at 5"
    assert np.frombuffer(base64.b64decode(dots["at"]), "<i2").tolist() == [500, 750]
    told = found["parts"][dots["told"]]
    assert told == {"texts": ["a point </script>"], "sets": [[0, [1]]]}
    assert cells["values"] == [0, 1, None, 3] and cells["columns"] == 2
    assert not plt.get_fignums()


def test_the_zeros_of_a_matrix_show_the_page_in_a_figure_that_answers_too():
    def draw(axes, at):
        axes[0].imshow([[-1.0, 0.0, 1.0]], cmap=figures.SIGNED, vmin=-1, vmax=1)

    found, drawn = states(answers.answering("fig-x", draw, {"at": [1]}).data)
    colors = found["parts"][drawn[0][0][-1]["look"]]["colors"]
    red, zero, blue = colors[0], colors[len(colors) // 2], colors[-1]
    assert red == figures.COLORS["vermillion"].lower() + "ff" and blue == figures.COLORS["blue"].lower() + "ff"
    assert zero.endswith("00")  # transparent


def test_a_figure_that_answers_takes_plain_letters_and_a_start_that_there_is():
    def draw(axes, at):
        axes[0].set_title(r"$\lambda$")

    with pytest.raises(ValueError, match="fig-x has TeX"):
        answers.answering("fig-x", draw, {"at": [1, 2]})
    with pytest.raises(ValueError, match="start = {'at': 3}"):
        answers.answering("fig-x", draw, {"at": [1, 2]}, {"at": 3})
