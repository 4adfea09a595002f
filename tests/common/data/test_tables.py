"""Tables as data: what comes of them, and every fault by its code, column and row."""

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
from tests.common.data.readings import inputs_of, labels_of, two_classes
from tests.common.faults import fault, refused
from tests.conftest import SHARED

DATA: dict[str, Any] = {
    **{"reader": "csv", "file": "brains.csv", "covariates": "people.csv", "key": "subject"},
    **{"features": ["age", "sex", "volume"], "categorical": {"sex": ["M", "F"]}, "label": "group", "values": [0, 1]},
}
BRAINS = "subject,volume\ns1,1500.5\ns2,1400\ns3,1300\n"
PEOPLE = "subject,age,sex,group\ns2,30,F,1\ns1,25.5,M,0\ns3,41,F,1.0\n"
X = [[25.5, 1, 0, 1500.5], [30, 0, 1, 1400], [41, 0, 1, 1300]]


def spec_of(**changes: Any) -> RunSpec:
    return two_classes(DATA | changes)


def write(folder: Path, brains: str | bytes | None = BRAINS, people: str | bytes | None = PEOPLE) -> Path:
    for name, content in (("brains.csv", brains), ("people.csv", people)):
        if content is not None:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / "brains.csv"


@pytest.mark.parametrize(
    "brains",
    [
        BRAINS,
        "\ufeff" + BRAINS,
        BRAINS.replace("\n", "\r\n"),
        BRAINS.replace("\n", "\n\n") + ",\n",
        BRAINS.replace("subject,volume", ' "subject" , volume,'),
        BRAINS.replace("s1,1500.5", ' s1 ,"1.5005e3 "'),
    ],
)
def test_two_tables_are_joined_and_encoded_whatever_spreadsheets_do_to_a_file(tmp_path: Path, brains: str) -> None:
    found = read_samples(spec_of(), write(tmp_path, brains))
    assert (inputs_of(found), labels_of(found)) == (X, [0, 1, 1])
    assert found.inputs.dtype == np.float32
    assert (found.keys, found.notes) == (("s1", "s2", "s3"), ())


def test_labels_are_compared_as_numbers_where_they_are_and_keys_never(tmp_path: Path) -> None:
    people = "subject,age,sex,group\n7,30,F,01\n007,25,M,0.0\n"
    found = read_samples(spec_of(), write(tmp_path, "subject,volume\n007,1\n7,2\n", people))
    assert (labels_of(found), found.keys) == ([0, 1], ("007", "7"))
    assert np.asarray(found.inputs)[:, 0].tolist() == [25, 30]


def test_a_name_in_tsv_means_tabs_and_rows_are_keys_where_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.tsv").write_text(PEOPLE.replace(",", "\t"))
    alone: dict[str, Any] = {"file": "p.tsv", "covariates": None, "key": None, "features": ["age"], "categorical": {}}
    found = read_samples(spec_of(**alone), tmp_path / "p.tsv")
    assert (inputs_of(found), found.keys) == ([[30], [25.5], [41]], ("2", "3", "4"))


def brains(old: str, new: str) -> dict[str, Any]:
    assert old in BRAINS
    return {"brains": BRAINS.replace(old, new)}


def people(old: str, new: str) -> dict[str, Any]:
    assert old in PEOPLE
    return {"people": PEOPLE.replace(old, new)}


DROP = {"missing": "drop"}
BAD: list[tuple[dict[str, Any], str, str, str, int | None]] = [
    # what the tables hold and the schema says, the file, the code, the column and the row
    ({"brains": None}, "brains", "file-missing", "", None),
    ({"people": None}, "people", "file-missing", "", None),
    ({"brains": ""}, "brains", "table-empty", "", None),
    ({"brains": "subject,volume\n"}, "people", "key-not-in-all", "subject", 2),
    ({"brains": "subject,volume\n", "people": "subject,age,sex,group\n"}, "brains", "no-rows", "", None),
    ({"brains": b"subject,volume\ns\xe4,1\n"}, "brains", "encoding-unknown", "data.encoding", None),
    ({"brains": BRAINS.encode("utf-16")}, "brains", "format-unexpected", "", None),
    (brains("1400", "1,400"), "brains", "table-unreadable", "", None),
    (brains("1400", '"1400'), "brains", "table-unreadable", "", None),
    ({"brains": "subject,volume, volume\ns1,1,2\n"}, "brains", "column-repeated", "volume", 1),
    (people("age", "Age"), "brains.csv and people", "column-missing", "age", None),
    (people("group", "z"), "brains.csv and people", "column-missing", "group", None),
    (people("group", "volume"), "brains.csv and people", "column-repeated", "volume", None),
    *[(brains("1400", cell), "brains", "not-a-number", "volume", 3) for cell in ("big", "1_400", "-inf", "1e39")],
    (brains("s2,1400", "\n\ns2,NA"), "brains", "cell", "volume", 5),
    (people("41,F,1.0", "41,F,"), "people", "cell", "group", 4),
    (people("30,F,1", "30,F,2"), "people", "level-unknown", "group", 2),
    (people("30,F", "30,x"), "people", "level-unknown", "sex", 2),
    (people("s2", "s4"), "brains", "key-not-in-all", "subject", 3),
    ({"people": PEOPLE + "s9,1,F,1\n"}, "people", "key-not-in-all", "subject", 5),
    (people("s", "p") | DROP, "people", "column-missing", "subject", None),
    ({"people": "subject,age,sex,group\np2,30,F,1\np1,25.5,M,0\n"} | DROP, "brains", "keys-disjoint", "subject", None),
    ({"brains": BRAINS + "s1,7\n"}, "brains", "key-repeated", "subject", 5),
    ({"people": PEOPLE + "s2,1,F,1\n"}, "people", "key-repeated", "subject", 5),
    ({"brains": BRAINS + ",7\n"}, "brains", "key-missing", "subject", 5),
    ({"brains": "subject,volume\ns1,2\ns2,2\ns3,2.0\n", "features": ["volume"], "categorical": {}}, "brains",
     "rows-all-alike", "", None),
    ({"brains": "subject,volume\ns1,\ns2,\ns3,\n"} | DROP, "brains", "cell", "volume", 2),
]  # fmt: skip


@pytest.mark.parametrize(("given", "file", "code", "field", "row"), BAD)
def test_every_fault_is_named_and_no_cell_is_told(
    tmp_path: Path, given: dict[str, Any], file: str, code: str, field: str, row: int | None
) -> None:
    changes = dict(given)
    write(tmp_path, changes.pop("brains", BRAINS), changes.pop("people", PEOPLE))
    error = refused(lambda: read_samples(spec_of(**changes), tmp_path))
    assert (error.code, error.field, error.row) == (code, field, row)
    assert str(error).startswith(f"{tmp_path / file}.csv: ")
    assert str(tmp_path) not in error.public_message


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "brains.csv")
    assert fault(lambda: read_site(spec_of(), tmp_path, 0)) == ("file-missing", "", None)


def test_rows_that_lack_something_are_left_out_and_reported(tmp_path: Path) -> None:
    more = PEOPLE.replace("41", "n/a") + "s4,1,F,1\ns6,1,F,0\ns7,1,F,1\n"
    spec = spec_of(missing="drop")
    found = read_samples(spec, write(tmp_path, BRAINS + "s4,\ns5,1\ns6,8\n", more))
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
    assert inputs_of(found) == [[1, 0], [0, 1]]


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
    assert (inputs_of(found), labels_of(found)) == (expected.tolist(), merged["group"].tolist())
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
    files = {"file": "freesurfer.csv", "covariates": "participants.csv", "features": [*regions, "age"]}
    spec = spec_of(**files, categorical={}, label="sex", values=["M", "F"])
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


@pytest.mark.parametrize(
    ("volumes", "refused"),
    [
        *[([beyond + 0.3 * row for row in (1, 2, 3)], beyond > 1e4) for beyond in (1.7e9, 1e5, 1e3)],
        ([250000, 250001, 250000], False),
        ([0.3, 0.30000000000000004, 0.3], False),  # what computing leaves of a constant
    ],
)
def test_numbers_that_float32_would_round_are_refused(tmp_path: Path, volumes: list[float], refused: bool) -> None:
    """Coefficients of a column of times were wrong without a word: it had lost its digits before it was centred."""
    brains = "subject,volume\n" + "".join(f"s{row},{volume}\n" for row, volume in enumerate(volumes, 1))
    path = write(tmp_path, brains)
    if refused:
        assert fault(lambda: read_samples(spec_of(), path)) == ("digits-lost", "volume", None)
    else:
        read_samples(spec_of(), path)
