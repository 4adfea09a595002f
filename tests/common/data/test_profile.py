"""What a description of a table says of its columns."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from rankdad.common.data.profile import profile_of
from rankdad.common.data.table_files import read_table


@pytest.mark.parametrize("cell", ["<1", "< 0.5", "≥100", ">=7"])
def test_limits_of_detection_are_advised_on(tmp_path: Path, cell: str) -> None:
    (tmp_path / "t.csv").write_text(f"id,age\nP1,{cell}\nP2,41\nP3,50\nP4,77\n")
    (remark,) = profile_of(read_table(tmp_path / "t.csv")).by_name["age"].remarks
    assert "limits of detection" in remark.text


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


SENTENCES = ["fell from a ladder at home", "chest pain since this morning", "no complaints at this visit"]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (SENTENCES, "text"),  # of few rows, or repeated
        ([*SENTENCES, *[SENTENCES[0]] * 9], "text"),
        (SENTENCES * 3, "levels"),
        (["no", "yes", "not known"], "levels"),
    ],
)
def test_sentences_about_single_rows_are_no_levels_in_a_small_table_either(
    tmp_path: Path, cells: list[str], kind: str
) -> None:
    pd.DataFrame({"seen": cells, "age": range(30, 30 + len(cells))}).to_csv(tmp_path / "t.csv", index=False)
    found = profile_of(read_table(tmp_path / "t.csv")).by_name["seen"]
    assert (found.kind, [remark.code for remark in found.remarks]) == (kind, ["free-text"] * (kind == "text"))
