"""What every reader returns, as plain arrays: nothing here knows of torch, or of where data come from."""

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
MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "null", "none"})  # in small letters
EXACT = 10**15  # a real number in a cell has fewer digits than this that are sure
ROUNDED = re.compile(r"[+-]?\d(\.\d+)?[eE]\+\d{2,}")  # as programs shorten numbers of many digits
# Of a workbook, in any language: a formula without a value, #REF!, #WERT!, #¡VALOR!, Err:502, a column too narrow.
BROKEN = re.compile(r"=.*|#[¡¿]?[^\W\d_]+(/0)?[!?]|Err:\d{3}|#{3,}", re.DOTALL)
BROKEN_ADVICE = "a formula without a result: open the workbook, mend and save it, or export it anew"
LOST_DIGITS = "an identifier that has lost digits: make the column text where it comes from, and export it anew"
PLACE = "their place in the data"
MOST = 1e100  # of what is summed up over samples and sites with its squares


@dataclass(frozen=True)
class AllRows:
    """All rows of a table that is predicted from, also those that cannot be.

    Args:
        names: of the rows.
        columns: what predictions are to stand beside, by column.
        refused: why a row is no sample, by its position; the others are, in order.
        unlabelled: rows that are samples and whose label is missing or none of the run's, by position.
    """

    names: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]]
    refused: Mapping[int, DataError]
    unlabelled: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Reading:
    """Samples as they were found, checked against the run's schema.

    Args:
        source: the file, named in errors.
        inputs: [samples, …] in the replica's dtype, int64 for tokens; NaN where a value is to be imputed. Samples of a
            file each are read when they are asked for.
        labels: int64 [samples], 0 to classes − 1; float64 [samples] for regression, [samples, labels] of 0 and 1 for
            multi-label; None where there are none.
        split: int64 [samples], 0 train, 1 validation, 2 test; None where the data do not say.
        keys: name of each sample, or its row in the file; None where they are counted from 0.
        groups: what each sample's fold follows from; None where its key does.
        covariates: float64 [samples, …], the columns whose effects harmonisation keeps; None where there are none.
        dropped: how many rows of the source were left out.
        notes: what the person at the site should be told, one sentence each.
        rows: of a table that is predicted from; else None.
        named_by: what the groups, or else the keys, come from: two readings call a sample alike only by the same.
        stands: returns of each column what the source holds for every sample, whatever the schema makes of it: text, or
            of arrays 8 bytes that follow from a sample's numbers.
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
            rows: places, int64, ascending.
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
    """Return 8 bytes for each sample that follow from its numbers as they are, object [samples]."""
    whole = np.ascontiguousarray(values).reshape(len(values), math.prod(values.shape[1:]))
    return np.array([None, *(blake2b(row.tobytes(), digest_size=8).digest() for row in whole)], object)[1:]


def by_column(*columns: str | None) -> str:
    """Return what names samples: the first column that there is, else their place."""
    return next((f"the column {column}" for column in columns if column is not None), PLACE)


def is_folder(path: Path) -> bool:
    """Tell a folder from a file that is there; what cannot be found counts as a folder, in which nothing is."""
    try:
        return path.is_dir() or not path.exists()
    except OSError:
        return True


def number(text: str) -> float:
    """Return the number that a text holds; NaN where it holds none."""
    try:
        return float("nan" if "_" in text else text)
    except ValueError:
        return float("nan")


def shown(text: str) -> str:
    """Return a cell as it stands in an error."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def told_together(texts: Iterable[str]) -> str:
    """Return values that may be one as they stand in a sentence; in ASCII where letters of two alphabets look alike."""
    values = tuple(texts)
    form = ascii if any(ord(c.casefold()[0]) in LOOKALIKES for text in values for c in text) else repr
    return " and ".join(form(text if len(text) <= 40 else text[:37] + "...") for text in values)


def has_lost_digits(text: str, cell: object = None) -> bool:
    """Tell whether an identifier was rounded on its way, so that several may have become one.

    Args:
        text: it, as it stands there.
        cell: what held it, where that is not text.
    """
    return ROUNDED.fullmatch(text) is not None or (isinstance(cell, float) and abs(cell) >= EXACT)
