"""Labels from a table's columns, for every task."""

from __future__ import annotations

import numpy as np

from common.columns import Labelled, canonical
from common.tasks import Classification, MultiLabel, TaskSpec
from local.data.encoding import number
from local.data.reading import MISSING, MOST, Array, shown
from local.data.tables import Table, holder


def labels_of(table: Table, data: Labelled, task: TaskSpec) -> Array:
    """Return the labels of a table's rows.

    Returns:
        float64 [rows], or [rows, labels] for multi-label: places among the values, numbers, or 0 and 1; NaN where a
        label is missing.

    Raises:
        DataError: naming file, row and column of a cell that holds something else.
    """
    columns = [_column(table, column, data, task) for column in data.targets]
    return np.stack(columns, axis=1) if isinstance(task, MultiLabel) else columns[0]


def as_labels(found: Array, task: TaskSpec) -> Array:
    """Return labels without gaps in their own type: int64 of classes, else float64."""
    return found.astype(np.int64) if isinstance(task, Classification) else found


def _column(table: Table, column: str, data: Labelled, task: TaskSpec) -> Array:
    levels = data.values if isinstance(task, Classification) else ("0", "1")
    if isinstance(task, Classification | MultiLabel):
        places = {level: float(place) for place, level in enumerate(levels)}
        expected = "one of " + ", ".join(levels[:10]) + ", …" * (len(levels) > 10)
    else:
        places, expected = {}, f"a finite number of at most {MOST:.0e}"
    texts = holder((table,), column).texts(column)
    found = np.array([places.get(canonical(text), np.nan) if places else number(text) for text in texts], np.float64)
    for row in np.flatnonzero(~(np.abs(found) <= MOST)).tolist():
        if texts[row].lower() not in MISSING:
            raise table.error(row, column, f"holds {shown(texts[row])}, expected {expected}")
    return found
