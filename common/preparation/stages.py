"""A stage: one round in which every site sends one vector of sums per fold, and all receive the totals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LARGEST = 1e260  # of a row, so that sums over a thousand sites are finite
RAW = 1e100  # largest value that readers accept
MOST_ROWS = 2.0**43  # so that sums of counts are exact


@dataclass(frozen=True)
class Field:
    """A tensor in a stage's vector.

    Args:
        name: of the tensor.
        shape: of the tensor.
        kind: a count is a whole number from 0, a square is not negative, a sum is any number.
        largest: contribution of one value, except for counts. A mean must leave room for squares of deviations from it,
            even if a site's sum and count do not match.
        values: largest number of values in a row.
        whole: whether it covers all rows of the site for the run, not only those that the fold trains on.
    """

    name: str
    shape: tuple[int, ...]
    kind: Literal["count", "square", "sum"]
    largest: float = LARGEST
    values: int = 1
    whole: bool = False

    @property
    def size(self) -> int:
        """Number of numbers."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Stage:
    """The fields of a vector, in order."""

    fields: tuple[Field, ...]

    @property
    def size(self) -> int:
        """Number of numbers in the vector."""
        return sum(field.size for field in self.fields)

    def pack(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the fields' values as one vector, float64.

        Raises:
            ValueError: a value has another shape.
        """
        for field in self.fields:
            if values[field.name].shape != field.shape:
                raise ValueError(f"{field.name}: got {list(values[field.name].shape)}, expected {list(field.shape)}")
        return torch.cat([values[field.name].to(torch.float64).reshape(-1) for field in self.fields])

    def unpack(self, vector: Tensor) -> dict[str, Tensor]:
        """Return a vector's values by field."""
        parts = vector.split([field.size for field in self.fields])
        return {field.name: part.reshape(field.shape) for field, part in zip(self.fields, parts, strict=True)}

    def check(self, vector: Tensor, rows: float = MOST_ROWS, whole: float = MOST_ROWS) -> str | None:
        """Return what is wrong with a vector, beginning with the field; None if it is valid.

        Args:
            vector: of one fold.
            rows: number of the fold's training rows.
            whole: number of all rows.
        """
        for field, value in zip(self.fields, self.unpack(vector).values(), strict=True):
            if field.kind != "sum" and (value < 0).any():
                return f"{field.name}: expected no number below 0"
            counts = field.kind == "count"
            most = (whole if field.whole else rows) * field.values * (1 if counts else field.largest)
            if not (value.abs() <= most).all() or (counts and (value != value.floor()).any()):  # refuses NaN
                return f"{field.name}: expected {'whole ' * counts}numbers up to {most:g}"
        return None
