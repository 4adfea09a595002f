"""Paired intervals beside the bootstrap, and how often a verdict errs: a small part of the benchmark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.paired import data
from benchmarks.paired.bench import APART, FEW, NULLS, Found, bench_paired
from benchmarks.paired.folds import drawn_pair, fold_rates, fold_runs
from benchmarks.paired.folds import spec_of as folds_spec
from benchmarks.paired.null import Rate, calls, drawn_runs, rates, spec_of
from benchmarks.paired.widths import Width, widths
from rankdad.common.documents import load_json
from rankdad.simulations.lockstep import run
from tests.conftest import SHARED


@pytest.mark.exhaustive
@pytest.mark.slow
def test_intervals_are_as_wide_as_the_bootstraps_and_verdicts_err_as_often_as_they_say(tmp_path: Path) -> None:
    found = bench_paired(250, 1000, 2, 10, tmp_path, tmp_path / "runs", Console())
    assert {(one.data, one.metric) for one in found.widths} >= {("breast cancer", "auc"), ("diabetes", "mae")}
    assert found.holds


@pytest.mark.shared_data
@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "heart").is_dir(), reason="the shared data are not here")
def test_four_hospitals_intervals_are_as_wide_as_the_bootstraps(tmp_path: Path) -> None:
    spec, read = data.written(data.heart(SHARED / "heart"), tmp_path / "data", data.CLASSES)
    found = widths("heart", spec, read, tmp_path / "run", 2000)
    assert {one.metric for one in found} == {"auc", "auc_within", "accuracy", "loss"}
    assert all(one.ratio == pytest.approx(1, abs=APART) for one in found)


def test_a_wrong_width_or_rate_does_not_hold() -> None:
    good = Width("one", "linear", "auc", 0.1, 0.05, 0.05)
    verdict = {"null": [Rate("verdict", 50, 1000)]}
    assert Width("one", "baseline", "accuracy", -0.002, 0.0027, 0.0024, 1 / 1035).within(APART)
    assert Found([good], verdict, verdict).holds
    assert not Found([Width("one", "linear", "auc", 0.1, 0.056, 0.05)], verdict, verdict).holds
    assert not Found([good], {"null": [Rate("verdict", 100, 1000)]}, verdict).holds
    assert not Found([good], {"null": [Rate("verdict", 15, 1000)]}, verdict).holds
    assert Found([good], verdict, {"null": [Rate("verdict", 64, 1000)]}).holds
    assert not Found([good], verdict, {"null": [Rate("verdict", 66, 1000)]}).holds


@pytest.mark.parametrize("kind", NULLS)
def test_null_runs_have_rows_of_their_own(kind: str) -> None:
    runs = list(drawn_runs(spec_of(NULLS[kind]), 3, 120, 1))
    values = {run.differences_from("linear")["loss"].value for run in runs}
    assert len(values) == 3
    assert {rate.tried for rate in rates(map(calls, runs))} == {3}


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), list(zip(NULLS, (10, 60), strict=True)))
def test_exact_solutions_on_exchangeable_inputs_seldom_differ(kind: str, count: int, tmp_path: Path) -> None:
    """And an interrupted count goes on where it was."""
    spec, file = folds_spec(NULLS[kind], FEW), tmp_path / "runs.jsonl"
    found = fold_rates(spec, count, file)
    assert {rate.tried for rate in found} == {count}
    assert found[0].metric == "verdict"
    assert found[0].share <= 0.2
    lines = file.read_text()
    file.write_text(lines[:-30])  # within the last line
    assert fold_rates(spec, count, file) == found
    assert file.read_text() == lines


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("kind", NULLS)
def test_a_run_of_the_benchmark_is_what_the_library_makes_of_the_rows(kind: str, tmp_path: Path) -> None:
    """All but the second model, with messages, roster and files."""
    spec = folds_spec(NULLS[kind], FEW)
    (own, _) = drawn_pair(spec, np.random.default_rng(7))
    (ours,) = fold_runs(spec, range(7, 8))
    run(spec, own, tmp_path / "run")
    theirs = load_json(tmp_path / "run" / "summary.json")
    assert theirs["solver"]["name"] == "exact"
    for name, value in ours.test.items():
        assert value == pytest.approx(theirs["metrics"]["test"][name], rel=1e-9)
