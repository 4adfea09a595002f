"""Identifiers of tables: compared as text, and refused where they have lost digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rankdad.common.data import read_samples
from rankdad.common.data.reading import Reading
from tests.common.data.readings import inputs_of, two_classes
from tests.common.faults import fault, refused
from tests.conftest import run_spec

DATA: dict[str, Any] = {
    **{"reader": "csv", "file": "brains.csv", "covariates": "people.csv", "key": "subject"},
    **{"features": ["volume", "age"], "label": "ill", "values": [0, 1]},
}
GROUPED = DATA | {"covariates": None, "key": None, "group": "subject", "features": ["volume"]}


def grouped(folder: Path, *rows: str, **changes: Any) -> Reading:
    """Read rows of subject, volume and label as one table, in which subjects are groups."""
    (folder / "brains.csv").write_text("subject,volume,ill\n" + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return read_samples(two_classes(GROUPED | changes), folder)


def joined(folder: Path, brains: list[str], people: list[str], **changes: Any) -> Any:
    """Return the ages and volumes that belong to each subject: volumes and ages are each's place in its table."""
    volumes = "".join(f"{name},{row}\n" for row, name in enumerate(brains))
    ages = "".join(f"{name},{row},{row % 2}\n" for row, name in enumerate(people))
    (folder / "brains.csv").write_text("subject,volume\n" + volumes)
    (folder / "people.csv").write_text("subject,age,ill\n" + ages)
    return read_samples(two_classes(DATA | changes), folder)


@pytest.mark.parametrize(
    ("one", "other"), [("1E2", "100"), ("007", "7"), ("+5", "5"), ("1e3", "1000"), ("0x1", "1"), (".5", "0.5")]
)
def test_two_patients_whose_identifiers_are_one_number_stay_two(tmp_path: Path, one: str, other: str) -> None:
    found = joined(tmp_path, [one, other, "s"], [other, "s", one])
    assert found.keys == (one, other, "s")
    assert inputs_of(found) == [[0, 2], [1, 0], [2, 1]]
    assert grouped(tmp_path, f"{one},1,0", f"{other},2,1", f"{one},3,1").groups == (one, other, one)


def test_a_group_that_is_another_as_a_number_is_told(tmp_path: Path) -> None:
    (note,) = grouped(tmp_path, "007,1,0", "7,2,1", "8,3,1").notes
    assert ("'007'" in note, "'7'" in note) == (True, True)


@pytest.mark.parametrize(
    ("one", "other"),
    [("p01", "P01"), ("p01\u200b", "p01"), ("p‑01", "p-01"), ("А01", "A01"), ("１２", "12"), ("p 01", "p_01")],
)
def test_identifiers_that_only_look_alike_stay_two_and_are_told(tmp_path: Path, one: str, other: str) -> None:
    for changes in ({}, {"group": None, "key": "subject"}):
        found = grouped(tmp_path, f"{one},1,0", f"{other},2,1", "8,3,1", **changes)
        assert len(found.notes) == 1
        assert len({*(found.groups or found.keys or ())}) == 3
    error = refused(lambda: joined(tmp_path, [one, "8"], [other, "8"]))
    assert (error.code, error.row, "there is" in str(error)) == ("key-not-in-all", 2, True)


def test_a_join_takes_nobody_elses_row(tmp_path: Path) -> None:
    error = refused(lambda: joined(tmp_path, ["1E2", "8"], ["100", "8"]))
    assert (error.code, error.field) == ("key-not-in-all", "subject")
    assert "100" in str(error)  # what it may be there, for the eyes of the site alone
    assert "100" not in error.public_message
    found = joined(tmp_path, ["1E2", "8"], ["100", "8"], missing="drop")
    assert (found.keys, found.dropped) == (("8",), 2)


@pytest.mark.parametrize("text", ["1.23E+11", "1.23457e+11", "-4E+15"])
@pytest.mark.parametrize("where", ["key", "group", "joined"])
def test_identifiers_that_a_spreadsheet_has_shortened_are_refused(tmp_path: Path, text: str, where: str) -> None:
    (tmp_path / "brains.csv").write_text(f"subject,volume,ill\n8,1,0\n{text},2,1\n")
    (tmp_path / "people.csv").write_text("subject,age\n8,50\n9,60\n")
    changes = {"key": {"covariates": None, "features": ["volume"]}, "group": GROUPED, "joined": {}}
    found = fault(lambda: read_samples(two_classes(DATA | changes[where]), tmp_path))
    assert found == ("identifier-rounded", "subject", 3)


def test_predictions_name_each_row_whose_identifier_was_shortened(tmp_path: Path) -> None:
    (tmp_path / "brains.csv").write_text("subject,volume\n8,1\n1.23E+11,2\n1E2,3\n")
    (tmp_path / "people.csv").write_text("subject,age\n100,50\n8,60\n1.23E+11,70\n")
    found = read_samples(two_classes(DATA), tmp_path, beside=[])
    assert found.rows is not None
    assert {row: fault.code for row, fault in found.rows.refused.items()} == {
        1: "identifier-rounded",
        2: "key-not-in-all",
    }
    assert np.asarray(found.inputs).tolist() == [[1, 60]]


@pytest.mark.parametrize("ending", ["xlsx", "parquet"])
def test_numbers_of_workbooks_and_parquet_are_the_text_that_is_seen_there(tmp_path: Path, ending: str) -> None:
    """More digits than a cell keeps are refused."""

    def written(subjects: list[float]) -> Path:
        brains = pd.DataFrame({"subject": subjects, "volume": [1.5, 2.0, 3.0], "ill": [0, 1, 1]})
        if ending == "xlsx":
            brains.to_excel(tmp_path / "brains.xlsx", index=False)
        else:
            brains.to_parquet(tmp_path / "brains.parquet")
        return tmp_path

    spec = two_classes(GROUPED | {"file": f"brains.{ending}"})
    found = read_samples(spec, written([12.0, 7.0, 123456789012345.0]))
    assert found.groups == ("12", "7", "123456789012345")
    folder = written([1.0, 1234567890123456.0, 2.0])
    assert fault(lambda: read_samples(spec, folder)) == ("identifier-rounded", "subject", 3)


def test_whole_numbers_of_parquet_are_identifiers_of_any_length(tmp_path: Path) -> None:
    ids = [1234567890123456789, 1234567890123456788]
    pd.DataFrame({"subject": ids, "volume": [1, 2], "ill": [0, 1]}).to_parquet(tmp_path / "brains.parquet")
    assert read_samples(two_classes(GROUPED | {"file": "brains.parquet"}), tmp_path).groups == tuple(map(str, ids))


def test_one_identifier_with_and_without_point_and_zero_is_refused(tmp_path: Path) -> None:
    found = fault(lambda: grouped(tmp_path, "12,1,0", "13,2,1", "12.0,3,1"))
    assert found == ("identifier-twice-written", "subject", 4)


def test_what_is_missing_of_numbers_makes_no_identifier_missing(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "missing": "drop",
        "label": "volume",
        "features": ["ill"],
        "missing_values": {"subject": [0]},
    }
    changes |= {"values": [1, 2], "merge": {"1": [1, 2], "2": [3, 4]}}
    assert grouped(tmp_path, "000,1,0", "0E5,2,1", "0,3,1", "5,4,0", **changes).groups == ("000", "0E5", "5")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["1E2", "100", "100"], ("1E2", "100", "100")),
        (["007", "7", "7"], ("007", "7", "7")),
        ([12.0, 7.0, 7.0], ("12", "7", "7")),
        ([2**60, 2**60 + 1, 5], (str(2**60), str(2**60 + 1), "5")),
        (["8", "1.23E+11", "9"], None),
        ([8.0, 1e15, 9.0], None),
    ],
)
def test_identifiers_of_arrays_are_text_too(tmp_path: Path, given: list[Any], read: tuple[str, ...] | None) -> None:
    x, y = np.eye(3, 6), [0, 1, 2]
    np.savez(tmp_path / "data.npz", x=x, y=y, group=np.array(given))
    if read is not None:
        assert read_samples(run_spec(), tmp_path).groups == read
        return
    assert fault(lambda: read_samples(run_spec(), tmp_path)) == ("identifier-rounded", "group", 1)
