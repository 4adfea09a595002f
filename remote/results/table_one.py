"""Table 1: rows, label and columns of every site's table and of all together, and what in it should worry somebody.

It is known before the first step: sites send its sums with those of the labels.
"""

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

GAPS = 0.2  # of a column's rows: more worry
APART = 0.8  # standardised mean difference; more is a large one
FEWEST = 10  # values of a column from which a site's can be told to lie elsewhere
EXPECTED = 5.0  # rows of a level, or class, that a site lacks: fewer are missing by chance
FACTOR = 5.0  # of means, and of deviations: other units, not another population
OUTLYING = 0.5  # deviation by mean and root of the rows: of one outlier 1, of four a half; units change neither
MOST_FEW = Policy().min_rows - 1  # rows that lack a column where too few do, by the default policy
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
        `columns`; `warnings`, a sentence each; `worries`, the sites by kind of warning. Where a column is `held_back`,
        a site's policy does not let it be told of some rows whether they are missing: at least `missing` are. Likewise
        the levels in `levels_held_back` have at least so many rows.
    """
    assert isinstance(spec.data, TableData)
    sites = {site: _group(spec, [own]) for site, own in sums.items()}
    pooled = _group(spec, list(sums.values()))
    found = list(_worries(spec, {site: group for site, group in sites.items() if group["rows"]}))
    for group in (pooled, *sites.values()):
        for column in group["columns"].values():
            del column["values"], column["hidden"]  # which would tell how many rows lack it
    kinds: dict[str, list[str]] = {}
    counts = pooled["label"].get("counts", ())
    absent = [outcome_names(spec)(place) for place, count in enumerate(counts) if not count]
    for kind, named, _ in found:
        kinds[kind] = list(dict.fromkeys([*kinds.get(kind, []), *named]))
    if len(sites) * len(spec.data.inputs) > MAX_CELLS:
        for group in sites.values():
            group["columns"] = {}
    sentences = [f"no row of any hospital has {name}: can it be learned?" for name in absent]
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
    return {"rows": rows, **groups, "label": label, "columns": dict(_columns(spec, sums))}


def _columns(spec: RunSpec, sums: list[Sums]) -> Iterator[tuple[str, Group]]:
    assert isinstance(spec.data, TableData)
    fields = ("counts", "sums", "squares", "held", "few")
    table = [list(zip(*(one[f"table-{name}"].tolist() for name in fields), strict=True)) for one in sums]
    for here in spec.data.places:
        column, at, named = here.column, here.first, spec.data.categorical.get(here.column, ())
        levels = (*named, OTHER) if here.levels > len(named) else named
        places = range(at, here.values.stop)
        few = [any(one[place][4] for place in places) for one in table]  # lack it where that must not be told
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
            told = [[0 if one[place][4] else int(one[place][1]) for place in places] for one in table]
            found["levels"] = dict(zip(levels, map(sum, zip(*told, strict=True)), strict=True))
            hidden = [level for level, place in zip(levels, places, strict=True) if any(one[place][4] for one in table)]
            found |= {"levels_held_back": hidden} if hidden else {}
        else:
            found |= {"unit": unit} if (unit := _unit(spec.data, column)) else {}
            found |= _moments([one[at][:3] for one in table])
        yield column, found


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
    return {"mean": figure(mean), "sd": None if sd is None else figure(sd)}


def figure(value: float) -> float | None:
    """Return a figure as JSON has it: None of one that is no number."""
    return value if math.isfinite(value) else None


Worry = tuple[str, tuple[str, ...], str]  # its kind, the sites, a sentence
SENTENCES = {
    "gaps-over-20-percent": f"{{}} lacks more than {100 * GAPS:.0f} % of {{}}",
    "gaps-held-back": f"{{}} does not tell whether it lacks more than {100 * GAPS:.0f} % of {{}}: for its policy too "
    "few have a value, or lack one",
    "levels-absent": "{} has no row with {}",
    "other-units": "{} may have other units: {}; convert them in its table",
    "shifted-columns": "{} differs much from the other hospitals: {}",
    "shifted-label": "{}: {}: is the label the same?",
    "same-tables": "{} have the same sums of all columns, over {}: is one hospital's table there twice?",
}
OF_TWO = {
    "other-units": "{} may have different units: {}; convert them in one of the tables",
    "shifted-columns": "{} differ much: {}",
    "shifted-label": "{}: {}: is the label the same?",
}  # where nobody can say which of two is the odd one
ROUNDED = {"levels-absent": "{} has no row, or a few, with {}"}


def _worries(spec: RunSpec, sites: Mapping[str, Group]) -> Iterator[Worry]:
    """Yield what is odd about the sites' tables, site by site."""
    said: dict[tuple[str, tuple[str, ...]], list[str]] = {}

    def note(kind: str, where: tuple[str, ...], what: str) -> None:
        said.setdefault((kind, where), []).append(what)

    rounded = {site for site, group in sites.items() if _is_rounded(group)}
    captions = spec.data.captions if isinstance(spec.data, TableData) else {}
    for key in next(iter(sites.values()))["columns"] if sites else ():
        columns = {site: group["columns"][key] for site, group in sites.items()}
        name = f"{captions[key]} ({key})" if key in captions else key
        for site, column in columns.items():
            rows, missing = sites[site]["rows"], column["missing"]
            if missing / rows > GAPS:
                about = site in rounded and missing < rows  # that a column is empty all may know
                many = "about " * about + f"{missing:,}" + " or more" * ("held_back" in column)
                share = f"{100 * missing / rows:.{0 if about else 1}f} %"
                note("gaps-over-20-percent", (site,), f"{name} ({many} of {rows:,} rows, {share})")
            elif (missing + column["hidden"]) / rows > GAPS:
                note("gaps-held-back", (site,), name)
            for level in _absent(name, column, columns.values()):
                note("levels-absent", (site,), level)
        for one in _odd(name, columns):
            note(*one)
    for one in _labels(spec, sites):
        note(*one)
    for pair in combinations(sites, 2):
        if _is_same(*(sites[site] for site in pair)):
            note("same-tables", pair, f"{sites[pair[0]]['rows']:,} rows")
    order, kinds = list(sites), list(SENTENCES)
    for (kind, where), found in sorted(
        said.items(), key=lambda one: (order.index(one[0][1][0]), kinds.index(one[0][0]))
    ):
        sentence = SENTENCES[kind] if len(where) == 1 else OF_TWO.get(kind, SENTENCES[kind])
        sentence = ROUNDED.get(kind, sentence) if rounded.issuperset(where) else sentence
        yield kind, where, sentence.format(" and ".join(where), _listed(found))


def _is_rounded(group: Group) -> bool:
    """Tell whether a site's counts look rounded, as its policy has it: the aggregator is not told."""
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
    """Tell whether two sites' tables have the same rows, as far as sums tell."""
    varies = any(column.get("sd") for column in one["columns"].values())  # what few levels have, others have too
    return varies and _alike(one, other)


def _alike(one: object, other: object) -> bool:
    """Tell whether two parts of Table 1 are the same, but for the order in which rows were added up."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


def _odd(name: str, columns: Mapping[str, Group]) -> Iterator[Worry]:
    """Yield which sites' columns differ from the median site's; of two both, since either may be the odd one."""
    if any("levels" in column for column in columns.values()):
        differs, usual = _unlike, _usual_levels
        lack = [site for site, column in columns.items() if any(_absent(name, column, columns.values()))]  # is said
        lack += [site for site, column in columns.items() if column.get("levels_held_back")]  # of which none is known
        present = {site: column for site, column in columns.items() if column["values"] and site not in lack}
    else:
        differs, usual = _moved, _usual_numbers
        present = {site: column for site, column in columns.items() if column["sd"] is not None}
    kinds = {True: "other-units", False: "shifted-columns"}
    enough = [site for site, column in present.items() if column["values"] >= FEWEST]
    if len(present) == 2:
        one, other = present
        if len(enough) == 2 and (odd := differs(name, present[other], present[one], f" at {other}", one)):
            yield kinds[odd[0]], (one, other), odd[1]
    elif len(present) > 2:
        middle = usual(list(present.values()))
        for site in enough:
            if odd := differs(name, present[site], middle, "", "the median hospital"):
                yield kinds[odd[0]], (site,), odd[1]


def _usual_numbers(columns: list[Group]) -> Group:
    """Return the column of the site with the median mean, which one odd site does not move."""
    return sorted(columns, key=lambda one: float(one["mean"]))[(len(columns) - 1) // 2]


def _usual_levels(columns: list[Group]) -> Group:
    """Return the median share of each level, as if of 1 row."""
    shares = {level: median(one["levels"][level] / one["values"] for one in columns) for level in columns[0]["levels"]}
    return {"values": 1, "levels": shares}


def _absent(name: str, own: Group, columns: Iterable[Group]) -> Iterator[str]:
    """Yield the levels that a site lacks though the others make one expect some."""
    for level in _told(own):
        others = [one for one in columns if one is not own and level in _told(one)]
        elsewhere = sum(one["values"] for one in others)
        share = sum(one["levels"][level] for one in others) / elsewhere if elsewhere else 0.0
        if not own["levels"][level] and share * own["values"] >= EXPECTED:
            yield f"{name} = {level} ({100 * share:.0f} % of the other hospitals' rows)"


def _told(column: Group) -> list[str]:
    """Return the levels of which it may be told how many rows have them."""
    return [level for level in column.get("levels", ()) if level not in column.get("levels_held_back", ())]


def _unlike(name: str, own: Group, other: Group, here: str, there: str) -> tuple[bool, str] | None:
    """Return the level whose share differs most from that of another site, if it does much; none that one lacks."""
    shares = {level: [one["levels"][level] / one["values"] for one in (own, other)] for level in _told(own)}
    gaps = {level: _distance(*both) for level, both in shares.items() if level in _told(other)}
    level = max(gaps, key=lambda one: gaps[one], default="")
    if not gaps or not gaps[level] > APART:
        return None
    mine, theirs = (100 * share for share in shares[level])
    rows = f"the rows{here}" if here else "its rows"
    return False, f"{name} = {level} in {mine:.0f} % of {rows}, {theirs:.0f} % at {there}"


def _distance(one: float, other: float) -> float:
    """Return the standardised difference of two shares."""
    spread = math.sqrt((one * (1 - one) + other * (1 - other)) / 2)
    return abs(one - other) / spread if spread else (math.inf if one != other else 0.0)


def _moved(name: str, own: Group, other: Group, here: str, there: str) -> tuple[bool, str] | None:
    """Return whether a column's numbers are as if in other units, and how they differ; None if they do not much.

    Args:
        name: of the column.
        own: of a site.
        other: with which it is compared.
        here: where the first is, where that has to be said.
        there: where the other is.
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
    if gap > max(APART * spread, noise):
        return False, f"{name}, {means}" + (f", {gap / spread:.1f} standard deviations apart" if spread else "")
    return None


def _ratio(own: float, other: float) -> float:
    """Return the logarithm of how many times larger a number is; 0 where signs differ or one is 0."""
    return math.log(abs(own)) - math.log(abs(other)) if own and other and (own > 0) == (other > 0) else 0.0


def _labels(spec: RunSpec, sites: Mapping[str, Group]) -> Iterator[Worry]:
    """Yield which sites' labels differ from the median site's; of two sites, both."""
    kind, named = "shifted-label", outcome_names(spec)
    if isinstance(spec.task, Regression):
        columns = {site: {"values": group["rows"], **group["label"]} for site, group in sites.items()}
        for _, where, what in _odd("the label", columns):
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
        for place in reversed(range(len(own))):  # of two classes the second is what happens
            if _unequal(own[place], theirs[place], numbers[0]) or _unequal(theirs[place], own[place], numbers[1]):
                shown = f"in {100 * own[place]:.0f} % of {here}, {100 * theirs[place]:.0f} % at {there}"
                yield kind, where, f"{named(place)} {shown}"
                break


def _unequal(share: float, other: float, rows: int) -> bool:
    """Return whether a class's share of so many rows is another one than elsewhere; of no rows it never is."""
    return rows > 0 and (_distance(share, other) > APART if share else other * rows >= EXPECTED)


def outcome_names(spec: RunSpec) -> Callable[[int], str]:
    """Return what each class, or label, is called."""
    data, task = spec.data, spec.task
    if not isinstance(data, Tabular):
        return lambda place: f"class {place}" if isinstance(task, Classification) else f"label {place}"
    return data.outcome if isinstance(task, Classification) else lambda place: data.called(data.targets[place])


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e5 else f"{value:.2e}"


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - MAX_NAMED:,} more columns" if len(found) > MAX_NAMED else ""
    return "; ".join(found[:MAX_NAMED]) + more
