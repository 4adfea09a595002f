"""The sums behind Table 1: what a site's whole table holds, column by column, as it was read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankdad.common.preparation import labels, moments
from rankdad.common.preparation.rows import Rows
from rankdad.common.preparation.stages import RAW, Field
from rankdad.common.spec.data import TableData
from rankdad.common.spec.tasks import Classification, Regression, TaskSpec


def fields(task: TaskSpec, channels: int, *, grouped: bool = False) -> tuple[Field, ...]:
    """Return the fields of the sums: rows, groups if there are any, label, and of every column its values' sums.

    Squares are of deviations from the site's own mean: those of several sites add up with the help of their means.
    """
    number, width = isinstance(task, Regression), (channels,)
    return (
        Field("table-rows", (), "count", whole=True),
        *((Field("table-groups", (), "count", whole=True),) if grouped else ()),
        Field("table-label", () if number else (task.outputs,), "sum" if number else "count", RAW, whole=True),
        Field("table-label-squares", (), "square", whole=True),
        Field("table-counts", width, "count", whole=True),
        Field("table-sums", width, "sum", RAW, whole=True),
        Field("table-squares", width, "square", whole=True),
    )


def is_level(data: TableData) -> Tensor:
    """Return which columns of the inputs say whether a row has some level, bool [channels]."""
    places: list[bool] = []
    for column in data.inputs:
        levels = data.levels(column)
        places += [levels > 0] * (levels or 1) + [False] * data.is_indicated(column)
    return torch.tensor(places)


def contradiction(task: TaskSpec, sums: dict[str, Tensor], levels: Tensor) -> str | None:
    """Return what no table adds up to among a site's sums; None if nothing."""
    rows, counts, totals, squares = (sums[f"table-{name}"] for name in ("rows", "counts", "sums", "squares"))
    label = sums["table-label"]
    groups = sums.get("table-groups", rows)
    if groups > rows or (groups == 0 and rows > 0):
        return "table-groups: expected at least one, and no more than table-rows"
    if (counts > rows).any():
        return "table-counts: expected no more than table-rows"
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


def sums(task: TaskSpec, rows: Rows) -> dict[str, Tensor]:
    """Return a site's sums of a table's rows that may leave it."""
    number, given = isinstance(task, Regression), rows.labels.to(torch.float64)
    label_squares = (given - given.mean()).square().sum() if number and len(given) else torch.tensor(0.0)
    counts, totals = moments.sums(rows.inputs, 0)
    deviations, squares = moments.squares(rows.inputs, moments.means(counts, totals), 0)
    return {
        "table-rows": torch.tensor(float(len(given))),
        "table-groups": torch.tensor(float(rows.people)),
        "table-label": given.sum() if isinstance(task, Regression) else labels.counts_of(task, rows.labels),
        "table-label-squares": label_squares,
        "table-counts": counts,
        "table-sums": totals,
        "table-squares": (squares - deviations.square() / counts.clamp(min=1)).clamp(min=0),
    }


def joined_squares(sites: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the squares of several sites' sums, of deviations from the mean of all."""
    squares: dict[str, Tensor] = {}
    for name, count, total in (
        ("table-squares", "table-counts", "table-sums"),
        ("table-label-squares", "table-rows", "table-label"),
    ):
        own, counts, sums = (torch.stack([site[key] for site in sites]) for key in (name, count, total))
        if sums.shape == counts.shape:  # else the label is a class, and has no squares
            away = sums / counts.clamp(min=1) - sums.sum(0) / counts.sum(0).clamp(min=1)
            squares[name] = (own + counts * away.square()).sum(0)
    return squares
