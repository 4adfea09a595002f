"""Tables that look right and are not: each is read for what it means, or refused by one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rankdad.common.data.profile import profile_of
from rankdad.common.data.table_files import read_table
from rankdad.common.data.tables import nearest
from rankdad.common.errors import DataError
from tests.common.data.test_written import ROWS, read

MANY = "".join(f"P{row},{30 + row % 40},170.5,m,{row % 2}\n" for row in range(8000))


def test_a_column_in_another_alphabet_is_named_by_its_letter(tmp_path: Path) -> None:
    cyrillic = ROWS.replace("age", "аge")
    with pytest.raises(
        DataError, match=r"has no column age; did you mean аge, whose letter 1 is CYRILLIC SMALL LETTER A\?"
    ):
        read(tmp_path, cyrillic)
    assert nearest("agee", ["age"]) == "; did you mean age?"


def test_digits_of_other_scripts_are_digits(tmp_path: Path) -> None:
    assert np.asarray(read(tmp_path, ROWS.replace("63", "٦٣")).inputs)[0, 0] == 63
    with pytest.raises(DataError, match=r"row 2, column age: holds '٦٣٫٥', expected a finite number"):
        read(tmp_path, ROWS.replace("63", "٦٣٫٥"))


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_quotation_marks_that_swallow_rows_are_told(tmp_path: Path, delimiter: str) -> None:
    swallowing = ROWS.replace("P2,41", '"P2,41').replace("P3,50", 'P3",50').replace(",", delimiter)
    with pytest.raises(
        DataError, match=r"row 3: a cell holds 2 lines with columns of their own, after a quotation mark"
    ):
        read(tmp_path, swallowing)
    remark = ROWS.replace("P2", '"P2\nas told, by phone"').replace(",", delimiter)
    assert len(read(tmp_path, remark).inputs) == 4, "a cell may have lines"


def test_a_delimiter_that_changes_far_down_is_told(tmp_path: Path) -> None:
    changed = ROWS + MANY + "P9;50;170.5;m;1\n"
    assert len(changed) > 1 << 16
    with pytest.raises(DataError, match=r"row 8006: is separated by semicolons, unlike the first, by commas"):
        read(tmp_path, changed, missing="impute")


@pytest.mark.parametrize("cell", ["<1", "< 0.5", "≥100", ">=7"])
def test_a_limit_of_detection_is_no_missing_value(tmp_path: Path, cell: str) -> None:
    limit = cell.lstrip("<>=≥ ")
    said = f"column age: holds '{cell}', .*can be measured: write the limit itself, {re.escape(limit)}, at every"
    with pytest.raises(DataError, match=said):
        read(tmp_path, ROWS.replace("63", cell))
    (tmp_path / "data.csv").write_text(ROWS.replace("63", cell))
    (remark,) = profile_of(read_table(tmp_path / "data.csv")).by_name["age"].remarks
    assert "write limits of detection as numbers" in remark.text


@pytest.mark.parametrize(
    ("written", "ends"),
    [
        (["3.4.2020", "31.12.2019", ""], ("2019-12-31", "2020-04-03")),
        (["2020-04-03", "2020-04-03", "2019-12-31"], ("2019-12-31", "2020-04-03")),
        (["03/04/2020", "05/06/2020", "07/08/2020"], ()),
    ],
)
def test_a_column_of_dates_says_the_first_and_the_last(
    tmp_path: Path, written: list[str], ends: tuple[str, ...]
) -> None:
    pd.DataFrame({"visit": written, "x": [1, 2, 3]}).to_csv(tmp_path / "t.csv", index=False)
    assert profile_of(read_table(tmp_path / "t.csv")).by_name["visit"].dates == ends
