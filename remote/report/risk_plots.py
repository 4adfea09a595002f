"""Plots of predicted risks: ROC and precision-recall curves, calibration, decision curve.

Each returns None without data. A single outcome has a band, several outcomes only lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rankdad.common.metrics.risk import Curve, Risks, mean_curve, net_benefit, precision_recall, roc
from rankdad.remote.report.plot_style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    blank,
    dress,
    legend,
    plain_axes,
    shortened,
    wheel,
)
from rankdad.remote.report.site_calibration import furthest_off
from rankdad.remote.results.run_results import RunResults

MAX_NAMED = 8  # outcomes in a legend
MAX_SITES, COLUMNS = 24, 3  # small plots
MAX_TITLE = 15  # characters of a name above a small plot
WORST = -0.05  # lower end of the axis of net benefit
SQUARE = 4.4  # inches: height of a plot with both axes from 0 to 1


def roc_curves(run: RunResults) -> Figure | None:
    """Draw sensitivity against 1 − specificity."""
    return _curves(run, roc, "1 − specificity", "sensitivity", diagonal=True)


def precision_recall_curves(run: RunResults) -> Figure | None:
    """Draw precision against sensitivity, with the prevalence as the guess."""
    return _curves(run, precision_recall, "sensitivity (recall)", "positive predictive value (precision)")


def calibration(run: RunResults) -> Figure | None:
    """Draw observed against predicted risk in ten groups of about equal size, with a histogram of risks."""
    drawn = [(name, one["calibration_groups"], risks) for name, one, risks in _outcomes(run)]
    if not drawn:
        return None
    figure, axes = plain_axes("predicted risk", "observed frequency", height=SQUARE)
    axes.plot([0, 1], [0, 1], color=BLACK, ls=":", lw=1, label="perfect")
    for place, (name, groups, risks) in enumerate(drawn):
        x, y, low, high = (
            np.array([group[key] for group in groups]) for key in ("predicted", "observed", "low", "high")
        )
        colour = wheel(place)
        if len(drawn) == 1:
            axes.vlines(x, low, high, color=GREY, lw=1.4, label="95 % interval")
            _spikes(axes, risks)
        label = "groups of risk" if len(drawn) == 1 else shortened(name) if len(drawn) <= MAX_NAMED else ""
        axes.plot(x, y, "-o", color=colour, lw=1.2, ms=4, label=label)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.14 if len(drawn) == 1 else -0.03, 1.03)
    legend(axes)
    return figure


def calibration_by_site(run: RunResults) -> Figure | None:
    """Draw observed against predicted risk for each site in a small plot; for a single outcome only."""
    only = run.only_outcome
    sites = run.site_calibration.get(only["outcome"], {}) if only else {}
    if len(sites) < 2:
        return None
    shown = furthest_off(sites, MAX_SITES)
    figure, columns = blank(), min(COLUMNS, len(shown))
    lines = -(-len(shown) // columns)
    figure.set_figheight(0.5 + 1.7 * lines)
    every = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes in every[len(shown) :]:
        axes.remove()
    for axes, site in zip(every, shown, strict=False):
        one = sites[site]
        dress(axes, "", "")
        axes.plot([0, 1], [0, 1], color=BLACK, ls=":", lw=1)
        points = {
            key: [group[key] for group in one.get("groups", [])] for key in ("predicted", "observed", "low", "high")
        }
        axes.vlines(points["predicted"], points["low"], points["high"], color=GREY, lw=1)
        axes.plot(points["predicted"], points["observed"], "-o", color=BLUE, lw=1, ms=3)
        mean, ratio = one["expected"] / one["samples"], one["observed_expected"]
        if ratio:
            axes.vlines([mean], mean * ratio["low"], mean * ratio["high"], color=ORANGE, lw=1.4)
            axes.plot([mean], [mean * ratio["value"]], "s", color=ORANGE, ms=4)
        axes.set_title(f"{shortened(site, MAX_TITLE)} ({one['samples']})", fontsize=7, parse_math=False)
        axes.tick_params(labelsize=7)
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    figure.supxlabel("predicted risk", fontsize=9)
    figure.supylabel("observed frequency", fontsize=9)
    return figure


def decision_curve(run: RunResults) -> Figure | None:
    """Draw net benefit against the risk threshold; for a single outcome only."""
    drawn = list(_outcomes(run))
    if len(drawn) != 1:
        return None
    found = [net_benefit(one) for one in drawn[0][2]]
    curve = {name: np.mean([one[name].numpy() for one in found], axis=0) for name in found[0]}
    inside = (curve["risk"] >= 0.01) & (curve["risk"] <= 0.99)
    top = max(float(curve["model"][inside].max()), float(curve["all"][inside].max()), 0.01)
    useful = inside & (curve["model"] > WORST)
    end = min(1.0, float(curve["risk"][useful].max()) + 0.02) if useful.any() else 1.0
    figure, axes = plain_axes("risk from which on one acts", "net benefit", height=SQUARE)
    axes.plot(curve["risk"][inside], curve["model"][inside], color=BLUE, lw=1.8, label="model")
    axes.plot(curve["risk"][inside], curve["all"][inside], color=ORANGE, lw=1.2, ls="--", label="act on all")
    axes.axhline(0, color=BLACK, lw=1, ls=":", label="act on nobody")
    axes.set_xlim(0, end)
    axes.set_ylim(WORST, top * 1.1)
    legend(axes)
    return figure


def _outcomes(run: RunResults) -> Iterator[tuple[str, dict[str, Any], list[Risks]]]:
    """Yield the outcomes with events and non-events: name, figures and predictions for each repeat."""
    for name, one in run.outcomes.items():
        risks = run.risks_of(one["outcome"])
        if risks and min(risks[0].counts) > 0:
            yield name, one, risks


def _curves(
    run: RunResults, make: Callable[[Risks], Curve], x: str, y: str, *, diagonal: bool = False
) -> Figure | None:
    drawn = list(_outcomes(run))
    if not drawn:
        return None
    figure, axes = plain_axes(x, y, height=SQUARE)
    for place, (name, _, risks) in enumerate(drawn):
        curve = mean_curve([make(one) for one in risks])
        if len(drawn) == 1:
            grid = np.linspace(0, 1, 201)
            low, high = (np.interp(grid, *_ascending(*ends)) for ends in (curve.low, curve.high))
            axes.fill_between(grid, low, high, color=BLUE, alpha=0.18, lw=0, label="95 % band")
        label = "model" if len(drawn) == 1 else shortened(name) if len(drawn) <= MAX_NAMED else ""
        axes.plot(curve.x, curve.y, color=wheel(place), lw=1.6, label=label)
    if diagonal:
        axes.plot([0, 1], [0, 1], color=BLACK, ls=":", lw=1, label="guess")
    elif len(drawn) == 1:
        negatives, positives = drawn[0][2][0].counts
        axes.axhline(positives / (negatives + positives), color=BLACK, ls=":", lw=1, label="guess")
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.03)
    legend(axes)
    return figure


def _ascending(x: object, y: object) -> tuple[Any, Any]:
    xs, ys = np.asarray(x), np.asarray(y)
    order = np.argsort(xs, kind="stable")
    return xs[order], ys[order]


def _spikes(axes: Axes, risks: list[Risks]) -> None:
    """Draw the histogram of predictions below the axis."""
    points = ((risks[0].edges[1:] + risks[0].edges[:-1]) / 2).sigmoid().numpy()
    weights = sum((one.negatives + one.positives).numpy() for one in risks)
    counts, edges = np.histogram(points, bins=50, range=(0, 1), weights=weights)
    heights = counts / max(counts.max(), 1) * 0.09
    axes.bar(edges[:-1], heights, np.diff(edges), bottom=-0.12, align="edge", color=GREY, lw=0, label="how many")
