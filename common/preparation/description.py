"""The sums for Table 1: a site's whole table, column by column, before preparation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankdad.common.preparation import labels, moments
from rankdad.common.preparation.inputs import has_gaps
from rankdad.common.preparation.rows import Rows, count_behind
from rankdad.common.preparation.stages import RAW, Field
from rankdad.common.spec.data import TableData
from rankdad.common.spec.tasks import Classification, Regression, TaskSpec

COUNTED = 5  # published counts are multiples of it
TINY = 1e-30  # smaller deviations count as zero


def fields(task: TaskSpec, channels: int, *, grouped: bool = False) -> tuple[Field, ...]:
    """Return the fields of the sums: rows, groups if any, label, and sums of every column's values.

    Whether held-back rows have a value is not disclosed. If `few` is not 0, neither is the number of missing values or
    rows of a level: they are too few, or would reveal others that are.

    Squares are of deviations from the site's mean; with the means they add up over sites.
    """
    number, width = isinstance(task, Regression), (channels,)
    return (
        Field("table-rows", (), "count", whole=True),
        *((Field("table-groups", (), "count", whole=True),) if grouped else ()),
        Field("table-label", () if number else (task.outputs,), "sum" if number else "count", RAW, whole=True),
        Field("table-label-squares", (), "square", whole=True),
        Field("table-counts", width, "count", whole=True),
        Field("table-held", width, "count", whole=True),
        Field("table-few", width, "count", whole=True),
        Field("table-sums", width, "sum", RAW, whole=True),
        Field("table-squares", width, "square", whole=True),
    )


def is_level(data: TableData) -> Tensor:
    """Return which input columns say whether a row has a level, bool [channels]."""
    places = torch.zeros(data.shape[0], dtype=torch.bool)
    for place in data.places:
        places[place.values] = place.levels > 0
    return places


def contradiction(task: TaskSpec, sums: dict[str, Tensor], levels: Tensor) -> str | None:
    """Return why no table can have a site's sums; None if one can."""
    rows, counts, totals, squares = (sums[f"table-{name}"] for name in ("rows", "counts", "sums", "squares"))
    label = sums["table-label"]
    groups = sums.get("table-groups", rows)
    if groups > rows or (groups == 0 and rows > 0):
        return "table-groups: expected at least one, and no more than table-rows"
    if (counts + sums["table-held"] > rows).any():
        return "table-counts: expected no more than table-rows, with those of table-held"
    if (totals[counts == 0] != 0).any() or (squares[counts <= 1] != 0).any():
        return "table-sums: expected none of no values, and table-squares none of one"
    of_levels = totals[levels]
    if ((of_levels < 0) | (of_levels > counts[levels]) | (of_levels != of_levels.floor())).any():
        return "table-sums: expected of a level as many rows as have it"
    if isinstance(task, Classification) and label.sum() != rows:
        return "table-label: expected classes that add up to table-rows"
    if not isinstance(task, Regression) and (label > rows).any():
        return "table-label: expected no more than table-rows"
    return None


def sums(task: TaskSpec, rows: Rows, data: TableData, fewest: int = 1) -> dict[str, Tensor]:
    """Return a site's sums over the rows that may leave it.

    Args:
        task: what is predicted.
        rows: of the site's table.
        data: the table's schema.
        fewest: least number of rows, or groups, in any published count.
    """
    number, given = isinstance(task, Regression), rows.labels.to(torch.float64)
    label_squares = (given - given.mean()).square().sum() if number and len(given) else torch.tensor(0.0)
    counts, totals = moments.sums(rows.inputs, 0)
    deviations, squares = moments.squares(rows.inputs, moments.means(counts, totals), 0)
    found = {
        "table-rows": torch.tensor(float(len(given))),
        "table-groups": torch.tensor(float(rows.people)),
        "table-label": given.sum() if isinstance(task, Regression) else labels.counts_of(task, rows.labels),
        "table-label-squares": label_squares,
        "table-counts": counts,
        "table-held": torch.zeros_like(counts) if rows.held is None else rows.held.sum(0).double(),
        "table-few": _few(rows, data, fewest),
        "table-sums": totals,
        "table-squares": (squares - deviations.square() / counts.clamp(min=1)).clamp(min=0),
    }
    return found if fewest == 1 else rounded(found, data)


def rounded(sums: dict[str, Tensor], data: TableData) -> dict[str, Tensor]:
    """Round a site's sums, so that two tables that differ by one patient are mostly equal.

    Missing values and levels become multiples of `COUNTED`, for missing values at most their number; the largest level
    has the rest. Means and deviations become multiples of 1, 2 or 5 times a power of ten, at most a tenth of the
    deviation. Rows and labels are exact, as in hello and in the sums for preparation.

    Args:
        sums: of the site, exact.
        data: the table's schema.
        data: the table's schema.
    """
    rows, held, given = sums["table-rows"], sums["table-held"], sums["table-counts"]
    counts = (rows - held - COUNTED * ((rows - held - given) / COUNTED).floor()) * (given > 0)
    totals, squares = _rounded_moments(given, sums["table-sums"], sums["table-squares"], counts)
    for place in data.places:
        if place.levels:
            own, all_ = sums["table-sums"][place.values], counts[place.first]
            told = _multiple(own)
            if told.sum() - told[own.argmax()] > all_:
                told = COUNTED * (own / COUNTED).floor()
            told[own.argmax()] += all_ - told.sum()
            totals[place.values] = told
    groups = _multiple(sums["table-groups"]).clamp(min=1).minimum(rows)
    return sums | {"table-groups": groups, "table-counts": counts, "table-sums": totals, "table-squares": squares}


def _multiple(counts: Tensor) -> Tensor:
    return (counts / COUNTED).round() * COUNTED


def _rounded_moments(known: Tensor, total: Tensor, squares: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum and the squares of values with rounded mean and deviation."""
    deviation = (squares / (known - 1).clamp(min=1)).sqrt()
    exponent = (deviation / 10).clamp(min=TINY).log10()
    unit = 10 ** exponent.floor()
    for step in (2.0, 5.0):
        unit = torch.where(10 ** (exponent - exponent.floor()) >= step, step * 10 ** exponent.floor(), unit)
    mean, varies = total / known.clamp(min=1), deviation > TINY
    mean, deviation = (torch.where(varies, (one / unit).round() * unit, one) for one in (mean, deviation))
    return mean * counts, deviation.square() * (counts - 1).clamp(min=0)


def _few(rows: Rows, data: TableData, fewest: int) -> Tensor:
    """Return 1 if the number of missing values or of rows of a level must not be disclosed; otherwise 0, [channels].

    If too few lack a categorical column, its rarest levels are hidden too, because all levels add up to the other rows.
    """
    few = torch.zeros(data.shape[0], dtype=torch.float64)
    inputs = rows.inputs
    if fewest == 1 or not isinstance(inputs, Tensor) or not has_gaps(inputs):
        return few
    lacking = inputs.isnan() if rows.held is None else inputs.isnan() & ~rows.held
    behind = count_behind(lacking, rows.groups)
    for place in data.places:
        at = place.first
        if not 0 < behind[at] < fewest:
            continue
        counts = inputs[:, at : at + place.levels].nansum(0)
        rarest = counts.argsort(stable=True)
        enough = int((counts[rarest].cumsum(0) < fewest).sum()) + 1
        few[at + rarest[:enough] if place.levels else at] = 1.0
    return few


def joined_squares(sites: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the squares of several sites' sums, as deviations from the mean of all."""
    squares: dict[str, Tensor] = {}
    for name, count, total in (
        ("table-squares", "table-counts", "table-sums"),
        ("table-label-squares", "table-rows", "table-label"),
    ):
        own, counts, sums = (torch.stack([site[key] for site in sites]) for key in (name, count, total))
        if sums.shape == counts.shape:  # otherwise the label is a class, without squares
            away = sums / counts.clamp(min=1) - sums.sum(0) / counts.sum(0).clamp(min=1)
            squares[name] = (own + counts * away.square()).sum(0)
    return squares
