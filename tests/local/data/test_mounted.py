"""What a platform hands over: one table of each member, and no spec that asks for more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.errors import SpecError
from platforms.coinstac.mounts import lay_out
from tests.conftest import run_spec

DATA: dict[str, Any] = {
    "reader": "csv",
    "file": "table.csv",
    "key": "subject",
    "features": ["age"],
    "label": "group",
    "values": [0, 1, 2],
}


def test_a_table_is_written_under_the_name_that_the_spec_has_for_it(tmp_path: Path) -> None:
    lay_out(run_spec(data=DATA), {"covariates": {"a.txt": {"age": 3}}}, tmp_path, tmp_path / "data")
    assert (tmp_path / "data" / "table.csv").read_text().split() == ["file,age", "a.txt,3"]


@pytest.mark.parametrize("changes", [{"file": "t*.csv"}, {"file": ["a.csv"]}, {"covariates": "b.csv"}])
def test_several_tables_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"^data: names several tables, expected one"):
        lay_out(run_spec(data=DATA | changes), {"covariates": {"a.txt": {"age": 3}}}, tmp_path, tmp_path / "data")
