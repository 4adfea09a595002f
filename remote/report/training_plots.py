"""Plots of training: losses, validation metrics, and singular values. Each returns None with too few points."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rankdad.remote.report.plot_style import (
    BLACK,
    BLUE,
    GREY,
    MEASURES,
    ORANGE,
    legend,
    plain_axes,
    shortened,
    wheel,
)
from rankdad.remote.results.run_results import RunResults, without_candidates

MIN_POINTS = 2  # of a curve
MAX_EPOCHS_WITH_DOTS = 30
MAX_LINES = 30  # of sites or folds; beyond it, a band
MAX_LAYERS = 8  # those with the highest effective rank
POINTS = 100  # of a layer's curve
STYLES = ("-", "--", ":", "-.")


def losses(run: RunResults) -> Figure | None:
    """Draw training and validation loss by epoch."""
    train, validation = _by_fold(run, "train_loss"), _by_fold(run, "loss")
    if max(len(train), len(validation)) < MIN_POINTS:
        return None
    figure, axes = plain_axes("epoch", "mean loss per sample")
    _curves(axes, run, train, "training", ORANGE, "--")
    _curves(axes, run, validation, "validation", BLUE)
    _mark_best(axes, run, validation)
    axes.set_ylim(bottom=0)
    legend(axes)
    return figure


def losses_by_step(run: RunResults) -> Figure | None:
    """Draw the training loss by step, counted from 1 in every fold, without the final training on all samples."""
    steps = without_candidates(run.steps)
    fold = steps["fold"] if "fold" in steps else (steps["epoch"].diff() < 0).cumsum()
    table = steps.assign(fold=fold, step=steps.groupby(fold).cumcount() + 1)
    table = table[table["fold"] < run.spec.tested_folds]
    table = table.pivot_table(index="step", columns="fold", values="loss", aggfunc="last")
    if len(table) < MIN_POINTS:
        return None
    several = len(table.columns) > 1
    figure, axes = plain_axes("optimizer step" + " of the fold" * several, "mean training loss per sample")
    _curves(axes, run, table, "training", ORANGE)
    axes.set_ylim(bottom=0)
    if several:
        legend(axes)
    return figure


def metric_by_epoch(run: RunResults, name: str) -> Figure | None:
    """Draw a validation metric by epoch: pooled, with single sites if there is one fold, else with all folds."""
    pooled = _by_fold(run, name)
    if len(pooled) < MIN_POINTS:
        return None
    figure, axes = plain_axes("epoch", f"validation {MEASURES[name]}")
    if len(pooled.columns) == 1:
        rows = _validation(run)
        sites = rows[rows["site"] != "pooled"]
        _thin(
            axes, sites.pivot_table(index="epoch", columns="site", values=name, aggfunc="last"), "hospitals", GREY, "-"
        )
    _curves(axes, run, pooled, "all hospitals together", BLUE)
    _mark_best(axes, run, pooled)
    legend(axes)
    return figure


def rank_over_steps(run: RunResults) -> Figure | None:
    """Draw the effective rank of each layer's update by step in the last training."""
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
    """Draw each layer's singular values relative to the largest, as means over the last quarter of recorded steps."""
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


def _validation(run: RunResults) -> pd.DataFrame:
    rows = run.metrics
    return rows[(rows["split"] == "validation") & (rows["fold"] < run.spec.tested_folds)]


def _by_fold(run: RunResults, name: str) -> pd.DataFrame:
    """Return the pooled values of a metric: a row per epoch, a column per fold, without empty ones."""
    rows = _validation(run)
    pooled = rows[rows["site"] == "pooled"]
    pooled = pooled.assign(fold=pooled["fold"].astype(int)).dropna(subset=[name])
    return pooled.pivot_table(index="epoch", columns="fold", values=name, aggfunc="last")


def _curves(axes: Axes, run: RunResults, table: pd.DataFrame, label: str, colour: str, style: str = "-") -> None:
    """Draw one fold as a line; for several, thin lines and the mean of the finished ones."""
    if table.empty:
        return
    several = len(table.columns) > 1
    if several:
        _thin(axes, table, f"{label}, single folds", colour, style)
        done = table.iloc[:, : len(run.tests)].dropna()
        table, label = done.mean(axis=1).to_frame(), f"{label}, mean of {len(done.columns)} folds"
    if not several or len(done.columns) > 1:
        marker, width = ("o", 1.6) if len(table) <= MAX_EPOCHS_WITH_DOTS else ("", 1.2)
        axes.plot(table.index, table.iloc[:, 0], style, marker=marker, ms=3.5, lw=width, color=colour, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _thin(axes: Axes, table: pd.DataFrame, label: str, colour: str, style: str) -> None:
    """Draw every column of a table as a thin line, or a band if there are many."""
    if len(table.columns) > MAX_LINES:
        low, high = (table.quantile(part, axis=1) for part in (0.1, 0.9))
        named = f"{label}, 10th to 90th percentile"
        axes.fill_between(table.index, low, high, color=colour, alpha=0.3, lw=0, label=named)
        return
    for position, column in enumerate(table.columns):
        named = label if position == 0 else ""
        axes.plot(table.index, table[column], style, color=colour, alpha=0.5, lw=0.8, label=named)


def _mark_best(axes: Axes, run: RunResults, table: pd.DataFrame) -> None:
    """Mark each fold's best epoch, if it has been measured."""
    best = {int(row["fold"]): int(row["epoch"]) for row in run.tests.to_dict("records")}
    if run.spec.tested_folds == 1:
        best = {0: run.summary.best_epoch}
    pairs = [(fold, best[fold]) for fold in map(int, table.columns) if fold in best]
    points = [(epoch, table[fold].get(epoch, np.nan)) for fold, epoch in pairs]
    points = [(epoch, value) for epoch, value in points if np.isfinite(value)]
    if not points or len(table.columns) > MAX_LINES:
        return
    epochs, values = zip(*points, strict=True)
    if len(table.columns) == 1:
        axes.axvline(epochs[0], color=BLACK, ls=":", lw=1)
    label, size = ("best epochs", 6) if len(table.columns) > 1 else (f"best epoch, {epochs[0]}", 10)
    axes.plot(epochs, values, "*", color=BLACK, ms=size, clip_on=False, label=label, zorder=5)


def _last_training(run: RunResults) -> pd.DataFrame:
    rows = without_candidates(run.spectra)
    last: pd.DataFrame = rows[rows["fold"] == rows["fold"].max()]
    return last


def _layers(rows: pd.DataFrame) -> list[str]:
    ranks = rows.groupby("layer", sort=False)["rank"].mean()
    chosen = set(ranks.sort_values(ascending=False, kind="stable").index[:MAX_LAYERS])
    return [str(layer) for layer in ranks.index if layer in chosen]
