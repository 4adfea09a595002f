"""Plots of predicted numbers: Bland–Altman, and the distribution of residuals. None where there is nothing to draw."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from rankdad.remote.report.plot_style import BLACK, BLUE, ORANGE, legend, plain_axes
from rankdad.remote.report.run_results import RunResults

SHARE = 0.005  # of samples that may lie beyond the axes, at either end
BARS = 30


def bland_altman(run: RunResults) -> Figure | None:
    """Draw differences against averages as cells, the darker the more samples, with mean and limits of agreement."""
    found, cells = run.summary.metrics.agreement, run.differences.dropna()
    if not found or cells.empty:
        return None
    figure, axes = plain_axes("mean of prediction and label", "prediction − label", height=3.8)
    colours = LinearSegmentedColormap.from_list("blue", ["#cfe3f1", BLUE])
    averages = np.sort(cells["average"].unique())
    width = np.diff(averages).min() if len(averages) > 1 else 1.0
    shade = np.sqrt(cells["samples"] / cells["samples"].max())
    axes.bar(
        cells["average"], cells["high"] - cells["low"], 0.94 * width, bottom=cells["low"], color=colours(shade), lw=0
    )
    axes.axhline(found["mean"], color=ORANGE, lw=1.6, label=f"mean {found['mean']:.3g}")
    for limit in found["limits"]:
        axes.axhline(limit, color=BLACK, lw=1, ls="--")
    axes.plot([], [], color=BLACK, lw=1, ls="--", label="limits of agreement")
    low, high = _range(run)
    margin = 0.1 * (high - low)
    axes.set_ylim(min(low, found["limits"][0]) - margin, max(high, found["limits"][1]) + margin)
    legend(axes)
    return figure


def residuals(run: RunResults) -> Figure | None:
    """Draw how often predictions are how far off."""
    cells = run.differences.dropna().groupby(["low", "high"], as_index=False)["samples"].sum()
    if cells.empty or not run.summary.metrics.agreement:
        return None
    figure, axes = plain_axes("prediction − label", "samples per unit")
    axes.bar(
        cells["low"], cells["samples"] / (cells["high"] - cells["low"]), cells["high"] - cells["low"], align="edge",
        color=BLUE, alpha=0.6, lw=0,
    )  # fmt: skip
    axes.axvline(0, color=BLACK, lw=1, ls=":")
    low, high = _range(run)
    axes.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    return figure


def _range(run: RunResults) -> tuple[float, float]:
    """Return between which differences almost all samples lie."""
    cells = run.differences.dropna().groupby(["low", "high"], as_index=False)["samples"].sum().sort_values("low")
    share = cells["samples"].cumsum() / cells["samples"].sum()
    inside = cells[(share > SHARE) & (share.shift(fill_value=0.0) < 1 - SHARE)]
    return float(inside["low"].min()), float(inside["high"].max())
