"""Plots of the tests of all folds: metrics by site, confusion of classes or labels, calibration.

Each function returns None where the run has nothing to draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from rankdad.common.metrics import Spread
from rankdad.common.tasks import Classification
from rankdad.remote.report import plot_style
from rankdad.remote.report.narrative import baseline_name
from rankdad.remote.report.plot_style import BLACK, BLUE, GREY, MEASURES, ORANGE, dress, legend, plain_axes, shortened
from rankdad.remote.report.run_results import BASELINE, LABEL_CELLS, RANKED, RunResults, class_names

MAX_NAMED_SITES = 30  # more sites are placed by their number of samples
MAX_CLASSES_WITH_COUNTS = 12
MAX_CLASSES_WITH_NAMES = 40
QUANTILE = 1.96  # of 95 %


def metric_by_site(run: RunResults, name: str) -> Figure | None:
    """Draw a metric of every site and of the baseline there, of all samples, and its mean over sites."""
    sites = run.sites.dropna(subset=[name])
    if sites.empty:
        return None
    named, label = len(sites) <= MAX_NAMED_SITES, f"test {MEASURES[name]}"
    if named:
        figure, axes = plain_axes(label, "", height=max(1.9, 1.2 + 0.2 * len(sites)))
        pairs = zip(sites["site"], sites["samples"], strict=True)
        names = [f"{shortened(site)} ({count:.0f})" for site, count in pairs]
        axes.set_yticks(range(len(sites)), names, parse_math=False, fontsize=8)
        axes.set_ylim(len(sites) - 0.4, -0.6)
        axes.set_ylabel("site (test samples)")
    else:
        figure, axes = plain_axes("test samples of the site", label)
    places: Sequence[float] = range(len(sites)) if named else sites["samples"].tolist()

    def dots(column: str, label: str, **look: object) -> None:
        pair = (sites[column], places) if named else (places, sites[column])
        axes.plot(*pair, ls="", label=label, **look)  # type: ignore[arg-type]

    line: Callable[..., object] = axes.axvline if named else axes.axhline
    if BASELINE + name in sites and name not in RANKED:
        dots(BASELINE + name, baseline_name(run), marker="D", mfc="none", mec=GREY, ms=9 if named else 6)
    dots(name, "single sites", marker="o", color=BLUE, ms=6 if named else 4, alpha=1 if named else 0.6)
    pooled, mean = run.test.get(name), run.summary.metrics.sites.get(name, Spread()).mean
    if pooled is not None:
        line(pooled, color=ORANGE, ls="--", lw=1.6, label=f"all samples together, {pooled:.3f}", zorder=1)
    if mean is not None and len(sites) > 1:
        line(mean, color=BLACK, ls=":", lw=1.2, label=f"mean over sites, {mean:.3f}", zorder=1)
    legend(axes)
    return figure


def confusion(run: RunResults) -> Figure | None:
    """Draw counts by true and predicted value, coloured by their part of the true value's samples."""
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
    colours = LinearSegmentedColormap.from_list("blue", ["#FFFFFF", BLUE])
    shown = axes.imshow(parts, cmap=colours, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    if len(rows) > MAX_CLASSES_WITH_COUNTS:
        figure.colorbar(shown, ax=axes, label="part of the true value's samples")
    if len(rows) <= MAX_CLASSES_WITH_NAMES:
        axes.set_yticks(range(len(rows)), [shortened(name) for name in rows], parse_math=False, fontsize=8)
        turned = 90 if max(map(len, columns)) * len(columns) > 10 * plot_style.WIDTH else 0
        names = [shortened(name) for name in columns]
        axes.set_xticks(range(len(columns)), names, parse_math=False, fontsize=8, rotation=turned)
    if len(rows) <= MAX_CLASSES_WITH_COUNTS:
        for row, column in np.ndindex(*table.shape):
            text, part = f"{table[row, column]:,}", parts[row, column]
            text += f"\n{part:.0%}" if len(columns) <= 8 else ""
            colour = "#FFFFFF" if part > 0.55 else BLACK
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
    return figure


def calibration(run: RunResults) -> Figure | None:
    """Draw how often predictions of a confidence are right.

    Of labels no interval is drawn: a sample counts once for each of them, so that counts are not independent.
    """
    task, bins = run.spec.task, run.summary.metrics.calibration
    known = [one for one in bins if one[0] is not None and one[2]]
    if not known:
        return None
    independent, least = (True, 1 / task.classes) if isinstance(task, Classification) else (False, 0.0)
    confidence, hits, counts = (np.array(column, dtype=float) for column in zip(*known, strict=True))
    figure = plot_style.blank()
    figure.set_figheight(4.6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    dress(top, "", "frequency of hits" if independent else "frequency of positives")
    dress(bottom, "confidence of the prediction" if independent else "predicted probability", "count")
    top.plot([least, 1], [least, 1], color=BLACK, ls=":", lw=1.2, label="perfect calibration")
    if independent:
        square = QUANTILE**2 / counts
        middle = (hits + square / 2) / (1 + square)
        half = QUANTILE * np.sqrt(hits * (1 - hits) / counts + square / (4 * counts)) / (1 + square)
        top.vlines(confidence, middle - half, middle + half, color=GREY, lw=1.4, label="95 % interval (Wilson)")
    top.plot(confidence, hits, "-o", color=BLUE, lw=1, ms=5, label="all sites together")
    top.set_ylim(-0.03, 1.03)
    edges = np.linspace(0, 1, len(bins) + 1)
    bottom.bar(edges[:-1], [count for *_, count in bins], np.diff(edges), align="edge", color=GREY, ec="#FFFFFF")
    bottom.set_xlim(max(0.0, least - 0.03), 1.01)
    legend(top)
    return figure
