"""A forest of a linear model's coefficients."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from rankdad.common.spec.tasks import Regression
from rankdad.remote.report.plot_style import BLACK, BLUE, GREY, ORANGE, legend, plain_axes, shortened
from rankdad.remote.results.coefficients import SITE_SD, name_of
from rankdad.remote.results.run_results import RunResults

MAX_SHOWN = 40  # coefficients
MAX_SITES = 3  # beside all rows together
SITES = (BLUE, ORANGE, GREY)


def coefficients(run: RunResults) -> Figure | None:
    """Draw every coefficient with its interval, over all sites and, of few, at each; in standard errors if numbers."""
    found = run.summary.coefficients
    rows = [row for row in found.get("pooled", {}).get("coefficients", ()) if row["name"] != "intercept"]
    kept = [place for place, row in enumerate(rows) if row["se"] is not None][:MAX_SHOWN]
    if not kept:
        return None
    regression = isinstance(run.spec.task, Regression)
    sites = {site: fit for site, fit in found["sites"].items() if not fit["problem"]}
    sites = sites if len(sites) <= MAX_SITES else {}
    named = [("all sites", rows, BLACK)]
    named += [
        (site, [row for row in fit["coefficients"] if row["name"] != "intercept"], colour)
        for (site, fit), colour in zip(sites.items(), SITES, strict=False)
    ]
    unit = SITE_SD if found["pooled"]["units"] == SITE_SD else "unit"
    figure, axes = plain_axes(
        "coefficient, in its standard errors over all sites" if regression else f"odds ratio of one {unit} more",
        "",
        height=min(8.0, 1.4 + 0.16 * len(kept) * (1 + len(named))),
    )
    apart = 0.7 / len(named)
    for number, (name, own, colour) in enumerate(named):
        at = np.arange(len(kept)) - 0.35 + apart * (number + 0.5)
        figures = np.array([_shown(own[place], rows[place], regression=regression) for place in kept], float)
        axes.hlines(at, figures[:, 1], figures[:, 2], color=colour, lw=1.4 if name == "all sites" else 1.0)
        axes.plot(figures[:, 0], at, "D" if name == "all sites" else "o", color=colour, ms=4, label=shortened(name))
    axes.axvline(0.0 if regression else 1.0, color=GREY, ls=":", lw=1, zorder=1)
    if not regression:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    names = [shortened(name_of(rows, rows[place])) for place in kept]
    axes.set_yticks(np.arange(len(kept)), names, parse_math=False, fontsize=8)
    axes.set_ylim(len(kept) - 0.4, -0.6)
    if len(named) > 1:
        legend(axes)
    return figure


def _shown(row: dict[str, float | None], pooled: dict[str, float | None], *, regression: bool) -> list[float]:
    """Return estimate and ends of the interval as they are drawn; NaN where there is none."""
    if row["se"] is None:
        return [np.nan] * 3
    keys = ("estimate", "low", "high") if regression else ("odds_ratio", "odds_low", "odds_high")
    values = [np.nan if row[key] is None else float(row[key] or 0.0) for key in keys]
    return [value / (pooled["se"] or 1.0) for value in values] if regression else values
