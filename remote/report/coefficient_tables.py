"""Tables of a linear model's coefficients, pooled and by site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from rankdad.common.spec.data import TableData
from rankdad.common.spec.tasks import Regression
from rankdad.remote.report.metric_tables import NumberTable
from rankdad.remote.report.words import Sentence, count, listed, number, significant, span
from rankdad.remote.results.coefficients import (
    FAMILYWISE_ALPHA,
    INTERCEPT,
    SITE_SD,
    coefficient_name,
    opposite_coefficients,
    uncompared_sites,
)
from rankdad.remote.results.run_results import RunResults

MAX_ROWS = 60  # coefficients in a table; coefficients.csv has all
MAX_SITES = 6  # with separate columns
SMALL = 1e-3  # smallest p-value printed as a number
short = partial(significant, digits=4)

Fit = Mapping[str, Any]


def coefficient_table(run: RunResults) -> NumberTable | None:
    """Build the table of pooled coefficients; None if there are none."""
    fit: Fit = run.summary.coefficients.get("pooled", {})
    rows = fit.get("coefficients", ())[:MAX_ROWS]
    if not rows:
        return None
    odds = not isinstance(run.spec.task, Regression)
    tested = [fit["statistic"], *["df"] * _is_t(fit)]
    head = ["", "estimate", "SE", *tested, "p", "95 % interval", *["odds ratio (95 % interval)"] * odds]
    cells = []
    for row in rows:
        ratio = short(row.get("odds_ratio")) if row["name"] != INTERCEPT else ""
        if ratio and row.get("odds_low") is not None:
            ratio += f" ({span(row['odds_low'], row['odds_high'], short)})"
        figures = [short(row["estimate"]), short(row["se"]), number(row["statistic"], 2)]
        figures += [_freedom(fit, row)] * _is_t(fit)
        cells.append([coefficient_name(rows, row), *figures, p_value(row["p"]), _interval(row), *[ratio] * odds])
    return NumberTable(head, cells)


def reference_levels(run: RunResults) -> str:
    """Return the levels that others are compared with, as text; "" for none."""
    data = run.spec.data
    if not isinstance(data, TableData) or not data.categorical:
        return ""
    return f" ({listed([data.called(name, levels[0]) for name, levels in data.categorical.items()])})"


def site_coefficients(run: RunResults) -> NumberTable | None:
    """Build the table of site coefficients; None if no site disclosed any."""
    sites: Mapping[str, Fit] = run.summary.coefficients.get("sites", {})
    usable = {site: fit for site, fit in sites.items() if not fit["problem"]}
    pooled = run.summary.coefficients.get("pooled", {}).get("coefficients", ())[:MAX_ROWS]
    if not usable or not pooled:
        return None
    shown = dict(list(usable.items())[:MAX_SITES])
    cells = [
        [coefficient_name(pooled, row), *(cell for fit in shown.values() for cell in _at_site(fit, place))]
        for place, row in enumerate(pooled)
    ]
    sizes = [f"df {fit['freedom']:,}" if _is_t(fit) else count(fit["rows"], "row") for fit in shown.values()]
    last = [(f"R² {number(fit['r2'])}", size) for fit, size in zip(shown.values(), sizes, strict=True)]
    cells.append(["fit", *(cell for pair in last for cell in pair)])
    return NumberTable(["", *["estimate (SE)", "p"] * len(shown)], cells, [("", 1), *((site, 2) for site in shown)])


def displayed_coefficients(run: RunResults) -> dict[str, dict[str, str]]:
    """Describe each coefficient in a line, pooled and by site, for tables of two columns."""
    found = run.summary.coefficients
    fits = {"all sites": found.get("pooled"), **found.get("sites", {})}
    shown = {name: dict(_lines(run, fit)) for name, fit in fits.items() if fit and fit["coefficients"]}
    why = found["pooled"]["why"] if found else "the model is not linear, or was trained by steps"
    return shown or {"all sites": {"none": why}}


def _lines(run: RunResults, fit: Fit) -> Iterator[tuple[str, str]]:
    rows, regression = fit["coefficients"][:MAX_ROWS], isinstance(run.spec.task, Regression)
    for row in rows:
        line = short(row["estimate"])
        if row["se"] is not None:
            size = f", df {fit['freedom']:,}" if _is_t(fit) else ""
            tested = f"{fit['statistic']} {number(row['statistic'], 2)}{size}, p {p_value(row['p'])}"
            line += f" (SE {short(row['se'])}; {_interval(row)}); {tested}"
            if not regression:
                line += f"; odds ratio {short(row['odds_ratio'])}"
        yield coefficient_name(rows, row), line
    units = f", in units of one {fit['units']}" * (fit["units"] == SITE_SD)
    yield "fit", fit["why"] or f"{fit['rows']:,} rows, R² {number(fit['r2'])}{units}"


def coefficient_notes(run: RunResults) -> Iterator[str]:
    """Yield notes on the coefficients: source, units, and why errors or site fits are missing."""
    found = run.summary.coefficients
    if not found:
        return
    pooled, spec = found["pooled"], run.spec
    whose = "Least squares" if isinstance(spec.task, Regression) else "The maximum of the likelihood"
    r2 = "R²" if isinstance(spec.task, Regression) else "McFadden's R²"
    site_sd = pooled["units"] == SITE_SD
    units = "standard deviations of each hospital's own rows" if site_sd else "the columns' own units"
    if not pooled["coefficients"]:
        yield f"There are no coefficients, because {pooled['why']}."
    elif why := pooled["why"]:
        yield (
            f"There are no standard errors, because {why}. The estimates are the penalised weights of the prediction "
            f"model, in {units}."
        )
    else:
        rows = count(pooled["rows"], "row")
        yield (
            f"{whose} over {rows} of all hospitals, in {units}, without a penalty; the prediction model has one. {r2} "
            f"{number(pooled['r2'])}. Standard errors treat imputed values as observed."
        )
        yield "No coefficient is adjusted for the hospital: a difference between hospitals may be part of it."
    if spec.grouped and not pooled["why"]:
        yield f"Standard errors treat rows as independent, even those of one {spec.group_noun}: they are too small."
    if site_sd and pooled["coefficients"]:
        yield "Every hospital standardises by itself: coefficients are per SD of that hospital, not per unit."
    if still := [
        coefficient_name(pooled["coefficients"], row) for row in pooled["coefficients"] if row["estimate"] is None
    ]:
        where = "as for a level without rows, or with so few that they count as the usual one (min_level)"
        yield f"Constant in all rows, {where}, and therefore without a coefficient: {listed(still)}."
    yield from (sentence.text for sentence in opposite_effects(run))
    silent = [site for site in spec.federation.sites if site not in found["sites"]]
    unfit = [site for site, fit in found["sites"].items() if fit["problem"]]
    if silent:
        yield f"Not by hospital, for too few patients, too few behind the fit, or by its policy: {listed(silent)}."
    if unfit:
        each = [f"{site} ({found['sites'][site]['problem']})" for site in unfit]
        yield (
            f"No usable fit at: {listed(each)}. Collinear: columns follow from others, or a level has no row there. "
            "Separated: columns separate the classes, or a class has no row there."
        )
    if uncompared_sites(found, spec.federation.sites)[1]:
        yield (
            "A hospital's own fit omits columns that follow from others there, levels without rows, and columns that "
            "separate the classes, such as a level with rows of one class only. Rows of an omitted level count as the "
            "first level's."
        )
    if len(pooled["coefficients"]) > MAX_ROWS or len(found["sites"]) > MAX_SITES:
        yield "All coefficients, of all hospitals, are in coefficients.csv."


def opposite_effects(run: RunResults) -> Iterator[Sentence]:
    """Yield the columns with opposite effects at different hospitals, and the hospitals that cannot be compared."""
    found, looked_at = opposite_coefficients(run.summary.coefficients)
    if found:
        each = [
            f"{name} ({listed([f'{short(estimate)} at {site}' for site, estimate in estimates.items()])})"
            for name, estimates in found.items()
        ]
        yield Sentence(
            "opposite-effects",
            f"Effects are opposite between hospitals, while the shared model has a single one: {listed(each)}. The p "
            f"of each coefficient, times the {looked_at} that were tested, is below {FAMILYWISE_ALPHA:g}.",
        )
    none, lacking = uncompared_sites(run.summary.coefficients, run.spec.federation.sites)
    if none or lacking:
        where = [*none, *(f"{site} ({listed(names)})" for site, names in lacking.items())]
        yield Sentence(
            "effects-not-compared",
            f"Whether effects are opposite is unknown at {listed(where)}: it has no such coefficients of its own.",
        )


def p_value(value: float | None) -> str:
    """Format a p-value."""
    return "–" if value is None else f"< {SMALL:g}" if value < SMALL else number(value)


def _is_t(fit: Fit) -> bool:
    """Return whether the test is of t, which has degrees of freedom; z has none."""
    return bool(fit["statistic"] == "t")


def _freedom(fit: Fit, row: Mapping[str, Any]) -> str:
    return "–" if row["se"] is None else f"{fit['freedom']:,}"


def _interval(row: Mapping[str, Any]) -> str:
    return "–" if row["low"] is None else span(row["low"], row["high"], short)


def _at_site(fit: Fit, place: int) -> tuple[str, str]:
    row = fit["coefficients"][place]
    return ("–", "–") if row["se"] is None else (f"{short(row['estimate'])} ({short(row['se'])})", p_value(row["p"]))
