"""Paired intervals beside the bootstrap, and how often a verdict errs: a small part of the benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.paired import data
from benchmarks.paired.bench import APART, NULLS, Found, bench_paired
from benchmarks.paired.null import Rate, drawn_runs, rates, spec_of
from benchmarks.paired.widths import Width, widths
from tests.conftest import SHARED


@pytest.mark.slow
def test_intervals_are_as_wide_as_the_bootstraps_and_verdicts_err_as_often_as_they_say(tmp_path: Path) -> None:
    found = bench_paired(250, 1000, 2, tmp_path, Console())
    assert {(one.data, one.metric) for one in found.widths} >= {("breast cancer", "auc"), ("diabetes", "mae")}
    assert found.holds


@pytest.mark.shared_data
@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "heart").is_dir(), reason="the shared data are not here")
def test_four_hospitals_intervals_are_as_wide_as_the_bootstraps(tmp_path: Path) -> None:
    spec, read = data.written(data.heart(SHARED / "heart"), tmp_path / "data", data.CLASSES)
    found = widths("heart", spec, read, tmp_path / "run", 2000)
    assert {one.metric for one in found} == {"auc", "accuracy", "loss"}
    assert all(one.ratio == pytest.approx(1, abs=APART) for one in found)


def test_a_wrong_width_or_rate_does_not_hold() -> None:
    good = Width("one", "linear", "auc", 0.1, 0.05, 0.05)
    verdict = [Rate("verdict", 50, 1000)]
    assert Found([good], {"null": verdict}).holds
    assert not Found([Width("one", "linear", "auc", 0.1, 0.056, 0.05)], {"null": verdict}).holds
    assert not Found([good], {"null": [Rate("verdict", 100, 1000)]}).holds
    assert not Found([good], {"null": [Rate("verdict", 15, 1000)]}).holds


@pytest.mark.parametrize("kind", NULLS)
def test_null_runs_have_rows_of_their_own(kind: str) -> None:
    runs = list(drawn_runs(spec_of(NULLS[kind]), 3, 120, 1))
    values = {run.differences_from("linear")["loss"].value for run in runs}
    assert len(values) == 3
    assert {rate.tried for rate in rates(runs)} == {3}
