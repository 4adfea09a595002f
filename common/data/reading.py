"""The result of every reader: plain arrays, independent of torch and of the file format."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankdad.common.errors import DataError
from rankdad.common.spec.table_schema import LOOKALIKES

if TYPE_CHECKING:
    from rankdad.common.data.file_samples import FileSamples

Array = NDArray[Any]
MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "null", "none"})  # in lower case
EXACT = 10**15  # floating-point cells have fewer reliable digits
ROUNDED = re.compile(r"[+-]?\d(\.\d+)?[eE]\+\d{2,}")  # numbers of many digits, as shortened by programs
# Errors in a workbook, in any language: a formula without a value, #REF!, #WERT!, #¡VALOR!, Err:502, a narrow column.
BROKEN = re.compile(r"=.*|#[¡¿]?[^\W\d_]+(/0)?[!?]|Err:\d{3}|#{3,}", re.DOTALL)
BROKEN_ADVICE = "a formula without a result: open the workbook, correct and save it, or export it again"
LOST_DIGITS = "an identifier that has lost digits: make the column text in the source, and export it again"
PLACE = "their place in the data"
MOST = 1e100  # limit for numbers whose squares are summed over samples and sites


@dataclass(frozen=True)
class AllRows:
    """All rows of a table to predict, including refused ones.

    Args:
        names: of the rows.
        columns: to copy next to predictions, by name.
        refused: reasons, by position; all other rows are samples, in order.
        unlabelled: positions of samples with a missing or unknown label.
    """

    names: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]]
    refused: Mapping[int, DataError]
    unlabelled: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Reading:
    """Samples of a site, checked against the run's schema.

    Args:
        source: the file, for errors.
        inputs: [samples, …] in the replica's dtype, int64 for tokens; NaN for values to impute. Samples with a file
            each are read when they are used.
        labels: int64 [samples], 0 to classes − 1; float64 [samples] for regression, [samples, labels] of 0 and 1 for
            multi-label; None without labels.
        split: int64 [samples], 0 train, 1 validation, 2 test; None if the data have none.
        keys: of the samples, or their rows in the file; None for numbers from 0.
        groups: group of each sample, which determines its fold; None if its key does.
        covariates: float64 [samples, …], the columns whose effects harmonisation keeps; None without any.
        dropped: number of rows left out.
        notes: sentences for the site's staff.
        rows: of a table to predict; otherwise None.
        named_by: source of the groups, or otherwise the keys; only equal sources give comparable identifiers.
        stands: returns for each column the source's value of every sample, independent of the schema: text, or for
            arrays an 8-byte hash.
    """

    source: str | Path
    inputs: Array | FileSamples
    labels: Array | None = None
    split: Array | None = None
    keys: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    covariates: Array | None = None
    dropped: int = 0
    notes: tuple[str, ...] = ()
    rows: AllRows | None = None
    named_by: str = PLACE
    stands: Callable[[], Mapping[str, Array]] = dict

    def take(self, rows: Array) -> Reading:
        """Return some of the samples.

        Args:
            rows: positions, int64, ascending.
        """
        places = rows.tolist()
        inputs = self.inputs[rows] if isinstance(self.inputs, np.ndarray) else self.inputs.take(places)
        labels, split, covariates = (
            None if own is None else own[rows] for own in (self.labels, self.split, self.covariates)
        )
        keys, groups = (
            None if own is None else tuple(own[place] for place in places) for own in (self.keys, self.groups)
        )
        found = replace(self, inputs=inputs, labels=labels, split=split, covariates=covariates)
        stands = self.stands
        return replace(
            found, keys=keys, groups=groups, stands=lambda: {name: own[rows] for name, own in stands().items()}
        )


def fingerprints(values: Array) -> Array:
    """Return an 8-byte hash of each sample's numbers, object [samples]."""
    whole = np.ascontiguousarray(values).reshape(len(values), math.prod(values.shape[1:]))
    return np.array([None, *(blake2b(row.tobytes(), digest_size=8).digest() for row in whole)], object)[1:]


def by_column(*columns: str | None) -> str:
    """Return what identifies samples: the first given column, or their position."""
    return next((f"the column {column}" for column in columns if column is not None), PLACE)


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder, or does not exist and is not named like a file."""
    try:
        return path.is_dir() or not (path.suffix or path.exists())
    except OSError:
        return True


def number(text: str) -> float:
    """Parse a number; NaN if the text is none."""
    try:
        return float("nan" if "_" in text else text)
    except ValueError:
        return float("nan")


def shown(text: str) -> str:
    """Format a cell for an error."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def told_together(texts: Iterable[str]) -> str:
    """Format values that may be equal; in ASCII if letters of two alphabets look alike."""
    values = tuple(texts)
    form = ascii if any(ord(c.casefold()[0]) in LOOKALIKES for text in values for c in text) else repr
    return " and ".join(form(text if len(text) <= 40 else text[:37] + "...") for text in values)


def has_lost_digits(text: str, cell: object = None) -> bool:
    """Return whether an identifier was rounded, so that several may have become one.

    Args:
        text: the identifier.
        cell: its cell, if that is not text.
    """
    return ROUNDED.fullmatch(text) is not None or (isinstance(cell, float) and abs(cell) >= EXACT)
