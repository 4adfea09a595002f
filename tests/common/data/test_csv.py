"""Labels of every task, groups, kept columns, gaps, and tables of several files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdad.common.data import read_samples
from rankdad.common.data.csv import csv_samples
from rankdad.common.data.files import Fact
from rankdad.common.data.tables import Table
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import CsvData, covariate_width
from tests.common.data.readings import inputs_of, labels_of
from tests.common.faults import fault
from tests.conftest import run_spec

NAN = float("nan")
DATA: dict[str, Any] = {
    **{"reader": "csv", "file": "brains.csv", "key": "subject", "features": ["volume", "sex"], "label": "age"},
    "categorical": {"sex": ["M", "F"]},
}
BRAINS = "subject,volume,sex,age,a,b,family\ns1,15,M,20.5,0,1,f1\ns2,14,F,30,1.0,1,F2\ns3,13,F,41,0,00,01\n"
SECOND = "family,volume,subject,sex,age,a,b,\nf9,12,s9,M,60,0,0,\n\nf8,11,s8,F,61,0,0,\n"


def run_of(**changes: Any) -> RunSpec:
    tasks = {"values": ("classification", "classes"), "label": ("multi-label", "labels")}
    task: dict[str, Any] = {"name": "regression"}
    for field, (name, size) in tasks.items():
        if isinstance(changes.get(field), list):
            task = {"name": name, size: len(changes[field])}
    keep = changes.pop("keep", [])
    preparation = {"harmonise": {"name": "combat", "keep": keep}} if keep else {}
    return run_spec(task=task, data=DATA | changes, preparation=preparation)


def write(folder: Path, text: str = BRAINS, name: str = "brains.csv") -> Path:
    (folder / name).write_text(text)
    return folder


def same(array: Any, expected: Any) -> bool:
    return np.array_equal(array, np.array(expected, float), equal_nan=True)


def test_labels_are_a_number_or_several_of_0_and_1_and_groups_are_texts(tmp_path: Path) -> None:
    found = read_samples(run_of(group="family"), write(tmp_path))
    assert (labels_of(found), found.groups) == ([20.5, 30, 41], ("f1", "F2", "01"))
    several = read_samples(run_of(label=["a", "b"]), tmp_path)
    assert labels_of(several) == [[0, 1], [1, 1], [0, 0]]
    assert {one.labels.dtype.name for one in (found, several) if one.labels is not None} == {"float64"}
    assert read_samples(run_of(group="gone"), tmp_path, beside=()).groups is None


def test_kept_columns_are_numbers_and_all_levels_but_the_first(tmp_path: Path) -> None:
    levels = {"family": ["01", "f1", "F2"], "sex": ["M", "F"]}
    run = run_of(label="volume", features=["a"], keep=["sex", "family", "age"], categorical=levels)
    found = read_samples(run, write(tmp_path), beside=())
    assert found.covariates is not None
    assert found.covariates.tolist() == [[0, 1, 0, 20.5], [1, 0, 1, 30], [1, 0, 0, 41]]
    assert isinstance(run.data, CsvData)
    assert (covariate_width(run.data, run.preparation.keep), run.data.shape) == (4, (1,))


@pytest.mark.parametrize(
    ("changes", "old", "new", "code", "field", "row"),
    [
        *[({}, "30", cell, "not-a-number", "age", 3) for cell in ("old", "inf", "1e200", "1_0", '"1,5"')],
        ({}, "30", "", "cell", "age", 3),
        ({"label": "height"}, "", "", "column-missing", "height", None),
        ({"label": ["a", "b"]}, "1.0,1", "2,1", "level-unknown", "a", 3),
        ({"label": ["a", "b"]}, "1.0,1", "1,", "cell", "b", 3),
        ({"label": ["a", "c"]}, "", "", "column-missing", "c", None),
        ({"group": "family"}, "F2", "NA", "cell", "family", 3),
        ({"group": "home"}, "", "", "column-missing", "home", None),
        ({"keep": ["a"]}, "1.0,1", ",1", "cell", "a", 3),
        ({"keep": ["a"]}, "1.0,1", "x,1", "not-a-number", "a", 3),
        ({"keep": ["c"]}, "", "", "column-missing", "c", None),
        ({"missing": "impute"}, "M,20.5", "m,20.5", "values-spelled-apart", "sex", 2),
        ({"missing": "impute", "features": ["a"], "categorical": {}}, "1.0", "", "rows-all-alike", "", None),
    ],
)
def test_every_fault_is_named_and_no_cell_is_told(
    tmp_path: Path, changes: dict[str, Any], old: str, new: str, code: str, field: str, row: int | None
) -> None:
    folder = write(tmp_path, BRAINS.replace(old, new, 1) if old else BRAINS)
    found = fault(lambda: read_samples(run_of(**changes), folder), str(tmp_path), f"'{new}'")
    assert found == (code, field, row)


@pytest.mark.parametrize(
    ("file", "brains", "cell", "code"),
    [
        ("brains.csv", "subject_7,15\nsubject_8,14\n", "subject_7", "header-missing"),
        ("brains.csv", '"subject\n7",15\nsubject_8,14\n', "7", "header-missing"),
        ("brains.csv", "Roe,Roe\nDoe,Doe\n", "Roe", "column-repeated"),
        ("*.csv", "Roe,15\nDoe,14\n", "Roe", "columns-differ"),
    ],
)
def test_no_cell_is_told_where_a_table_has_no_row_of_column_names(
    tmp_path: Path, file: str, brains: str, cell: str, code: str
) -> None:
    """Its first row is taken for one."""
    write(write(tmp_path, brains), BRAINS, "more.csv")
    assert fault(lambda: read_samples(run_of(file=file), tmp_path), cell)[0] == code


def test_what_is_to_be_imputed_is_nan_and_what_lacks_a_label_is_left_out(tmp_path: Path) -> None:
    rows = "s4,,M,50,0,0,f4\ns5,3,NA,51,0,0,f5\ns6,3,M,,0,0,f6\ns7,3,M,53,0,0,\n,,,,,,\ns8,,F,,1,1,f8\n"
    found = read_samples(run_of(missing="impute", group="family"), write(tmp_path, BRAINS + rows))
    assert same(found.inputs, [[15, 1, 0], [14, 0, 1], [13, 0, 1], [NAN, 1, 0], [3, NAN, NAN]])
    assert (found.keys, found.groups) == (("s1", "s2", "s3", "s4", "s5"), ("f1", "F2", "01", "f4", "f5"))
    assert found.dropped == 3
    assert [note.partition(": ")[2] for note in found.notes] == [
        "row 7, column age: is missing; 3 of 8 rows lack a value and are left out",
        "row 5, column volume: is missing; 3 of 8 rows lack an input, which is imputed",
    ]
    dropped = read_samples(run_of(missing="drop", group="family"), tmp_path)
    assert (dropped.keys, dropped.dropped) == (("s1", "s2", "s3"), 5)


@pytest.mark.parametrize(
    ("changes", "old", "new", "unlabelled"),
    [
        ({}, ",30,", ",NA,", {1}),
        ({"label": "a", "values": [0, 1]}, "1.0,1", ",1", {1}),
        ({"label": ["a", "c"]}, "", "", None),
        ({"label": "gone", "values": [0, 1]}, "", "", None),
    ],
)
def test_for_a_prediction_labels_may_be_missing(
    tmp_path: Path, changes: dict[str, Any], old: str, new: str, unlabelled: set[int] | None
) -> None:
    found = read_samples(run_of(**changes), write(tmp_path, BRAINS.replace(old, new)), beside=())
    assert found.rows is not None
    assert (len(found.inputs), found.rows.unlabelled, len(found.notes)) == (
        3,
        frozenset(unlabelled or ()),
        len(unlabelled or ()),
    )
    assert (found.labels is None) == (unlabelled is None)


@pytest.mark.parametrize("names", [["brains.csv", "more.csv"], "*.csv", ["b*.csv", "?ore.csv", "more.csv"]])
def test_rows_of_several_files_are_one_table(tmp_path: Path, names: Any) -> None:
    """That they are is no warning, and of one nothing is said."""
    write(write(tmp_path), SECOND, "more.csv")
    write(tmp_path, "not a table", ".hidden.csv")
    found = read_samples(run_of(file=names, key=None), tmp_path)
    assert np.asarray(found.inputs)[:, 0].tolist() == [15, 14, 13, 12, 11]
    assert found.keys == ("brains.csv:2", "brains.csv:3", "brains.csv:4", "more.csv:2", "more.csv:4")
    (note,) = found.notes
    assert isinstance(note, Fact)
    assert read_samples(run_of(file=names), tmp_path).keys == ("s1", "s2", "s3", "s9", "s8")
    alone = read_samples(run_of(file=names, key=None), tmp_path / "more.csv")
    assert (alone.keys, alone.notes) == (("2", "4"), ())


@pytest.mark.parametrize(
    ("changes", "second", "code", "field", "row"),
    [
        ({"file": "x*.csv"}, SECOND, "file-missing", "", None),
        ({"file": ["brains.csv", "gone.csv"]}, SECOND, "file-missing", "", None),
        ({}, SECOND.replace("volume", "Volume"), "columns-differ", "", None),
        ({}, SECOND.replace("12,", "x,"), "not-a-number", "volume", 2),
        ({}, SECOND.replace("s8", "s2"), "key-repeated", "subject", 4),
        ({}, SECOND.replace("s8", ""), "key-missing", "subject", 4),
    ],
)
def test_faults_of_several_files_name_the_one(
    tmp_path: Path, changes: dict[str, Any], second: str, code: str, field: str, row: int | None
) -> None:
    write(write(tmp_path), second, "more.csv")
    found = fault(lambda: read_samples(run_of(**({"file": "*.csv"} | changes)), tmp_path), tmp_path.name)
    assert found == (code, field, row)


def test_several_covariate_tables_are_joined_and_what_is_not_in_all_is_counted(tmp_path: Path) -> None:
    write(write(tmp_path), "subject,iq\ns3,103\ns1,101\ns2,102\n", "iq.csv")
    write(tmp_path, "subject,dose\ns9,0\ns2,2\n", "dose_1.csv")
    write(tmp_path, "subject,dose\ns3,3\n", "dose_2.csv")
    changes = {"covariates": ["iq.csv", "dose_*.csv"], "features": ["dose", "iq"], "categorical": {}}
    assert fault(lambda: read_samples(run_of(**changes), tmp_path)) == ("key-not-in-all", "subject", 2)
    found = read_samples(run_of(**changes, missing="drop"), tmp_path)
    assert (inputs_of(found), found.keys, found.dropped) == ([[2, 102], [3, 103]], ("s2", "s3"), 2)
    assert [note.rpartition("/")[2].partition(":")[0] for note in found.notes[1:]] == ["brains.csv", "dose_1.csv"]
    write(tmp_path, "subject,volume\ns1,1\ns2,1\ns3,1\n", "iq.csv")
    twice = changes | {"features": ["volume"], "missing": "drop"}
    assert fault(lambda: read_samples(run_of(**twice), tmp_path)) == ("column-repeated", "volume", None)


CELL = st.one_of(st.none(), st.integers(-9, 9))
ROWS = st.lists(st.tuples(CELL, st.sampled_from(["M", "F", None]), CELL), max_size=8)


@given(ROWS)
def test_gaps_are_where_pandas_has_them(rows: list[tuple[Any, Any, Any]]) -> None:
    rows = [(100, "M", 1), *rows, (200, None, 2)]
    frame = pd.DataFrame(rows, columns=["volume", "sex", "age"], dtype=object).assign(subject=range(len(rows)))
    data = run_of(missing="impute").data
    assert isinstance(data, CsvData)
    expected = frame.dropna(subset=["age"])
    levels = pd.DataFrame({level: expected["sex"] == level for level in "MF"}).astype(float)
    found = csv_samples(data, [Table("here", frame)], "float64")
    assert same(found.inputs, np.column_stack([expected["volume"].astype(float), levels.mask(expected["sex"].isna())]))
    assert labels_of(found) == expected["age"].tolist()
    assert found.dropped == len(frame) - len(expected)
