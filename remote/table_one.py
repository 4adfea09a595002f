"""Table 1: rows, label and columns of every site's table and of all together, and what in it should worry somebody.

It is known before the first step: sites send its sums with those of the labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor

from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.common.spec.table_schema import Labelled
from rankdad.common.spec.tasks import Classification, Regression

GAPS = 0.2  # of a column's rows: more worry
APART = 0.8  # standardised mean difference; more is a large one
FEWEST = 10  # values of a column from which a site's can be told to lie elsewhere
EXPECTED = 5.0  # rows of a level, or class, that a site lacks: fewer are missing by chance
FACTOR = 5.0  # of means, and of deviations: other units, not another population
OUTLYING = 0.5  # deviation by mean and root of the rows: of one outlier 1, of four a half; units change neither
MAX_CELLS = 20_000  # sites · columns, beyond which only all sites together have columns
MAX_RATIO = 20.0  # logarithm of it: what is said of more
MAX_NAMED = 4  # columns in a sentence
OTHER = "any other"  # level of a categorical column for values that the schema does not list

Sums = Mapping[str, Tensor]
Group = dict[str, Any]


def table_one(spec: RunSpec, sums: Mapping[str, Sums]) -> dict[str, Any]:
    """Return Table 1 as JSON.

    Args:
        spec: of the run, whose data are a table.
        sums: of every site, as `common.preparation.description` makes them.

    Returns:
        `pooled` and `sites`, each with `rows`, how many `groups` they are of if the schema has some, `label` and
        `columns`; `warnings`, a sentence each; `worries`, the sites by kind of warning. A column of which a site's
        policy lets nothing out counts as missing there.
    """
    assert isinstance(spec.data, TableData)
    sites = {site: _group(spec, [own]) for site, own in sums.items()}
    pooled = _group(spec, list(sums.values()))
    found = list(_worries(spec, {site: group for site, group in sites.items() if group["rows"]}))
    kinds: dict[str, list[str]] = {}
    counts = pooled["label"].get("counts", ())
    absent = [outcome_names(spec)(place) for place, count in enumerate(counts) if not count]
    for kind, site, _ in found:
        kinds.setdefault(kind, []).append(site)
    if len(sites) * len(spec.data.inputs) > MAX_CELLS:
        for group in sites.values():
            group["columns"] = {}
    sentences = [f"no row of any site has {name}: can it be learned?" for name in absent]
    sentences += [sentence for _, _, sentence in found]
    kinds |= {"outcome-absent": list(sites)} if absent else {}
    return {"pooled": pooled, "sites": sites, "warnings": sentences, "worries": kinds}


def _group(spec: RunSpec, sums: list[Sums]) -> Group:
    """Return one column of Table 1: of a site, or of several together."""
    rows = sum(int(one["table-rows"]) for one in sums)
    if isinstance(spec.task, Regression):
        parts = [
            (float(one["table-rows"]), float(one["table-label"]), float(one["table-label-squares"])) for one in sums
        ]
        label: Group = {**_moments(parts)}
    else:
        label = {"counts": [int(count) for count in torch.stack([one["table-label"] for one in sums]).sum(0)]}
    groups = {"groups": sum(int(one["table-groups"]) for one in sums)} if spec.grouped else {}
    return {"rows": rows, **groups, "label": label, "columns": dict(_columns(spec, sums, rows))}


def _columns(spec: RunSpec, sums: list[Sums], rows: int) -> Iterator[tuple[str, Group]]:
    assert isinstance(spec.data, TableData)
    at = 0
    table = [
        list(zip(*(one[f"table-{name}"].tolist() for name in ("counts", "sums", "squares")), strict=True))
        for one in sums
    ]
    for column in spec.data.inputs:
        levels = spec.data.categorical.get(column, ())
        if spec.data.levels(column) > len(levels):
            levels = (*levels, OTHER)
        missing = rows - sum(int(one[at][0]) for one in table)
        if levels:
            counts = [sum(int(one[at + place][1]) for one in table) for place in range(len(levels))]
            yield column, {"missing": missing, "levels": dict(zip(levels, counts, strict=True))}
        else:
            unit = {"unit": unit} if (unit := _unit(spec.data, column)) else {}
            yield column, {"missing": missing, **unit, **_moments([one[at] for one in table])}
        at += (len(levels) or 1) + spec.data.is_indicated(column)


def _unit(data: TableData, column: str) -> str:
    """Return what a column's numbers are where the schema makes others of its cells."""
    date = data.dates.get(column)
    units = [f"{date.unit} since {date.since}"] if date else []
    return ", ".join(units + ["natural logarithm"] * data.is_logarithm(column))


def _moments(parts: list[tuple[float, float, float]]) -> dict[str, float | None]:
    """Return mean and standard deviation from the counts, sums and squares around their own means of several parts."""
    parts = [part for part in parts if part[0]]
    count = sum(number for number, *_ in parts)
    if not count:
        return {"mean": None, "sd": None}
    mean = math.fsum(total for _, total, _ in parts) / count
    squares = math.fsum(around + number * (total / number - mean) ** 2 for number, total, around in parts)
    sd = math.sqrt(squares / (count - 1)) if count > 1 else None
    return {"mean": _finite(mean), "sd": None if sd is None else _finite(sd)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _worries(spec: RunSpec, sites: Mapping[str, Group]) -> Iterator[tuple[str, str, str]]:
    """Yield what is odd about each site's table: its kind, the site, a sentence."""
    groups = list(sites.values())
    names = groups[0]["columns"] if groups else ()
    middles = {name: _middle([(group["rows"], group["columns"][name]) for group in groups]) for name in names}
    label = _middle_label(spec, groups)
    for site, own in sites.items():
        gaps: list[str] = []
        levels: list[str] = []
        units: list[str] = []
        apart: list[str] = []
        for name, column in own["columns"].items():
            share = column["missing"] / own["rows"]
            if share > GAPS:
                gaps.append(f"{name} ({column['missing']:,} of {own['rows']:,} rows, {100 * share:.1f} %)")
            present = own["rows"] - column["missing"]
            if "levels" in column:
                absent = list(_absent(name, present, column["levels"], middles[name]))
                levels += absent
                apart += [] if absent else _unlike(name, present, column["levels"], middles[name])
            elif odd := _moved(name, present, column, middles[name]):
                (units if odd[0] else apart).append(odd[1])
        if gaps:
            yield "gaps-over-20-percent", site, f"{site} lacks more than {100 * GAPS:.0f} % of {_listed(gaps)}"
        if levels:
            yield "levels-absent", site, f"{site} has no row with {_listed(levels)}"
        if units:
            yield (
                "other-units",
                site,
                f"{site} may have other units: {_listed(units)}; convert them in its table",
            )
        if apart:
            yield "shifted-columns", site, f"{site} differs much from the other sites: {_listed(apart)}"
        if sentence := _label(spec, own, label):
            yield "shifted-label", site, f"{site}: {sentence}"


def _middle(columns: list[tuple[int, Group]]) -> Group:
    """Return what a site's column is compared with: the median site's, which one odd site does not move.

    Args:
        columns: every site's rows and column.
    """
    first = columns[0][1]
    if "levels" in first:
        present = [(rows - column["missing"], column["levels"]) for rows, column in columns if rows > column["missing"]]
        shares = {level: [counts[level] / number for number, counts in present] for level in first["levels"]}
        return {
            "shares": {level: median(found) for level, found in shares.items() if found},
            "counts": {level: sum(counts[level] for _, counts in present) for level in first["levels"]},
            "present": sum(number for number, _ in present),
        }
    known = sorted(
        (column["mean"], column["sd"], n - column["missing"]) for n, column in columns if column["sd"] is not None
    )
    mean, sd, count = known[(len(known) - 1) // 2] if len(known) > 1 else (None, None, 0)
    return {"mean": mean, "sd": sd, "count": count}


def _absent(name: str, present: int, levels: Mapping[str, int], of_all: Group) -> Iterator[str]:
    """Yield the levels that a site lacks though the others make one expect some."""
    elsewhere = of_all["present"] - present
    for level, count in levels.items():
        share = of_all["counts"][level] / elsewhere if elsewhere else 0.0
        if not count and share * present >= EXPECTED:
            yield f"{name} = {level} ({100 * share:.0f} % of the other sites' rows)"


def _unlike(name: str, present: int, levels: Mapping[str, int], of_all: Group) -> Iterator[str]:
    """Yield the level whose share differs most from that of the median site, if it does much."""
    middle = of_all["shares"]
    gaps = {level: _distance(count / present, middle[level]) for level, count in levels.items() if present >= FEWEST}
    level = max(gaps, key=lambda one: gaps[one], default="")
    if gaps and gaps[level] > APART:
        share = levels[level] / present
        yield f"{name} = {level} in {100 * share:.0f} % of its rows, {100 * middle[level]:.0f} % at the median site"


def _distance(one: float, other: float) -> float:
    """Return the standardised difference of two shares."""
    spread = math.sqrt((one * (1 - one) + other * (1 - other)) / 2)
    return abs(one - other) / spread if spread else (math.inf if one != other else 0.0)


def _moved(name: str, present: int, own: Group, middle: Group) -> tuple[bool, str] | None:
    """Return whether a column's numbers are as if in other units, and how they differ; None if they do not much."""
    if own["sd"] is None or middle["sd"] is None or present < FEWEST:
        return None
    mean, sd = middle["mean"], middle["sd"]
    means = f"mean {_short(own['mean'])}, {_short(mean)} at the median site"
    ratios = _ratio(own["mean"], mean), _ratio(own["sd"], sd)
    if ratios[1] > math.log(FACTOR) and own["sd"] > OUTLYING * math.sqrt(present) * abs(own["mean"]):
        return False, f"{name} has a few numbers far from all others ({means})"
    if any(all(sign * ratio > math.log(FACTOR) for ratio in ratios) for sign in (-1, 1)):
        factor, more = math.exp(min(abs(ratios[0]), MAX_RATIO)), "larger" if ratios[0] > 0 else "smaller"
        return True, f"{name} is about {factor:,.0f} times {more} ({means})"
    spread, gap = math.sqrt((own["sd"] ** 2 + sd**2) / 2), abs(own["mean"] - mean)
    noise = 3 * spread * math.sqrt(1 / present + 1 / middle["count"])
    if gap > max(APART * spread, noise):
        return False, f"{name}, {means}" + (f", {gap / spread:.1f} standard deviations apart" if spread else "")
    return None


def _ratio(own: float, other: float) -> float:
    """Return the logarithm of how many times larger a number is; 0 where signs differ or one is 0."""
    return math.log(abs(own)) - math.log(abs(other)) if own and other and (own > 0) == (other > 0) else 0.0


def _middle_label(spec: RunSpec, groups: list[Group]) -> Group:
    if isinstance(spec.task, Regression):
        return _middle([(group["rows"], {"missing": 0, **group["label"]}) for group in groups]) if groups else {}
    shares = [[count / group["rows"] for count in group["label"]["counts"]] for group in groups]
    return {"shares": [median(found) for found in zip(*shares, strict=True)]}


def _label(spec: RunSpec, own: Group, middle: Group) -> str | None:
    """Return how a site's labels differ from those of the median site; None if not much."""
    if isinstance(spec.task, Regression):
        odd = _moved("the label", own["rows"], own["label"], middle)
        return odd and odd[1]
    named = outcome_names(spec)
    places = list(enumerate(zip(own["label"]["counts"], middle["shares"], strict=True)))
    for place, (count, there) in reversed(places):  # of two classes the second is what happens
        here = count / own["rows"]
        if (not count and there * own["rows"] >= EXPECTED) or (count and _distance(here, there) > APART):
            shares = f"in {100 * here:.0f} % of its rows, {100 * there:.0f} % at the median site"
            return f"{named(place)} {shares}: is the label the same?"
    return None


def outcome_names(spec: RunSpec) -> Callable[[int], str]:
    """Return what each class, or label, is called."""
    data, task = spec.data, spec.task
    if not isinstance(data, Labelled):
        return lambda place: f"class {place}" if isinstance(task, Classification) else f"label {place}"
    if isinstance(task, Classification):
        return lambda place: f"{data.targets[0]} = {data.values[place]}"
    return lambda place: data.targets[place]


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e5 else f"{value:.2e}"


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - MAX_NAMED:,} more columns" if len(found) > MAX_NAMED else ""
    return "; ".join(found[:MAX_NAMED]) + more
