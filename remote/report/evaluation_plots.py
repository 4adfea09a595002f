"""Figures of what the tests of all folds say: metrics by site, confusion of classes or labels, calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from remote.report.plot_style import (
    BLACK,
    BLUE,
    GREY,
    MEASURES,
    ORANGE,
    WIDTH,
    blank,
    dress,
    legend,
    plain_axes,
    shortened,
)
from remote.report.run_results import BASELINE, RANKED

NAMED = 30  # sites up to which each has its name; more are placed by their number of samples
WRITTEN = 12  # classes up to which every cell has its numbers
TICKED = 40  # classes up to which each has its name
QUANTILE = 1.96  # of 95 %


def metric_by_site(
    sites: pd.DataFrame, name: str, pooled: float | None, mean: float | None, guess: str
) -> Figure | None:
    """Draw a metric of every site, of the baseline there, of all samples, and the mean over sites.

    Args:
        sites: as `sites.csv` has them.
        name: of the metric.
        pooled: of all samples.
        mean: over sites.
        guess: what the baseline is called.
    """
    sites = sites.dropna(subset=[name])
    if sites.empty:
        return None
    named, label = len(sites) <= NAMED, f"test {MEASURES[name]}"
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
        size = 9 if named else 6
        dots(BASELINE + name, guess, marker="D", mfc="none", mec=GREY, ms=size)
    dots(name, "single sites", marker="o", color=BLUE, ms=6 if named else 4, alpha=1 if named else 0.6)
    if pooled is not None:
        line(pooled, color=ORANGE, ls="--", lw=1.6, label=f"all samples together, {pooled:.3f}", zorder=1)
    if mean is not None and len(sites) > 1:
        line(mean, color=BLACK, ls=":", lw=1.2, label=f"mean over sites, {mean:.3f}", zorder=1)
    legend(axes)
    return figure


def confusion(
    counts: Sequence[Sequence[int]], rows: Sequence[str], columns: Sequence[str], about: tuple[str, str], whole: int
) -> Figure:
    """Draw a table of counts, coloured by their part of a true value's samples.

    Args:
        counts: a sequence for every row.
        rows: their names.
        columns: their names.
        about: what the columns and the rows are.
        whole: how many neighbouring columns make up the samples of one true value.
    """
    table = np.array(counts)
    wholes = table.reshape(len(rows), -1, whole)
    parts = (wholes / np.maximum(wholes.sum(axis=2, keepdims=True), 1)).reshape(table.shape)
    figure, axes = plain_axes(*about, height=min(6.5, 1.2 + 0.45 * len(rows)))
    figure.set_figwidth(min(WIDTH, 3.4 + 0.8 * len(columns)))
    axes.grid(visible=False)
    colours = LinearSegmentedColormap.from_list("blue", ["#FFFFFF", BLUE])
    shown = axes.imshow(parts, cmap=colours, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    if len(rows) > WRITTEN:
        figure.colorbar(shown, ax=axes, label="part of the true value's samples")
    if len(rows) <= TICKED:
        axes.set_yticks(range(len(rows)), [shortened(name) for name in rows], parse_math=False, fontsize=8)
        turned = 90 if max(map(len, columns)) * len(columns) > 10 * WIDTH else 0
        names = [shortened(name) for name in columns]
        axes.set_xticks(range(len(columns)), names, parse_math=False, fontsize=8, rotation=turned)
    if len(rows) <= WRITTEN:
        for row, column in np.ndindex(*table.shape):
            text, part = f"{table[row, column]:,}", parts[row, column]
            text += f"\n{part:.0%}" if len(columns) <= 8 else ""
            colour = "#FFFFFF" if part > 0.55 else BLACK
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
    return figure


def calibration(bins: Sequence[tuple[float | None, float | None, int]], least: float, *, independent: bool) -> Figure:
    """Draw how often predictions of a confidence are right.

    Args:
        bins: mean confidence, frequency and count each.
        least: confidence there can be.
        independent: whether every count is of another sample, so that the frequencies have intervals.
    """
    known = [(confidence, hits, count) for confidence, hits, count in bins if confidence is not None and count]
    confidence, hits, counts = (np.array(column, dtype=float) for column in zip(*known, strict=True))
    figure = blank()
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
