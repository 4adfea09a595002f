"""Plots of the singular values that a run has recorded: how many rows layers need, and how fast their values fall.

Each function returns None where nothing is recorded.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rankdad.remote.report.plot_style import legend, plain_axes, shortened, wheel
from rankdad.remote.results.run_results import RunResults, of_models

MAX_LAYERS = 8  # that are told apart; those with the most rows
POINTS = 100  # of a curve
STYLES = ("-", "--", ":", "-.")


def rank_over_steps(run: RunResults) -> Figure | None:
    """Draw the effective rank of each layer's update by step, of the last training."""
    rows = _last_training(run)
    if rows["step"].nunique() < 2:
        return None
    figure, axes = plain_axes("optimizer step", "effective rank of the update")
    for place, layer in enumerate(_layers(rows)):
        own = rows[rows["layer"] == layer].sort_values("step")
        group = range(len(own))
        width = max(1, -(-len(own) // POINTS))
        means = own.groupby([number // width for number in group])[["step", "rank"]].mean()
        axes.plot(means["step"], means["rank"], STYLES[place % 4], color=wheel(place), lw=1.4, label=shortened(layer))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axes)
    return figure


def spectrum(run: RunResults) -> Figure | None:
    """Draw each layer's singular values, relative to the largest: means over the last quarter of what is recorded."""
    rows = _last_training(run)
    names = [name for name in rows.columns if name[:1] == "s" and name[1:].isdecimal()]
    if rows.empty or len(names) < 2:
        return None
    steps = rows["step"].drop_duplicates().sort_values()
    late = rows[rows["step"] >= steps.iloc[3 * len(steps) // 4]]
    figure, axes = plain_axes("number of the singular value", "size, relative to the first")
    for place, layer in enumerate(_layers(rows)):
        values = late.loc[late["layer"] == layer, names]
        means = values[values["s1"] > 0].pipe(lambda own: own.div(own["s1"], axis=0)).mean().dropna()
        means = means[means > 0]
        if not means.empty:
            numbers = [int(name[1:]) for name in means.index]
            axes.plot(numbers, means, STYLES[place % 4], marker="o", ms=3, color=wheel(place), label=shortened(layer))
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axes)
    return figure


def _last_training(run: RunResults) -> pd.DataFrame:
    rows = of_models(run.spectra)
    last: pd.DataFrame = rows[rows["fold"] == rows["fold"].max()]
    return last


def _layers(rows: pd.DataFrame) -> list[str]:
    ranks = rows.groupby("layer", sort=False)["rank"].mean()
    chosen = set(ranks.sort_values(ascending=False, kind="stable").index[:MAX_LAYERS])
    return [str(layer) for layer in ranks.index if layer in chosen]
