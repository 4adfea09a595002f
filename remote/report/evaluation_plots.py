"""Plots of the tests of all folds: a forest of sites, confusion of classes or labels.

Each function returns None where the run has nothing to draw.
"""

from __future__ import annotations

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure

from rankdad.common.spec.tasks import Classification
from rankdad.remote.report import plot_style
from rankdad.remote.report.narrative import baseline_name
from rankdad.remote.report.plot_style import BLACK, BLUE, GREY, MEASURES, ORANGE, legend, plain_axes, shortened
from rankdad.remote.report.references import REFERENCES
from rankdad.remote.results.run_results import BASELINE, LABEL_CELLS, RANKED, RunResults, class_names
from rankdad.remote.results.run_summary import ReferenceMetrics

MAX_NAMED_SITES = 30  # more sites stand without their names, in the metric's order
DARKEST = 0.55  # of a cell: its count is read on it, by day and by night
MAX_CLASSES_WITH_COUNTS = 12
ALONE = ("local", "site")  # the first of which a figure shows beside the model
MAX_CLASSES_WITH_NAMES = 40


def forest(run: RunResults, name: str) -> Figure | None:
    """Draw a metric of every site with its interval, alone and of a guess there, and of all samples together."""
    sites = run.sites.dropna(subset=[name])
    if sites.empty:
        return None
    named = len(sites) <= MAX_NAMED_SITES
    if not named:
        sites = sites.sort_values(name)
    places = np.arange(len(sites))
    height = 1.5 + (0.26 if named else 0.05) * (len(sites) + 1)
    figure, axes = plain_axes(f"test {MEASURES[name]}", "", height=min(height, 8.0))
    alone = next((one for one in ALONE if f"{one}_{name}" in sites), None)
    apart = 0.0 if alone is None else 0.16  # of the two from the middle
    theirs_at, ours_at, last = places + apart, places - apart, len(sites)
    if {f"{name}_low", f"{name}_high"} <= set(sites.columns):
        axes.hlines(ours_at, sites[f"{name}_low"], sites[f"{name}_high"], color=BLUE, lw=1.2)
    if alone:
        theirs, found = f"{alone}_{name}", run.summary.metrics.references.get(alone, ReferenceMetrics())
        axes.hlines(theirs_at, sites[f"{theirs}_low"], sites[f"{theirs}_high"], color=ORANGE, lw=1.2)
        axes.plot(sites[theirs], theirs_at, "o", color=ORANGE, ms=5 if named else 2.5, label=REFERENCES[alone])
        if whole := found.intervals.get(name):
            axes.hlines([last + apart], whole.low, whole.high, color=ORANGE, lw=1.6)
            axes.plot([found.values[name] or 0.0], [last + apart], "o", color=ORANGE, ms=7)
    if BASELINE + name in sites and name not in RANKED:
        of_guess = sites[BASELINE + name]
        axes.plot(of_guess, ours_at, ls="", marker="D", mfc="none", mec=GREY, ms=6, label=baseline_name(run))
    axes.plot(sites[name], ours_at, "s", color=BLUE, ms=5 if named else 2.5, label="model, with its 95 % interval")
    pooled, interval = run.test.get(name), run.summary.metrics.intervals.get(name)
    if pooled is not None:
        if interval:
            axes.hlines([last - apart], interval.low, interval.high, color=BLACK, lw=1.6)
        axes.plot([pooled], [last - apart], "D", color=BLACK, ms=7, label=f"all samples together, {pooled:.3f}")
        axes.axvline(pooled, color=BLACK, ls=":", lw=1, zorder=1)
    if named:
        pairs = zip(sites["site"], sites["samples"], strict=True)
        names = [f"{shortened(site)} ({count:.0f})" for site, count in pairs]
        axes.set_yticks(np.arange(len(sites) + 1), [*names, "all sites"], parse_math=False, fontsize=8)
    else:
        axes.set_yticks([])
        axes.set_ylabel(f"{len(sites)} sites, by the metric")
    axes.set_ylim(len(sites) + 0.6, -0.6)
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
    colours = LinearSegmentedColormap.from_list("blue", [to_rgba(BLUE, 0), to_rgba(BLUE, DARKEST)])
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
            text += f"\n{100 * part:.0f} %" if len(columns) <= 8 else ""
            axes.text(column, row, text, ha="center", va="center", fontsize=8)
    return figure
