"""The style of all plots: axes, legends, PNG files, and SVG with a page's typeface and colours.

Colours are Okabe and Ito's, which colour-blind people can distinguish; line styles differ as well, for print.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from warnings import catch_warnings, filterwarnings

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter
from PIL import Image

BLUE, ORANGE, GREY, BLACK = "#0072B2", "#D55E00", "#8C8C8C", "#000000"
GRID = "#dddddd"
SKY, GREEN, AMBER, PURPLE = "#56B4E9", "#009E73", "#E69F00", "#CC79A7"  # beyond four colours
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER, BLACK, GREY)
PAGE = {BLACK: "currentColor", GRID: "var(--line)", BLUE: "var(--blue)", ORANGE: "var(--orange)"}  # CSS values
WIDTH, HEIGHT, DPI = 4.8, 3.4, 150  # inches, inches, pixels per inch
TINTS = 12  # shades of each colour in a PNG: smooth edges at a third of the bytes
LEGEND = 66  # characters in a row of the legend
MAX_NAME = 24  # characters of a name beside a plot
MEASURES = {
    "auc": "AUC (0.5 is chance, 1 best)",
    "auc_within": "AUC within hospitals",
    "accuracy": "accuracy (proportion)",
    "mae": "mean absolute error (label's unit)",
    "pearson_r": "Pearson's r (1 is best)",
}  # that have a figure


def blank() -> Figure:
    """Create a figure without axes."""
    return Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, layout="constrained", facecolor="white")


def plain_axes(x: str, y: str, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Create a figure with one pair of labelled axes.

    Args:
        x: label of the axis.
        y: label of the axis.
        height: in inches.
    """
    figure = blank()
    figure.set_figheight(height)
    axes = figure.add_subplot()
    dress(axes, x, y)
    return figure, axes


def dress(axes: Axes, x: str, y: str) -> None:
    """Set labels and a grid."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    for axis in (axes.xaxis, axes.yaxis):
        if isinstance(formatter := axis.get_major_formatter(), ScalarFormatter):  # a logarithmic axis has another
            formatter.set_useOffset(False)
            formatter.set_scientific(False)  # no 1e-5 above an axis
    axes.grid(color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend(axes: Axes) -> None:
    """Add a legend above the axes, in as many columns as fit."""
    labels = axes.get_legend_handles_labels()[1]
    if not labels:
        return
    longest = max(map(len, labels)) + 6
    columns = max(1, min(len(labels), LEGEND // longest))
    shown = axes.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=columns,
        frameon=False,
        fontsize=8,
        borderaxespad=0.2,
        columnspacing=1.2,
    )
    for text in shown.get_texts():
        text.set_parse_math(False)  # outcomes are not formulas


def wheel(place: int) -> str:
    """Return the colour of the line at this index."""
    return COLOURS[place % len(COLOURS)]


def shortened(name: str, most: int = MAX_NAME) -> str:
    """Shorten a name to its beginning and end."""
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half:]}"


@contextmanager
def _any_letters() -> Iterator[None]:
    """Draw names in any script: matplotlib's typeface lacks some letters, and warns of each."""
    with catch_warnings():
        filterwarnings("ignore", "Glyph .* missing", UserWarning)
        yield


def svg(figure: Figure, name: str, described: str) -> str:
    """Render a figure as an SVG element with the page's typeface, text colour and background.

    Args:
        figure: the figure.
        name: prefix that keeps its ids apart from other figures'.
        described: text alternative.
    """
    drawn = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}), _any_letters():
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(drawn, format="svg", transparent=True, metadata=nothing)
    text = drawn.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = (
        re.sub(r' (xmlns(:\w+)?|width|height|version)="[^"]*"', "", text.partition(">")[0])
        + ">"
        + text.partition(">")[2]
    )
    for colour, shown in PAGE.items():
        text = re.sub(colour, shown, text, flags=re.IGNORECASE)
    linked = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))  # other ids repeat in every figure
    text = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in linked else "", text)
    # Elements without fill or stroke in matplotlib's SVG are black.
    return text.replace("<svg", f'<svg role="img" fill="currentColor" aria-label="{escape(described, quote=True)}"', 1)


def png(figure: Figure, colours: Sequence[str] = COLOURS) -> bytes:
    """Render a figure as PNG. Equal figures give equal bytes: no versions or dates.

    Args:
        figure: the figure.
        colours: palette, extended by tints; if empty, the figure's most frequent colours.
    """
    small, canvas = io.BytesIO(), FigureCanvasAgg(figure)
    with _any_letters():
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
