"""Draw the paper's figures from the tables. Importing this fails where matplotlib is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    EngFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from benchmarks.paper.claims import PAPER_RATIOS
from benchmarks.paper.compared_methods import METHODS, ComparedMethod
from benchmarks.paper.comparing import (
    CRUDE,
    Tables,
    counted,
    effective_ranks,
    ends,
    filled,
    methods_of,
    panels_of,
    ratios,
    speedups,
)
from benchmarks.paper.panels import FOLDS, Panel
from rankdad.remote.report.plot_style import AMBER, BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, blank, dress, png

LOOKS: Mapping[str, tuple[str, Any, str]] = {  # colour, line and marker of a family, or of one method by its key
    "pooled": (GREY, ":", ""),
    "exact": (BLACK, "-", "o"),
    "dad": (PURPLE, "--", "x"),
    "edad": (PURPLE, ":", "+"),
    "ours": (BLUE, "-", "s"),
    "rows": (BLUE, ":", "d"),
    "int8": (SKY, "--", "P"),
    "published": (GREEN, "-.", "D"),
    "authors": (GREEN, ":", "p"),
    "powersgd": (ORANGE, (0, (4, 1.5)), "^"),
    "powersgd-plain": (AMBER, (0, (1.5, 1)), "v"),
    "top-rows": (GREY, "-.", "X"),
}
LAYERS = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY, BLACK, GREY)
DASHES = ("-", "--", "-.", ":")
WIDE = 10.0  # inches
FLOOR = 1e-5  # an AUC above 1 - FLOOR is drawn there
HIGH_RANK = 8  # ranks from here on share axes
DECADES = 50  # between the most and the fewest bytes, from which on only powers of ten are labelled
MIN_TICKS = 4  # of an axis of AUC
MOMENTS = 20  # points of a line of effective ranks

CURVES = {"figure-2": "figure-2", "figure-4": "figure-4", "figure-5": "figure-5-auc"}  # file of AUC by epoch
SPREAD = "mean of folds and sites, ± standard deviation; AUC on a log scale of 1 − AUC"
STEP_BYTES = "bytes per site and step (log)"


def pictures(tables: Tables, panels: Mapping[str, Panel]) -> dict[str, bytes]:
    """Draw every figure that has a table.

    Args:
        tables: by the name of their file.
        panels: by key.

    Returns:
        PNG by file stem.
    """
    with style.context("default"):  # not as a person's own matplotlibrc has it
        return {name: png(figure, ()) for name, figure in drawn(tables, panels).items()}


def drawn(tables: Tables, panels: Mapping[str, Panel]) -> dict[str, Figure]:
    """Return the figures that `pictures` makes files of."""
    figures: dict[str, Figure | None] = {}
    tables = filled(tables)
    for name in ("figure-2", "figure-4", "figure-5"):
        if name in tables:
            figures[CURVES[name]] = auc_by_epoch(tables[name], panels)
            figures[f"{name}-bytes"] = auc_by_bytes(tables[name], panels)
    if "figure-3" in tables:
        figures["figure-3"] = rank_by_epoch(tables["figure-3"], panels)
    if {"figure-5", "figure-5-seconds"} <= set(tables):
        figures["figure-5"] = time_to_target(speedups(tables["figure-5"], tables["figure-5-seconds"]))
    if "figure-6" in tables:
        figures["figure-6"] = bytes_by_width(tables["figure-6"])
    if "table-3" in tables:
        figures["table-3"] = ratio_by_sites(ratios(tables["table-3"]))
    return {name: figure for name, figure in sorted(figures.items()) if figure is not None}


def auc_by_epoch(curves: pd.DataFrame, panels: Mapping[str, Panel]) -> Figure:
    """Draw test AUC by epoch: a row for every panel, axes for every rank, beside dSGD and pooled training."""
    there = panels_of(curves, panels)
    groups = {panel.key: _by_rank(methods_of(curves[curves["panel"] == panel.key])) for panel in there}
    figure = _sheet(2.3 * len(there) + 1.1)
    grid = figure.subplots(len(there), max(map(len, groups.values())), sharey="row", sharex="row", squeeze=False)
    for row, panel in zip(grid, there, strict=True):
        rows = curves[curves["panel"] == panel.key]
        for axes, (title, methods) in zip(row, groups[panel.key].items(), strict=False):
            dress(axes, "epoch", f"test AUC\n{_folds(rows)}" if axes is row[0] else "")
            axes.set_title(f"\n{title}", fontsize=9, linespacing=2.2)
            for method in methods:
                _curve(axes, rows[rows["method"] == method.key], method)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        for axes in row[len(groups[panel.key]) :]:
            axes.remove()
        head = {"xytext": (0, 22), "textcoords": "offset points", "fontsize": 10, "weight": "bold"}
        row[0].annotate(panel.title, (0, 1), xycoords="axes fraction", **head).set_in_layout(False)
        _auc_scale(row[0], rows.groupby(["method", "epoch"])["auc"].mean())
    _legend(figure, [METHODS[key] for key in methods_of(curves)], SPREAD)
    return figure


def _by_rank(keys: Sequence[str]) -> dict[str, list[ComparedMethod]]:
    """Return the methods that share axes, by the axes' title; dSGD and pooled training are everywhere."""
    methods = [METHODS[key] for key in keys]
    everywhere = [method for method in methods if method.key in ("pooled", "dsgd")]
    ranks = sorted({min(method.rank, HIGH_RANK) for method in methods if method.rank})
    groups = {}
    for rank in ranks:
        ranked = [method for method in methods if method.rank and min(method.rank, HIGH_RANK) == rank]
        exact = sorted({method.rank or 0 for method in ranked})
        groups["rank " + " and ".join(map(str, exact))] = [*everywhere, *ranked]
    others = [method for method in methods if method.rank is None and method not in everywhere]
    return groups | ({"exact, and top 3 rows": [*everywhere, *others]} if others or not groups else {})


def _curve(axes: Axes, rows: pd.DataFrame, method: ComparedMethod) -> None:
    colour, line, marker = _look(method)
    auc = rows.groupby("epoch")["auc"]
    mean, spread = auc.mean(), auc.std().fillna(0)
    every = max(1, len(mean) // 5)
    axes.plot(mean.index, _gap(mean), ls=line, color=colour, lw=1.3, marker=marker, ms=3.5, markevery=every)
    if method.key != "pooled":
        axes.fill_between(mean.index, _gap(mean - spread), _gap(mean + spread), color=colour, alpha=0.1, lw=0)


def auc_by_bytes(curves: pd.DataFrame, panels: Mapping[str, Panel]) -> Figure:
    """Draw the AUC of the last epoch against what a step sends: one marker per method, one line per family."""
    there, last = panels_of(curves, panels), ends(curves)
    figure = _sheet(4.4)
    grid = figure.subplots(1, len(there), squeeze=False)[0]
    for axes, panel in zip(grid, there, strict=True):
        rows = last[last["panel"] == panel.key]
        dress(axes, f"{STEP_BYTES}, up and down", "test AUC" if axes is grid[0] else "")
        axes.set_title(f"{panel.title}\n{_folds(rows)}", fontsize=10, pad=24)
        axes.set_xscale("log")
        wide = rows["bytes"].max() > DECADES * rows["bytes"][rows["bytes"] > 0].min()
        axes.xaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5)))
        axes.xaxis.set_major_formatter(EngFormatter("B"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        sent = _marks(axes, rows)
        _auc_scale(axes, rows.groupby("method")["auc"].mean())
        ranks = {METHODS[key].rank: value for key, value in sent.items() if METHODS[key].family == "ours"}
        top = axes.secondary_xaxis("top")
        top.set_xticks(list(ranks.values()), [f"r={rank}" for rank in ranks], fontsize=8)
        top.xaxis.set_minor_locator(NullLocator())
    _legend(figure, [METHODS[key] for key in methods_of(curves)], SPREAD)
    return figure


def _marks(axes: Axes, rows: pd.DataFrame) -> dict[str, float]:
    """Draw every method of a panel, and return its bytes per step."""
    by = rows.groupby("method")
    mean, spread, sent = by["auc"].mean(), by["auc"].std().fillna(0), by["bytes"].mean()
    keys = methods_of(rows)
    if "pooled" in keys:
        axes.axhline(_gap(mean[["pooled"]]).item(), color=GREY, ls=":", lw=1.5)
    for name in dict.fromkeys(_name(METHODS[key]) for key in keys if key != "pooled"):
        family = [key for key in keys if _name(METHODS[key]) == name]
        colour, line, marker = LOOKS[name]
        place = sent[family]
        middle = _gap(mean[family])
        low, high = middle - _gap(mean[family] + spread[family]), _gap(mean[family] - spread[family]) - middle
        axes.errorbar(
            place, middle, [low, high], ls=line, color=colour, marker=marker, ms=6, lw=1.2, elinewidth=0.8, capsize=2
        )
    return {key: float(sent[key]) for key in keys}


def rank_by_epoch(spectra: pd.DataFrame, panels: Mapping[str, Panel]) -> Figure:
    """Draw how many directions of each layer's update matter, by epoch."""
    ranks = effective_ranks(spectra)
    there = panels_of(ranks, panels)
    figure = _sheet(3.6)
    grid = figure.subplots(1, len(there), squeeze=False)[0]
    for axes, panel in zip(grid, there, strict=True):
        rows = ranks[ranks["panel"] == panel.key]
        dress(axes, "epoch", "effective rank" if axes is grid[0] else "")
        axes.set_title(f"{panel.title}\n{_folds(rows)}", fontsize=10)
        width = rows["epoch"].max() / MOMENTS
        rows = rows.assign(moment=(np.ceil(rows["epoch"] / width) - 0.5) * width)
        for place, layer in enumerate(dict.fromkeys(rows["layer"])):
            rank = rows[rows["layer"] == layer].groupby("moment")["rank"]
            mean, spread = rank.mean(), rank.std().fillna(0)
            colour = LAYERS[place % len(LAYERS)]
            axes.plot(mean.index, mean, DASHES[place % len(DASHES)], color=colour, lw=1.6, label=layer)
            axes.fill_between(mean.index, mean - spread, mean + spread, color=colour, alpha=0.15, lw=0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.set_ylim(0, rows["rank"].max() + 0.5)
        axes.legend(fontsize=8, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    figure.suptitle(
        f"effective rank of an update ({counted(spectra)}): mean ± standard deviation",
        fontsize=9,
    )
    return figure


def time_to_target(speeds: pd.DataFrame) -> Figure | None:
    """Draw how much sooner each method reaches the crude baseline's final AUC: axes for every link."""
    links = list(dict.fromkeys(speeds["link"]))
    keys = [key for key in methods_of(speeds) if key != CRUDE][::-1]
    if not keys:
        return None
    figure = _sheet(0.32 * len(keys) + 1.2)
    grid = figure.subplots(1, len(links), sharey=True, sharex=True, squeeze=False)[0]
    for axes, link in zip(grid, links, strict=True):
        dress(axes, "", "")
        axes.grid(visible=False, axis="y")
        axes.set_title(link, fontsize=10)
        axes.set_yticks(range(len(keys)), [METHODS[key].label for key in keys])
        for place, key in enumerate(keys):
            folds = speeds[(speeds["link"] == link) & (speeds["method"] == key)]["log2"]
            if folds.isna().any():
                said = f" never reached in {folds.isna().sum()} of {len(folds)} folds"
                axes.text(0, place, said, va="center", fontsize=8)
            elif len(folds):
                low, high = folds.min(), folds.max()
                middle = min(max(folds.mean(), low), high)  # which rounding may put beside folds that are all equal
                ends_at = [[middle - low], [high - middle]]
                axes.barh(place, middle, color=_look(METHODS[key])[0], xerr=ends_at, error_kw={"lw": 1, "capsize": 2})
        axes.axvline(0, color=BLACK, lw=0.8)
    what = f"log2 of the speed-up over {METHODS[CRUDE].label} (1: twice as fast; lines: lowest and highest fold)"
    figure.supxlabel(what, fontsize=10)
    return figure


def bytes_by_width(sizes: pd.DataFrame) -> Figure:
    """Draw bytes per layer against its width: lines by formula, markers as sent."""
    figure = _sheet(4.2)
    directions = [name for name in ("up", "down") if name in set(sizes["direction"])]
    grid = figure.subplots(1, len(directions), sharey=True, squeeze=False)[0]
    for axes, direction in zip(grid, directions, strict=True):
        dress(
            axes,
            "width of the layer: inputs = outputs (log)",
            "bytes per site and step (log)" if axes is grid[0] else "",
        )
        axes.set_title({"up": "sent by a site", "down": "received by a site"}[direction], fontsize=10)
        for key in methods_of(sizes):
            rows = sizes[(sizes["method"] == key) & (sizes["direction"] == direction)].sort_values("size")
            colour, line, marker = _look(METHODS[key])
            axes.plot(rows["size"], rows["formula"], ls=line, color=colour, lw=1.3)
            axes.plot(rows["size"], rows["sent"], marker, color=colour, ms=5, mfc="none")
        _name_ranks(axes, sizes[sizes["direction"] == direction])
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(EngFormatter("B"))
        widths = sorted(set(sizes["size"]))
        axes.set_xticks(widths, [f"{width:,}" for width in widths], fontsize=8)
    _legend(figure, [METHODS[key] for key in methods_of(sizes)], "lines: formula; markers: as sent")
    return figure


def _name_ranks(axes: Axes, sizes: pd.DataFrame) -> None:
    """Write the rank behind every line of a family that has several."""
    last = sizes.sort_values("size").groupby("method")[["size", "formula"]].last()
    methods = [METHODS[key] for key in methods_of(sizes)]
    ours = [method for method in methods if method.family == "ours"]
    for method in ours if len(ours) > 1 else []:
        width, height = last.loc[method.key]
        text: dict[str, Any] = {
            "xytext": (8, 0),
            "textcoords": "offset points",
            "va": "center",
            "fontsize": 8,
            "color": BLUE,
        }
        axes.annotate(f"r={method.rank}", (width, height), **text)


def ratio_by_sites(table: pd.DataFrame) -> Figure | None:
    """Draw each method's time per batch over dSGD's by number of sites: axes for every link."""
    links = list(dict.fromkeys(table["link"]))
    if not links:
        return None
    figure = _sheet(3.8)
    grid = figure.subplots(1, len(links), sharey=True, squeeze=False)[0]
    lines = {"dsgd": "-", "dsgd-per-tensor": "--"}
    handles = {}
    for axes, link in zip(grid, links, strict=True):
        dress(axes, "sites", "time per batch over dSGD's (log)" if axes is grid[0] else "")
        axes.set_title(link, fontsize=10)
        for (method, reference), rows in table[table["link"] == link].groupby(["method", "reference"]):
            colour, _, marker = _look(METHODS[method])
            label = f"{METHODS[method].label}, over {METHODS[reference].label}"
            look = {"ls": lines[reference], "color": colour, "marker": marker, "ms": 4}
            handles[label] = axes.plot(rows["sites"], rows["ratio"], **look)[0]
            axes.fill_between(rows["sites"], rows["low"], rows["high"], color=colour, alpha=0.15, lw=0)
        handles["the paper"] = axes.plot(PAPER_RATIOS.keys(), PAPER_RATIOS.values(), ":", marker="*", color=BLACK)[0]
        axes.axhline(1, color=GREY, lw=0.8)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xticks(list(PAPER_RATIOS), list(map(str, PAPER_RATIOS)))
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return figure


def _sheet(height: float) -> Figure:
    figure = blank()
    figure.set_size_inches(WIDE, height)
    return figure


def _folds(rows: pd.DataFrame) -> str:
    """Return how many folds the methods of a panel have."""
    counts = sorted(set(rows.groupby("method")["fold"].nunique()))
    return f"{' to '.join(map(str, counts[:1] + counts[1:][-1:]))} of {FOLDS} folds"


def _name(method: ComparedMethod) -> str:
    return method.key if method.key in LOOKS else method.family


def _look(method: ComparedMethod) -> tuple[str, Any, str]:
    return LOOKS[_name(method)]


def _legend(figure: Figure, methods: Iterable[ComparedMethod], title: str) -> None:
    """Put a legend above all axes, with an entry for every family, and its rank if there is only one."""
    entries, methods = {}, list(methods)
    for method in methods:
        colour, line, marker = _look(method)
        single = sum(_name(each) == _name(method) for each in methods) == 1
        label = method.label if single else method.label.rpartition(", r=")[0]
        entries[label] = Line2D([], [], color=colour, ls=line, marker=marker, ms=5, lw=1.5)
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside upper center",
        ncols=4,
        handlelength=3,
        frameon=False,
        fontsize=9,
        title=title,
        title_fontsize=9,
    )


def _gap(auc: pd.Series[float]) -> pd.Series[float]:
    return (1 - auc).clip(lower=FLOOR)


def _auc_scale(axes: Axes, means: pd.Series[float]) -> None:
    """Scale the y-axis by the log of 1 - AUC, best on top, and label it with AUC."""
    gaps = _gap(means)
    low, high = gaps.min() / 1.4, min(gaps.max() * 1.4, 1.0)
    axes.set_yscale("log")
    axes.set_ylim(high, low)
    for factors in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        ticks = [factor * 10.0**power for power in range(-6, 0) for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= MIN_TICKS:
            break
    else:
        ticks = [tick for tick in MaxNLocator(5).tick_values(low, high) if low <= tick <= high]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda gap, _: f"{1 - gap:.7g}"))
