"""Coefficients of a linear model as JSON and as a table: of all sites' rows, and of each site's own."""

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
SURE = 0.05  # of opposite effects: how often any at all may be named by chance
OF_A_FIT = {"df": "freedom", "rows": "rows", "r2": "r2", "units": "units", "problem": "problem"}  # columns, fields
SITE_SD = "site SD"  # units of inputs that every site standardises by itself


def as_json(spec: RunSpec, found: Coefficients, *, own: bool = False) -> Fit:
    """Return a fit's coefficients as JSON: a figure that there is none of is null.

    Args:
        spec: of the run.
        found: the fit.
        own: whether it is of one site's rows, which does not tell what it lacks.

    Returns:
        `rows`, `freedom`, `r2`, `statistic` (t or z), `units` (the columns' own, or each site's SD), `why` there are no
        standard errors, "" where there are, and `coefficients`, none of sums that no rows add up to: of each the
        outcome's `line`, the column's `name` and `caption` if it has one, `estimate`, `se`, `statistic`, `p`, the ends
        `low` and `high` of its 95 % interval, and of classes the `odds_ratio` with its own.
    """
    regression = isinstance(spec.task, Regression)
    names, captions = [INTERCEPT, *_names(spec, found.estimates.shape[1] - 1)], _captions(spec)
    critical = _critical(found.freedom) if regression else NormalDist().inv_cdf(0.975)
    kept = ~Coding.of(spec).fixed
    rows = []
    for line, outcome in enumerate(_lines(spec, len(found.estimates))):
        for place, name in enumerate(names):
            if not kept[line, place] or found.problem in ("impossible-sums", "unsolved"):
                continue
            estimate, error = float(found.estimates[line, place]), float(found.errors[line, place])
            named = {"line": outcome, "name": name} | ({"caption": captions[name]} if name in captions else {})
            rows.append(named | _figures(estimate, error, found.freedom, critical, regression))
    return {
        "rows": found.rows,
        "freedom": found.freedom,
        "r2": figure(found.determination),
        "statistic": "t" if regression else "z",
        "units": SITE_SD if spec.preparation.standardise == "site" else "own",
        "problem": found.problem,
        "why": _why(found, names, own=own),
        "coefficients": rows,
    }


def as_table(coefficients: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of `coefficients.csv`: those of all sites, then those of each site that tells its own."""
    return [
        {"site": site, **row, **{name: fit[field] for name, field in OF_A_FIT.items()}}
        for site, fit in [(POOLED, coefficients.get("pooled")), *coefficients.get("sites", {}).items()]
        if fit
        for row in ({key: value for key, value in one.items() if key != "caption"} for one in fit["coefficients"])
    ]


def name_of(rows: Any, row: Mapping[str, Any]) -> str:
    """Return what a coefficient is called: with its outcome where there are several."""
    several, name = len({one["line"] for one in rows}) > 1, str(row.get("caption", row["name"]))
    return f"{row['line']}: {name}" if several else name


def opposite(coefficients: Mapping[str, Any]) -> tuple[dict[str, dict[str, float]], int]:
    """Return the columns that raise the outcome at one site and lower it at another, each beyond doubt.

    Returns:
        Estimates by column and site, and how many coefficients were looked at.
    """
    fits = {site: fit["coefficients"] for site, fit in coefficients.get("sites", {}).items()}
    told = [
        (place, site, row)
        for site, rows in fits.items()
        for place, row in enumerate(rows)
        if row["p"] is not None and row["name"] != INTERCEPT
    ]
    sure = [one for one in told if one[2]["p"] * len(told) < SURE]  # Bonferroni
    found = dict[str, dict[str, float]]()
    for place in sorted({place for place, _, _ in sure}):
        estimates = {site: float(row["estimate"]) for at, site, row in sure if at == place}
        if len({estimate > 0 for estimate in estimates.values()}) > 1:
            rows = next(iter(fits.values()))
            found[name_of(rows, rows[place])] = estimates
    return found, len(told)


def not_compared(coefficients: Mapping[str, Any], sites: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the sites without coefficients of their own rows, and the columns that others have none of there, by site.

    Args:
        coefficients: of a run; without any nothing was to be compared.
        sites: all of the run.
    """
    own, pooled = coefficients.get("sites", {}), coefficients.get("pooled", {}).get("coefficients", ())
    if not pooled or len(sites) < 2:
        return [], {}
    none = [site for site in sites if site not in own or own[site]["problem"]]
    known = [place for place, row in enumerate(pooled) if row["estimate"] is not None and row["name"] != INTERCEPT]
    lacking = {
        site: [name_of(pooled, pooled[place]) for place in known if own[site]["coefficients"][place]["se"] is None]
        for site in sites
        if site not in none
    }
    return none, {site: names for site, names in lacking.items() if names}


def _figures(estimate: float, error: float, freedom: int, critical: float, regression: bool) -> dict[str, float | None]:
    statistic = estimate / error if error > 0 else math.nan
    p = _two_sided_t(statistic, freedom) if regression else math.erfc(abs(statistic) / math.sqrt(2))
    low, high = estimate - critical * error, estimate + critical * error
    figures = {"estimate": estimate, "se": error, "statistic": statistic, "p": p, "low": low, "high": high}
    if not regression:
        figures |= {"odds_ratio": _exp(estimate), "odds_low": _exp(low), "odds_high": _exp(high)}
    return {name: figure(value) for name, value in figures.items()}


def _two_sided_t(statistic: float, freedom: int) -> float:
    """Return the probability of a larger t, by the regularised incomplete beta function; NaN for NaN."""
    if math.isnan(statistic) or freedom < 1:
        return math.nan
    return float(mpmath.betainc(freedom / 2, 0.5, 0, freedom / (freedom + statistic * statistic), regularized=True))


def _critical(freedom: int) -> float:
    """Return the t that 2.5 % exceed; NaN without degrees of freedom."""
    if freedom < 1:
        return math.nan
    return float(mpmath.findroot(lambda t: _two_sided_t(float(t), freedom) - 0.05, (1.9, 13), solver="illinois"))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _names(spec: RunSpec, inputs: int) -> list[str]:
    return input_names(spec) or [f"input {place + 1}" for place in range(inputs)]


def _captions(spec: RunSpec) -> dict[str, str]:
    """Return what a report calls those inputs that have a caption, by their names."""
    data, found = spec.data, dict[str, str]()
    if not isinstance(data, TableData) or not data.captions:
        return found
    for column, levels in data.levels_by_column.items():
        found |= {f"{column}={level}": data.called(column, level) for level in levels}
        found |= {column: data.called(column), f"{column} is missing": f"{data.called(column)} is missing"}
    return found


def _lines(spec: RunSpec, count: int) -> Iterator[str]:
    """Yield what each linear function is of: the outcome that it raises the odds of, or the number's name."""
    if isinstance(spec.task, Regression):
        yield spec.data.called(str(spec.data.label)) if isinstance(spec.data, Tabular) else "number"
        return
    named, first = outcome_names(spec), isinstance(spec.task, Classification) and count == 1
    for place in range(count):
        yield named(place + first)


def _why(found: Coefficients, names: list[str], *, own: bool) -> str:
    """Return why there are no standard errors, as a clause; "" where there are."""
    if found.problem == "few-patients":
        return f"there are fewer than {FEWEST} patients, or rows, for each column"
    if found.problem == "separated":
        apart = "the columns tell the classes apart without a mistake, or nearly, and the largest likelihood is nowhere"
        return apart + ", or a class has no row" * own
    if found.problem == "held-back":
        return (
            "at a hospital, fewer patients than its policy's min_rows make up most of a sum that they need: it is "
            "small, the columns nearly tell the classes apart, or a column has a few extreme values, which log or clip "
            "may mend; "
            "the estimates are the model's own, with its penalty"
        )
    if found.problem == "unsolved":
        return (
            "the rounds of the exact solution have not come to it: a hospital keeps back sums that fewer of its "
            "patients are behind than its policy's min_rows, as a small one does"
        )
    if found.problem == "no-class":
        return "a class, or a label, has no row"
    if found.problem == "impossible-sums":
        return "R² is no number from 0 to 1: the label does not vary, or a site's sums are not those of its rows"
    which = f": {listed([names[place] for place in found.collinear], MAX_NAMED)}" if found.collinear else ""
    if found.problem == "no-level":
        return f"no row has the level that others are compared with{which}"
    if found.problem == "collinear":
        return f"some columns follow from others{which}" + ", or a level has no row" * own
    return ""
