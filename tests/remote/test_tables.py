"""Tables of a run's directory, which people open in spreadsheets."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rankdad.remote.check_run import faults_of
from rankdad.remote.records import DamageError
from rankdad.remote.results.run_results import read_table
from rankdad.remote.run_reader import FILE
from rankdad.remote.tables import write_rows
from tests.remote.test_run_file import opened, write


def test_texts_that_begin_like_formulas_are_written_as_text(tmp_path: Path) -> None:
    """Captions are the owner's own words, and `coefficients.csv` is opened by spreadsheets."""
    names = ["=HYPERLINK(1)", "@x", "+1 b", "-x\t", "'=x", "age"]
    rows: list[dict[str, Any]] = [{"name": name, "caption": name, "estimate": -0.5} for name in names]
    write_rows(tmp_path, "coefficients", rows)
    written = pd.read_csv(tmp_path / "coefficients.csv")
    assert written["name"].tolist() == ["'=HYPERLINK(1)", "'@x", "'+1 b", "'-x\t", "'=x", "age"]
    assert written["estimate"].tolist() == [-0.5] * len(names)
    read = read_table(tmp_path / "coefficients.csv", ())
    assert read["caption"].tolist() == ["=HYPERLINK(1)", "@x", "+1 b", "-x\t", "=x", "age"]


def test_a_table_has_the_columns_of_all_its_rows(tmp_path: Path) -> None:
    """A first site without figures of a reference ended the aggregator where the second had some."""
    rows: list[dict[str, Any]] = [{"site": "alpha"}, {"site": "beta", "local_auc": 0.7}]
    write_rows(tmp_path, "sites", rows)
    assert (tmp_path / "sites.csv").read_text() == "site,local_auc\nalpha,\nbeta,0.7\n"


@pytest.mark.parametrize("last", [1, 3])
def test_rows_of_rounds_whose_updates_are_lost_are_named(tmp_path: Path, last: int) -> None:
    """A run that was resumed without them wrote the rows a second time."""
    write(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as other, other:
        other.execute("DELETE FROM updates WHERE round >= ?", (10 - last,))
    faults, _ = faults_of(tmp_path)
    assert any(f"the update of round {10 - last} is missing" in fault for fault in faults)
    with pytest.raises(DamageError) as caught:
        opened(tmp_path)
    assert caught.value.row == 10 - last
