"""Folders as hospitals have them, and what each should become: features, label, levels and groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rankdad.common.spec.written import Written


@dataclass
class Folder:
    """What a folder should become.

    Args:
        label: of the run.
        tables: what pandas makes of each site's table, without a gap that is none: features in order, then the label
            as a class or a number.
        levels: of the features that are categorical.
        indicated: features beside which stands whether they are missing.
        group: column whose rows stay in one fold.
        people: whose each row is, by site, if there is a group.
        key: column that names the rows.
        options: of `first_spec`.
    """

    label: str
    tables: Mapping[str, pd.DataFrame]
    levels: Mapping[str, list[str]] = field(default_factory=dict)
    indicated: tuple[str, ...] = ()
    group: str | None = None
    people: Mapping[str, list[str]] = field(default_factory=dict)
    key: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def matrix(self, site: str) -> np.ndarray[Any, Any]:
        """Inputs and label of a site as training has them."""
        table, columns = self.tables[site], list[Any]()
        for name in table.columns:
            if name in self.levels:
                lacking = table[name].isna()
                columns += [(table[name].astype(str) == level).where(~lacking, np.nan) for level in self.levels[name]]
            else:
                columns.append(table[name])
            columns += [table[name].isna()] if name in self.indicated else []
        return np.column_stack([np.array(column, np.float64) for column in columns])


def people(count: int, seed: int) -> pd.DataFrame:
    """Patients whose illness follows from age and pressure."""
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": generator.integers(25, 85, count),
            "pressure": generator.normal(135, 15, count).round().astype(int),
            "weight": generator.normal(75, 12, count).round(1),
        }
    )
    risk = 0.07 * (frame["age"] - 55) + 0.05 * (frame["pressure"] - 135)
    frame["ill"] = (risk + generator.logistic(0, 0.7, count) > 0).astype(int)
    return frame


def put(folder: Path, site: str, frame: pd.DataFrame, name: str = "t.csv", **options: Any) -> None:
    (folder / site).mkdir(exist_ok=True)
    frame.to_csv(folder / site / name, index=False, **options)


def codes(folder: Path) -> Folder:
    """Codes for missing values, each hospital with its own, one in nine of ten rows."""
    tables = {site: people(count, seed) for seed, (site, count) in enumerate((("a", 90), ("b", 80), ("c", 70)))}
    for (site, frame), code, share in zip(tables.items(), ("?", "NK", "-"), (0.9, 0.6, 0.1), strict=True):
        lacking = np.random.default_rng(len(frame)).random(len(frame)) < share
        put(folder, site, frame.assign(weight=frame["weight"].astype(object).where(~lacking, code)))
        tables[site] = frame.assign(weight=frame["weight"].where(~lacking))
    return Folder("ill", tables, indicated=("weight",))


def results(folder: Path) -> Folder:
    """A result of + and -, of which one hospital has seen but the latter."""
    tables = {}
    for seed, site in enumerate(("a", "b")):
        frame = people(90, seed)
        test = np.where((frame["ill"] == 1) & (frame["age"] % 3 > 0), "+", "-")
        frame.insert(1, "test", "-" if site == "b" else test)
        put(folder, site, frame)
        tables[site] = frame
    return Folder("ill", tables, levels={"test": ["+", "-"]})


def zeros(folder: Path) -> Folder:
    """Zeros and -9 that cannot be, and zeros that can."""
    tables = {}
    for seed, site in enumerate(("a", "b", "c")):
        frame = people(80, seed)
        generator = np.random.default_rng(seed)
        smoked = np.where(generator.random(80) < 0.5, 0, generator.integers(5, 40, 80))
        frame.insert(0, "smoked", smoked)  # 0 is the truth for half of all
        kept = frame.copy()
        if site == "b":
            frame["pressure"], kept["pressure"] = 0, np.nan  # nobody measured it
        if site == "c":
            frame.loc[:4, "weight"], kept.loc[:4, "weight"] = -9, np.nan
        put(folder, site, frame)
        tables[site] = kept
    return Folder("ill", tables, indicated=("pressure",))


def stays(folder: Path) -> Folder:
    """Patients with several stays; no name says whose rows they are."""
    tables, names = {}, {}
    for seed, site in enumerate(("a", "b")):
        frame = people(70, seed).assign(sex=np.random.default_rng(seed).choice(["f", "m"], 70))
        frame.insert(0, "nummer", np.random.default_rng(seed).permutation(70) + 5000)
        again = frame.loc[np.repeat(np.arange(70), np.random.default_rng(9).integers(1, 4, 70))].reset_index(drop=True)
        again["pressure"] += np.random.default_rng(7).integers(-9, 9, len(again))
        put(folder, site, again)
        tables[site] = again[["age", "pressure", "weight", "sex", "ill"]]
        names[site] = [f"{site}{number}" for number in again["nummer"]]
    return Folder("ill", tables, levels={"sex": ["f", "m"]}, group="nummer", people=names)


def both(folder: Path) -> Folder:
    """A number for each row, and one for each patient: the second decides about folds."""
    tables = {}
    for seed, site in enumerate(("a", "b")):
        frame = people(80, seed)
        whole = frame.assign(row_id=[f"{site}{row}" for row in range(80)], patient_id=[row // 2 for row in range(80)])
        put(folder, site, whole[["row_id", "patient_id", *frame.columns]])
        tables[site] = frame
    names = {site: [f"{site}{row // 2}" for row in range(80)] for site in tables}
    return Folder("ill", tables, group="patient_id", key="row_id", people=names)


def case(folder: Path) -> Folder:
    """A label called case, which is no identifier, with spellings that differ in case."""
    tables = {}
    for seed, (site, no, yes) in enumerate((("a", "no", "yes"), ("b", "No", "YES"))):
        frame = people(120, seed).rename(columns={"ill": "case"})
        put(folder, site, frame.assign(case=np.where(frame["case"] == 1, yes, no)))
        tables[site] = frame
    return Folder("case", tables)


def towns(folder: Path) -> Folder:
    """Folders with names that no site may have, and tables by year in them."""
    tables = {}
    for seed, (place, site) in enumerate((("Köln", "koeln"), ("Zürich (USZ)", "zuerich-usz"))):
        frame = people(90, seed)
        put(folder, place, frame[:50], "2021.csv")
        put(folder, place, frame[50:], "2022.csv")
        tables[site] = frame
    return Folder("ill", tables)


def flat(folder: Path) -> Folder:
    """A table for each hospital beside each other, without header, with spaces in a name."""
    tables = {"bern": people(80, 0), "koeln": people(90, 1)}
    tables["bern"].to_csv(folder / "study bern 2021.data", index=False, header=False)
    tables["koeln"].to_csv(folder / "study köln 2021.data", index=False, header=False)
    names = tuple(tables["bern"].columns)
    return Folder("ill", tables, options={"written": Written(columns=names)})


def german(folder: Path) -> Folder:
    """Decimal commas and codes 1 to 4; numbers to be predicted, of which one is a mistake of the keyboard."""
    tables = {}
    for seed, site in enumerate(("a", "b")):
        frame = people(100, seed).drop(columns="ill")
        frame.insert(0, "pain", np.random.default_rng(seed).integers(1, 5, 100))
        frame["stay"] = (frame["age"] / 7 + frame["pain"] % 3 + np.random.default_rng(seed).normal(0, 1, 100)).round(1)
        put(folder, site, frame, sep=";", decimal=",", encoding="cp1252")
        tables[site] = frame
    return Folder("stay", tables, levels={"pain": ["1", "2", "3", "4"]}, options={"categorical": ("pain",)})


def one_number(folder: Path) -> Folder:
    """One column to learn a number from."""
    tables = {site: people(60, seed)[["age", "pressure"]] for seed, site in enumerate(("a", "b"))}
    for site, frame in tables.items():
        frame["pressure"] = 90 + frame["age"] + np.random.default_rng(3).normal(0, 6, 60).round(1)
        put(folder, site, frame)
    return Folder("pressure", tables)


def one_class(folder: Path) -> Folder:
    """One column to learn two classes from, in one table."""
    frame = people(160, 5)[["age", "ill"]]
    frame.to_csv(folder / "t.csv", index=False)
    return Folder("ill", {"": frame})


def joined(folder: Path) -> Folder:
    """Two tables of the same patients in another order."""
    tables = {}
    for seed, site in enumerate(("a", "b")):
        frame = people(90, seed)
        whole = frame.assign(id=[f"{site}{row:03}" for row in range(90)])
        put(folder, site, whole[["id", "weight", "pressure", "ill"]], "clinic.csv")
        put(folder, site, whole[["id", "age"]][::-1], "people.csv")
        tables[site] = frame[["age", "weight", "pressure", "ill"]]
    return Folder("ill", tables, key="id")


def few(folder: Path) -> Folder:
    """A hospital of twelve patients with three rows each."""
    tables = {"large": people(120, 0), "small": people(36, 1)}
    for site, frame in tables.items():
        put(folder, site, frame.assign(Patient=[f"{site}-{row // 3}" for row in range(len(frame))]))
    names = {site: [f"{site}-{row // 3}" for row in range(len(frame))] for site, frame in tables.items()}
    return Folder("ill", tables, group="Patient", people=names)


def marked_labels(folder: Path) -> Folder:
    """Question marks among the labels, which are numbers: rows without one are left out."""
    tables = {}
    for seed, site in enumerate(("a", "b")):
        frame = people(90, seed).drop(columns="ill")
        frame["days"] = (frame["age"] / 10 + np.random.default_rng(seed).normal(0, 1, 90)).round(2)
        lacking = np.arange(90) % 9 == 4
        put(folder, site, frame.assign(days=frame["days"].astype(object).where(~lacking, "?")))
        tables[site] = frame[~lacking]
    return Folder("days", tables)


FOLDERS: list[Callable[[Path], Folder]] = [
    codes, results, zeros, stays, both, case, towns, flat, german, one_number, one_class, joined,
    few, marked_labels,
]  # fmt: skip
