"""`python -m benchmarks tables`: a small sample of it, and what it reads is what stands in the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.tables import MOST, measure_table, written
from rankdad.common.data.csv import read_csv


@pytest.mark.parametrize("kind", MOST)
def test_what_is_measured_is_read_as_it_stands(tmp_path: Path, kind: str) -> None:
    data = written(tmp_path, kind, 200, 20)
    found, table = read_csv(tmp_path, data, "float32"), pd.read_csv(tmp_path / "table.csv", dtype=str)
    assert found.labels is not None
    assert found.labels.tolist() == table["y"].astype(int).tolist()
    last = table["x18"].astype(float).to_numpy(np.float32)
    assert np.array_equal(np.asarray(found.inputs)[:, -1], last, equal_nan=True)
    assert found.stands()["x18"].tolist() == table["x18"].fillna("").tolist()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("kind", MOST)
def test_a_table_takes_a_few_times_as_long_as_with_pandas(kind: str) -> None:
    assert measure_table(kind, 4000, 100, 5).ratio < 2 * MOST[kind]
