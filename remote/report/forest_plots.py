"""Forest plots of sites, differences between models, and coefficients. Each returns None without data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from rankdad.common.metrics.paired import WITHIN
from rankdad.common.spec.tasks import Regression
from rankdad.remote.report.narrative import baseline_name
from rankdad.remote.report.plot_style import BLACK, BLUE, GREY, MEASURES, ORANGE, legend, plain_axes, shortened
from rankdad.remote.report.references import REFERENCES
from rankdad.remote.report.words import NAMES
from rankdad.remote.results.coefficients import SITE_SD, coefficient_name
from rankdad.remote.results.comparison import comparison_metric, shown_references, site_difference
from rankdad.remote.results.run_results import BASELINE, RANKED, RunResults
from rankdad.remote.results.run_summary import ReferenceMetrics

MAX_NAMED_SITES = 30  # more sites are unnamed and sorted by the metric
MAX_COEFFICIENTS = 40
EVERYWHERE = "all hospitals"
ALONE = ("local", "site")  # references by preference
COLOURS = (BLUE, ORANGE, GREY)  # of sites; more sites than colours are not drawn


def forest(run: RunResults, name: str) -> Figure | None:
    """Draw a metric with its interval for every site and pooled, with the site's own model and the guess."""
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
    apart = 0.0 if alone is None else 0.16  # offset from the row's middle
    theirs_at, ours_at, last, size = places + apart, places - apart, len(sites), 5 if named else 2.5
    if {f"{name}_low", f"{name}_high"} <= set(sites.columns):
        axes.hlines(ours_at, sites[f"{name}_low"], sites[f"{name}_high"], color=BLUE, lw=1.2)
    if alone:
        theirs, found = f"{alone}_{name}", run.summary.metrics.references.get(alone, ReferenceMetrics())
        axes.hlines(theirs_at, sites[f"{theirs}_low"], sites[f"{theirs}_high"], color=ORANGE, lw=1.2)
        axes.plot(sites[theirs], theirs_at, "o", color=ORANGE, ms=size, label=REFERENCES[alone])
        if whole := found.intervals.get(name):
            axes.hlines([last + apart], whole.low, whole.high, color=ORANGE, lw=1.6)
            axes.plot([found.values[name] or 0.0], [last + apart], "o", color=ORANGE, ms=7)
    if BASELINE + name in sites and name not in RANKED:
        of_guess = sites[BASELINE + name]
        axes.plot(of_guess, ours_at, ls="", marker="D", mfc="none", mec=GREY, ms=6, label=baseline_name(run))
    axes.plot(sites[name], ours_at, "s", color=BLUE, ms=size, label="model, with its 95 % interval")
    pooled, interval = run.test.get(name), run.summary.metrics.intervals.get(name)
    if pooled is not None:
        if interval:
            axes.hlines([last - apart], interval.low, interval.high, color=BLACK, lw=1.6)
        axes.plot([pooled], [last - apart], "D", color=BLACK, ms=7, label=f"all rows together, {pooled:.3f}")
        axes.axvline(pooled, color=BLACK, ls=":", lw=1, zorder=1)
    if named:
        pairs = zip(sites["site"], sites["samples"], strict=True)
        names = [*(f"{shortened(site)} ({count:.0f})" for site, count in pairs), "all hospitals"]
    else:
        names = []
        axes.set_ylabel(f"{len(sites)} hospitals, by the metric")
    _name_rows(axes, names, below=len(sites) + 0.6)
    legend(axes)
    return figure


def differences(run: RunResults) -> Figure | None:
    """Draw the differences from every reference, and by site from the first."""
    name = comparison_metric(run)
    known = {REFERENCES[rival]: run.differences_from(rival) for rival in shown_references(run)}
    pooled = {text: own.get(name) for text, own in known.items()}
    within = {f"{text}, within hospitals": own.get(WITHIN) for text, own in known.items()}
    rows = [(text, found, True) for text, found in (pooled | within).items() if found is not None]
    if not rows:
        return None
    first = next((rival for rival in (*ALONE, "linear") if rival in run.summary.metrics.differences), None)
    by_site = [] if first is None else [(site, site_difference(row, first, name)) for site, row in run.by_site.items()]
    if first is not None and len(by_site) <= MAX_NAMED_SITES:
        label = f"{REFERENCES[first]}, by hospital"
        rows += [(shortened(site), found, False) for site, found in by_site if found is not None]
    else:
        label = ""
    figure, axes = plain_axes(
        f"difference of {NAMES[name]}: this model less", "", height=min(8.0, 1.5 + 0.26 * len(rows))
    )
    axes.axvline(0, color=BLACK, lw=1, zorder=1)
    for place, (_, found, whole) in enumerate(rows):
        colour, marker = (BLACK, "D") if whole else (BLUE, "s")
        axes.hlines([place], found.low, found.high, color=colour, lw=1.4)
        axes.plot([found.value], [place], marker, color=colour, ms=5)
    axes.plot([], [], "D", color=BLACK, ms=6, label="all hospitals")
    if any(not whole for *_, whole in rows):
        axes.plot([], [], "s", color=BLUE, ms=5, label=label)
    _name_rows(axes, [text for text, *_ in rows], below=len(rows) - 0.4)
    legend(axes)
    return figure


def coefficients(run: RunResults) -> Figure | None:
    """Draw every coefficient with its interval, pooled and at a few sites; for numbers, in standard errors."""
    found = run.summary.coefficients
    rows = [row for row in found.get("pooled", {}).get("coefficients", ()) if row["name"] != "intercept"]
    kept = [place for place, row in enumerate(rows) if row["se"] is not None][:MAX_COEFFICIENTS]
    if not kept:
        return None
    regression = isinstance(run.spec.task, Regression)
    sites = {site: fit for site, fit in found["sites"].items() if not fit["problem"]}
    sites = sites if len(sites) <= len(COLOURS) else {}
    named = [(EVERYWHERE, rows, BLACK)]
    named += [
        (site, [row for row in fit["coefficients"] if row["name"] != "intercept"], colour)
        for (site, fit), colour in zip(sites.items(), COLOURS, strict=False)
    ]
    unit = SITE_SD if found["pooled"]["units"] == SITE_SD else "unit"
    figure, axes = plain_axes(
        "coefficient, in its standard errors over all hospitals" if regression else f"odds ratio of one {unit} more",
        "",
        height=min(8.0, 1.4 + 0.16 * len(kept) * (1 + len(named))),
    )
    apart = 0.7 / len(named)
    for number, (name, own, colour) in enumerate(named):
        at = np.arange(len(kept)) - 0.35 + apart * (number + 0.5)
        figures = np.array([_shown(own[place], rows[place], regression=regression) for place in kept], float)
        axes.hlines(at, figures[:, 1], figures[:, 2], color=colour, lw=1.4 if name == EVERYWHERE else 1.0)
        axes.plot(figures[:, 0], at, "D" if name == EVERYWHERE else "o", color=colour, ms=4, label=shortened(name))
    axes.axvline(0.0 if regression else 1.0, color=GREY, ls=":", lw=1, zorder=1)
    if not regression:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    names = [shortened(coefficient_name(rows, rows[place])) for place in kept]
    _name_rows(axes, names, below=len(kept) - 0.4)
    if len(named) > 1:
        legend(axes)
    return figure


def _shown(row: dict[str, float | None], pooled: dict[str, float | None], *, regression: bool) -> list[float]:
    """Return estimate and interval as drawn; NaN if missing."""
    if row["se"] is None:
        return [np.nan] * 3
    keys = ("estimate", "low", "high") if regression else ("odds_ratio", "odds_low", "odds_high")
    values = [np.nan if row[key] is None else float(row[key] or 0.0) for key in keys]
    return [value / (pooled["se"] or 1.0) for value in values] if regression else values


def _name_rows(axes: Axes, names: Sequence[str], below: float) -> None:
    """Label the rows from the top, with room around the first and the last."""
    axes.set_yticks(range(len(names)), names, parse_math=False, fontsize=8)
    axes.set_ylim(below, -0.6)
