"""What pandas reads at once is what cells say: the same samples, or the same error in the same cell."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rankdad.common.data import table_files
from rankdad.common.data.csv import read_csv
from rankdad.common.data.plain import read_plain
from rankdad.common.errors import DataError
from rankdad.common.spec.data import CsvData
from tests.common.faults import fault

FAR = 40_000  # rows: more than pandas reads at once
ODD = ["", " ", "NA", "nan", "nAn", "-9", "-9.0", "-99", "True", "1e400", "1_0", "1,5", "5 mg", "inf", "1 ", "\u00a01"]
CELL = st.sampled_from(["1", "2.5", "-3e-2", "007", "123456789012345678", "0.1", ".5", "4.", *ODD])
TEXT = st.sampled_from(["a", "b", " a", "b ", "none", "", "c", "x;y;z", "1\n2", "age", "1,5"])
SCHEMA: dict[str, Any] = {
    "reader": "csv",
    "file": "t.csv",
    "features": ["age", "sex"],
    "categorical": {"sex": ["a", "b", "none"]},
    "label": "y",
    "values": ["0", "1"],
    "missing": "impute",
    "missing_values": {"age": ["-9"], "sex": ["c"]},
}


def said(folder: Path, *, plain: bool) -> Any:
    """Return all that reading finds, or the error."""
    data = CsvData.model_validate(SCHEMA)
    with patch.object(table_files, "read_plain", read_plain if plain else lambda *_: None):
        try:
            found = read_csv(folder, data, "float32")
        except DataError as error:
            return error.code, error.field, error.row, error.problem
        stands = {column: own.tolist() for column, own in found.stands().items()}
    assert found.labels is not None
    inputs: Any = found.inputs
    return inputs.tobytes(), found.labels.tolist(), found.keys, found.notes, stands


@given(st.lists(st.tuples(CELL, TEXT, st.sampled_from(["0", "1", "1.0"])), min_size=1, max_size=6), st.booleans())
@example([("1", "a", "0"), ("2.5", "b", "1")], True)
@example([("1", "a", "0"), ("-9.0", " b", "1")], False)
@example([("True", "a", "0"), ("True", "b", "1")], False)
def test_what_is_read_at_once_is_what_cells_say(rows: list[tuple[str, ...]], first: bool) -> None:
    places = (0, 1, 2) if first else (1, 0, 2)
    lines = [",".join(f'"{row[place]}"' for place in places) for row in [("age", "sex", "y"), *rows]]
    with tempfile.TemporaryDirectory() as name:
        Path(name, "t.csv").write_text("\n".join(lines) + "\n")
        assert said(Path(name), plain=True) == said(Path(name), plain=False)


@pytest.mark.slow
def test_a_truth_value_far_down_is_no_number(tmp_path: Path) -> None:
    cells = ["1"] * FAR + ["True"] * FAR
    rows = (f"{cell},a,{row % 2}\n" for row, cell in enumerate(cells))
    (tmp_path / "t.csv").write_text("age,sex,y\n" + "".join(rows))
    with pytest.raises(DataError) as caught:
        read_csv(tmp_path, CsvData.model_validate(SCHEMA), "float32")
    assert (caught.value.code, caught.value.field, caught.value.row) == ("not-a-number", "age", FAR + 2)


def test_texts_keep_their_digits_far_down(tmp_path: Path) -> None:
    cells = ["a"] * FAR + ["007"] * FAR
    (tmp_path / "t.csv").write_text("age,sex,y\n" + "".join(f"1,{cell},0\n" for cell in cells))
    found = read_plain(tmp_path / "t.csv", CsvData.model_validate(SCHEMA), {"age"})
    assert found is not None
    assert found["sex"].tolist() == cells


def test_plain_numbers_are_read_to_their_last_digit(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    texts = [repr(one) for one in random.normal(size=999).tolist()] + [f"{one:.25f}" for one in random.random(999)]
    (tmp_path / "t.csv").write_text("age,y\n" + "".join(f"{text},0\n" for text in texts))
    found = read_plain(tmp_path / "t.csv", CsvData.model_validate(SCHEMA), {"age"})
    assert found is not None
    assert found["age"].tolist() == list(map(float, texts))


def test_a_table_that_changes_while_it_is_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,sex,y\n1,a,0\n2,b,1\n")
    found = read_csv(tmp_path, CsvData.model_validate(SCHEMA), "float32")
    (tmp_path / "t.csv").write_text("age,sex,y\n1,a,0\n")
    assert fault(found.stands)[0] == "file-changed"
