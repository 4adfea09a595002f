"""Detects columns with patients' identifiers, by their values and, if these agree, by their names."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from rankdad.common.data.reading import Array

IDENTIFIERS = frozenset({"id", "uid", "uuid", "guid", "identifier", "mrn", "pid"})  # last words of a name
PEOPLE = frozenset(
    {"subject", "patient", "pat", "participant", "person", "proband"}
)  # alone, or before a word for a number
THINGS = frozenset({"case", "record", "row", "index", "name", "study"})  # possibly other things
NUMBERS = frozenset({"nr", "no", "num", "number", "nummer", "code", "key", "name"})  # words for a number
MANY_VISITS = 20  # rows of one patient
FEW_PEOPLE = 5  # different values below which repeated ones are rather levels
MANY_PEOPLE = 20  # different values beyond which they are rather names
MANY_WORDS = 4  # of a cell, from which most cells are sentences and name nobody
LEAST_SHARE = 0.2  # of different values among the rows of a column that names patients and is not called so
CHANCE = -14.0  # logarithm of the chance by which values may agree in all rows of each patient

ZEROS_LOST = (
    "no identifier starts with 0 here, but elsewhere some do: if a spreadsheet program removed the zeros, restore "
    "them: 123 and 00123 are two patients"
)


def _kind_of(name: str) -> str:
    """Return what a column of this name may identify: "people", "things", or "" for neither."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-zß-ÿ]+", name)]
    if not words:
        return ""
    first, last = words[0], words[-1]
    if last in IDENTIFIERS or (first in PEOPLE and (len(words) == 1 or last in NUMBERS)):
        return "people"
    return "things" if first in THINGS and (len(words) == 1 or last in NUMBERS) else ""


def names_patients(name: str, held: Sequence[str], numbers: Array) -> bool:
    """Return whether a column identifies patients or rows, by its name and cells alone.

    Args:
        name: of the column.
        held: its cells that are not missing.
        numbers: the numeric ones among them, float64.
    """
    counts = Counter(held)
    alone = len(counts) == len(held)
    if 2 * len(numbers) >= len(held):
        if (numbers != np.round(numbers)).any():
            return False
    elif 2 * sum(len(text.split()) >= MANY_WORDS for text in held) > len(held):
        return False
    elif alone and len(held) > MANY_PEOPLE:
        return True
    kind, most = _kind_of(name), max(counts.values())
    if kind == "people":
        return alone or len(counts) > MANY_PEOPLE or (len(counts) >= FEW_PEOPLE and most <= MANY_VISITS)
    return kind == "things" and (alone or (len(counts) > MANY_PEOPLE and 3 * len(counts) >= len(held)))


def are_texts(rows: Mapping[str, int]) -> bool:
    """Return whether values, with their numbers of rows, are sentences about single rows rather than levels."""
    long = sum(len(value.split()) >= MANY_WORDS for value in rows)
    return 2 * long > len(rows) and 2 * sum(count == 1 for count in rows.values()) > len(rows)


def to_read(values: Mapping[str, int]) -> str:
    """Return what a column of texts, or of names of text files, is for; "" for another."""
    reader = 'a run on it has "reader": "text" (data.column, page docs/how-to/tables.md#texts)'
    if all(value.lower().endswith(".txt") for value in values):
        return f'names of text files: {reader}, and "holds": "file"'
    return f"free text, no input beside others: {reader}" if are_texts(values) else ""


class Digits(NamedTuple):
    """The form of numeric identifiers: smallest and largest length, and whether one starts with 0."""

    shortest: int
    longest: int
    padded: bool


def digits_of(names: Sequence[str]) -> Digits | None:
    """Return the form of identifiers; None if there are none, or not all consist of digits."""
    if not names or not all(re.fullmatch("[0-9]+", name) for name in names):
        return None
    lengths = [len(name) for name in names]
    return Digits(min(lengths), max(lengths), any(re.fullmatch("0[0-9]+", name) for name in names))


def lost_zeros(own: Digits | None, other: Digits | None) -> bool:
    """Return whether a program seems to have removed leading zeros that another table's identifiers have."""
    if own is None or other is None or own.padded or not other.padded:
        return False
    return own.shortest < other.longest >= own.longest


def counts_rows(numbers: Array) -> bool:
    """Return whether numbers count the rows of a table that is long enough to tell."""
    return len(numbers) > MANY_PEOPLE and bool((np.diff(numbers) == 1).all())


def alike_within(column: Sequence[str], others: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the columns in which rows with the same value agree, as a patient's rows do in sex and birth date.

    Agreement by chance does not count, nor do columns that follow the value's order, such as age groups by age, or that
    follow from another returned column.

    Args:
        column: cells of a column without missing values.
        others: cells of the other columns, by name.
    """
    codes, distinct = pd.factorize(np.array(column, object))
    repeats = len(codes) - len(distinct)
    if not repeats or len(distinct) < LEAST_SHARE * len(codes) or np.bincount(codes).max() > MANY_VISITS:
        return []
    numbers = _numbers(column)
    order = np.argsort(np.array(column) if numbers is None else numbers, kind="stable")
    alike: dict[str, Array] = {}
    for name, cells in others.items():
        values, levels = pd.factorize(np.array(cells, object))
        agree = float(((np.bincount(values) / len(values)) ** 2).sum())
        if len(levels) < 2 or repeats * math.log(agree) > CHANCE or _pairs(codes, values) != len(distinct):
            continue
        apart = all(_pairs(values, other) > max(values.max(), other.max()) + 1 for other in alike.values())
        if apart and not _follows(values[order], _numbers(cells), order):
            alike[name] = values
    return list(alike)


def _numbers(cells: Sequence[str]) -> Array | None:
    """Return cells as numbers; None if one is not numeric."""
    found = pd.to_numeric(pd.Series(list(cells)), errors="coerce")
    return None if found.isna().any() else found.to_numpy()


def _follows(values: Array, numbers: Array | None, order: Array) -> bool:
    """Return whether values follow an order: numbers are monotonic, or equal levels are contiguous."""
    if numbers is not None and len(np.unique(values)) > 2:
        steps = np.diff(numbers[order])
        return bool((steps >= 0).all() or (steps <= 0).all())
    return int((np.diff(values) != 0).sum()) <= 2 * int(values.max())


def _pairs(one: Array, other: Array) -> int:
    """Return the number of different pairs in the rows of two columns of numbers from 0."""
    return len(np.unique(one.astype(np.int64) * (int(other.max()) + 1) + other))
