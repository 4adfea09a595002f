"""Folders as they come, through describe, init and simulate: a right result, or one sentence with place and remedy.

What is trained on is held against pandas, cell by cell; how good it is against scikit-learn on the pooled rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import mean_absolute_error, roc_auc_score
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rankdad.common.documents import validate
from rankdad.common.errors import UserError
from rankdad.common.preparation import in_memory
from rankdad.common.spec.written import Written
from rankdad.local.describing import describe
from rankdad.simulations.first_spec import first_spec
from rankdad.simulations.lockstep import simulate
from rankdad.simulations.site_folders import partitioned_data
from rankdad.simulations.spec import SimulationFile
from tests.conftest import SHARED
from tests.simulations.messy_folders import FOLDERS, Folder, people, put

pytestmark = pytest.mark.slow

HEART = [
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
]


def begun(folder: Path, expected: Folder) -> dict[str, Any]:
    """The first spec of a folder in which nothing keeps describe from reading a table."""
    problems = describe(folder, columns=expected.options.get("written", Written()).columns).problems
    assert all("UTF-8" in problem for problem in problems)
    return first_spec(folder, expected.label, **expected.options)


@pytest.mark.parametrize("write", FOLDERS, ids=lambda write: write.__name__)
def test_what_is_trained_on_is_what_pandas_reads(write: Callable[[Path], Folder], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    expected = write(tmp_path / "data")
    file = validate(SimulationFile, begun(tmp_path / "data", expected))
    data: Any = file.run.data
    assert (data.group, data.key) == (expected.group, expected.key)
    found = partitioned_data(file, tmp_path / "sites")
    read = {site: np.column_stack([in_memory(own.samples.inputs), own.samples.labels]) for site, own in found.items()}
    if list(expected.tables) == [""]:  # dealt out at random
        read = {"": np.concatenate(list(read.values()))}
        read[""], order = read[""][np.lexsort(read[""].T)], expected.matrix("")
        np.testing.assert_allclose(read[""], order[np.lexsort(order.T)], rtol=1e-6)
        return
    assert list(read) == list(expected.tables)
    for site, rows in read.items():
        np.testing.assert_allclose(rows, expected.matrix(site), rtol=1e-6)
    if expected.group:
        for own in found.values():
            assert own.groups is not None
            for split in own.splits:
                assert not set(own.groups[split.train].tolist()) & set(own.groups[split.test].tolist())


def reference(rows: Any, labels: Any, patients: Any = None, *, classes: bool) -> float:
    """AUC, or mean absolute error, of scikit-learn's linear models on the pooled rows, each predicted once."""
    steps = (SimpleImputer(keep_empty_features=True), StandardScaler())
    model = make_pipeline(*steps, LogisticRegression() if classes else LinearRegression())
    patients = np.arange(len(labels)) if patients is None else patients
    folds = (StratifiedGroupKFold if classes else GroupKFold)(5, shuffle=True, random_state=0)
    how = "decision_function" if classes else "predict"
    scores = cross_val_predict(model, rows, labels, cv=folds, groups=patients, method=how)
    return float(roc_auc_score(labels, scores) if classes else mean_absolute_error(labels, scores))


@pytest.mark.exhaustive
@pytest.mark.parametrize("write", FOLDERS, ids=lambda write: write.__name__)
def test_a_first_run_does_as_well_as_scikit_learn(write: Callable[[Path], Folder], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    expected = write(tmp_path / "data")
    document = begun(tmp_path / "data", expected)
    classes = document["run"]["task"]["name"] == "classification"
    document["run"]["evaluation"]["refit"] = False
    file = validate(SimulationFile, document)
    test = simulate(file, tmp_path / "run", quiet=True)["metrics"]["test"]
    rows = np.concatenate([expected.matrix(site) for site in expected.tables])
    patients = [name for names in expected.people.values() for name in names] or None
    best = reference(rows[:, :-1], rows[:, -1], patients, classes=classes)
    assert test["samples"] == len(rows), "init writes the min_rows by which the smallest has parts, too"
    if classes:
        assert test["auc"] > best - 0.02
    else:
        assert test["mae"] < 1.05 * best


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.skipif(not (SHARED / "heart").is_dir(), reason="needs UCI's heart disease data")
def test_four_hospitals_hearts_are_trained_on_as_they_are(tmp_path: Path) -> None:
    folder = SHARED / "heart"
    assert {error.split(":")[-1] for error in describe(folder).problems} != set()
    described = describe(folder, columns=tuple(HEART))
    assert described.problems == ()
    assert [own.rows for own in described.tables.values()] == [303, 294, 123, 200]
    assert {column.kind for own in described.tables.values() for column in own.columns} == {"number"}
    file = validate(SimulationFile, first_spec(folder, "num", ">0", written=Written(columns=tuple(HEART))))
    data: Any = file.run.data
    assert data.features == tuple(HEART[:-1])
    assert data.missing_values["chol"] == ("?", "0")
    test = simulate(file, tmp_path / "run", quiet=True)["metrics"]["test"]
    files = sorted(folder.glob("processed.*.data"))
    pooled = pd.concat([pd.read_csv(file, names=HEART, na_values="?") for file in files])
    pooled[["chol", "trestbps"]] = pooled[["chol", "trestbps"]].replace(0, np.nan)
    rows = pooled[HEART[:-1]].assign(**{f"no {name}": pooled[name].isna() for name in data.missing_indicators})
    assert test["samples"] == 920
    assert test["auc"] >= 0.89
    assert test["auc"] > reference(rows, pooled["num"] > 0, classes=True) - 0.01


def swapped(column: str, cells: list[str]) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Put cells in place of the first ones of a column."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        kept = frame[column].astype(str).tolist()[len(cells) :]
        return frame.assign(**{column: [*cells, *kept]})

    return change


REFUSED: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], dict[str, Any], str, str, int | None]] = {
    "thousands": (swapped("pressure", ["120", "1.842", "2.113"]), {"sep": ";", "decimal": ","}, "number-ambiguous",
                  "data.decimal", 3),
    "thousands among points": (swapped("pressure", ["120", "1.842", "2.113"]), {}, "number-ambiguous", "data.decimal",
                               3),
    "apostrophes": (swapped("pressure", ["1'842", "1'900"]), {}, "number-expected", "pressure", 2),
    "spaces": (swapped("pressure", ["131", "1 842"]), {}, "number-expected", "pressure", 3),
    "units": (swapped("weight", ["72.5 kg"]), {}, "number-expected", "weight", 2),
    "pairs": (swapped("pressure", ["120/80", "135/90"]), {}, "number-expected", "pressure", 2),
    "thousands in the label": (
        lambda frame: frame.assign(ill=[*(f"{row}" for row in range(1, 59)), "1.842", "2.001"]),
        {"sep": ";", "decimal": ","}, "number-ambiguous", "data.decimal", 60,
    ),
    "no value": (lambda frame: frame.assign(ill="?"), {}, "rows-too-few", "--label", None),
    "one row": (lambda frame: frame[:1], {}, "rows-too-few", "--label", None),
    "words": (lambda frame: frame.assign(ill=np.where(frame["ill"] == 1, "ja", "nein")), {}, "label-differs",
              "--label", None),
    "no rows": (lambda frame: frame[:0], {}, "table-empty", "", None),
    "no header": (lambda frame: frame, {"header": False}, "header-missing", "data.columns", 1),
    "letters": (lambda frame: frame.assign(sex=["M", "F"] * 30), {}, "values-spelled-apart", "sex", None),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_be_destroyed_or_misread_is_refused_with_its_place(kind: str, tmp_path: Path) -> None:
    change, options, code, field_, row = REFUSED[kind]
    put(tmp_path, "a", people(60, 0).assign(sex=["m", "f"] * 30))
    put(tmp_path, "b", change(people(60, 1).assign(sex=["m", "f"] * 30)), **options)
    with pytest.raises(UserError) as caught:
        first_spec(tmp_path, "ill")
    error = caught.value
    assert (error.code, error.field, error.row) == (code, field_, row)
    assert Path(error.file) == tmp_path / "b" / "t.csv"
    assert "\n" not in str(error)


def test_a_column_that_is_refused_may_be_left_out_and_a_mark_be_named(tmp_path: Path) -> None:
    put(tmp_path, "a", people(60, 0))
    put(tmp_path, "b", swapped("pressure", ["120", "1.842", "2.113"])(people(60, 1)))
    assert "pressure" not in first_spec(tmp_path, "ill", exclude=("pressure",))["run"]["data"]["features"]
    data = first_spec(tmp_path, "ill", written=Written(decimal="."))["run"]["data"]
    assert (data["decimal"], "pressure" in data["features"]) == (".", True)
    assert "missing_values" not in data


@pytest.mark.parametrize("event", ["event", "status", "died", "E"])
@pytest.mark.parametrize("time", ["time", "OS", "survival_days"])
def test_times_to_an_event_that_not_all_have_had_are_no_numbers_to_be_learnt(
    event: str, time: str, tmp_path: Path
) -> None:
    for seed, site in enumerate(("a", "b")):
        put(tmp_path, site, people(60, seed).rename(columns={"ill": event, "pressure": time}))
    with pytest.raises(UserError) as caught:
        first_spec(tmp_path, time)
    assert (caught.value.code, caught.value.field) == ("label-is-censored", event)
    assert first_spec(tmp_path, time, exclude=(event,))["run"]["task"] == {"name": "regression"}
    assert first_spec(tmp_path, event)["run"]["task"]["classes"] == 2
    assert first_spec(tmp_path, "age")["run"]["task"] == {"name": "regression"}


def test_an_outlier_is_told_from_other_units_and_both_of_two_hospitals_are_named(tmp_path: Path) -> None:
    for site, factor in (("a", 1), ("b", 10)):
        frame = people(80, factor)
        frame["stay"] = np.random.default_rng(factor).lognormal(1.5, 0.7, 80).round(1)
        frame["weight"] *= factor
        if site == "a":
            frame.loc[17, "stay"] = 822_462
        put(tmp_path, site, frame)
    remarks = {
        (site, name): [told.code for told in describe(tmp_path).tables[f"{site}/t.csv"].by_name[name].remarks]
        for site in ("a", "b")
        for name in ("stay", "weight", "age")
    }
    assert remarks == {("a", "stay"): ["outlier"], ("b", "stay"): [], ("a", "age"): [], ("b", "age"): []} | {
        (site, "weight"): ["units-differ"] for site in "ab"
    }
    notes = first_spec(tmp_path, "ill")["notes"]
    assert any("822462" in note for note in notes)
    assert sum("units" in note for note in notes) == 2


def test_whole_numbers_of_few_values_are_listed_with_the_option_that_makes_them_levels(tmp_path: Path) -> None:
    for seed, site in enumerate(("a", "b")):
        put(tmp_path, site, people(60, seed).assign(pain=np.arange(60) % 4 + 1, flag=np.arange(60) % 2))
    document = first_spec(tmp_path, "ill")
    assert "categorical" not in document["run"]["data"]
    (note,) = (note for note in document["notes"] if "--categorical" in note)
    assert note.endswith("--categorical pain")
    document = first_spec(tmp_path, "ill", categorical=("pain",))
    assert document["run"]["data"]["categorical"] == {"pain": ["1", "2", "3", "4"]}
    with pytest.raises(UserError) as caught:
        first_spec(tmp_path, "ill", categorical=("age",))
    assert (caught.value.code, caught.value.field) == ("levels-too-many", "age")
