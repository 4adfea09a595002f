"""Five hospitals' folders as they come: no two are written alike. `python -m tests.messy FOLDER` writes them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

HOSPITALS = ("aachen", "bern", "calais", "dresden", "essen")


def patients(count: int, seed: int) -> pd.DataFrame:
    """Return patients whose disease, from 0 to 4, follows from age, pressure, pain and sex."""
    generator = np.random.default_rng(seed)
    age = generator.integers(30, 80, count)
    sex = generator.choice(["m", "w"], count)
    pressure = np.round(generator.normal(120 + 0.3 * age, 12), 1)
    pain = generator.choice(["none", "typical", "atypical"], count, p=[0.5, 0.2, 0.3])
    risk = 0.06 * (age - 55) + 0.8 * (sex == "m") + 0.04 * (pressure - 138) + 1.2 * (pain == "typical") - 0.4
    stage = np.clip(np.ceil(risk + generator.logistic(0, 0.7, count)), 0, 4).astype(int)
    return pd.DataFrame(
        {
            "Patient": [f"{seed}-{number:04}" for number in range(count)],
            "Alter": age,
            "Geschlecht": sex,
            "Größe": np.round(generator.normal(172, 9, count), 1),
            "Blutdruck": pressure,
            "Cholesterin": generator.normal(230, 40, count).round().astype(int),
            "CRP": np.round(generator.lognormal(1, 0.8, count), 2),
            "Schmerz": pain,
            "Aufnahme": pd.date_range("2020-01-01", periods=count).strftime("%d.%m.%Y"),
            "Stadium": stage,
        }
    )


def gaps(table: pd.DataFrame, column: str, share: float, seed: int, token: object = "", mark: str = ".") -> None:
    """Put a token in place of a share of a column's cells."""
    table[column] = table[column].astype(object)
    if mark != ".":
        table[column] = table[column].map(lambda number: str(number).replace(".", mark))
    lacking = np.random.default_rng(seed).random(len(table)) < share
    table[column] = table[column].where(~lacking, token)


def write(folder: Path) -> Path:
    """Write all folders, and return the one that holds them."""
    places = {name: folder / name for name in HOSPITALS}
    for place in places.values():
        place.mkdir(parents=True)
    aachen, bern, calais, dresden, essen = (patients(count, seed) for seed, count in enumerate((150, 130, 110, 90, 80)))

    aachen.to_csv(places["aachen"] / "herz.csv", index=False, sep=";", decimal=",", encoding="cp1252")

    gaps(bern, "CRP", 0.95, 1)
    bern[bern.columns[::-1]].to_csv(places["bern"] / "herz.csv", index=False)

    gaps(calais, "Cholesterin", 0.3, 2, None)
    calais.to_excel(places["calais"] / "herz.xlsx", index=False)

    dresden["Cholesterin"] = 0  # nobody measured it
    gaps(dresden, "Größe", 0.2, 3, "?")
    visits = pd.concat([dresden, dresden.iloc[::2]]).sort_values("Patient", kind="stable")
    visits.to_csv(places["dresden"] / "herz.csv", index=False, sep="\t")

    essen["Stadium"] = 0  # a clinic for check-ups, without events
    gaps(essen, "CRP", 0.1, 4, "<0,5", ",")
    essen.to_csv(places["essen"] / "herz.csv", index=False, sep=";", decimal=",", encoding="utf-8-sig")
    return folder


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
