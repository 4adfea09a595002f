"""Table 1 on a page: the pooled study, and each site or, for many sites, their range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rankdad.common.preparation.description import COUNTED
from rankdad.common.spec.tasks import Regression
from rankdad.common.spec.written import Tabular
from rankdad.remote.report.metric_tables import NumberTable
from rankdad.remote.report.words import number, percent, significant
from rankdad.remote.results.run_results import RunResults
from rankdad.remote.results.table_one import outcome_names

MAX_SITES = 6  # with separate columns
HELD_BACK = "held back"
MAX_ROWS = 40  # columns of the data; beyond it, those with most missing

Group = dict[str, Any]


def table_one(run: RunResults) -> NumberTable | None:
    """Build Table 1; None without tabular data."""
    table1 = run.summary.table1
    if not table1:
        return None
    pooled, sites = table1["pooled"], table1["sites"]
    if len(sites) <= MAX_SITES and all(group["columns"] for group in sites.values()):
        groups = {"all hospitals": pooled, **sites}
        rows = [[name, *cells] for name, *cells in _rows(run, list(groups.values()))]
        return NumberTable(["", *groups], rows)
    rows = [[name, cell, missing] for (name, cell), missing in zip(_rows(run, [pooled]), _worst(run), strict=True)]
    return NumberTable(["", "all hospitals", "most missing at a hospital"], rows)


def left_out(run: RunResults) -> int:
    """Return the number of columns of the data that Table 1 omits."""
    columns = run.summary.table1.get("pooled", {}).get("columns", {})
    return max(0, len(columns) - MAX_ROWS)


def _shown(run: RunResults) -> dict[str, str]:
    """Return the labels of the shown columns, in the data's order."""
    columns = run.summary.table1["pooled"]["columns"]
    chosen = set(sorted(columns, key=lambda name: -columns[name]["missing"])[:MAX_ROWS])
    return {name: _called(run, name) for name in columns if name in chosen}


def _called(run: RunResults, column: str, level: str | None = None) -> str:
    assert isinstance(run.spec.data, Tabular)
    return run.spec.data.called(column, level)


def _rows(run: RunResults, groups: list[Group]) -> Iterator[list[str]]:
    """Yield rows, each its name and a cell for every group."""
    if all("groups" in group for group in groups):
        yield [f"{run.spec.group_noun}s", *(f"{group['groups']:,}" for group in groups)]
    yield ["rows", *(f"{group['rows']:,}" for group in groups)]
    if isinstance(run.spec.task, Regression):
        label = run.spec.data.called(run.spec.data.targets[0]) if isinstance(run.spec.data, Tabular) else "label"
        yield [f"{label}, mean ± SD", *(_moments(group["label"]) for group in groups)]
    else:
        named, counts = outcome_names(run.spec), [group["label"]["counts"] for group in groups]
        first = 1 if run.spec.task.name == "classification" and len(counts[0]) == 2 else 0
        for place in range(first, len(counts[0])):
            yield [named(place), *(_share(group["label"]["counts"][place], group["rows"]) for group in groups)]
    for column_name, name in _shown(run).items():
        columns = [group["columns"][column_name] for group in groups]
        if "levels" in columns[0]:
            for level in columns[0]["levels"]:
                yield [_called(run, column_name, level), *(_level(column, level) for column in columns)]
        else:
            unit = f" ({columns[0]['unit']})" if "unit" in columns[0] else ""
            yield [f"{name}{unit}, mean ± SD", *map(_moments, columns)]
        if any(column["missing"] or "held_back" in column for column in columns):
            more = (COUNTED - 1) * len(run.summary.table1.get("rounded", ()))  # at most, of all hospitals together
            missing = [
                _missing(column, group["rows"], more * (group is run.summary.table1["pooled"]))
                for column, group in zip(columns, groups, strict=True)
            ]
            yield [f"{name} missing", *missing]


def _worst(run: RunResults) -> Iterator[str]:
    """Yield, beside each pooled row, the site with most missing."""
    pooled, sites = run.summary.table1["pooled"], run.summary.table1["sites"]
    known = {site: group for site, group in sites.items() if group["rows"] and group["columns"]}
    columns = {f"{called} missing": column for column, called in _shown(run).items()}
    for name, *_ in _rows(run, [pooled]):
        column = columns.get(name)
        if column is None or not known:
            yield ""
            continue
        shares = {site: group["columns"][column]["missing"] / group["rows"] for site, group in known.items()}
        site = max(shares, key=lambda one: shares[one])
        more = "held_back" in known[site]["columns"][column]
        yield f"{percent(shares[site])}{' or more' * more} ({site})" if shares[site] or not more else HELD_BACK


def _missing(column: Group, rows: int, more: int) -> str:
    """Format the number of rows without a value, as far as policies disclose it.

    Args:
        column: of a hospital, or of all.
        rows: in all.
        more: rows by which rounded counts may be too small together.
    """
    count = column["missing"]
    if "held_back" in column:
        return f"{count:,} or more" if count else HELD_BACK
    if not more or count >= rows:
        return _share(count, rows)
    most = min(count + more, rows)
    return f"{count:,} to {most:,} ({percent(count / rows)} to {percent(most / rows)})"


def _level(column: Group, level: str) -> str:
    """Format the number of rows with a level, as far as policies disclose it."""
    count, hidden = column["levels"][level], column.get("levels_held_back", ())
    if not hidden:
        return _share(count, sum(column["levels"].values()))
    if level not in hidden:
        return f"{count:,}"
    return f"{count:,} or more" if count else HELD_BACK


def _moments(found: Group) -> str:
    if found.get("mean") is None:
        return "–"
    return _figure(found["mean"]) + (f" ± {_figure(found['sd'])}" if found["sd"] is not None else "")


def _figure(value: float) -> str:
    size = abs(value)
    return number(value, 0) if size >= 1000 else number(value, 1) if size >= 10 else significant(value)


def _share(count: int, whole: int) -> str:
    return f"{count:,} ({percent(count / whole)})" if whole else "–"
