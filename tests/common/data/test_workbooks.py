"""Workbooks: formulas without values, errors, merged cells and dates are told, and never taken for gaps."""

from __future__ import annotations

import datetime
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest

from rankdad.common.data import read_samples
from rankdad.common.data.profile import profile_of
from rankdad.common.data.sheets import read_workbook
from rankdad.common.data.table_files import read_table
from tests.common.data.readings import two_classes
from tests.common.faults import fault

DATA: dict[str, Any] = {
    **{"reader": "csv", "file": "data.xlsx", "features": ["age", "sex"], "categorical": {"sex": ["m", "f"]}},
    **{"missing": "impute", "label": "ill", "values": [0, 1]},
}
ROWS = [["id", "age", "sex", "ill"], ["a", 50, "m", 0], ["b", 61, "f", 1], ["c", 72, "f", 1], ["d", 43, "m", 0]]


def read(folder: Path, cells: dict[str, Any], xml: dict[str, str] | None = None, **changes: Any) -> Any:
    """Read a workbook in which some cells hold something else.

    Args:
        folder: of the workbook.
        cells: what these hold.
        xml: what the sheet's XML has in place of what.
        changes: of the schema.
    """
    book = openpyxl.Workbook()
    for row in ROWS:
        book.active.append(row)
    for place, value in cells.items():
        book.active[place] = value
    book.save(folder / "data.xlsx")
    if xml:
        with zipfile.ZipFile(folder / "data.xlsx") as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        name = "xl/worksheets/sheet1.xml"
        for pattern, text in xml.items():
            parts[name], count = re.subn(pattern.encode(), text.encode(), parts[name])
            assert count
        with zipfile.ZipFile(folder / "data.xlsx", "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, content)
    return read_samples(two_classes(DATA | changes), folder)


AGES = {f"B{row}": f"=2026-{1900 + row}" for row in range(2, 6)}


@pytest.mark.parametrize(
    ("cells", "xml", "changes", "column", "row"),
    [
        (AGES, {}, {}, "age", 2),
        ({"B4": "=A1"}, {r"<f>A1</f><v\s*/>|<f>A1</f><v></v>": "<f>A1</f>"}, {}, "age", 4),
        ({"B4": "=A1"}, {r"<f>A1</f>": '<f t="shared" si="0"/>'}, {}, "age", 4),
        ({"C3": '=IF(B3>60,"f","m")'}, {}, {}, "sex", 3),
        ({"D5": "=B5>60"}, {r' r="D5"': ""}, {}, "ill", 5),
        ({"A3": "=A2"}, {}, {"key": "id"}, "id", 3),
        ({"A3": "=A2"}, {}, {"group": "id"}, "id", 3),
        ({"B2": "#REF!"}, {}, {}, "age", 2),
        ({"C4": "#NAME?"}, {}, {}, "sex", 4),
        ({"D4": "#VALUE!"}, {}, {}, "ill", 4),
    ],
)
def test_a_formula_without_a_result_is_no_gap_and_names_nobody(
    tmp_path: Path, cells: dict[str, str], xml: dict[str, str], changes: dict[str, str], column: str, row: int
) -> None:
    assert fault(lambda: read(tmp_path, cells, xml, **changes)) == ("formula", column, row)


def test_formulas_with_results_are_what_they_show(tmp_path: Path) -> None:
    cells = {"B2": "=1+1", "B3": '=IF(TRUE,"","x")', "B4": "#N/A", "C2": '=IF(TRUE,"m","f")'}
    xml = {
        r'<c r="B2"><f>1\+1</f><v\s*/?>(</v>)?': '<c r="B2"><f>1+1</f><v>2.5</v>',
        r'<c r="B3"><f>(.*?)</f><v\s*/?>(</v>)?': r'<c r="B3" t="str"><f>\1</f><v></v>',
        r'<c r="C2"><f>(.*?)</f><v\s*/?>(</v>)?': r'<c r="C2" t="str"><f>\1</f><v>m</v>',
    }
    found = np.asarray(read(tmp_path, cells, xml).inputs)
    assert np.isnan(found[:, 0]).tolist() == [False, True, True, False]  # no letters, and not available
    assert (found[0].tolist(), found[3, 0]) == ([2.5, 1, 0], 43)


def test_a_column_that_is_not_used_may_hold_formulas(tmp_path: Path) -> None:
    found = read(tmp_path, {"A2": "=ROW()", "F3": "=SUM(B2:B5)", "F1": "sums"})
    assert np.asarray(found.inputs)[:, 0].tolist() == [50, 61, 72, 43]


def test_a_description_tells_formulas_without_results(tmp_path: Path) -> None:
    read(tmp_path, {"A2": "=ROW()"})
    book = openpyxl.load_workbook(tmp_path / "data.xlsx")
    for place, text in AGES.items():
        book.active[place] = text
    book.save(tmp_path / "data.xlsx")
    age = profile_of(read_table(tmp_path / "data.xlsx")).by_name["age"]
    assert (age.kind, age.missing) == ("text", 0)
    assert any(AGES["B2"] in remark.text for remark in age.remarks)


def test_merged_cells_are_no_gaps(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in ROWS:
        book.active.append(row)
    book.active.merge_cells("A2:A3")
    book.save(tmp_path / "data.xlsx")
    assert fault(lambda: read_workbook(tmp_path / "data.xlsx", None))[0] == "cells-merged"


@pytest.mark.parametrize(
    ("cell", "code"),
    [(datetime.date(1960, 5, 4), None), (datetime.datetime(1960, 5, 4, 12), None), (22040, "not-a-date")],
)
def test_dates_of_workbooks_are_dates_and_their_numbers_are_told(tmp_path: Path, cell: Any, code: str | None) -> None:
    dates = {"age": {"since": "1960-01-01", "unit": "days"}}
    cells = {f"B{row}": datetime.date(1960, 1, row) for row in range(3, 6)} | {"B2": cell}
    if code is None:
        assert np.asarray(read(tmp_path, cells, dates=dates).inputs)[:, 0].tolist() == [124, 2, 3, 4]
        return
    assert fault(lambda: read(tmp_path, cells, dates=dates)) == (code, "age", 2)
