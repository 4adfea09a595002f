"""Rows of tables encoded as samples: numbers as they are, levels as zeros and a one, labels as classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.columns import canonical
from common.data import TableData
from common.errors import DataError
from local.data.reading import Array, Reading
from local.data.tables import MISSING, Table, holder, shown


def encode(
    data: TableData,
    tables: Sequence[Table],
    dtype: str,
    *,
    key: str | None = None,
    notes: tuple[str, ...] = (),
    training: bool = True,
) -> Reading:
    """Encode the rows of tables whose rows are those of the same subjects, in the same order.

    Args:
        data: the schema.
        tables: each with some of the columns.
        dtype: of the inputs, such as "float32".
        key: the column in the first table that names the samples.
        notes: what is to be told already.
        training: whether the samples are to be trained on; for predictions the label may be missing.

    Raises:
        DataError: naming file, row and column of what cannot be used.
    """
    source, gaps = tables[0].source, _Gaps(len(tables[0]))
    inputs: list[Array] = []
    for column in data.inputs:
        table, levels = holder(tables, column), data.categorical.get(column)
        numbers = _numbers(table, column, dtype) if levels is None else _codes(table, column, levels)
        gaps.note(table, column, np.isnan(numbers))
        inputs.append(numbers if levels is None else np.equal.outer(numbers, np.arange(len(levels))))
    labels = None
    if training or any(data.label in table.frame for table in tables):
        table = holder(tables, data.label)
        labels = _codes(table, data.label, data.values)
        unknown = np.isnan(labels)
        if training:
            gaps.note(table, data.label, unknown)
        elif unknown.any():
            notes += (str(table.error(int(unknown.argmax()), data.label, "is missing; labels are not used")),)
            labels = None
    kept, left_out = gaps.settle(data.missing)
    encoded = np.column_stack(inputs)[kept].astype(dtype)
    if not len(encoded):
        raise DataError(source, "has no rows")
    if training and len(encoded) > 1 and (encoded == encoded[0]).all():
        raise DataError(source, f"all {len(encoded)} rows have the same features: there is nothing to learn from")
    left = tables[0].take(kept.tolist())
    keys = tuple(map(str, left.frame.index) if key is None else left.texts(key))
    classes = None if labels is None else labels[kept].astype(np.int64)
    return Reading(source, encoded, classes, keys=keys, notes=notes + left_out)


class _Gaps:
    """Rows that lack a value, and the first of them."""

    def __init__(self, rows: int) -> None:
        self.rows = np.zeros(rows, bool)
        self.first: tuple[Table, str, int] | None = None

    def note(self, table: Table, column: str, lacking: Array) -> None:
        if lacking.any() and self.first is None:
            self.first = table, column, int(lacking.argmax())
        self.rows |= lacking

    def settle(self, missing: str) -> tuple[Array, tuple[str, ...]]:
        """Return the positions of the rows that stay, and what is to be told of the others."""
        kept = np.flatnonzero(~self.rows)
        if self.first is None:
            return kept, ()
        table, column, row = self.first
        count = f"{int(self.rows.sum())} of {len(self.rows)} rows"
        if missing == "refuse":
            problem = f'is missing ({count} lack a value): complete it, or set data.missing to "drop"'
            raise table.error(row, column, problem)
        if not len(kept):
            raise table.error(row, column, f"is missing; {count} lack a value, and none is left")
        return kept, (str(table.error(row, column, f"is missing; {count} lack a value and are left out")),)


def _numbers(table: Table, column: str, dtype: str) -> Array:
    """Return a column as numbers; NaN where one is missing."""
    texts = table.texts(column)
    numbers = np.array([number(text) for text in texts], np.float64)
    for row in np.flatnonzero(~(np.abs(numbers) <= np.finfo(dtype).max)):
        if texts[row].lower() not in MISSING:
            raise table.error(int(row), column, f"holds {shown(texts[row])}, expected a finite number")
    return numbers


def number(text: str) -> float:
    """Return the number that a text holds; NaN where it holds none."""
    try:
        return float("nan" if "_" in text else text)
    except ValueError:
        return float("nan")


def _codes(table: Table, column: str, levels: Sequence[str]) -> Array:
    """Return each cell's place among the levels; NaN where it is missing."""
    places = {level: float(place) for place, level in enumerate(levels)}
    texts = table.texts(column)
    for row, text in enumerate(texts):
        if canonical(text) not in places and text.lower() not in MISSING:
            some = ", ".join(levels[:10]) + ", …" * (len(levels) > 10)
            raise table.error(row, column, f"holds {shown(text)}, expected one of {some}")
    return np.array([places.get(canonical(text), np.nan) for text in texts], np.float64)
