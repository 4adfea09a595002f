"""Rows of single patients in sums: criteria for a claim."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from benchmarks.privacy.judge import Claim
from benchmarks.privacy.tables import BINARY, LABEL, LEVELS, NUMBERS

PLACES = [*NUMBERS, *BINARY, *(f"{column}={level}" for column, levels in LEVELS.items() for level in levels)]
WHOLE = [place for place, name in enumerate(PLACES) if name not in NUMBERS]  # 0 or 1 in a patient's own row
LEAST = {"age": 15.0, "height": 120.0, "bmi": 10.0, "crp": 0.0}  # of any patient: who claims less is wrong
MOST = {"age": 110.0, "height": 220.0, "bmi": 70.0, "crp": 100.0}


def is_row(row: Tensor, near: float = 1e-3) -> bool:
    """Tell whether a vector could be one patient's: 0 or 1 where it has to be, one of each column's levels."""
    whole = row[WHOLE]
    if not row.isfinite().all() or bool(((whole - whole.round()).abs() > near).any()):
        return False
    whole, at = whole.round(), len(BINARY)
    if bool(((whole < 0) | (whole > 1)).any()):
        return False
    for levels in LEVELS.values():
        if whole[at : at + len(levels)].sum() != 1:
            return False
        at += len(levels)
    numbers = zip(NUMBERS, row[: len(NUMBERS)].tolist(), strict=True)
    return all(LEAST[column] <= value <= MOST[column] for column, value in numbers)


def claims_of(site: str, patient: str, row: Tensor, label: float | None = None) -> Iterator[Claim]:
    """Yield a patient's values, column by column."""
    values = row.tolist()
    for column, value in zip((*NUMBERS, *BINARY), values[: len(NUMBERS) + len(BINARY)], strict=True):
        yield Claim(site, patient, column, value if column in NUMBERS else float(round(value)))
    at = len(NUMBERS) + len(BINARY)
    for column, levels in LEVELS.items():
        own = values[at : at + len(levels)]
        yield Claim(site, patient, column, levels[own.index(max(own))])
        at += len(levels)
    if label is not None:
        yield Claim(site, patient, LABEL, float(round(label)))


def distinct(rows: Iterable[tuple[Tensor, float | None]], near: float = 1e-2) -> list[tuple[Tensor, float | None]]:
    """Return rows that are not found already, each with its label where that is known."""
    found: list[tuple[Tensor, float | None]] = []
    for row, label in rows:
        if not any(torch.allclose(row, known, rtol=0, atol=near) for known, _ in found):
            found.append((row, label))
    return found


def named(site: str, rows: Sequence[tuple[Tensor, float | None]]) -> list[Claim]:
    """Return the claims of rows whose patients are not known."""
    return [
        claim for number, (row, label) in enumerate(rows) for claim in claims_of(site, f"somebody {number}", row, label)
    ]
