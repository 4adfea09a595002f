"""Plots of predicted numbers: Bland–Altman, and the distribution of residuals. None without data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure

from rankdad.remote.report.plot_style import BLACK, BLUE, ORANGE, legend, plain_axes
from rankdad.remote.results.run_results import RunResults

Floats = np.ndarray[Any, np.dtype[np.float64]]

SHARE = 0.005  # of samples beyond each end of the axes
BARS = 30


def bland_altman(run: RunResults) -> Figure | None:
    """Draw differences against averages as shaded cells, with mean and middle 95 %."""
    found, cells = run.summary.metrics.agreement, run.differences.dropna()
    if not found or cells.empty:
        return None
    figure, axes = plain_axes("mean of prediction and label", "prediction − label")
    colours = LinearSegmentedColormap.from_list("blue", [to_rgba(BLUE, 0.08), to_rgba(BLUE, 0.95)])
    averages = np.sort(cells["average"].unique())
    width = np.diff(averages).min() if len(averages) > 1 else 1.0
    edges = np.linspace(*_range(run), BARS + 1)
    counts = np.array([_dealt(cells[cells["average"] == average], edges) for average in averages])
    for average, column in zip(averages, counts, strict=True):
        some = column > 0
        colour = colours(np.sqrt(column[some] / counts.max()))
        axes.bar(average, np.diff(edges)[some], width, bottom=edges[:-1][some], color=colour, lw=0)
    axes.axhline(found["mean"], color=ORANGE, lw=1.6, label=f"mean {found['mean']:.3g}")
    if middle := found.get("middle"):
        for end in (middle["low"], middle["high"]):
            axes.axhline(end, color=BLACK, lw=1, ls="--")
        axes.plot([], [], color=BLACK, lw=1, ls="--", label=f"{100 * middle['share']:.0f} % of rows lie between")
    margin = 0.1 * (edges[-1] - edges[0])
    axes.set_ylim(edges[0] - margin, edges[-1] + margin)
    legend(axes)
    return figure


def residuals(run: RunResults) -> Figure | None:
    """Draw the histogram of residuals."""
    cells = run.differences.dropna()
    if cells.empty or not run.summary.metrics.agreement:
        return None
    figure, axes = plain_axes("prediction − label", "rows")
    edges = np.linspace(*_range(run), BARS + 1)
    axes.bar(edges[:-1], _dealt(cells, edges), np.diff(edges), align="edge", color=BLUE, alpha=0.6, lw=0)
    axes.axvline(0, color=BLACK, lw=1, ls=":")
    return figure


def _dealt(cells: pd.DataFrame, edges: Floats) -> Floats:
    """Rebin samples, each cell's spread evenly over it."""
    low, high, samples = (cells[name].to_numpy(float)[:, None] for name in ("low", "high", "samples"))
    shared = np.minimum(high, edges[1:]) - np.maximum(low, edges[:-1])
    spread: Floats = (samples * shared.clip(0) / (high - low)).sum(axis=0)
    return spread


def _range(run: RunResults) -> tuple[float, float]:
    """Return the range of almost all differences."""
    cells = run.differences.dropna().sort_values("low")
    share = cells["samples"].cumsum() / cells["samples"].sum()
    inside = cells[(share > SHARE) & (share.shift(fill_value=0.0) < 1 - SHARE)]
    return float(inside["low"].min()), float(inside["high"].max())
