"""Coefficients of a linear model as JSON and as a table, pooled and by site."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import mpmath

from rankdad.common.errors import listed
from rankdad.common.preparation.coefficients import FEWEST, Coding, Coefficients
from rankdad.common.preparation.layout import input_names
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.common.spec.tasks import Classification, Regression
from rankdad.common.spec.written import Tabular
from rankdad.remote.results.table_one import figure, outcome_names

Fit = dict[str, Any]
POOLED = "all sites"
MAX_NAMED = 6  # columns in a sentence
INTERCEPT = "intercept"
FAMILYWISE_ALPHA = 0.05  # chance of naming any opposite effect where there is none
FIT_COLUMNS = {"df": "freedom", "rows": "rows", "r2": "r2", "units": "units", "problem": "problem"}  # column: field
SITE_SD = "site SD"  # unit of inputs that each site standardises by itself


def as_json(spec: RunSpec, found: Coefficients, *, own: bool = False) -> Fit:
    """Convert a fit's coefficients to JSON; missing figures become null.

    Args:
        spec: the run.
        found: the fit.
        own: whether the rows are one site's own.

    Returns:
        `rows`, `freedom`, `r2`, `statistic` (t or z), `units` (`own` for the columns' units, or `site SD`), `why`
        (the reason for missing standard errors, or "") and `coefficients`. Each coefficient has the outcome's `line`,
        the column's `name` and optional `caption`, `estimate`, `se`, `statistic`, `p`, the 95 % interval `low` to
        `high`, and for classes the `odds_ratio` with its interval. Impossible sums give no coefficients.
    """
    regression = isinstance(spec.task, Regression)
    names, captions = [INTERCEPT, *_names(spec, found.estimates.shape[1] - 1)], _captions(spec)
    critical = _critical(found.freedom) if regression else NormalDist().inv_cdf(0.975)
    kept = ~Coding.of(spec).fixed
    rows = []
    for line, outcome in enumerate(_outcome_labels(spec, len(found.estimates))):
        for place, name in enumerate(names):
            if not kept[line, place] or found.problem in ("impossible-sums", "unsolved"):
                continue
            estimate, error = float(found.estimates[line, place]), float(found.errors[line, place])
            named = {"line": outcome, "name": name} | ({"caption": captions[name]} if name in captions else {})
            rows.append(named | _statistics(estimate, error, found.freedom, critical, regression))
    return {
        "rows": found.rows,
        "freedom": found.freedom,
        "r2": figure(found.determination),
        "statistic": "t" if regression else "z",
        "units": SITE_SD if spec.preparation.standardise == "site" else "own",
        "problem": found.problem,
        "why": _missing_errors_reason(found, names, own=own),
        "coefficients": rows,
    }


def as_table(coefficients: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Build the rows of `coefficients.csv`: the pooled fit first, then each disclosed site fit."""
    return [
        {"site": site, **row, **{name: fit[field] for name, field in FIT_COLUMNS.items()}}
        for site, fit in [(POOLED, coefficients.get("pooled")), *coefficients.get("sites", {}).items()]
        if fit
        for row in ({key: value for key, value in one.items() if key != "caption"} for one in fit["coefficients"])
    ]


def coefficient_name(rows: Any, row: Mapping[str, Any]) -> str:
    """Label a coefficient by its caption or column, preceded by the outcome if there are several."""
    several, name = len({one["line"] for one in rows}) > 1, str(row.get("caption", row["name"]))
    return f"{row['line']}: {name}" if several else name


def opposite_coefficients(coefficients: Mapping[str, Any]) -> tuple[dict[str, dict[str, float]], int]:
    """Find columns with significantly opposite effects at different sites.

    Returns:
        Estimates by column and site, and the number of coefficients tested (Bonferroni).
    """
    fits = {site: fit["coefficients"] for site, fit in coefficients.get("sites", {}).items()}
    tested = [
        (place, site, row)
        for site, rows in fits.items()
        for place, row in enumerate(rows)
        if row["p"] is not None and row["name"] != INTERCEPT
    ]
    significant = [one for one in tested if one[2]["p"] * len(tested) < FAMILYWISE_ALPHA]
    found = dict[str, dict[str, float]]()
    for place in sorted({place for place, _, _ in significant}):
        estimates = {site: float(row["estimate"]) for at, site, row in significant if at == place}
        if len({estimate > 0 for estimate in estimates.values()}) > 1:
            rows = next(iter(fits.values()))
            found[coefficient_name(rows, rows[place])] = estimates
    return found, len(tested)


def uncompared_sites(coefficients: Mapping[str, Any], sites: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Find the sites without a usable fit of their own, and the columns that other sites' fits lack.

    Args:
        coefficients: a run's; empty without a linear model.
        sites: all sites of the run.
    """
    own, pooled = coefficients.get("sites", {}), coefficients.get("pooled", {}).get("coefficients", ())
    if not pooled or len(sites) < 2:
        return [], {}
    none = [site for site in sites if site not in own or own[site]["problem"]]
    known = [place for place, row in enumerate(pooled) if row["estimate"] is not None and row["name"] != INTERCEPT]
    lacking = {
        site: [
            coefficient_name(pooled, pooled[place]) for place in known if own[site]["coefficients"][place]["se"] is None
        ]
        for site in sites
        if site not in none
    }
    return none, {site: names for site, names in lacking.items() if names}


def _statistics(
    estimate: float, error: float, freedom: int, critical: float, regression: bool
) -> dict[str, float | None]:
    statistic = estimate / error if error > 0 else math.nan
    p = _two_sided_t(statistic, freedom) if regression else math.erfc(abs(statistic) / math.sqrt(2))
    low, high = estimate - critical * error, estimate + critical * error
    figures = {"estimate": estimate, "se": error, "statistic": statistic, "p": p, "low": low, "high": high}
    if not regression:
        figures |= {"odds_ratio": _exp(estimate), "odds_low": _exp(low), "odds_high": _exp(high)}
    return {name: figure(value) for name, value in figures.items()}


def _two_sided_t(statistic: float, freedom: int) -> float:
    """Compute P(|T| > t) by the regularised incomplete beta function; NaN for NaN."""
    if math.isnan(statistic) or freedom < 1:
        return math.nan
    return float(mpmath.betainc(freedom / 2, 0.5, 0, freedom / (freedom + statistic * statistic), regularized=True))


def _critical(freedom: int) -> float:
    """Compute the 97.5 % quantile of t; NaN without degrees of freedom."""
    if freedom < 1:
        return math.nan
    return float(mpmath.findroot(lambda t: _two_sided_t(float(t), freedom) - 0.05, (1.9, 13), solver="illinois"))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _names(spec: RunSpec, inputs: int) -> list[str]:
    return input_names(spec) or [f"input {place + 1}" for place in range(inputs)]


def _captions(spec: RunSpec) -> dict[str, str]:
    """Map names of inputs to their captions, for inputs that have one; a logarithm is named as such."""
    data, found = spec.data, dict[str, str]()
    if not isinstance(data, TableData):
        return found
    for column, levels in data.levels_by_column.items() if data.captions else ():
        found |= {f"{column}={level}": data.called(column, level) for level in levels}
        found |= {column: data.called(column), f"{column} is missing": f"{data.called(column)} is missing"}
    logarithms = filter(data.is_logarithm, data.features)
    return found | {column: f"ln({data.called(column)})" for column in logarithms}


def _outcome_labels(spec: RunSpec, count: int) -> Iterator[str]:
    """Yield the label of each linear function: the outcome whose odds it raises, or the predicted number's name."""
    if isinstance(spec.task, Regression):
        yield spec.data.called(str(spec.data.label)) if isinstance(spec.data, Tabular) else "number"
        return
    named, first = outcome_names(spec), isinstance(spec.task, Classification) and count == 1
    for place in range(count):
        yield named(place + first)


def _missing_errors_reason(found: Coefficients, names: list[str], *, own: bool) -> str:
    """Explain in a clause why standard errors are missing; "" if they are not."""
    if found.problem == "few-patients":
        return f"there are fewer than {FEWEST} patients, or rows, for each column"
    if found.problem == "separated":
        apart = "the columns separate the classes completely, or nearly, so that the likelihood has no maximum"
        return apart + ", or a class has no row" * own
    if found.problem == "held-back":
        return (
            "at a hospital, fewer patients than its policy's min_rows contribute most of a required sum: it is "
            "small, the columns nearly tell the classes apart, or a column has a few extreme values, which log or clip "
            "may mend; "
            "the estimates are the model's own, with its penalty"
        )
    if found.problem == "unsolved":
        return (
            "the exact solution did not converge: a hospital, usually a small one, withholds sums of fewer patients "
            "than its policy's min_rows"
        )
    if found.problem == "no-class":
        return "a class, or a label, has no row"
    if found.problem == "impossible-sums":
        return "R² is not between 0 and 1: the label does not vary, or a site's sums do not match its rows"
    which = f": {listed([names[place] for place in found.collinear], MAX_NAMED)}" if found.collinear else ""
    if found.problem == "no-level":
        return f"no row has the reference level{which}"
    if found.problem == "collinear":
        return f"some columns follow from others{which}" + ", or a level has no row" * own
    return ""
