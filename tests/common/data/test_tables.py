"""Tables as data: what comes of them, and every fault by its file, row and column."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdad.common.data import read_samples, read_site
from rankdad.common.data.csv import csv_samples
from rankdad.common.data.tables import Table
from rankdad.common.errors import DataError
from rankdad.common.spec import RunSpec
from tests.conftest import SHARED, run_spec

DATA: dict[str, Any] = {
    "reader": "csv",
    "file": "brains.csv",
    "covariates": "people.csv",
    "key": "subject",
    "features": ["age", "sex", "volume"],
    "categorical": {"sex": ["M", "F"]},
    "label": "group",
    "values": [0, 1],
}
BRAINS = "subject,volume\ns1,1500.5\ns2,1400\ns3,1300\n"
PEOPLE = "subject,age,sex,group\ns2,30,F,1\ns1,25.5,M,0\ns3,41,F,1.0\n"


def spec_of(**changes: Any) -> RunSpec:
    return run_spec(task={"name": "classification", "classes": 2}, data=DATA | changes)


def write(folder: Path, brains: str | bytes | None = BRAINS, people: str | bytes | None = PEOPLE) -> Path:
    for name, content in (("brains.csv", brains), ("people.csv", people)):
        if content is not None:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / "brains.csv"


def test_two_tables_are_joined_and_encoded_in_the_order_of_the_features(tmp_path: Path) -> None:
    found = read_samples(spec_of(), write(tmp_path))
    assert np.asarray(found.inputs).tolist() == [[25.5, 1, 0, 1500.5], [30, 0, 1, 1400], [41, 0, 1, 1300]]
    assert found.inputs.dtype == np.float32
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 1]
    assert found.keys == ("s1", "s2", "s3")
    assert found.notes == ()


@pytest.mark.parametrize(
    "brains",
    [
        "\ufeff" + BRAINS,
        BRAINS.replace("\n", "\r\n"),
        BRAINS.replace("\n", "\n\n") + ",\n",
        BRAINS.replace("subject,volume", ' "subject" , volume,'),
        BRAINS.replace("s1,1500.5", ' s1 ,"1.5005e3 "'),
    ],
)
def test_what_spreadsheets_do_to_a_file_changes_nothing(tmp_path: Path, brains: str) -> None:
    assert np.asarray(read_samples(spec_of(), write(tmp_path, brains)).inputs)[:, 3].tolist() == [1500.5, 1400, 1300]


def test_labels_are_compared_as_numbers_where_they_are_and_keys_never(tmp_path: Path) -> None:
    brains = "subject,volume\n007,1\n7,2\n"
    people = "subject,age,sex,group\n7,30,F,01\n007,25,M,0.0\n"
    found = read_samples(spec_of(), write(tmp_path, brains, people))
    assert np.asarray(found.inputs)[:, 0].tolist() == [25, 30]
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1]
    assert found.keys == ("007", "7")


def test_a_name_in_tsv_means_tabs(tmp_path: Path) -> None:
    (tmp_path / "p.tsv").write_text(PEOPLE.replace(",", "\t"))
    found = read_samples(
        spec_of(file="p.tsv", covariates=None, key=None, features=["age"], categorical={}), tmp_path / "p.tsv"
    )
    assert np.asarray(found.inputs).tolist() == [[30], [25.5], [41]]
    assert found.keys == ("2", "3", "4")


BAD: list[tuple[dict[str, Any], str | bytes | None, str | bytes | None, str]] = [
    # changes of the schema, brains.csv, people.csv, what is said
    ({}, None, PEOPLE, "brains.csv: does not exist"),
    ({}, BRAINS, None, "people.csv: does not exist"),
    ({}, "", PEOPLE, "brains.csv: is empty, expected a row of column names"),
    ({}, "subject,volume\n", PEOPLE, r"people.csv: row 2, column subject: 3 of 3 keys are not in brains.csv"),
    ({}, "subject,volume\n", "subject,age,sex,group\n", "brains.csv: has no rows"),
    ({}, b"subject,volume\ns\xe4,1\n", PEOPLE, "brains.csv: is not text in UTF-8: save it as CSV"),
    ({}, BRAINS.encode("utf-16"), PEOPLE, "brains.csv: is text in UTF-16, expected a table"),
    ({}, "subject,volume\ns1,1,2\n", PEOPLE, "brains.csv: is not a readable table: Expected 2 fields in line 2, saw 3"),
    ({}, 'subject,volume\ns1,"1\ns2,1\n', PEOPLE, "brains.csv: is not a readable table: EOF inside string .* row 2"),
    ({}, "subject,volume, volume\ns1,1,2\n", PEOPLE, "brains.csv: has two columns 'volume'"),
    ({}, BRAINS, PEOPLE.replace("age", "Age"), r"people.csv: has no column age; did you mean Age\?"),
    ({}, BRAINS, PEOPLE.replace("group", "z"), "people.csv: has no column group; it has subject, volume, age, sex, z$"),
    ({}, BRAINS, PEOPLE.replace("age", "volume"), "has no column age"),
    ({}, BRAINS, PEOPLE.replace("group", "volume"), "people.csv: both have a column volume"),
    ({}, BRAINS.replace("1400", "1,400"), PEOPLE, "Expected 2 fields in line 3, saw 3"),
    ({}, BRAINS.replace("1400", "big"), PEOPLE, "brains.csv: row 3, column volume: holds 'big', expected a finite"),
    ({}, BRAINS.replace("1400", "1_400"), PEOPLE, "row 3, column volume: holds '1_400'"),
    ({}, BRAINS.replace("1400", "-inf"), PEOPLE, "row 3, column volume: holds '-inf', expected a finite number"),
    ({}, BRAINS.replace("1400", "1e39"), PEOPLE, "row 3, column volume: holds '1e39', expected a finite number"),
    ({}, BRAINS, PEOPLE.replace("30", "x" * 99), "row 2, column age: holds 'x{37}...', expected"),
    ({}, BRAINS.replace("s2,1400", "\n\ns2,NA"), PEOPLE, "brains.csv: row 5, column volume: is missing"),
    (
        {},
        BRAINS.replace("1400", "NA"),
        PEOPLE,
        r"row 3, column volume: is missing \(1 of 3 rows lack .* set data.missing to drop$",
    ),
    ({}, BRAINS, PEOPLE.replace("41,F,1.0", "41,F,"), r"people.csv: row 4, column group: is missing"),
    (
        {},
        BRAINS,
        PEOPLE.replace("30,F,1", "30,F,2"),
        "people.csv: row 2, column group: holds '2', expected one of 0, 1; data.merge",
    ),
    (
        {},
        BRAINS,
        PEOPLE.replace("30,F", "30,x"),
        "people.csv: row 2, column sex: holds 'x', expected one of M, F; a column in",
    ),
    (
        {},
        BRAINS,
        PEOPLE.replace("s2", "s4"),
        "brains.csv: row 3, column subject: 1 of 3 keys .* people.csv, .* 's2'; com",
    ),
    (
        {},
        BRAINS,
        PEOPLE + "s9,1,F,1\n",
        "people.csv: row 5, column subject: 1 of 4 keys are not in brains.csv, .* 's9'",
    ),
    ({"missing": "drop"}, BRAINS, PEOPLE.replace("s", "p"), "has no column subject"),
    (
        {"missing": "drop"},
        BRAINS.replace("s1", "a").replace("s2", "b").replace("s3", "c"),
        PEOPLE,
        "no key is in people",
    ),
    ({}, BRAINS + "s1,7\n", PEOPLE, "brains.csv: row 5, column subject: 's1' stands in row 2 too"),
    ({}, BRAINS, PEOPLE + "s2,1,F,1\n", "people.csv: row 5, column subject: 's2' stands in row 2 too"),
    ({}, BRAINS + ",7\n", PEOPLE, "brains.csv: row 5, column subject: is missing, expected a key"),
    (
        {"features": ["volume"], "categorical": {}},
        "subject,volume\ns1,2\ns2,2\ns3,2.0\n",
        PEOPLE,
        "all 3 rows have the sa",
    ),
    (
        {"missing": "drop"},
        "subject,volume\ns1,\ns2,\ns3,\n",
        PEOPLE,
        "is missing; 3 of 3 rows lack a value, and none is",
    ),
]


@pytest.mark.parametrize(("changes", "brains", "people", "said"), BAD)
def test_every_fault_is_named(
    tmp_path: Path, changes: dict[str, Any], brains: str | bytes | None, people: str | bytes | None, said: str
) -> None:
    write(tmp_path, brains, people)
    with pytest.raises(DataError, match=said) as error:
        read_samples(spec_of(**changes), tmp_path)
    assert str(error.value).startswith(str(tmp_path))


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "brains.csv")
    with pytest.raises(DataError, match=r"brains\.csv: is not a file"):
        read_site(spec_of(), tmp_path, 0)


def test_rows_that_lack_something_are_left_out_and_reported(tmp_path: Path) -> None:
    brains = BRAINS + "s4,\ns5,1\ns6,8\n"
    people = PEOPLE.replace("41", "n/a") + "s4,1,F,1\ns6,1,F,0\ns7,1,F,1\n"
    spec = spec_of(missing="drop")
    found = read_samples(spec, write(tmp_path, brains, people))
    assert found.keys == ("s1", "s2", "s6")
    assert [note.partition(": ")[2] for note in found.notes] == [
        "row 6, column subject: 1 of 6 keys are not in people.csv, the first is 's5'; they are left out",
        "row 7, column subject: 1 of 6 keys are not in brains.csv, the first is 's7'; they are left out",
        "row 4, column age: is missing; 2 of 5 rows lack a value and are left out",
    ]
    assert read_site(spec, tmp_path, 0).notes == found.notes


def test_a_level_that_looks_like_nothing_is_a_level_where_the_schema_says_so() -> None:
    frame = pd.DataFrame({"drug": ["none", "", "x"], "group": [0, 1, 1]})
    changes = {"features": ["drug"], "categorical": {"drug": ["none", "x"]}, "covariates": None, "key": None}
    spec = spec_of(missing="drop", **changes)
    found = csv_samples(spec.data, [Table("here", frame)], "float64")  # type: ignore[arg-type]
    assert np.asarray(found.inputs).tolist() == [[1, 0], [0, 1]]


def test_for_a_prediction_labels_may_be_missing(tmp_path: Path) -> None:
    write(tmp_path, people=PEOPLE.replace("group", "z"))
    assert read_samples(spec_of(), tmp_path / "brains.csv", beside=()).labels is None
    write(tmp_path, people=PEOPLE.replace("30,F,1", "30,F,"))
    found = read_samples(spec_of(), tmp_path / "brains.csv", beside=())
    assert found.rows is not None
    assert found.rows.unlabelled == {1}
    assert len(found.inputs) == 3
    assert "row 2, column group: is missing; 1 of 3 labels are not used" in found.notes[0]


CELLS = st.one_of(st.integers(-99, 99), st.floats(-1e6, 1e6), st.none(), st.just(np.nan), st.just(pd.NA))


@given(
    ours=st.lists(st.integers(0, 12), unique=True, min_size=1),
    theirs=st.lists(st.integers(0, 12), unique=True, min_size=1),
    cells=st.data(),
)
def test_it_is_what_pandas_would_make_of_it(ours: list[int], theirs: list[int], cells: st.DataObject) -> None:
    def column(values: st.SearchStrategy[Any], count: int) -> list[Any]:
        return cells.draw(st.lists(values, min_size=count, max_size=count))

    brains = pd.DataFrame({"subject": ours, "volume": pd.Series(column(CELLS, len(ours)), dtype=object)})
    sexes, groups = column(st.sampled_from(["M", "F", None]), len(theirs)), column(st.sampled_from([0, 1]), len(theirs))
    people = pd.DataFrame({"subject": theirs, "age": 1, "sex": sexes, "group": groups})
    merged = brains.merge(people, on="subject").dropna()
    one_hot = pd.DataFrame({"M": merged["sex"] == "M", "F": merged["sex"] == "F"})
    expected = np.column_stack([merged["age"], one_hot, merged["volume"]]).astype(float)
    spec = spec_of(missing="drop")
    tables = [Table("brains", brains), Table("people", people)]
    if not len(expected):
        with pytest.raises(DataError):
            csv_samples(spec.data, tables, "float64")  # type: ignore[arg-type]
        return
    found = csv_samples(spec.data, tables, "float64", beside=())  # type: ignore[arg-type]
    assert np.asarray(found.inputs).tolist() == expected.tolist()
    assert found.labels is not None
    assert found.labels.tolist() == merged["group"].tolist()
    assert found.rows is not None
    assert len(found.rows.refused) == len(brains) - len(expected)


@pytest.mark.slow
@pytest.mark.shared_data
def test_the_tables_of_a_real_consortium(tmp_path: Path) -> None:
    root = SHARED / "abide_freesurfer"
    if not root.is_dir():
        pytest.skip(f"{root} is not there")
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir())
    regions = pd.read_csv(folders[0] / "freesurfer.csv", nrows=0).columns[1:].tolist()
    spec = spec_of(
        file="freesurfer.csv",
        covariates="participants.csv",
        features=[*regions, "age"],
        categorical={},
        label="sex",
        values=["M", "F"],
    )
    people, women = 0, 0
    for index, folder in enumerate(folders):
        data = read_site(spec, folder, index)
        people, women = people + len(data.samples), women + int(data.samples.labels.sum())
    assert (len(folders), people, women) == (20, 1035, 157)


def test_a_code_of_missing_values_is_written_as_the_columns_numbers_are(tmp_path: Path) -> None:
    """-9,0 was trained on where -9 means missing."""
    brains = BRAINS.replace(",", ";").replace("1500.5", "1500,5").replace("1400", "-9,0")
    found = read_samples(spec_of(missing_values={"volume": ["-9"]}, missing="impute"), write(tmp_path, brains))
    assert np.asarray(found.inputs)[:, 3].tolist() == pytest.approx([1500.5, math.nan, 1300], nan_ok=True)


@pytest.mark.parametrize(("beyond", "refused"), [(1.7e9, True), (1e5, True), (1e3, False), (0.0, False)])
def test_numbers_that_float32_would_round_are_refused(tmp_path: Path, beyond: float, refused: bool) -> None:
    """Coefficients of a column of times were wrong without a word: it had lost its digits before it was centred."""
    brains = "subject,volume\n" + "".join(f"s{row},{beyond + 0.3 * row}\n" for row in (1, 2, 3))
    write(tmp_path, brains)
    if not refused:
        read_samples(spec_of(), tmp_path / "brains.csv")
        return
    with pytest.raises(DataError) as caught:
        read_samples(spec_of(), tmp_path / "brains.csv")
    assert (caught.value.code, caught.value.field) == ("digits-lost", "volume")


def test_whole_numbers_of_a_small_table_are_not_refused(tmp_path: Path) -> None:
    read_samples(spec_of(), write(tmp_path, "subject,volume\ns1,250000\ns2,250001\ns3,250000\n"))


def test_what_computing_leaves_of_a_constant_is_not_refused(tmp_path: Path) -> None:
    read_samples(spec_of(), write(tmp_path, "subject,volume\ns1,0.3\ns2,0.30000000000000004\ns3,0.3\n"))
