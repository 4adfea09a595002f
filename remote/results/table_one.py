"""Table 1: rows, label and columns by site and pooled, with warnings. It is known before the first step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from statistics import median
from typing import Any

import torch
from torch import Tensor

from rankdad.common.policy import Policy
from rankdad.common.preparation.description import COUNTED
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.common.spec.tasks import Classification, Regression
from rankdad.common.spec.written import Tabular

GAPS = 0.2  # missing share of a column's rows; more gives a warning
LARGE_DIFFERENCE = 0.8  # standardised difference
FEWEST = 10  # values of a site's column that a warning about a shift requires
EXPECTED = 5.0  # expected rows of an absent level or class that give a warning
FACTOR = 5.0  # ratio of means and of SDs that suggests other units
OUTLYING = 0.5  # SD / (mean · √rows): 1 for one outlier, 1/2 for four, in any unit
MOST_FEW = Policy().min_rows - 1  # most rows without a value that the default policy hides
MAX_CELLS = 20_000  # sites · columns; beyond it only the pooled table has columns
MAX_RATIO = 20.0  # largest logarithm of a ratio in a sentence
MAX_NAMED = 4  # columns in a sentence
OTHER = "any other"  # level of a categorical column for values that the schema does not list

Sums = Mapping[str, Tensor]
Group = dict[str, Any]


def table_one(spec: RunSpec, sums: Mapping[str, Sums]) -> dict[str, Any]:
    """Return Table 1 as JSON.

    Args:
        spec: a run with tabular data.
        sums: sums by site from `common.preparation.description`.

    Returns:
        `pooled` and `sites`, each with `rows`, `groups` (their number, if the schema has groups), `label` and
        `columns`; `rounded`, the sites whose counts look rounded; `warnings`, a sentence each; `worries`, the sites by
        kind of warning. For a `held_back` column, `missing` is a lower bound, as a policy hides the exact count; so are
        counts of `levels_held_back`.
    """
    assert isinstance(spec.data, TableData)
    sites = {site: _group(spec, [own]) for site, own in sums.items()}
    pooled = _group(spec, list(sums.values()))
    found = list(_findings(spec, {site: group for site, group in sites.items() if group["rows"]}))
    for group in (pooled, *sites.values()):
        for column in group["columns"].values():
            del column["values"], column["hidden"]  # they would reveal the missing count
    kinds: dict[str, list[str]] = {}
    counts = pooled["label"].get("counts", ())
    absent = [outcome_names(spec)(place) for place, count in enumerate(counts) if not count]
    for kind, named, _ in found:
        kinds[kind] = list(dict.fromkeys([*kinds.get(kind, []), *named]))
    sentences = [f"no row of any hospital has {name}: can it be learned?" for name in absent]
    sentences += [sentence for _, _, sentence in found]
    kinds |= {"outcome-absent": list(sites)} if absent else {}
    rounded = [site for site, group in sites.items() if group["rows"] and _is_rounded(group)]
    if len(sites) * len(spec.data.inputs) > MAX_CELLS:
        for group in sites.values():
            group["columns"] = {}
    return {"pooled": pooled, "sites": sites, "rounded": rounded, "warnings": sentences, "worries": kinds}


def _group(spec: RunSpec, sums: list[Sums]) -> Group:
    """Build one column of Table 1, for a site or several together."""
    rows = sum(int(one["table-rows"]) for one in sums)
    if isinstance(spec.task, Regression):
        parts = [
            (float(one["table-rows"]), float(one["table-label"]), float(one["table-label-squares"])) for one in sums
        ]
        label: Group = {**_moments(parts)}
    else:
        label = {"counts": [int(count) for count in torch.stack([one["table-label"] for one in sums]).sum(0)]}
    groups = {"groups": sum(int(one["table-groups"]) for one in sums)} if spec.grouped else {}
    return {"rows": rows, **groups, "label": label, "columns": dict(_columns(spec, sums))}


def _columns(spec: RunSpec, sums: list[Sums]) -> Iterator[tuple[str, Group]]:
    assert isinstance(spec.data, TableData)
    fields = ("counts", "sums", "squares", "held", "few")
    table = [list(zip(*(one[f"table-{name}"].tolist() for name in fields), strict=True)) for one in sums]
    for here in spec.data.places:
        column, at, named = here.column, here.first, spec.data.categorical.get(here.column, ())
        levels = (*named, OTHER) if here.levels > len(named) else named
        places = range(at, here.values.stop)
        few = [any(one[place][4] for place in places) for one in table]  # hidden missing counts
        missing = sum(
            int(own["table-rows"]) - int(one[at][0]) - int(one[at][3])
            for own, one, hidden in zip(sums, table, few, strict=True)
            if not hidden
        )
        found: Group = {"missing": missing}
        if any(few) or any(one[at][3] for one in table):
            found["held_back"] = True
        found["values"] = sum(int(one[at][0]) for one in table)
        found["hidden"] = sum(int(one[at][3]) for one in table) + MOST_FEW * sum(few)
        if levels:
            shown = [[0 if one[place][4] else int(one[place][1]) for place in places] for one in table]
            found["levels"] = dict(zip(levels, map(sum, zip(*shown, strict=True)), strict=True))
            hidden = [level for level, place in zip(levels, places, strict=True) if any(one[place][4] for one in table)]
            found |= {"levels_held_back": hidden} if hidden else {}
        else:
            found |= {"unit": unit} if (unit := _unit(spec.data, column)) else {}
            found |= _moments([one[at][:3] for one in table])
        yield column, found


def _unit(data: TableData, column: str) -> str:
    """Return the unit of a column that the schema converts."""
    date = data.dates.get(column)
    units = [f"{date.unit} since {date.since}"] if date else []
    return ", ".join(units + ["natural logarithm"] * data.is_logarithm(column))


def _moments(parts: list[tuple[float, float, float]]) -> dict[str, float | None]:
    """Combine counts, sums and sums of squares around each part's own mean into mean and SD."""
    parts = [part for part in parts if part[0]]
    count = sum(number for number, *_ in parts)
    if not count:
        return {"mean": None, "sd": None}
    mean = math.fsum(total for _, total, _ in parts) / count
    squares = math.fsum(around + number * (total / number - mean) ** 2 for number, total, around in parts)
    sd = math.sqrt(squares / (count - 1)) if count > 1 else None
    return {"mean": figure(mean), "sd": None if sd is None else figure(sd)}


def figure(value: float) -> float | None:
    """Return the value, or None (null in JSON) if it is not finite."""
    return value if math.isfinite(value) else None


Finding = tuple[str, tuple[str, ...], str]  # kind, sites, sentence
SENTENCES = {
    "gaps-over-20-percent": f"{{}} lacks more than {100 * GAPS:.0f} % of {{}}",
    "gaps-held-back": f"{{}} does not disclose whether it lacks more than {100 * GAPS:.0f} % of {{}}: too few rows "
    "have a value, or lack one, for its policy",
    "levels-absent": "{} has no row with {}",
    "other-units": "{} may have other units: {}; convert them in its table",
    "shifted-columns": "{} differs much from the other hospitals: {}",
    "shifted-label": "{}: {}: is the label the same?",
    "same-tables": "{} have the same sums of all columns, over {}: is it the same table?",
}
OF_TWO = {
    "other-units": "{} may have different units: {}; convert them in one of the tables",
    "shifted-columns": "{} differ much: {}",
    "shifted-label": "{}: {}: is the label the same?",
}  # with two sites, either may be the outlier
ROUNDED = {"levels-absent": "{} has no row, or a few, with {}"}


def _findings(spec: RunSpec, sites: Mapping[str, Group]) -> Iterator[Finding]:
    """Yield warnings about the sites' tables, site by site."""
    findings: dict[tuple[str, tuple[str, ...]], list[str]] = {}

    def note(kind: str, where: tuple[str, ...], what: str) -> None:
        findings.setdefault((kind, where), []).append(what)

    rounded = {site for site, group in sites.items() if _is_rounded(group)}
    captions = spec.data.captions if isinstance(spec.data, TableData) else {}
    for key in next(iter(sites.values()))["columns"] if sites else ():
        columns = {site: group["columns"][key] for site, group in sites.items()}
        name = f"{captions[key]} ({key})" if key in captions else key
        for site, column in columns.items():
            rows, missing = sites[site]["rows"], column["missing"]
            if missing / rows > GAPS:
                about = site in rounded and missing < rows  # an empty column is not secret
                many = "about " * about + f"{missing:,}" + " or more" * ("held_back" in column)
                share = f"{100 * missing / rows:.{0 if about else 1}f} %"
                note("gaps-over-20-percent", (site,), f"{name} ({many} of {rows:,} rows, {share})")
            elif (missing + column["hidden"]) / rows > GAPS:
                note("gaps-held-back", (site,), name)
            for level in _absent(name, column, columns.values()):
                note("levels-absent", (site,), level)
        for one in _outliers(name, columns):
            note(*one)
    for one in _labels(spec, sites):
        note(*one)
    for pair in combinations(sites, 2):
        if _is_same(*(sites[site] for site in pair)):
            note("same-tables", pair, f"{sites[pair[0]]['rows']:,} rows")
    order, kinds = list(sites), list(SENTENCES)
    for (kind, where), found in sorted(
        findings.items(), key=lambda one: (order.index(one[0][1][0]), kinds.index(one[0][0]))
    ):
        sentence = SENTENCES[kind] if len(where) == 1 else OF_TWO.get(kind, SENTENCES[kind])
        sentence = ROUNDED.get(kind, sentence) if rounded.issuperset(where) else sentence
        yield kind, where, sentence.format(" and ".join(where), _listed(found))


def _is_rounded(group: Group) -> bool:
    """Return whether a site's counts look rounded. Its policy is not known here."""
    for column in group["columns"].values():
        if column["missing"] % COUNTED and column["missing"] < group["rows"]:
            return False
        if any(count % COUNTED for count in sorted(column.get("levels", {}).values())[:-1]):
            return False
        sd = column.get("sd")
        if sd and not math.isclose(sd, float(f"{sd:.3g}"), rel_tol=1e-9):
            return False
    return True


def _is_same(one: Group, other: Group) -> bool:
    """Return whether two sites' tables appear to have the same rows, by their sums."""
    varies = any(column.get("sd") for column in one["columns"].values())  # columns of few levels may agree by chance
    return varies and _equal_figures(one, other)


def _equal_figures(one: object, other: object) -> bool:
    """Return whether two parts of Table 1 agree up to rounding."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal_figures(one[name], other[name]) for name in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


def _outliers(name: str, columns: Mapping[str, Group]) -> Iterator[Finding]:
    """Yield findings about sites whose column differs from the median site's; with two sites, about both."""
    if any("levels" in column for column in columns.values()):
        compare, typical = _compare_levels, _median_levels
        lack = [site for site, column in columns.items() if any(_absent(name, column, columns.values()))]
        lack += [site for site, column in columns.items() if column.get("levels_held_back")]  # shares unknown
        present = {site: column for site, column in columns.items() if column["values"] and site not in lack}
    else:
        compare, typical = _compare_numbers, _median_numbers
        present = {site: column for site, column in columns.items() if column["sd"] is not None}
    kinds = {True: "other-units", False: "shifted-columns"}
    enough = [site for site, column in present.items() if column["values"] >= FEWEST]
    if len(present) == 2:
        one, other = present
        if len(enough) == 2 and (odd := compare(name, present[other], present[one], f" at {other}", one)):
            yield kinds[odd[0]], (one, other), odd[1]
    elif len(present) > 2:
        middle = typical(list(present.values()))
        for site in enough:
            if odd := compare(name, present[site], middle, "", "the median hospital"):
                yield kinds[odd[0]], (site,), odd[1]


def _median_numbers(columns: list[Group]) -> Group:
    """Return the column of the site with the median mean, which one outlier does not move."""
    return sorted(columns, key=lambda one: float(one["mean"]))[(len(columns) - 1) // 2]


def _median_levels(columns: list[Group]) -> Group:
    """Return the median share of each level, as if for 1 row."""
    shares = {level: median(one["levels"][level] / one["values"] for one in columns) for level in columns[0]["levels"]}
    return {"values": 1, "levels": shares}


def _absent(name: str, own: Group, columns: Iterable[Group]) -> Iterator[str]:
    """Yield the levels that a site lacks although it should have some at the other sites' rates."""
    for level in _disclosed_levels(own):
        others = [one for one in columns if one is not own and level in _disclosed_levels(one)]
        elsewhere = sum(one["values"] for one in others)
        share = sum(one["levels"][level] for one in others) / elsewhere if elsewhere else 0.0
        if not own["levels"][level] and share * own["values"] >= EXPECTED:
            yield f"{name} = {level} ({100 * share:.0f} % of the other hospitals' rows)"


def _disclosed_levels(column: Group) -> list[str]:
    """Return the levels with a disclosed count."""
    return [level for level in column.get("levels", ()) if level not in column.get("levels_held_back", ())]


def _compare_levels(name: str, own: Group, other: Group, here: str, there: str) -> tuple[bool, str] | None:
    """Compare the shares of levels and describe the largest difference; None if none is large."""
    shares = {level: [one["levels"][level] / one["values"] for one in (own, other)] for level in _disclosed_levels(own)}
    gaps = {level: _distance(*both) for level, both in shares.items() if level in _disclosed_levels(other)}
    level = max(gaps, key=lambda one: gaps[one], default="")
    if not gaps or not gaps[level] > LARGE_DIFFERENCE:
        return None
    mine, theirs = (100 * share for share in shares[level])
    rows = f"the rows{here}" if here else "its rows"
    return False, f"{name} = {level} in {mine:.0f} % of {rows}, {theirs:.0f} % at {there}"


def _distance(one: float, other: float) -> float:
    """Return the standardised difference of two shares."""
    spread = math.sqrt((one * (1 - one) + other * (1 - other)) / 2)
    return abs(one - other) / spread if spread else (math.inf if one != other else 0.0)


def _compare_numbers(name: str, own: Group, other: Group, here: str, there: str) -> tuple[bool, str] | None:
    """Compare a numeric column: whether units seem to differ, and a description; None if there is no large difference.

    Args:
        name: the column's.
        own: a site's statistics.
        other: the statistics to compare with.
        here: place of the first, " at …", or "".
        there: place of the other.
    """
    mean, sd = other["mean"], other["sd"]
    means = f"mean {_short(own['mean'])}{here}, {_short(mean)} at {there}"
    ratios = _ratio(own["mean"], mean), _ratio(own["sd"], sd)
    if ratios[1] > math.log(FACTOR) and own["sd"] > OUTLYING * math.sqrt(own["values"]) * abs(own["mean"]):
        return False, f"{name} has a few numbers far from all others ({means})"
    if any(all(sign * ratio > math.log(FACTOR) for ratio in ratios) for sign in (-1, 1)):
        factor, more = math.exp(min(abs(ratios[0]), MAX_RATIO)), "larger" if ratios[0] > 0 else "smaller"
        return True, f"{name} is about {factor:,.0f} times {more} ({means})"
    spread, gap = math.sqrt((own["sd"] ** 2 + sd**2) / 2), abs(own["mean"] - mean)
    noise = 3 * spread * math.sqrt(1 / own["values"] + 1 / other["values"])
    if gap > max(LARGE_DIFFERENCE * spread, noise):
        return False, f"{name}, {means}" + (f", {gap / spread:.1f} standard deviations apart" if spread else "")
    return None


def _ratio(own: float, other: float) -> float:
    """Return the logarithm of own / other in size; 0 if signs differ or one is 0."""
    return math.log(abs(own)) - math.log(abs(other)) if own and other and (own > 0) == (other > 0) else 0.0


def _labels(spec: RunSpec, sites: Mapping[str, Group]) -> Iterator[Finding]:
    """Yield findings about sites whose labels differ from the median site's; with two sites, about both."""
    kind, named = "shifted-label", outcome_names(spec)
    if isinstance(spec.task, Regression):
        columns = {site: {"values": group["rows"], **group["label"]} for site, group in sites.items()}
        for _, where, what in _outliers("the label", columns):
            yield kind, where, what
        return
    rows = {site: group["rows"] for site, group in sites.items()}
    shares = {site: [count / rows[site] for count in group["label"]["counts"]] for site, group in sites.items()}
    pairs: list[tuple[tuple[str, ...], list[float], list[float], str, str, tuple[int, int]]]
    if len(shares) == 2:
        (one, theirs), (other, own) = shares.items()
        pairs = [((one, other), own, theirs, f"the rows at {other}", one, (rows[other], rows[one]))]
    else:
        usual = [median(found) for found in zip(*shares.values(), strict=True)]
        pairs = [
            ((site,), own, usual, "its rows", "the median hospital", (rows[site], 0)) for site, own in shares.items()
        ]
    for where, own, theirs, here, there, numbers in pairs:
        for place in reversed(range(len(own))):  # of two classes, the second is the event
            if _unequal(own[place], theirs[place], numbers[0]) or _unequal(theirs[place], own[place], numbers[1]):
                shown = f"in {100 * own[place]:.0f} % of {here}, {100 * theirs[place]:.0f} % at {there}"
                yield kind, where, f"{named(place)} {shown}"
                break


def _unequal(share: float, other: float, rows: int) -> bool:
    """Return whether a class's share differs from elsewhere; never for no rows."""
    return rows > 0 and (_distance(share, other) > LARGE_DIFFERENCE if share else other * rows >= EXPECTED)


def outcome_names(spec: RunSpec) -> Callable[[int], str]:
    """Return a function from the index of a class or label to its name."""
    data, task = spec.data, spec.task
    if not isinstance(data, Tabular):
        return lambda place: f"class {place}" if isinstance(task, Classification) else f"label {place}"
    return data.outcome if isinstance(task, Classification) else lambda place: data.called(data.targets[place])


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e5 else f"{value:.2e}"


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - MAX_NAMED:,} more columns" if len(found) > MAX_NAMED else ""
    return "; ".join(found[:MAX_NAMED]) + more
