"""Encodes rows of tables as samples: numbers, one-hot levels, and class indices of labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from rankdad.common.data.cells import as_labels, column_codes, column_dates, column_numbers, labels_for
from rankdad.common.data.joining import told_apart
from rankdad.common.data.reading import MISSING, AllRows, Array, Reading, by_column, shown
from rankdad.common.data.tables import Table, holder
from rankdad.common.errors import DataError, UserError
from rankdad.common.spec.data import TableData
from rankdad.common.spec.patterns import fits


def encode(
    data: TableData,
    tables: Sequence[Table],
    dtype: str,
    *,
    key: str | None = None,
    keep: Sequence[str] = (),
    notes: tuple[str, ...] = (),
    dropped: int = 0,
    beside: Sequence[str] | None = None,
    refused: dict[int, DataError] | None = None,
) -> Reading:
    """Encode the rows of tables with the same subjects in the same order.

    Args:
        data: the schema.
        tables: each with some of the columns.
        dtype: of the inputs, such as "float32".
        key: the column in the first table that identifies the samples.
        keep: columns whose effects harmonisation keeps.
        notes: on earlier steps.
        dropped: number of rows left out earlier.
        beside: columns to copy next to predictions: single rows are then refused, and labels may be missing; None to
            read for training.
        refused: rows refused earlier, for predictions.

    Raises:
        DataError: data cannot be used; names file, row and column.
    """
    source, rows, training = tables[0].source, len(tables[0]), beside is None
    if not training:
        refused = {} if refused is None else refused
        tables = [replace(table, refused=refused) for table in tables]
    gaps, holes = _Gaps(rows, refuses=not training), _Gaps(rows)
    lacking = holes if data.missing == "impute" else gaps
    inputs: list[Array] = []
    for place in data.places:
        own = _column(data, tables, place.column, dtype, lacking)
        inputs.append(own)
        if place.is_indicated:
            inputs.append(np.isnan(own.reshape(rows, -1)[:, 0]).astype(np.float64))
    kept_columns = [_column(data, tables, column, "float64", gaps, full_rank=True) for column in keep]
    labels, unlabelled, told = labels_for(data, tables, training=training)
    notes += told
    if training:
        for target, column in zip(data.targets, np.atleast_2d(np.asarray(labels).T), strict=True):
            gaps.note(holder(tables, target), target, np.isnan(column))
    groups: list[str] | None = None
    if training and key is not None:
        notes += told_apart(tables[0], key, tables[0].ids(key))
    if training and data.group is not None:
        table = holder(tables, data.group)
        groups = table.ids(data.group)
        notes += told_apart(table, data.group, groups)
        gaps.note(table, data.group, np.array([text.lower() in MISSING for text in groups], bool))

    if refused is None:
        kept, left_out = gaps.settle(data.missing)
    else:
        kept, left_out = np.array([row for row in range(rows) if row not in refused], np.int64), ()
        if refused and not len(kept):
            raise UserError(f"no row can be predicted: {refused[min(refused)]}", code="nothing-to-predict")
    blocks = [own if own.ndim > 1 else own[:, None] for own in inputs]
    encoded = np.concatenate(blocks, axis=1, dtype=dtype, casting="same_kind")
    if len(kept) < rows:
        encoded = encoded[kept]
    if not len(encoded):
        raise DataError(source, "has no rows", code="no-rows")
    differ = (np.fmin.reduce(own) < np.fmax.reduce(own) for own in encoded.T)  # missing values aside
    if training and len(encoded) > 1 and not any(differ):
        raise DataError(
            source,
            f"all {len(encoded)} rows have the same features: there is nothing to learn from",
            code="rows-all-alike",
        )
    if holes.first is not None:
        left_out += (str(holes.error(f"is missing; {holes.count} lack an input, which is imputed")),)
    left = tables[0].take(kept.tolist())
    return Reading(
        source,
        encoded,
        None if labels is None else as_labels(data, labels[kept]),
        keys=left.names() if key is None else tuple(left.ids(key)),
        groups=None if groups is None else tuple(groups[row] for row in kept),
        covariates=np.column_stack(kept_columns)[kept] if kept_columns else None,
        dropped=dropped + rows - len(kept),
        notes=notes + left_out,
        rows=None if refused is None else all_rows(tables, (data.key, data.group), beside or (), refused, unlabelled),
        named_by=by_column(None if groups is None else data.group, key),
        stands=partial(_stands, data, tables, keep, kept) if training else dict,
    )


def _stands(data: TableData, tables: Sequence[Table], keep: Sequence[str], rows: Array) -> dict[str, Array]:
    """Return the cells of all columns that describe a sample, for the rows that are kept."""
    since = (date.since for date in data.dates.values() if date.start is None)
    columns = dict.fromkeys((*data.inputs, *data.targets, *keep, *since))
    return {column: holder(tables, column).stands(column)[rows] for column in columns}


def all_rows(
    tables: Sequence[Table],
    found: Sequence[str | None],
    wanted: Sequence[str],
    refused: dict[int, DataError],
    unlabelled: Array,
) -> AllRows:
    """Return the columns of the data to copy next to predictions.

    Args:
        tables: with rows of the same samples.
        found: columns to copy if a table has them; the first identifies the rows.
        wanted: columns that a table must have.
        refused: why rows are no samples, by position.
        unlabelled: bool [rows].

    Raises:
        DataError: no table has a wanted column, or two have it.
    """
    own = [column for column in found if column and any(column in table.frame for table in tables)]
    columns = {column: tuple(holder(tables, column).texts(column)) for column in dict.fromkeys((*own, *wanted))}
    names = columns.pop(found[0] or "", None) or tables[0].names()
    return AllRows(names, columns, refused, frozenset(np.flatnonzero(unlabelled).tolist()))


class _Gaps:
    """Rows with missing values, and the first of them.

    Args:
        rows: of the tables.
        refuses: whether each of them is refused by itself.
    """

    def __init__(self, rows: int, *, refuses: bool = False) -> None:
        self.rows, self._refuses = np.zeros(rows, bool), refuses
        self.first: tuple[Table, str, int] | None = None

    @property
    def count(self) -> str:
        return f"{int(self.rows.sum())} of {len(self.rows)} rows"

    def note(self, table: Table, column: str, lacking: Array) -> None:
        if self._refuses:
            for row in np.flatnonzero(lacking).tolist():
                table.refuse(row, column, "is missing")
        if table.refused:
            lacking = lacking.copy()
            lacking[list(table.refused)] = False
        if lacking.any() and self.first is None:
            self.first = table, column, int(lacking.argmax())
        self.rows |= lacking

    def error(self, problem: str) -> DataError:
        """Return an error that names the first row."""
        assert self.first is not None
        table, column, row = self.first
        return table.error(row, column, problem)

    def settle(self, missing: str) -> tuple[Array, tuple[str, ...]]:
        """Return the positions of the complete rows, and notes on the others."""
        kept = np.flatnonzero(~self.rows)
        if self.first is None:
            return kept, ()
        if missing == "refuse":
            raise self.error(f"is missing ({self.count} lack a value): complete it, or set data.missing to drop")
        if not len(kept):
            raise self.error(f"is missing; {self.count} lack a value, and none is left")
        return kept, (str(self.error(f"is missing; {self.count} lack a value and are left out")),)


def _column(
    data: TableData, tables: Sequence[Table], column: str, dtype: str, gaps: _Gaps, *, full_rank: bool = False
) -> Array:
    """Return a column's numbers [rows], or one-hot levels [rows, levels]; NaN for missing values.

    Args:
        data: the schema.
        tables: one of them has the column.
        column: its name.
        dtype: that the numbers have to fit into.
        gaps: collects rows with missing values.
        full_rank: whether to omit the first level, which the others and a constant determine.
    """
    table, levels = holder(tables, column), data.categorical.get(column)
    if levels is None:
        numbers = _numbers(data, tables, table, column, dtype)
    else:
        listed, other = [(level,) for level in levels], data.levels(column) > len(levels)
        hint = "; a column in data.categorical_other has one more level, for all others"
        numbers = column_codes(table, column, listed, hint, other=other)
    lacking = np.isnan(numbers)
    gaps.note(table, column, lacking)
    if levels is None:
        return numbers
    indicators = np.equal.outer(numbers, np.arange(full_rank, data.levels(column))).astype(np.float64)
    indicators[lacking] = np.nan
    return indicators


def bounds_of(data: TableData, column: str) -> tuple[float, float]:
    """Return the smallest and largest encoded number of a column; infinite without a limit."""
    least, most = _bounds(data, column)
    return (math.log(least) if least > 0 else -math.inf, math.log(most)) if data.is_logarithm(column) else (least, most)


def _bounds(data: TableData, column: str) -> tuple[float, float]:
    """Return the smallest and largest number of a column before its logarithm is taken."""
    least, most = -math.inf, math.inf
    for entry, (low, high) in data.clip.items():
        if fits(column, entry):
            least, most = max(least, -math.inf if low is None else low), min(most, math.inf if high is None else high)
    return least, most


def _numbers(data: TableData, tables: Sequence[Table], table: Table, column: str, dtype: str) -> Array:
    """Return a column's numbers, for dates the time since a start; clipped and log-transformed as in the schema."""
    if column in data.dates:
        numbers = column_dates(tables, column, data.dates[column])
    else:
        numbers = column_numbers(table, column, dtype)
    numbers = np.clip(numbers, *_bounds(data, column))
    if data.is_logarithm(column):
        low = numbers <= 0
        for row in np.flatnonzero(low).tolist():
            problem = f"holds {shown(table.texts(column)[row])}, expected a number above 0, to take its log"
            table.refuse(row, column, problem, ": a lower bound in data.clip lifts it")
        numbers = np.log(np.where(low, np.nan, numbers))
    return numbers
