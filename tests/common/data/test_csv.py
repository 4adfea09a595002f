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
from rankdad.common.errors import DataError
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import CsvData, covariate_width
from tests.conftest import run_spec

NAN = float("nan")
DATA: dict[str, Any] = {
    "reader": "csv",
    "file": "brains.csv",
    "key": "subject",
    "features": ["volume", "sex"],
    "categorical": {"sex": ["M", "F"]},
    "label": "age",
}
BRAINS = "subject,volume,sex,age,a,b,family\ns1,15,M,20.5,0,1,f1\ns2,14,F,30,1.0,1,F2\ns3,13,F,41,0,00,01\n"


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


def test_a_number_is_a_label(tmp_path: Path) -> None:
    found = read_samples(run_of(), write(tmp_path))
    assert found.labels is not None
    assert found.labels.dtype == np.float64
    assert found.labels.tolist() == [20.5, 30, 41]


def test_several_labels_are_0_or_1(tmp_path: Path) -> None:
    found = read_samples(run_of(label=["a", "b"]), write(tmp_path))
    assert found.labels is not None
    assert found.labels.dtype == np.float64
    assert found.labels.tolist() == [[0, 1], [1, 1], [0, 0]]


def test_groups_are_compared_as_keys_are(tmp_path: Path) -> None:
    found = read_samples(run_of(group="family"), write(tmp_path))
    assert found.groups == ("f1", "F2", "01")
    assert read_samples(run_of(group="gone"), tmp_path, beside=()).groups is None


def test_kept_columns_are_numbers_and_all_levels_but_the_first(tmp_path: Path) -> None:
    levels = {"family": ["01", "f1", "F2"], "sex": ["M", "F"]}
    run = run_of(label="volume", features=["a"], keep=["sex", "family", "age"], categorical=levels)
    found = read_samples(run, write(tmp_path), beside=())
    assert found.covariates is not None
    assert found.covariates.tolist() == [[0, 1, 0, 20.5], [1, 0, 1, 30], [1, 0, 0, 41]]
    assert isinstance(run.data, CsvData)
    assert covariate_width(run.data, run.preparation.keep) == 4
    assert run.data.shape == (1,)


BAD: list[tuple[dict[str, Any], str, str, str]] = [
    # changes of the schema, what stands in the table, what takes its place, what is said
    ({}, "30", "old", "row 3, column age: holds 'old', expected a finite number"),
    ({}, "30", "inf", "row 3, column age: holds 'inf', expected a finite number"),
    ({}, "30", "1e200", "row 3, column age: holds '1e200', expected a finite number of at most 1e\\+100"),
    ({}, "30", "1_0", "row 3, column age: holds '1_0', expected a finite number"),
    ({}, "30", '"1,5"', "row 3, column age: holds '1,5', expected a finite number"),
    ({}, "30", "", r"row 3, column age: is missing \(1 of 3 rows lack a value\)"),
    ({"label": "height"}, "", "", "brains.csv: has no column height"),
    ({"label": ["a", "b"]}, "1.0,1", "2,1", "row 3, column a: holds '2', expected one of 0, 1"),
    ({"label": ["a", "b"]}, "1.0,1", "1,yes", "row 3, column b: holds 'yes', expected one of 0, 1"),
    ({"label": ["a", "b"]}, "1.0,1", "1,", "row 3, column b: is missing"),
    ({"label": ["a", "c"]}, "", "", "has no column c"),
    ({"group": "family"}, "F2", "NA", "row 3, column family: is missing"),
    ({"group": "home"}, "", "", "has no column home"),
    ({"keep": ["a"]}, "1.0,1", ",1", "row 3, column a: is missing"),
    ({"keep": ["a"]}, "1.0,1", "x,1", "row 3, column a: holds 'x', expected a finite number"),
    ({"keep": ["c"]}, "", "", "has no column c"),
    ({"missing": "impute"}, "M,20.5", "m,20.5", "row 2, column sex: holds 'm', which differs from 'M'"),
    ({"missing": "impute", "features": ["volume"], "categorical": {}}, "14", "NA", "^"),
    ({"missing": "impute", "features": ["a"], "categorical": {}}, "1.0", "", "all 3 rows have the same features"),
]


@pytest.mark.parametrize(("changes", "old", "new", "said"), BAD)
def test_every_fault_is_named_and_no_cell_is_told(
    tmp_path: Path, changes: dict[str, Any], old: str, new: str, said: str
) -> None:
    folder = write(tmp_path, BRAINS.replace(old, new, 1) if old else BRAINS)
    if said == "^":
        assert read_samples(run_of(**changes), folder).dropped == 0
        return
    with pytest.raises(DataError, match=said) as error:
        read_samples(run_of(**changes), folder)
    assert str(error.value).startswith(str(tmp_path / "brains.csv"))
    assert f"'{new}'" not in error.value.public_message
    assert str(tmp_path) not in error.value.public_message


@pytest.mark.parametrize(
    ("changes", "brains", "said", "cell"),
    [
        (
            {},
            "subject_7,15\nsubject_8,14\n",
            r"its first row holds numbers, .* did you mean subject_7\?",
            "subject_7",
        ),
        (
            {},
            '"subject\n7",15\nsubject_8,14\n',
            r"its first row holds numbers, .* did you mean subject\n7\?",
            "7",
        ),
        ({}, "Roe,Roe\nDoe,Doe\n", "has two columns 'Roe': rename", "Roe"),
        ({"file": "*.csv"}, "Roe,15\nDoe,14\n", r"has no column 'Roe', unlike brains\.csv: files of one", "Roe"),
    ],
)
def test_no_cell_is_told_where_a_table_has_no_row_of_column_names(
    tmp_path: Path, changes: dict[str, Any], brains: str, said: str, cell: str
) -> None:
    """Its first row is taken for one."""
    write(write(tmp_path, brains), BRAINS, "more.csv")
    with pytest.raises(DataError, match=said) as error:
        read_samples(run_of(**changes), tmp_path)
    assert cell not in error.value.public_message


def test_what_is_to_be_imputed_is_nan_and_what_lacks_a_label_is_left_out(tmp_path: Path) -> None:
    rows = "s4,,M,50,0,0,f4\ns5,3,NA,51,0,0,f5\ns6,3,M,,0,0,f6\ns7,3,M,53,0,0,\n,,,,,,\ns8,,F,,1,1,f8\n"
    found = read_samples(run_of(missing="impute", group="family"), write(tmp_path, BRAINS + rows))
    assert same(found.inputs, [[15, 1, 0], [14, 0, 1], [13, 0, 1], [NAN, 1, 0], [3, NAN, NAN]])
    assert found.keys == ("s1", "s2", "s3", "s4", "s5")
    assert found.groups == ("f1", "F2", "01", "f4", "f5")
    assert found.dropped == 3
    assert [note.partition(": ")[2] for note in found.notes] == [
        "row 7, column age: is missing; 3 of 8 rows lack a value and are left out",
        "row 5, column volume: is missing; 3 of 8 rows lack an input, which is imputed",
    ]
    dropped = read_samples(run_of(missing="drop", group="family"), tmp_path)
    assert (dropped.keys, dropped.dropped) == (("s1", "s2", "s3"), 5)


def test_for_a_prediction_a_number_may_be_missing(tmp_path: Path) -> None:
    folder = write(tmp_path, BRAINS.replace("30", "NA"))
    found = read_samples(run_of(), folder, beside=())
    assert found.rows is not None
    assert found.rows.unlabelled == {1}
    assert len(found.inputs) == 3
    assert "row 3, column age: is missing; 1 of 3 labels are not used" in found.notes[0]
    found = read_samples(run_of(label=["a", "c"]), folder, beside=())
    assert (found.labels, found.notes) == (None, ())


SECOND = "family,volume,subject,sex,age,a,b,\nf9,12,s9,M,60,0,0,\n\nf8,11,s8,F,61,0,0,\n"


@pytest.mark.parametrize("names", [["brains.csv", "more.csv"], "*.csv", ["b*.csv", "?ore.csv", "more.csv"]])
def test_rows_of_several_files_are_one_table(tmp_path: Path, names: Any) -> None:
    write(write(tmp_path), SECOND, "more.csv")
    write(tmp_path, "not a table", ".hidden.csv")
    found = read_samples(run_of(file=names, key=None), tmp_path)
    assert np.asarray(found.inputs)[:, 0].tolist() == [15, 14, 13, 12, 11]
    assert found.keys == ("brains.csv:2", "brains.csv:3", "brains.csv:4", "more.csv:2", "more.csv:4")
    assert found.notes == (f"{tmp_path}: 5 rows of brains.csv, more.csv are read as one table",)
    assert read_samples(run_of(file=names), tmp_path).keys == ("s1", "s2", "s3", "s9", "s8")
    alone = read_samples(run_of(file=names, key=None), tmp_path / "more.csv")
    assert (alone.keys, alone.notes) == (("2", "4"), ())


SEVERAL: list[tuple[dict[str, Any], str, str]] = [
    ({"file": "none_*.csv"}, SECOND, r"none_\*.csv: stands for no file"),
    ({"file": ["brains.csv", "gone.csv"]}, SECOND, "gone.csv: does not exist"),
    ({}, SECOND.replace("volume", "Volume"), "more.csv: has no column 'volume', unlike brains.csv: files of one"),
    ({}, SECOND.replace("b,\n", "b,c\n"), "brains.csv: has no column 'c', unlike more.csv"),
    ({}, SECOND.replace("b,\n", "b,b\n"), "more.csv: has two columns 'b'"),
    ({}, SECOND.replace("11", "x"), "more.csv: row 4, column volume: holds 'x', expected a finite number"),
    ({}, SECOND.replace("s8", "s2"), "more.csv: row 4, column subject: 's2' stands in brains.csv, row 3 too"),
    ({}, SECOND.replace("s8", ""), "more.csv: row 4, column subject: is missing, expected a key"),
    ({"label": "height"}, SECOND, "brains.csv: has no column height"),
]


@pytest.mark.parametrize(("changes", "second", "said"), SEVERAL)
def test_faults_of_several_files_name_the_one(tmp_path: Path, changes: dict[str, Any], second: str, said: str) -> None:
    write(write(tmp_path), second, "more.csv")
    with pytest.raises(DataError, match=said) as error:
        read_samples(run_of(**({"file": "*.csv"} | changes)), tmp_path)
    assert str(error.value).startswith(f"{tmp_path}/")
    assert tmp_path.name not in error.value.public_message


def test_several_covariate_tables_are_joined_and_what_is_not_in_all_is_counted(tmp_path: Path) -> None:
    write(write(tmp_path), "subject,iq\ns3,103\ns1,101\ns2,102\n", "iq.csv")
    write(tmp_path, "subject,dose\ns9,0\ns2,2\n", "dose_1.csv")
    write(tmp_path, "subject,dose\ns3,3\n", "dose_2.csv")
    changes = {"covariates": ["iq.csv", "dose_*.csv"], "features": ["dose", "iq"], "categorical": {}}
    with pytest.raises(DataError, match=r"brains\.csv: row 2, column subject: 1 of 3 keys are not in dose_1\.csv"):
        read_samples(run_of(**changes), tmp_path)
    found = read_samples(run_of(**changes, missing="drop"), tmp_path)
    assert np.asarray(found.inputs).tolist() == [[2, 102], [3, 103]]
    assert (found.keys, found.dropped) == (("s2", "s3"), 2)
    assert [note.rpartition("/")[2] for note in found.notes[1:]] == [
        "brains.csv: row 2, column subject: 1 of 3 keys are not in dose_1.csv, the first is 's1'; they are left out",
        "dose_1.csv: row 2, column subject: 1 of 3 keys are not in brains.csv, the first is 's9'; they are left out",
    ]
    write(tmp_path, "subject,volume\ns1,1\ns2,1\ns3,1\n", "iq.csv")
    with pytest.raises(DataError, match=r"brains\.csv and iq\.csv: both have a column volume"):
        read_samples(run_of(**changes | {"features": ["volume"]}, missing="drop"), tmp_path)


def test_one_row_is_enough(tmp_path: Path) -> None:
    assert np.asarray(read_samples(run_of(), write(tmp_path, BRAINS.partition("s2")[0])).inputs).tolist() == [
        [15, 1, 0]
    ]


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
    assert found.labels is not None
    assert found.labels.tolist() == expected["age"].tolist()
    assert found.dropped == len(frame) - len(expected)


def test_that_several_files_are_one_table_is_no_warning_and_of_one_nothing_is_said(tmp_path: Path) -> None:
    write(write(tmp_path), SECOND, "more.csv")
    (note,) = read_samples(run_of(file="*.csv", key=None), tmp_path).notes
    assert isinstance(note, Fact)
    assert read_samples(run_of(file="b*.csv", key=None), tmp_path).notes == ()
