"""Which columns name patients: told by their values, and by their names only where the values agree."""

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
)  # alone, or before a number's name
THINGS = frozenset({"case", "record", "row", "index", "name", "study"})  # often something else than a name
NUMBERS = frozenset({"nr", "no", "num", "number", "nummer", "code", "key", "name"})  # what follows one of these
MANY_VISITS = 20  # rows of one patient
FEW_PEOPLE = 5  # different values below which repeated ones are rather levels
MANY_PEOPLE = 20  # different values beyond which they are rather names
MANY_WORDS = 4  # of a cell, from which most cells are sentences and name nobody
LEAST_SHARE = 0.2  # of different values among the rows of a column that names patients and is not called so
CHANCE = -14.0  # logarithm of the chance by which values may agree in all rows of each patient

ZEROS_LOST = (
    "no identifier starts with 0 here, and elsewhere some do: if a spreadsheet program took the zeros away, write them "
    "back, since 123 and 00123 are two patients"
)


def _kind_of(name: str) -> str:
    """Return whose names a column of this name may hold: "people", "things", or "" for neither."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-zß-ÿ]+", name)]
    if not words:
        return ""
    first, last = words[0], words[-1]
    if last in IDENTIFIERS or (first in PEOPLE and (len(words) == 1 or last in NUMBERS)):
        return "people"
    return "things" if first in THINGS and (len(words) == 1 or last in NUMBERS) else ""


def names_patients(name: str, held: Sequence[str], numbers: Array) -> bool:
    """Tell whether a column names patients or rows, as far as it tells by itself.

    Args:
        name: of the column.
        held: its cells that are not missing.
        numbers: those among them that are numbers, float64.
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


class Digits(NamedTuple):
    """What identifiers of digits look like: lengths of the shortest and the longest, and whether one starts with 0."""

    shortest: int
    longest: int
    padded: bool


def digits_of(names: Sequence[str]) -> Digits | None:
    """Return what identifiers look like; None where they are none, or not digits alone."""
    if not names or not all(re.fullmatch("[0-9]+", name) for name in names):
        return None
    lengths = [len(name) for name in names]
    return Digits(min(lengths), max(lengths), any(re.fullmatch("0[0-9]+", name) for name in names))


def lost_zeros(own: Digits | None, other: Digits | None) -> bool:
    """Tell whether identifiers look as if a program took zeros away in front of them that others still have."""
    if own is None or other is None or own.padded or not other.padded:
        return False
    return own.shortest < other.longest >= own.longest


def counts_rows(numbers: Array) -> bool:
    """Tell whether numbers count rows, in a table that is long enough to tell."""
    return len(numbers) > MANY_PEOPLE and bool((np.diff(numbers) == 1).all())


def alike_within(column: Sequence[str], others: Mapping[str, Sequence[str]]) -> list[str]:
    """Return columns in which rows that share a value are alike, as a patient's rows are in sex and birth.

    No chance would make them so. What a number itself decides, such as an age its age group, follows its order and does
    not count; nor does a column that follows from another one of these.

    Args:
        column: cells of a column without gaps.
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
    """Return cells as numbers; None if one is none."""
    found = pd.to_numeric(pd.Series(list(cells)), errors="coerce")
    return None if found.isna().any() else found.to_numpy()


def _follows(values: Array, numbers: Array | None, order: Array) -> bool:
    """Tell whether values follow the order in which they stand: numbers rise or fall, levels stand together."""
    if numbers is not None and len(np.unique(values)) > 2:
        steps = np.diff(numbers[order])
        return bool((steps >= 0).all() or (steps <= 0).all())
    return int((np.diff(values) != 0).sum()) <= 2 * int(values.max())


def _pairs(one: Array, other: Array) -> int:
    """Return how many different pairs two columns of numbers from 0 have in their rows."""
    return len(np.unique(one.astype(np.int64) * (int(other.max()) + 1) + other))
