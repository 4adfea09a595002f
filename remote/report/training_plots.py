"""Figures of how training went: losses and validation metrics by epoch or step, of one fold or of several."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from remote.report.plot_style import BLACK, BLUE, GREY, MEASURES, ORANGE, legend, plain_axes

LOSS = "mean loss per sample"
LEAST = 2  # points of a curve: one is told by the tables
DOTTED = 30  # epochs up to which every one has its dot
LINES = 30  # sites or folds up to which each has its line; more are a band


def losses(validation: pd.DataFrame, best: Mapping[int, int], finished: int) -> Figure | None:
    """Draw training and validation loss by epoch.

    Args:
        validation: rows of `metrics.csv`.
        best: epoch of each fold, both from 0.
        finished: how many folds have been trained to their end.
    """
    train, loss = _by_fold(validation, "train_loss"), _by_fold(validation, "loss")
    if max(len(train), len(loss)) < LEAST:
        return None
    figure, axes = plain_axes("epoch", LOSS)
    _curves(axes, train, "training", ORANGE, finished, dashed=True)
    _curves(axes, loss, "validation", BLUE, finished)
    _mark(axes, loss, best)
    axes.set_ylim(bottom=0)
    legend(axes)
    return figure


def losses_by_step(steps: pd.DataFrame, folds: int, finished: int) -> Figure | None:
    """Draw the training loss by step, counted anew in every fold.

    Args:
        steps: as `steps.csv` has them.
        folds: how many of the run are tested; later steps are of the model of all samples.
        finished: how many of them have been trained to their end.
    """
    begins = steps["epoch"].diff() < 0
    fold = steps["fold"] if "fold" in steps else begins.cumsum()
    table = steps.assign(fold=fold, step=steps.groupby(fold).cumcount() + 1)
    losses = table[table["fold"] < folds].pivot_table(index="step", columns="fold", values="loss", aggfunc="last")
    if len(losses) < LEAST:
        return None
    several = len(losses.columns) > 1
    figure, axes = plain_axes(
        "optimizer step of the fold" if several else "optimizer step", "mean training loss per sample"
    )
    _curves(axes, losses, "training", ORANGE, finished)
    axes.set_ylim(bottom=0)
    if several:
        legend(axes)
    return figure


def metric_by_epoch(validation: pd.DataFrame, name: str, best: Mapping[int, int], finished: int) -> Figure | None:
    """Draw a validation metric by epoch: of all sites, with single sites in one fold, or with all folds.

    Args:
        validation: rows of `metrics.csv`.
        name: of the metric.
        best: epoch of each fold, both from 0.
        finished: how many folds have been trained to their end.
    """
    pooled = _by_fold(validation, name)
    if len(pooled) < LEAST:
        return None
    figure, axes = plain_axes("epoch", f"validation {MEASURES[name]}")
    if len(pooled.columns) == 1:
        sites = validation[validation["site"] != "pooled"].assign(epoch=validation["epoch"] + 1)
        _thin(axes, sites.pivot_table(index="epoch", columns="site", values=name, aggfunc="last"), "sites", GREY, "-")
    _curves(axes, pooled, "all sites together", BLUE, finished)
    _mark(axes, pooled, best)
    legend(axes)
    return figure


def _by_fold(validation: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the pooled values of a metric, a row per epoch counted from 1, a column per fold; no empty ones."""
    pooled = validation[validation["site"] == "pooled"]
    pooled = pooled.assign(epoch=pooled["epoch"] + 1, fold=pooled["fold"].astype(int)).dropna(subset=[name])
    return pooled.pivot_table(index="epoch", columns="fold", values=name, aggfunc="last")


def _curves(axes: Axes, table: pd.DataFrame, label: str, colour: str, finished: int, *, dashed: bool = False) -> None:
    """Draw one fold as a line; of several each thin, and their mean as far as all that are finished go."""
    if table.empty:
        return
    style, several = "--" if dashed else "-", len(table.columns) > 1
    if several:
        _thin(axes, table, f"{label}, single folds", colour, style)
        done = table.iloc[:, :finished].dropna()
        table, label = done.mean(axis=1).to_frame(), f"{label}, mean of {len(done.columns)} folds"
    if not several or len(done.columns) > 1:
        marker = "o" if len(table) <= DOTTED else ""
        width = 1.6 if len(table) <= DOTTED else 1.2
        axes.plot(table.index, table.iloc[:, 0], style, marker=marker, ms=3.5, lw=width, color=colour, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _thin(axes: Axes, table: pd.DataFrame, label: str, colour: str, style: str) -> None:
    """Draw every column of a table as a thin line, or a band if there are many."""
    if len(table.columns) > LINES:
        low, high = (table.quantile(part, axis=1) for part in (0.1, 0.9))
        named = f"{label}, 10th to 90th percentile"
        axes.fill_between(table.index, low, high, color=colour, alpha=0.3, lw=0, label=named)
        return
    for position, column in enumerate(table.columns):
        named = label if position == 0 else ""
        axes.plot(table.index, table[column], style, color=colour, alpha=0.5, lw=0.8, label=named)


def _mark(axes: Axes, table: pd.DataFrame, best: Mapping[int, int]) -> None:
    """Mark each fold's best epoch, if it has been measured."""
    pairs = [(fold, best[fold] + 1) for fold in map(int, table.columns) if fold in best]
    points = [(epoch, table[fold].get(epoch, np.nan)) for fold, epoch in pairs]
    points = [(epoch, value) for epoch, value in points if np.isfinite(value)]
    if not points or len(table.columns) > LINES:
        return
    epochs, values = zip(*points, strict=True)
    if len(table.columns) == 1:
        axes.axvline(epochs[0], color=BLACK, ls=":", lw=1)
    label, size = ("best epochs", 6) if len(table.columns) > 1 else (f"best epoch, {epochs[0]}", 10)
    axes.plot(epochs, values, "*", color=BLACK, ms=size, clip_on=False, label=label, zorder=5)
