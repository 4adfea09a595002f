"""The samples of a simulation before they are partitioned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rankdad.common.data.npz import labels_in, whole_numbers
from rankdad.common.data.reading import Array
from rankdad.common.errors import DataError
from rankdad.common.spec import RunSpec

Rows = NDArray[np.intp]


class Dataset(Protocol):
    """Samples in rows."""

    @property
    def origin(self) -> str:
        """Source of the samples, for errors."""

    def labels(self, run: RunSpec) -> Array:
        """Return the rows' labels as in `common.data`; NaN if missing."""

    def marks(self) -> Array:
        """Return each row's split, int64: 0 training, 1 validation, 2 test; 0 for all without a split."""

    def groups(self, run: RunSpec) -> Array | None:
        """Return the number of each row's group, such as a patient; None without groups."""

    def cells(self, column: str) -> list[str]:
        """Return a column's cells."""

    def write(self, rows: Rows, run: RunSpec, path: Path) -> None:
        """Write rows as a site's file."""


@dataclass(frozen=True, eq=False)
class ArrayDataset:
    """Arrays by row.

    Args:
        origin: the file, for errors.
        x: inputs.
        y: labels.
        others: split, key, group and length, as in a npz file.
    """

    origin: str
    x: Array
    y: Array
    others: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, array in self.others.items():
            if array.shape[:1] != self.x.shape[:1]:
                raise DataError(
                    self.origin,
                    f"{name} has shape {list(array.shape)} for {len(self.x)} samples",
                    code="length-differs",
                )

    def labels(self, run: RunSpec) -> Array:
        """Return the labels, checked against the run's task."""
        return labels_in(self.origin, "y (the label)", self.y, len(self.x), run.task)

    def marks(self) -> Array:
        """Return the data's own split."""
        if "split" not in self.others:
            return np.zeros(len(self.x), np.int64)
        return whole_numbers(self.origin, "split", self.others["split"], len(self.x), 3)

    def groups(self, run: RunSpec) -> Array | None:
        """Return the numbers of the data's groups."""
        return None if "group" not in self.others else np.unique(self.others["group"], return_inverse=True)[1]

    def cells(self, column: str) -> list[str]:
        """Raise an error: arrays have no columns."""
        raise DataError(self.origin, f"is not a table, and has no column {column}", code="column-missing", field=column)

    def write(self, rows: Rows, run: RunSpec, path: Path) -> None:
        """Write a npz file."""
        arrays = {"x": self.x, "y": self.labels(run), **self.others}
        with path.open("wb") as file:  # NumPy may append a suffix to a name
            np.savez(file, allow_pickle=False, **{name: array[rows] for name, array in arrays.items()})
