"""Tables of simulated patients at the attacked hospitals, visible only to the judge."""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

NUMBERS = ("age", "height", "bmi", "crp")
BINARY = ("smoker", "diabetic")
LEVELS = {"sex": ("f", "m"), "stage": ("a", "b", "c", "d")}
LABEL = "event"
COLUMNS = (*NUMBERS, *BINARY, *LEVELS, LABEL)
POSITIVE = 8  # patients of the rarer class, at least
FILE = "patients.csv"

Value = float | str | None
Row = Mapping[str, Value]


def patients(site: str, count: int, seed: int, one_in: int = 5) -> dict[str, Row]:
    """Return a hospital's patients by name: numbers with digits, levels of one to five patients, gaps.

    Args:
        site: its name, with which its patients' begin.
        count: patients.
        seed: of all that is drawn.
        one_in: so many patients has one the event.
    """
    drawn = np.random.default_rng([seed, count, *site.encode()])
    stages = ["d"] + ["c"] * 2 + ["b"] * 5 + ["a"] * (count - 8)
    events = np.arange(count) < max(POSITIVE, count // one_in)
    numbers = {
        "age": drawn.normal(58, 14, count).clip(18, 97).round(1),
        "height": drawn.normal(171, 9, count).round(1),
        "bmi": drawn.normal(26, 4, count).clip(15, 50).round(2),
        "crp": drawn.lognormal(1, 0.8, count).round(2),
    }
    order, sick = drawn.permutation(count), drawn.permutation(count)
    smoker, diabetic, men = (drawn.random(count) < share for share in (0.3, 0.15, 0.5))
    found: dict[str, Row] = {}
    for row in range(count):
        own: dict[str, Value] = {name: float(values[row]) for name, values in numbers.items()}
        own |= {"smoker": float(smoker[row]), "diabetic": float(diabetic[row]), "sex": "fm"[int(men[row])]}
        own |= {"stage": stages[order[row]], LABEL: float(events[sick[row]])}
        found[f"{site}-{row:03d}"] = own
    for name in list(found)[3:8]:
        found[name] = {**found[name], "crp": None}
    return found


def write(table: Mapping[str, Row], folder: Path, without: Collection[str] = ()) -> None:
    """Write a hospital's table, without the patients who are not there any more, or not yet."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE).open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["id", "pid", *COLUMNS])
        for name, row in table.items():
            if name not in without:
                lines.writerow([name, name, *("" if row[column] is None else row[column] for column in COLUMNS)])
