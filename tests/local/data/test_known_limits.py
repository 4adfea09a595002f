"""What reading tables does not do yet: each test fails until it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rankdad.local import data
from rankdad.local.data import behind
from tests.conftest import run_spec

NAMES = [f"c{number}" for number in range(20)]


def write(folder: Path, rows: int, *, gaps: bool = False) -> Path:
    values = np.random.default_rng(0).normal(size=(rows, len(NAMES))).round(4)
    if gaps:
        values[::7, 3] = np.nan
    table = pd.DataFrame(values, columns=NAMES).assign(subject=[f"s{row}" for row in range(rows)], age=values[:, 0])
    table.to_csv(folder / "table.csv", index=False)
    return folder


def spec_of(**changes: Any) -> Any:
    columns = {"key": "subject", "features": NAMES, "label": "age", "missing": "impute"}
    return run_spec(task={"name": "regression"}, data={"reader": "csv", "file": "table.csv"} | columns, **changes)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="counted anew for each fold")
def test_what_too_few_samples_have_is_counted_once_for_all_folds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(evaluation={"name": "k-fold", "folds": 5})
    site = data.read_site(spec, write(tmp_path, 60, gaps=True), 0)
    counted, count = list[int](), behind.fewest_behind

    def counting(*values: Any) -> Any:
        counted.append(1)
        return count(*values)

    monkeypatch.setattr(data, "fewest_behind", counting)
    site.summed(0)
    of_one = len(counted)
    for fold in range(1, 5):
        site.summed(fold)
    assert len(counted) == of_one
