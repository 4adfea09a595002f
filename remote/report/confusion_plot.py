"""Plot of the confusion matrix, or of labels' hits and misses."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure

from rankdad.common.spec.tasks import Classification
from rankdad.remote.report import plot_style
from rankdad.remote.report.plot_style import BLUE, plain_axes, shortened
from rankdad.remote.results.run_results import LABEL_CELLS, RunResults, class_names

DARKEST = 0.55  # opacity of a cell: its count stays readable in light and dark mode
MAX_CLASSES_WITH_COUNTS = 12
MAX_CLASSES_WITH_NAMES = 40


def confusion(run: RunResults) -> Figure | None:
    """Draw counts by true and predicted value, coloured by their share of the true value's rows."""
    table, rows = np.array(run.confusion), class_names(run.spec)
    if not table.size:
        return None
    # A class's row is all its samples; a label's row is its negatives, then its positives.
    by_class = isinstance(run.spec.task, Classification)
    columns, of_one_value = (rows, len(rows)) if by_class else (list(LABEL_CELLS), 2)
    groups = table.reshape(len(rows), -1, of_one_value)
    parts = (groups / np.maximum(groups.sum(axis=2, keepdims=True), 1)).reshape(table.shape)
    labels = ("predicted class", "true class") if by_class else ("", "label")
    figure, axes = plain_axes(*labels, height=min(6.5, 1.2 + 0.45 * len(rows)))
    figure.set_figwidth(min(plot_style.WIDTH, 3.4 + 0.8 * len(columns)))
    axes.grid(visible=False)
    colours = LinearSegmentedColormap.from_list("blue", [to_rgba(BLUE, 0), to_rgba(BLUE, DARKEST)])
    shown = axes.imshow(parts, cmap=colours, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    if len(rows) > MAX_CLASSES_WITH_COUNTS:
        figure.colorbar(shown, ax=axes, label="part of the true value's rows")
    if len(rows) <= MAX_CLASSES_WITH_NAMES:
        axes.set_yticks(range(len(rows)), [shortened(name) for name in rows], parse_math=False, fontsize=8)
        turned = 90 if max(map(len, columns)) * len(columns) > 10 * plot_style.WIDTH else 0
        names = [shortened(name) for name in columns]
        axes.set_xticks(range(len(columns)), names, parse_math=False, fontsize=8, rotation=turned)
    if len(rows) <= MAX_CLASSES_WITH_COUNTS:
        for row, column in np.ndindex(*table.shape):
            text, part = f"{table[row, column]:,}", parts[row, column]
            text += f"\n{100 * part:.0f} %" if len(columns) <= 8 else ""
            axes.text(column, row, text, ha="center", va="center", fontsize=8)
    return figure
