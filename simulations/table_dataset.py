"""A table of all samples, to be partitioned into the sites' tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankdad.common.data.cells import labels_of
from rankdad.common.data.dialect import BLANK
from rankdad.common.data.reading import MISSING, Array
from rankdad.common.data.sheets import READERS, read_parquet, read_workbook
from rankdad.common.data.tables import Table, holder
from rankdad.common.spec import RunSpec
from rankdad.common.spec.written import Tabular, Written
from rankdad.simulations.datasets import Rows


@dataclass(frozen=True, eq=False)
class TableDataset:
    """A table, by row."""

    table: Table

    @property
    def origin(self) -> str:
        """The file, for errors."""
        return str(self.table.source)

    def labels(self, run: RunSpec) -> Array:
        """Return the labels, checked against the run's schema and task; NaN if missing."""
        assert isinstance(run.data, Tabular)  # checked in the simulation's file
        return labels_of(run.data, (self.table,))

    def marks(self) -> Array:
        """Return 0 for all rows, as tables have no split."""
        return np.zeros(len(self.table), np.int64)

    def groups(self, run: RunSpec) -> Array | None:
        """Return the number of each row's group, such as a patient; None without groups in the schema."""
        assert isinstance(run.data, Tabular)
        if run.data.group is None:
            return None
        texts = holder((self.table,), run.data.group).texts(run.data.group)
        alone = (text if text.lower() not in MISSING else row for row, text in enumerate(texts))
        numbers: dict[str | int, int] = {}
        return np.array([numbers.setdefault(one, len(numbers)) for one in alone], np.int64)

    def cells(self, column: str) -> list[str]:
        """Return a column's cells.

        Raises:
            DataError: the column is missing, or a cell is empty.
        """
        texts = holder((self.table,), column).texts(column)
        for row, text in enumerate(texts):
            if text.lower() in MISSING:
                raise self.table.error(row, column, "is missing, expected the value that assigns the row to a site")
        return texts

    def write(self, rows: Rows, run: RunSpec, path: Path) -> None:
        """Write a table with all columns."""
        frame, kind = self.table.frame.iloc[rows], path.suffix.lower()
        reader = READERS.get(kind)
        if reader is read_workbook:
            frame.to_excel(path, index=False)
        elif reader is read_parquet:
            frame.to_parquet(path, index=False)
        else:
            assert isinstance(run.data, Written)
            separator = run.data.delimiter or ("\t" if kind == ".tsv" else ",")
            if separator == BLANK:
                frame = frame.replace("", "NA")  # blanks as separators need a mark for empty cells
            frame.to_csv(path, index=False, sep=separator)
