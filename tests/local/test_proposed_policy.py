"""A first policy from a site's tables: what it lists, and that a run within it is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.common.errors import DataError, UserError
from rankdad.common.policy import Policy
from rankdad.local.proposed_policy import propose

ROWS = 60


def write(path: Path, **columns: list[object]) -> None:
    lines = [",".join(columns)] + [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write(
        tmp_path / "data/visits.csv",
        patient_id=[f"P{row // 3:03}" for row in range(ROWS)],
        age=[40 + row * 7 % 31 for row in range(ROWS)],
        sex=["fm"[row // 3 % 2] for row in range(ROWS)],
        remark=[f"came on foot {row} and was tired{'!' * row}" for row in range(ROWS)],
        nothing=[""] * ROWS,
        ill=[row % 2 for row in range(ROWS)],
    )
    return tmp_path / "data"


def test_it_lists_what_a_study_may_read_and_what_a_person_is(data: Path) -> None:
    policy, explained = propose(data)
    assert policy == Policy(
        files=("visits.csv",), columns=("patient_id", "age", "sex", "ill"), group="patient_id", min_sites=3
    )
    told = "\n".join(explained)
    assert all(word in told for word in ("remark", "nothing", "patient_id", "visits.csv"))


def test_identifiers_that_name_a_row_each_are_left_out_unless_they_join_tables(data: Path) -> None:
    names: list[object] = [f"P{row:03}" for row in range(ROWS)]
    write(data / "visits.csv", patient_id=names, age=[30 + row * 7 % 31 for row in range(ROWS)])
    alone, _ = propose(data)
    assert (alone.columns, alone.group) == (("patient_id", "age"), None), "the key of later studies"
    write(data / "scans.csv", patient_id=names, volume=[row * 11 % 37 for row in range(ROWS)])
    joined, _ = propose(data)
    assert set(joined.columns or ()) == {"patient_id", "age", "volume"}
    assert joined.files == ("scans.csv", "visits.csv")


def test_the_command_writes_a_policy_that_is_read_again_and_never_over_another(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "policy.json"
    words = ["policy", "init", str(data), "-o", str(output)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert Policy.read(str(output)) == propose(data)[0]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, UserError)
    assert (error.code, error.field) == ("output-exists", "--output")


def test_a_folder_without_a_table_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        propose(tmp_path)
    assert (caught.value.code, caught.value.field) == ("data-missing", "DATA")


def test_free_text_names_nobody_however_different_its_cells_are(tmp_path: Path) -> None:
    """Notes were left out "as identifiers", and without another identifier were the key of the site's log."""
    notes: list[object] = [f"came on foot with pain {row}" for row in range(ROWS)]
    write(
        tmp_path / "data/visits.csv",
        note=notes,
        name=[f"Roe {row}" for row in range(ROWS)],
        age=[row % 31 for row in range(ROWS)],
    )
    policy, explained = propose(tmp_path / "data")
    assert policy.columns == ("name", "age")
    assert [line for line in explained if "note" in line] == ["  Left out (free text): note."]
