"""A run's figures as PNG: losses, validation metrics, and the test metric of every site.

Colours are of the set by Okabe and Ito, which colour-blind people tell apart; line styles differ as well, for print.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

MEASURES = {"auc": "AUC (0.5 is chance, 1 best)", "accuracy": "accuracy (proportion)"}
LOSS = "mean loss per sample"
BLUE, ORANGE, GREY, BLACK = "#0072B2", "#D55E00", "#8C8C8C", "#000000"
WIDTH, HEIGHT, DPI = 7.0, 3.6, 150  # inches, inches, pixels per inch
TINTS = 12  # of each colour in a file: enough for smooth edges, and a third of the bytes
LEAST = 2  # points of a curve: one is told by the tables
DOTTED = 30  # epochs up to which every one has its dot
LINES = 30  # sites up to which each has its line; more are a band
NAMED = 30  # sites up to which each has its name; more are placed by their number of samples
NAME = 26  # characters of the longest name beside a figure


def figures(metrics: pd.DataFrame, steps: pd.DataFrame, summary: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw what there is to draw.

    Args:
        metrics: a row per epoch, split and site, and one for `pooled`, as in `metrics.csv`.
        steps: a row per step, as in `steps.csv`.
        summary: of the run; its `best_epoch`, counted from 0, is marked.

    Returns:
        PNG by name, in the order in which to read them: `loss_over_epochs`, `loss_over_steps`, and of each measure
        `auc_over_epochs` and `test_auc_by_site`. What has too few numbers is left out.
    """
    finite = metrics.replace([np.inf, -np.inf], np.nan)
    validation, test = finite[finite["split"] == "validation"], finite[finite["split"] == "test"]
    best = int(summary.get("best_epoch") or 0) + 1
    measures = [name for name in MEASURES if name in finite.columns]
    with style.context("default"):  # not as a person's own matplotlibrc has it
        drawn = {
            "loss_over_epochs": _losses(validation, best),
            "loss_over_steps": _steps(steps.replace([np.inf, -np.inf], np.nan)),
            **{f"{name}_over_epochs": _over_epochs(validation, name, best) for name in measures},
            **{f"test_{name}_by_site": _by_site(test, name) for name in measures},
        }
        return {name: _png(figure) for name, figure in drawn.items() if figure is not None}


def _losses(validation: pd.DataFrame, best: int) -> Figure | None:
    pooled = _pooled(validation)
    if pooled[["train_loss", "loss"]].notna().sum().max() < LEAST:
        return None
    figure, axes = _axes("epoch", LOSS)
    _line(axes, pooled["train_loss"], "training, all sites", ORANGE, dashed=True)
    _line(axes, pooled["loss"], "validation, all sites", BLUE)
    _mark(axes, pooled["loss"], best)
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def _steps(steps: pd.DataFrame) -> Figure | None:
    losses = steps.set_index("step")["loss"].dropna()
    if len(losses) < LEAST:
        return None
    figure, axes = _axes("optimizer step", LOSS.replace("loss", "training loss"))
    _line(axes, losses, "", ORANGE)
    axes.set_ylim(bottom=0)
    return figure


def _over_epochs(validation: pd.DataFrame, name: str, best: int) -> Figure | None:
    pooled = _pooled(validation)[name]
    if pooled.notna().sum() < LEAST:
        return None
    figure, axes = _axes("epoch", f"validation {MEASURES[name]}")
    sites = validation[validation["site"] != "pooled"].assign(epoch=validation["epoch"] + 1)
    table = sites.pivot_table(index="epoch", columns="site", values=name, aggfunc="last")
    if len(table.columns) > LINES:
        low, high = (table.quantile(part, axis=1) for part in (0.1, 0.9))
        axes.fill_between(table.index, low, high, color=GREY, alpha=0.35, lw=0, label="sites, 10th to 90th percentile")
    else:
        for position, site in enumerate(table.columns):
            label = "single sites" if position == 0 else ""
            axes.plot(table.index, table[site], color=GREY, alpha=0.6, lw=0.8, label=label)
    _line(axes, pooled, "all sites together", BLUE)
    _mark(axes, pooled, best)
    _legend(axes)
    return figure


def _by_site(test: pd.DataFrame, name: str) -> Figure | None:
    measured = test.dropna(subset=[name])
    sites, pooled = measured[measured["site"] != "pooled"], measured[measured["site"] == "pooled"]
    if sites.empty:
        return None
    named, label = len(sites) <= NAMED, f"test {MEASURES[name]}"
    if named:
        figure, axes = _axes(label, "", height=max(1.9, 1.2 + 0.2 * len(sites)))
        axes.plot(sites[name], range(len(sites)), "o", color=BLUE, ms=6, label="single sites")
        pairs = zip(sites["site"], sites["samples"], strict=True)
        names = [f"{_shortened(site)} ({count:.0f})" for site, count in pairs]
        axes.set_yticks(range(len(sites)), names, parse_math=False, fontsize=8)
        axes.set_ylim(len(sites) - 0.4, -0.6)
        axes.set_title("site (test samples)", loc="left", fontsize=9)
    else:
        figure, axes = _axes("test samples of the site", label)
        axes.plot(sites["samples"], sites[name], "o", color=BLUE, alpha=0.6, ms=4, label="single sites")
    for value in pooled[name][-1:]:
        draw: Callable[..., object] = axes.axvline if named else axes.axhline
        draw(value, color=ORANGE, ls="--", lw=1.6, label=f"all sites together, {value:.4f}", zorder=1)
    _legend(axes)
    return figure


def _pooled(validation: pd.DataFrame) -> pd.DataFrame:
    """Return the pooled rows by epoch, counted from 1."""
    pooled = validation[validation["site"] == "pooled"]
    return pooled.assign(epoch=pooled["epoch"] + 1).set_index("epoch")


def _axes(x: str, y: str, height: float = HEIGHT) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(color="#DDDDDD", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _line(axes: Axes, values: pd.Series[float], label: str, colour: str, *, dashed: bool = False) -> None:
    marker, width = ("o", 1.6) if len(values) <= DOTTED else ("", 1.2)
    style = "--" if dashed else "-"
    axes.plot(values.index, values, style, marker=marker, ms=3.5, lw=width, color=colour, label=label)
    axes.set_xlim(values.index.min() - 0.5, values.index.max() + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _mark(axes: Axes, values: pd.Series[float], best: int) -> None:
    """Mark the best epoch, if it has been measured."""
    if best in values.index and pd.notna(values[best]):
        axes.axvline(best, color=BLACK, ls=":", lw=1)
        axes.plot([best], [values[best]], "*", color=BLACK, ms=10, clip_on=False, label=f"best epoch, {best}", zorder=5)


def _legend(axes: Axes) -> None:
    """Put the legend above the axes, where it hides nothing."""
    count = len(axes.get_legend_handles_labels()[0])
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=count, frameon=False, fontsize=9, borderaxespad=0.2)


def _shortened(name: str) -> str:
    """Return a name's beginning and end, which tell names apart."""
    half = (NAME - 1) // 2
    return name if len(name) <= NAME else f"{name[:half]}…{name[-half:]}"


def _png(figure: Figure) -> bytes:
    """Return the figure's file, which says nothing of versions or dates: the same figures, the same bytes."""
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    tints = np.linspace(0, 1, TINTS)[:, None]
    pairs = [tints * np.array(to_rgb(colour)) + 1 - tints for colour in (BLUE, ORANGE, GREY, BLACK)]
    palette = Image.new("P", (1, 1))
    palette.putpalette((255 * np.concatenate(pairs)).round().astype(np.uint8).tobytes())
    picture = Image.open(drawn).convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE)
    picture.save(small, "PNG", optimize=True, dpi=(DPI, DPI))
    return small.getvalue()
