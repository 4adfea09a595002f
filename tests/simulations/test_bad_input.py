"""Folders of tables as nasty as reality, through describe, init and simulate: a right result, or one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pytest

from rankdad.common.data.compared import TWIN
from rankdad.common.data.identifiers import ZEROS_LOST, digits_of, lost_zeros
from rankdad.common.documents import load_json, validate
from rankdad.common.errors import UserError
from rankdad.common.spec.table_schema import spelling
from rankdad.local.describing import describe
from rankdad.simulations.first_spec import first_spec
from rankdad.simulations.lockstep import simulate
from rankdad.simulations.site_folders import identifier_warnings, partitioned_data
from rankdad.simulations.spec import SimulationFile

pytestmark = pytest.mark.slow

Write = Callable[[Path], object]
DRAWN = np.random.default_rng(7)
SUGAR, HEAT = DRAWN.integers(150, 300, 80), DRAWN.normal(37, 0.6, 80).round(1)


def people(seed: int, **columns: Any) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    age, weight = generator.integers(30, 80, 80), generator.normal(75, 10, 80).round(1)
    ill = ((age - 55) * 0.06 + (weight - 75) * 0.05 + generator.logistic(0, 0.7, 80) > 0).astype(int)
    return pd.DataFrame({"age": age, "weight": weight, "ill": ill} | columns)


def in_two_folds(document: dict[str, Any]) -> SimulationFile:
    """Return the specification, whose run tests every row as it would in more folds and beside references."""
    document["run"]["evaluation"] |= {"folds": 2, "references": []}
    return validate(SimulationFile, document)


def with_label(seed: int, no: object, yes: object) -> pd.DataFrame:
    frame = people(seed)
    return frame.assign(ill=np.where(frame["ill"] == 1, np.array(yes, object), np.array(no, object)))


def put(folder: Path, *tables: pd.DataFrame | Write) -> Path:
    folder.mkdir(exist_ok=True)
    for site, table in zip("ab", tables, strict=True):
        (folder / site).mkdir()
        if isinstance(table, pd.DataFrame):
            table.to_csv(folder / site / "t.csv", index=False)
        else:
            table(folder / site)
    return folder


def workbook(frame: pd.DataFrame, change: Callable[[Any], object] = lambda sheet: None) -> Write:
    def write(folder: Path) -> None:
        frame.to_excel(folder / "t.xlsx", index=False)
        book = openpyxl.load_workbook(folder / "t.xlsx")
        change(book.active)
        book.save(folder / "t.xlsx")

    return write


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("no", "yes"), ("NO", "Yes")),
        (("hayır", "evet"), ("HAYIR", "EVET")),  # of which no casefold makes one
        (("no", "yes"), ("no", "yes\u200b")),  # a character that is not seen
        (("no", "stage II"), ("no", "stage\u00a0II")),  # a blank that is none
        (("no", "stage II"), ("no", "stage–II")),
        (("A", "B"), ("А", "В")),  # Cyrillic
        (("no", "ja"), ("no", "ｊａ")),  # of full width
        (("TRUE", "FALSE"), (True, False)),  # a workbook's
    ],
)
def test_one_label_however_it_is_written_is_one_class(tmp_path: Path, one: Any, other: Any) -> None:
    second = with_label(1, *other)
    put(tmp_path, with_label(0, *one), workbook(second) if other[0] is True else second)
    document = first_spec(tmp_path, "ill")
    file = in_two_folds(document)
    assert file.run.task.model_dump()["classes"] == 2
    counts = [sum(spelling(str(cell)) == spelling(str(one[0])) for cell in own["ill"])
              for own in (with_label(0, *one), second)]  # fmt: skip
    test = simulate(file, tmp_path / "run", quiet=True)["metrics"]["test"]
    assert test["samples"] == 160
    note = next(note for note in document["notes"] if "2 classes" in note)
    assert f"({sum(counts)} rows)" in note


def row_of(what: str) -> Callable[[Any], None]:
    def change(sheet: Any) -> None:
        sheet.append(list(getattr(people(1), what)(axis=0)))

    return change


def hidden(sheet: Any) -> None:
    for row in range(10, 30):
        sheet.row_dimensions[row].hidden = True


def cells(text: str) -> pd.DataFrame:
    return people(1, weight=[*map(str, people(1)["weight"][:70]), *[text] * 10])


def other_form(ending: str) -> Write:
    return lambda folder: people(1).to_csv(folder / f"t{ending}", index=False)


A = people(0)
REFUSED: dict[str, tuple[Any, Any, str, str, int | None]] = {
    "a level that is not seen": (people(0, sex=["m", "f"] * 40), people(1, sex=["m", "f\u200b"] * 40),
                                 "values-spelled-apart", "sex", None),
    "a label of other codes": (A, with_label(1, 1, 2), "codes-differ", "ill", None),
    "an input of other codes": (people(0, sex=[0, 1] * 40), people(1, sex=[1, 2] * 40), "codes-differ", "sex", None),
    "a German error": (A, cells("#WERT!"), "formula", "weight", 72),
    "an error without a digit": (A, cells("#VALUE!"), "formula", "weight", 72),
    "a Spanish error": (A, cells("#¡REF!"), "formula", "weight", 72),
    "LibreOffice's error": (A, cells("Err:502"), "formula", "weight", 72),
    "a column too narrow": (A, cells("########"), "formula", "weight", 72),
    "a row of sums": (A, workbook(people(1), row_of("sum")), "row-of-totals", "", 82),
    "a row of means": (A, workbook(people(1), row_of("mean")), "row-of-totals", "", 82),
    "rows behind a filter": (A, workbook(people(1), hidden), "row-hidden", "", 10),
    "a page called .xlsx": (A, lambda folder: (folder / "t.xlsx").write_text("<html>"), "workbook-unreadable", "",
                            None),
    "a password": (A, lambda folder: (folder / "t.xlsx").write_bytes(b"\xd0\xcf\x11\xe0" * 99), "workbook-unreadable",
                   "", None),
    **{ending: (A, other_form(ending), "format-unexpected", "", None)
       for ending in (".xls", ".ods", ".sav", ".sas7bdat", ".txt", ".zip")},
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_be_misread_is_refused_with_its_place(tmp_path: Path, kind: str) -> None:
    one, other, code, field, row = REFUSED[kind]
    put(tmp_path, one, other)
    with pytest.raises(UserError) as caught:
        first_spec(tmp_path, "ill")
    error = caught.value
    assert (error.code, error.field, error.row) == (code, field, row)
    assert Path(error.file).parent == tmp_path / "b"
    described = describe(tmp_path)
    tables = described.tables.values()
    remarked = [own for own in tables if own.remarks or any(column.remarks for column in own.columns)]
    assert [*described.problems, *remarked], "what init refuses, describe names"


def test_a_folder_without_a_table_is_left_out_with_a_word(tmp_path: Path) -> None:
    put(tmp_path, people(0), people(1))
    (tmp_path / "c" / "deeper").mkdir(parents=True)
    people(2).to_csv(tmp_path / "c" / "deeper" / "t.csv", index=False)
    document = first_spec(tmp_path, "ill")
    assert document["run"]["federation"]["sites"] == ["a", "b"]
    assert any(note.startswith(str(tmp_path / "c")) for note in document["notes"])
    assert any(problem.startswith(str(tmp_path / "c")) for problem in describe(tmp_path).problems)


GAPS: dict[str, tuple[Any, Any, list[str] | None]] = {
    "zeros in half of the rows": (SUGAR, np.where(np.arange(80) % 2, 0, SUGAR), ["0"]),
    "zeros alone": (SUGAR, 0, ["0"]),
    "-1 alone": (SUGAR, -1, ["-1"]),
    "999 alone": (SUGAR, 999, ["999"]),
    "999 that others reach": (SUGAR * 5, 999, None),
    "-1 of a difference": (HEAT - 37, -1, None),
}


@pytest.mark.parametrize("kind", GAPS)
def test_a_number_in_the_place_of_a_gap_at_one_of_two_hospitals_is_one(tmp_path: Path, kind: str) -> None:
    one, other, tokens = GAPS[kind]
    put(tmp_path, people(0, value=one), people(1, value=other))
    assert first_spec(tmp_path, "ill")["run"]["data"].get("missing_values", {}).get("value") == tokens


UNITS: dict[str, tuple[Any, Any, bool]] = {
    "mg/dl": (SUGAR, (SUGAR / 18).round(1), True),
    "Fahrenheit": (HEAT, (HEAT * 1.8 + 32).round(1), True),
    "pounds": (people(0)["weight"], (people(1)["weight"] * 2.2046).round(1), True),
    "a share": (SUGAR / 1000, SUGAR / 10, True),
    "older patients": (people(0)["age"], people(1)["age"] + 15, False),
    "one wrong number": (HEAT, np.where(np.arange(80) == 3, 98.6, HEAT), False),
}


@pytest.mark.parametrize("kind", UNITS)
def test_of_two_hospitals_with_other_units_both_are_asked(tmp_path: Path, kind: str) -> None:
    one, other, asked = UNITS[kind]
    put(tmp_path, people(0, value=one), people(1, value=other))
    notes = [note for note in first_spec(tmp_path, "ill")["notes"] if "column value" in note and "units" in note]
    assert [note[0] for note in notes] == (["a", "b"] if asked else [])


@pytest.mark.exhaustive
@pytest.mark.parametrize("nobody", ["unknown", "-99", "?"])
def test_rows_of_nobody_are_no_patient(tmp_path: Path, nobody: str) -> None:
    whose = [[f"{site}{row // 2:03}" for row in range(80)] for site in (1, 2)]
    put(tmp_path, people(0, patient=whose[0]), people(1, patient=[*[nobody] * 20, *whose[1][20:]]))
    file = in_two_folds(first_spec(tmp_path, "ill"))
    assert file.run.data.model_dump()["group"] == "patient"
    assert simulate(file, tmp_path / "run", quiet=True)["metrics"]["test"]["samples"] == 140


def test_patients_written_in_two_ways_are_named_by_describe_and_init(tmp_path: Path) -> None:
    whose = [[f"{site}{row // 2:03}" for row in range(80)] for site in "pq"]
    whose[1][5] = whose[1][5].upper()
    put(tmp_path, *(people(seed, patient=own) for seed, own in enumerate(whose)))
    told = f"'{whose[1][4]}' and '{whose[1][5]}'"
    remarks = describe(tmp_path).tables["b/t.csv"].by_name["patient"].remarks
    assert [told in remark.text for remark in remarks if remark.code == "identifier-twice-written"] == [True]
    assert any(told in note for note in first_spec(tmp_path, "ill")["notes"])


def codes(folder: Path) -> dict[str, set[str]]:
    """What describe remarks on every table."""
    found = describe(folder).tables.items()
    return {
        name: {told.code for told in (*own.remarks, *(told for column in own.columns for told in column.remarks))}
        for name, own in found
    }


@pytest.mark.parametrize("field", ["key", "group"])
def test_zeros_that_one_hospital_lost_before_its_identifiers_are_told(tmp_path: Path, field: str) -> None:
    own = [f"{(row if field == 'key' else row // 2) * 37:05}" for row in range(80)]
    put(tmp_path, people(0, patient=own), people(1, patient=[name.lstrip("0") or "7" for name in own]))
    assert ["identifier-shortened" in told for told in codes(tmp_path).values()] == [False, True]
    document = first_spec(tmp_path, "ill")
    (note,) = (note for note in document["notes"] if ZEROS_LOST in note)
    file = validate(SimulationFile, document)
    assert getattr(file.run.data, field) == "patient"
    told = list(identifier_warnings(file.run, partitioned_data(file, tmp_path / "run")))
    assert (note, told) == (f"b: column patient: {ZEROS_LOST}", [f"b: t.csv, column patient: {ZEROS_LOST}"])


def test_a_numbering_of_its_own_has_lost_no_zeros() -> None:
    shapes = [digits_of(names) for names in (["001", "080"], ["101", "999"], ["1", "80"], ["1000", "2"], ["P1", "7"])]
    assert [lost_zeros(own, shapes[0]) for own in shapes] == [False, False, True, False, False]
    assert not any(lost_zeros(own, shapes[1]) for own in shapes)


def test_one_table_that_is_given_for_two_hospitals_is_told(tmp_path: Path) -> None:
    put(tmp_path, people(0), people(0).sample(frac=1, random_state=0))
    assert all("table-repeated" in told for told in codes(tmp_path).values())
    assert [note[0] for note in first_spec(tmp_path, "ill")["notes"] if TWIN in note] == ["a", "b"]
    people(1).to_csv(tmp_path / "b" / "t.csv", index=False)
    assert not any("table-repeated" in told for told in codes(tmp_path).values())


def test_a_column_of_which_no_hospital_tells_a_sum_is_named(tmp_path: Path) -> None:
    """Five patients of each have a value, and eight are the fewest behind a sum: nobody knows its mean."""
    few = np.where(np.arange(80) < 5, np.arange(80) + 0.5, np.nan)
    put(tmp_path / "data", *(people(seed, crp=few, dose=seed + np.arange(80)) for seed in (1, 2)))
    document = first_spec(tmp_path / "data", "ill")
    document["simulation"].pop("policy", None)
    document["run"]["training"] |= {"solver": "steps", "epochs": 2}
    simulate(in_two_folds(document), tmp_path / "run")
    said = load_json(tmp_path / "run" / "summary.json")["table1"]["warnings"]
    assert [sentence.split()[6] for sentence in said if "no hospital sends a sum" in sentence] == ["crp,"]
