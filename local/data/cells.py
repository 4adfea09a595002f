"""What single cells of a table hold: numbers, levels, labels. Any other cell is named with file, row and column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankdad.common.table_schema import Labelled, canonical
from rankdad.local.data.reading import MISSING, MOST, Array, number, shown
from rankdad.local.data.tables import Table, holder


def column_numbers(table: Table, column: str, dtype: str = "float64") -> Array:
    """Return a column as numbers that a dtype can hold, float64 [rows]; NaN where one is missing.

    Raises:
        DataError: a cell holds something else.
    """
    texts = table.texts(column)
    found = np.array([number(text) for text in texts], np.float64)
    most = min(float(np.finfo(dtype).max), MOST)
    for row in np.flatnonzero(~(np.abs(found) <= most)).tolist():
        if texts[row].lower() not in MISSING:
            problem = f"holds {shown(texts[row])}, expected a finite number of at most {most:.0e}"
            raise table.error(row, column, problem)
    return found


def column_codes(table: Table, column: str, levels: Sequence[str]) -> Array:
    """Return each cell's place among the levels, float64 [rows]; NaN where it is missing.

    Raises:
        DataError: a cell holds something else.
    """
    places = {level: float(place) for place, level in enumerate(levels)}
    texts = table.texts(column)
    for row, text in enumerate(texts):
        if canonical(text) not in places and text.lower() not in MISSING:
            some = ", ".join(levels[:10]) + ", …" * (len(levels) > 10)
            raise table.error(row, column, f"holds {shown(text)}, expected one of {some}")
    return np.array([places.get(canonical(text), np.nan) for text in texts], np.float64)


def labels_of(data: Labelled, tables: Sequence[Table]) -> Array:
    """Return labels, float64 [rows], or [rows, labels] of several: places of classes, numbers, 0 and 1; NaN for gaps.

    Raises:
        DataError: a cell holds something else.
    """
    several = not isinstance(data.label, str)
    levels = ("0", "1") if several else data.values
    held = [(holder(tables, target), target) for target in data.targets]
    columns = [
        column_codes(table, target, levels) if levels else column_numbers(table, target) for table, target in held
    ]
    return np.column_stack(columns) if several else columns[0]


def as_labels(data: Labelled, found: Array) -> Array:
    """Return labels without gaps in their own type: int64 of classes, else float64."""
    return found.astype(np.int64) if data.values else found
