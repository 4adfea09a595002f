"""The style of all plots: axes, legends and PNG files.

Colours are those of Okabe and Ito, which colour-blind people can tell apart; line styles differ as well, for print.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

BLUE, ORANGE, GREY, BLACK = "#0072B2", "#D55E00", "#8C8C8C", "#000000"
SKY, GREEN, AMBER, PURPLE = "#56B4E9", "#009E73", "#E69F00", "#CC79A7"  # where four colours are not enough
WIDTH, HEIGHT, DPI = 7.0, 3.6, 150  # inches, inches, pixels per inch
TINTS = 12  # of each colour in a file: enough for smooth edges, and a third of the bytes
MAX_NAME = 26  # characters of a name beside a plot
MEASURES = {
    "auc": "AUC (0.5 is chance, 1 best)",
    "accuracy": "accuracy (proportion)",
    "mae": "mean absolute error (in the label's unit)",
    "pearson_r": "Pearson's r (1 is best)",
}  # that have a figure


def blank() -> Figure:
    """Return a figure without axes."""
    return Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, layout="constrained", facecolor="white")


def plain_axes(x: str, y: str, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Return a figure of one pair of axes with these labels.

    Args:
        x: label.
        y: label.
        height: of the figure, in inches.
    """
    figure = blank()
    figure.set_figheight(height)
    axes = figure.add_subplot()
    dress(axes, x, y)
    return figure, axes


def dress(axes: Axes, x: str, y: str) -> None:
    """Give axes labels and a grid."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(color="#DDDDDD", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend(axes: Axes) -> None:
    """Put the legend above the axes, where it hides nothing."""
    count = len(axes.get_legend_handles_labels()[0])
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=count if count < 4 else 2,
        frameon=False,
        fontsize=9,
        borderaxespad=0.2,
    )


def shortened(name: str) -> str:
    """Return a name's beginning and end, which tell names apart."""
    half = (MAX_NAME - 1) // 2
    return name if len(name) <= MAX_NAME else f"{name[:half]}…{name[-half:]}"


def png(figure: Figure, colours: Sequence[str] = (BLUE, ORANGE, GREY, BLACK)) -> bytes:
    """Return a figure's file, without versions and dates: the same figure gives the same bytes.

    Args:
        figure: to be drawn.
        colours: whose tints make the palette; without any, the figure's most frequent colours.
    """
    small, canvas = io.BytesIO(), FigureCanvasAgg(figure)
    canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    palette = None
    if colours:
        tints = np.linspace(0, 1, TINTS)[:, None]
        pairs = [tints * np.array(to_rgb(colour)) + 1 - tints for colour in colours]
        palette = Image.new("P", (1, 1))
        palette.putpalette((255 * np.concatenate(pairs)).round().astype(np.uint8).tobytes())
    picture = picture.quantize(palette=palette, dither=Image.Dither.NONE)
    picture.save(small, "PNG", optimize=True, dpi=(DPI, DPI))
    return small.getvalue()
