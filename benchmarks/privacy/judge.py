"""The judge: how many cells of single patients an attacker claims, and how many of these claims are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, pstdev

from benchmarks.privacy.tables import COLUMNS, LABEL, LEVELS, NUMBERS, Row, Value

NEAR = 0.01  # standard deviations of a column: a claim that is no further off is right
ALIKE = 2  # numbers of a row without a name that have to be right before it is somebody's


@dataclass(frozen=True)
class Claim:
    """What an attacker says that a cell holds.

    Args:
        site: whose patient it is.
        patient: who it is by name, or a name that the attacker has given to a row whose patient is not known.
        column: of the table.
        value: that the cell holds.
    """

    site: str
    patient: str
    column: str
    value: float | str


@dataclass(frozen=True)
class Score:
    """Cells of single patients.

    Args:
        claimed: by the attacker.
        right: of these, and not what anybody would guess from Table 1.
        cells: that there are.
    """

    claimed: int
    right: int
    cells: int


def judge(claims: Iterable[Claim], truth: Mapping[str, Mapping[str, Row]]) -> Score:
    """Count the claims, and those that are right where a guess from published figures is wrong.

    A row without a name is taken for the patient with most of its numbers, if these are enough; else none of it is
    right.

    Args:
        claims: of the attacker.
        truth: every site's patients by name.
    """
    claimed = {(one.site, one.patient, one.column): one.value for one in claims}
    right = set[tuple[str, str, str]]()
    for site, table in truth.items():
        sds = {column: pstdev(_numbers(table, column)) for column in NUMBERS}
        guesses = _guesses(table)
        rows: dict[str, dict[str, float | str]] = {}
        for (own, patient, column), value in claimed.items():
            if own == site:
                rows.setdefault(patient, {})[column] = value
        for patient, row in rows.items():
            name = patient if patient in table else _whose(row, table, sds)
            if name is None:
                continue
            for column, value in row.items():
                actual = table[name][column]
                if _is_right(column, value, actual, sds) and not _is_right(column, guesses[column], actual, sds):
                    right.add((site, name, column))
    return Score(len(claimed), len(right), sum(len(table) * len(COLUMNS) for table in truth.values()))


def _whose(row: Mapping[str, float | str], table: Mapping[str, Row], sds: Mapping[str, float]) -> str | None:
    """Return the patient who has most of a row's numbers; None if nobody has enough."""
    alike = {
        name: sum(_is_right(column, row[column], own[column], sds) for column in NUMBERS if column in row)
        for name, own in table.items()
    }
    name = max(alike, key=lambda one: alike[one])
    return name if alike[name] >= ALIKE else None


def _is_right(column: str, value: float | str, actual: Value, sds: Mapping[str, float]) -> bool:
    if actual is None:
        return False
    return abs(float(value) - float(actual)) <= NEAR * sds[column] if column in NUMBERS else value == actual


def _numbers(table: Mapping[str, Row], column: str) -> list[float]:
    return [float(row[column] or 0.0) for row in table.values() if row[column] is not None]


def _guesses(table: Mapping[str, Row]) -> dict[str, float | str]:
    """Return the public guess about a patient: means and most frequent values in Table 1."""
    usual = {
        column: Counter(row[column] for row in table.values()).most_common(1)[0][0] or 0.0
        for column in (*LEVELS, LABEL, *(column for column in COLUMNS if column not in NUMBERS))
    }
    return usual | {column: fmean(_numbers(table, column)) for column in NUMBERS}
