"""`rankdad describe`: what looks like a mistake in a table is said before anything is trained; `rankdad resolve`."""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from rankdad.common.data.profile import profile_of
from rankdad.common.data.tables import Table
from rankdad.common.documents import validate
from rankdad.common.errors import DataError
from rankdad.common.spec import RunSpec
from rankdad.local.cli import mount
from rankdad.local.describing import Description, describe
from rankdad.simulations.first_spec import first_spec
from tests import messy
from tests.conftest import run_document


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return messy.write(tmp_path_factory.mktemp("messy"))


def said(*words: str) -> str:
    app = typer.Typer()
    mount(app)
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def described(folder: Path) -> Description:
    return describe(folder)


def remarks(found: Description, table: str, column: str) -> list[tuple[str, str]]:
    return [(told.code, told.value) for told in found.tables[table].by_name[column].remarks]


@pytest.mark.slow
def test_what_looks_odd_in_messy_tables_is_said(described: Description) -> None:
    for table, column, expected in (
        ("bern", "CRP", [("column-sparse", "")]),
        ("dresden", "Cholesterin", [("column-constant", ""), ("stand-in", "0")]),
        ("dresden", "Größe", [("word-unknown", "")]),
        ("essen", "CRP", [("number-expected", "")]),
        ("essen", "Stadium", [("column-constant", "")]),
        ("bern", "Schmerz", [("column-sparse", ""), ("word-missing", "")]),
        ("aachen", "Patient", [("names-rows", "")]),
    ):
        assert remarks(described, f"{table}/herz.csv", column) == expected, (table, column)


def test_numbers_gaps_and_rows_are_those_of_pandas(folder: Path, described: Description) -> None:
    found = described
    assert list(found.tables) == [f"{name}/herz.{'xlsx' if name == 'calais' else 'csv'}" for name in messy.HOSPITALS]
    own = pd.read_csv(folder / "essen" / "herz.csv", sep=";", decimal=",")["Blutdruck"]
    known = found.tables["essen/herz.csv"].by_name["Blutdruck"].numbers
    expected = [*own.quantile([0, 0.25, 0.5, 0.75, 1]), own.mean(), own.std(ddof=0)]
    names = ("least", "lower", "median", "upper", "largest", "mean", "deviation")
    assert [known[name] for name in names] == pytest.approx(expected)
    told = [remark.code for remark in found.tables["dresden/herz.csv"].remarks]
    assert told == ["rows-repeated", "patients-repeated"]
    (problem,) = found.problems
    assert problem.startswith(f"{folder / 'aachen' / 'herz.csv'}: ")
    assert '"encoding": "cp1252"' in problem


NUMBERS = np.random.default_rng(0).normal(240, 30, 100).round()
SKEWED = np.random.default_rng(0).lognormal(1.5, 0.9, 100).round(2)


@pytest.mark.parametrize(
    ("values", "suspected"),
    [
        ([*NUMBERS, 0, 0], ["0"]),
        ([*NUMBERS, -9, -9], ["-9"]),
        ([*NUMBERS, 9999], ["9999"]),
        (NUMBERS, []),
        ([*(NUMBERS - 240), 0, 0], []),
        ([99, *np.arange(60, 120)], []),
        ([*SKEWED, -9, -9], ["-9"]),
        ([*SKEWED, -1], ["-1"]),
        ([*(SKEWED - 3), -9, -9], []),
        ([*[0, 1] * 50, 9, 9], ["9"]),
        ([*np.arange(100) % 3, -1], []),
        (np.arange(100) % 10, []),
    ],
)
def test_a_number_that_stands_for_none_is_suspected_and_others_are_not(values: Any, suspected: list[str]) -> None:
    (column,) = profile_of(Table("here", pd.DataFrame({"x": list(values)}))).columns
    assert column.kind == "number"
    assert [(remark.code, remark.value) for remark in column.remarks] == [("stand-in", each) for each in suspected]


def test_an_identifier_of_nines_may_be_missing_and_a_dash_is_none() -> None:
    ids = [*(f"K{place:04}" for place in range(80)), "-99", "-99", "-", "-"]
    (column,) = profile_of(Table("here", pd.DataFrame({"patient": ids}))).columns
    assert (column.kind, dict(column.others)) == ("id", {"-99": 2})


def test_only_what_cannot_be_measured_is_read_as_missing() -> None:
    """-9 in many rows of a skewed column, and 9 beside 0 and 1, were taken for measured values."""
    cells = {"sure": [*SKEWED, -9, -9], "once": [*SKEWED, SKEWED[0], -9], "pair": [*[0, 1] * 50, 9, 9]}
    cells["scale"] = [*[0, 1, 2, 3] * 25, 9, 9]
    columns = profile_of(Table("here", pd.DataFrame(cells))).columns
    assert [dict(column.stand_ins) for column in columns] == [{"-9": 2}, {}, {"9": 2}, {}]
    assert [[remark.value for remark in column.remarks] for column in columns] == [["-9"], ["-9"], ["9"], ["9"]]


@pytest.mark.slow
def test_other_units_and_levels_at_one_hospital_are_named(tmp_path: Path) -> None:
    for site, factor, sexes in (("a", 1, "mf"), ("b", 1, "mf"), ("c", 10, "mx")):
        (tmp_path / site).mkdir()
        frame = pd.DataFrame({"creatinine": (NUMBERS * factor).astype(int), "sex": list(sexes) * 50})
        frame.to_csv(tmp_path / site / "t.csv", index=False)
    found = describe(tmp_path)
    assert remarks(found, "c/t.csv", "creatinine") == [("units-differ", "")]
    assert remarks(found, "c/t.csv", "sex") == [("levels-alone", "")]
    assert remarks(found, "a/t.csv", "creatinine") == []
    task, sites = {"name": "classification", "classes": 2}, {"sites": ["a", "b", "c"]}
    data = {"reader": "csv", "file": "t.csv", "features": ["creatinine"], "label": "sex", "values": ["m", "f"]}
    spec = validate(RunSpec, run_document(data=data, task=task, model={"name": "linear"}, federation=sites))
    for given, fields in ((None, ["categorical", "categorical_other", "merge"]), (spec, ["merge"])):
        (told,) = describe(tmp_path, given).tables["c/t.csv"].by_name["sex"].remarks
        assert (told.code, re.findall(r"data\.(\w+)", told.text)) == ("levels-alone", fields), "advice for an outcome"


def test_a_number_that_decides_one_other_column_is_only_asked_about(tmp_path: Path) -> None:
    age = np.random.default_rng(0).integers(20, 90, 120)
    pd.DataFrame({"age": age, "odd": age % 2, "old": age > 60, "x": NUMBERS[:60].repeat(2)}).to_csv(tmp_path / "t.csv")
    (profile,) = describe(tmp_path / "t.csv").tables.values()
    assert [profile.by_name[name].kind for name in ("age", "x")] == ["number", "number"]
    assert "may-name-patients" in [remark.code for remark in profile.by_name["age"].remarks]


@pytest.mark.slow
def test_numbers_around_zero_are_in_no_other_units(tmp_path: Path) -> None:
    for seed, site in enumerate(("a", "b", "c")):
        (tmp_path / site).mkdir()
        columns = np.random.default_rng(seed).normal(size=(60, 40)).round(3)
        pd.DataFrame(columns, columns=[f"g{place}" for place in range(40)]).to_csv(tmp_path / site / "t.csv")
    tables = describe(tmp_path).tables.values()
    codes = {remark.code for own in tables for column in own.columns for remark in column.remarks}
    assert "units-differ" not in codes


def test_a_page_shows_everything_and_nothing_of_a_table_is_markup(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("<script>alert(1)</script>,[red]x\n" + "<b>m</b>,\x1b[31m1\n" * 3)
    page = tmp_path / "page.html"
    assert said("describe", str(tmp_path / "t.csv"), "--html", str(page)) == ""
    assert "&lt;script&gt;" in page.read_text()
    assert "<b>" not in page.read_text()
    shown = said("describe", str(tmp_path / "t.csv"))
    assert "[red]x" in shown
    assert "\x1b" not in shown
    assert json.loads(said("describe", str(tmp_path / "t.csv"), "--json"))["tables"]["t.csv"]["rows"] == 3


def test_what_a_hospital_is_only_told_is_no_problem(folder: Path, tmp_path: Path) -> None:
    data = {"reader": "csv", "file": "herz.csv", "features": ["Alter", "CRP"], "label": "Stadium", "missing": "impute"}
    spec = run_document(
        task={"name": "regression"}, data=data, model={"name": "linear"}, federation={"sites": ["bern"]}
    )
    (tmp_path / "run.json").write_text(json.dumps(spec))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "bern").symlink_to(folder / "bern")
    found = json.loads(said("describe", str(tmp_path / "data"), "--json", "--schema", str(tmp_path / "run.json")))
    assert found["problems"] == []
    assert any("lack an input, which is imputed" in note for note in found["notes"])


def test_a_folder_without_tables_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        describe(tmp_path)
    assert refused.value.code == "no-table"


def kind_of(name: str, cells: Any) -> str:
    (column,) = profile_of(Table("here", pd.DataFrame({name: list(map(str, cells))}))).columns
    return column.kind


NAMES = [f"P{number:03}" for number in range(90)]


LIKE_NAMES = [NAMES, [*NAMES, *NAMES[::2]], np.arange(90) * 7, [*np.arange(1000, 1090)] * 3]
OTHERS = [
    (["no"] * 353 + ["yes"] * 287, "levels"),  # a label, or whether the patient came in
    (["in", "out", "day"] * 200, "levels"),
    ([0, 1, 1] * 200, "number"),
    (np.arange(300) % 7 / 4, "number"),
]


@pytest.mark.slow
def test_columns_that_are_called_so_name_patients_only_where_they_look_so() -> None:
    for name in ("subject_id", "PatientID", "MRN", "patient_nr", "Fall ID"):
        assert [kind_of(name, cells) for cells in LIKE_NAMES] == ["id"] * 4, name
    for name in ("case", "patient", "index", "name", "Person", "id"):
        assert [kind_of(name, cells) for cells, _ in OTHERS] == [kind for _, kind in OTHERS], name


def visits(patients: int = 200, seed: int = 0) -> pd.DataFrame:
    """One to three rows for each patient; no column is called what it is."""
    generator = np.random.default_rng(seed)
    people = pd.DataFrame(
        {
            "nummer": generator.permutation(np.arange(patients) + 4000),
            "sex": generator.choice(["m", "f"], patients),
            "chol": generator.normal(230, 40, patients).round().astype(int),
        }
    )
    rows = people.loc[np.repeat(np.arange(patients), generator.integers(1, 4, patients))].reset_index(drop=True)
    rows["pressure"] = generator.normal(130, 15, len(rows)).round().astype(int)
    rows["high"] = np.where(rows["pressure"] > 140, "yes", "no")
    rows["class"] = pd.cut(rows["pressure"], [0, 120, 140, 300], labels=["low", "normal", "high"]).astype(str)
    return rows.sample(frac=1, random_state=seed)


def test_a_number_whose_rows_are_alike_elsewhere_names_patients_and_a_measurement_does_not(tmp_path: Path) -> None:
    rows = visits()
    rows.to_csv(tmp_path / "t.csv", index=False)
    (profile,) = describe(tmp_path / "t.csv").tables.values()
    kinds = {column.name: column.kind for column in profile.columns}
    assert kinds == {"nummer": "id", "sex": "levels", "chol": "number", "pressure": "number", "high": "levels",
                     "class": "levels"}  # fmt: skip
    assert profile.by_name["nummer"].most == rows["nummer"].value_counts().max()


@pytest.mark.slow
def test_a_hospital_where_the_outcome_never_occurs_is_asked_for_its_coding(tmp_path: Path) -> None:
    for place, (site, ill) in enumerate((("lyon", "00"), ("bern", "01"))):
        (tmp_path / site).mkdir()
        rows = [f"{place}.{number},{ill[number % 2]}" for number in range(40)]
        (tmp_path / site / "t.csv").write_text("x,ill\n" + "\n".join(rows))
    run = first_spec(tmp_path, "ill")
    question = "the outcome never occurs in lyon's table: is it coded as elsewhere?"
    assert run["notes"].count(question) == 1
    spec = validate(RunSpec, run["run"])
    assert [note for note in describe(tmp_path, spec).notes if "coded" in note] == [question]


def test_numbers_too_large_to_be_squared_are_described_in_json(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{'-' * (row % 2)}1e30{row % 9},{row}\n" for row in range(20)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (profile,) = describe(tmp_path / "t.csv").tables.values()
    assert all(math.isfinite(number) for column in profile.columns for number in column.numbers.values())


def test_resolve_writes_a_run_without_patterns_for_whoever_goes_on_with_it(tmp_path: Path) -> None:
    """It was an error, and no file was there for the next command."""
    (tmp_path / "run.json").write_text(json.dumps({"run": run_document()}))
    said("resolve", str(tmp_path / "run.json"), str(tmp_path), "--output", str(tmp_path / "out.json"))
    assert RunSpec.read(tmp_path / "out.json") == RunSpec.read(tmp_path / "run.json")


@pytest.mark.slow
def test_with_a_schema_every_hospital_hears_what_check_would_say(folder: Path, tmp_path: Path) -> None:
    data = {
        "reader": "csv",
        "file": "herz.*",
        "features": ["Alter", "Größe"],
        "label": "Stadium",
        "values": [0, 1, 2, 3],
    }
    task = {"name": "classification", "classes": 4}
    sites = {"federation": {"sites": [*messy.HOSPITALS, "florenz"]}}
    spec = run_document(data=data, task=task, model={"name": "linear"}, **sites)
    (tmp_path / "run.json").write_text(json.dumps(spec))
    problems = json.loads(said("describe", str(folder), "--json", "--schema", str(tmp_path / "run.json")))["problems"]
    for told in (
        "florenz",
        "aachen/herz.csv: is not text in UTF-8: save it as CSV with that encoding, or name its own in the schema",
        "column Stadium: holds '4', expected one of 0, 1, 2, 3",
        "column Größe: holds '?', expected a finite number",
    ):
        assert any(told in problem for problem in problems), (told, problems)
