"""Runs side by side, on a terminal and as a page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner, Result

from rankdad.common.data import read_site
from rankdad.remote.cli import mount
from rankdad.remote.report.compare import compare
from rankdad.remote.report.run_report import report_page
from rankdad.simulations.lockstep import run
from rankdad.simulations.pooling import SITE, pooled_data, pooled_spec
from tests.conftest import SITES, run_document, run_spec


def command(*words: object) -> Result:
    app = typer.Typer()
    mount(app)
    return CliRunner().invoke(app, [str(word) for word in words])


def made(directory: Path, auc: float, loss: float, **changes: object) -> Path:
    directory.mkdir()
    (directory / "run.json").write_text(json.dumps(run_document(**changes)))
    interval = {"low": auc - 0.05, "high": auc + 0.05, "method": "DeLong"}
    metrics = {"test": {"samples": 90, "auc": auc, "loss": loss}, "intervals": {"auc": interval}}
    summary = {"status": "completed", "epochs": 4, "best_epoch": 3, "steps": 12, "metrics": metrics}
    (directory / "summary.json").write_text(json.dumps(summary))
    return directory


def test_each_run_has_a_column_and_the_best_of_a_row_a_star(tmp_path: Path) -> None:
    first = made(tmp_path / "first", 0.8, 0.5)
    factored = {"optimizer": {"name": "adam", "lr": 0.01, "second_moment": "factored", "weight_decay": 0.1}}
    method = {"name": "rank-dad", "rank": 3, "wire": "int8", "residual": "dense"}
    second = made(tmp_path / "second", 0.65, 0.4, method=method, training=factored)
    table, _ = compare([first, second])
    rows = {name: cells for name, *cells in table.rows}
    assert table.head == ["", "first", "second"], "both are called small: their directories tell them apart"
    assert rows["AUC"] == ["0.800 (0.750 to 0.850) *", "0.650 (0.600 to 0.700)"]
    assert rows["loss"] == ["0.500", "0.400"], "without intervals none is the best"
    assert rows["method"] == ["dsgd", "rank-dad, rank 3, int8, residual dense"]
    assert rows["optimizer"][1] == "adam 0.01, factored, weight_decay 0.1"
    assert rows["epochs, best"] == ["4, 3", "4, 3"]
    done = command("compare", first, second, "--html", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    assert "0.800 (0.750 to 0.850) *" in done.output
    page = (tmp_path / "page.html").read_text()
    assert "0.800 (0.750 to 0.850) *" in page
    assert "It ranks a row of a class above one of the others in 80\N{NO-BREAK SPACE}% of pairs" in page


def test_traffic_is_that_of_the_whole_run(tmp_path: Path) -> None:
    """Per step, a run of local steps looked as dear as one that exchanges every batch."""
    every, local = made(tmp_path / "every", 0.8, 0.5), made(tmp_path / "local", 0.8, 0.5)
    for directory, steps in ((every, 12), (local, 3)):
        summary = json.loads((directory / "summary.json").read_text())
        summary |= {"steps": steps, "bytes_up_per_site_step": 1000.0, "bytes_down_per_site_step": 2000.0}
        (directory / "summary.json").write_text(json.dumps(summary))
    rows = {name: cells for name, *cells in compare([every, local])[0].rows}
    assert rows["up per site"] == ["12.0 KB", "3.0 KB"]
    assert rows["down per site"] == ["24.0 KB", "6.0 KB"]


def test_of_an_exact_solution_rounds_of_sums_are_told_in_place_of_bytes_of_steps(tmp_path: Path) -> None:
    """It was said to have sent 0 B, though sums of products went up in every round."""
    directory = made(tmp_path / "exact", 0.8, 0.5, evaluation={"name": "k-fold", "folds": 5, "refit": True})
    summary = json.loads((directory / "summary.json").read_text()) | {
        "solver": {"name": "exact", "why": ""},
        "steps": 0,
    }
    (directory / "summary.json").write_text(json.dumps(summary))
    table, runs = compare([directory, made(tmp_path / "steps", 0.8, 0.5)])
    rows = {name: cells for name, *cells in table.rows}
    said = "no steps; sums in at most 30 rounds"  # 12 of all rows, a curvature, 13 without penalty, 4 of folds
    assert rows["up per site"][0] == rows["down per site"][0] == said
    assert f"There were {said}." in report_page(runs[0])


@pytest.mark.slow
def test_no_run_is_the_best_within_chance_or_of_other_data(tmp_path: Path) -> None:
    runs = [made(tmp_path / "a", 0.8, 0.5), made(tmp_path / "b", 0.72, 0.5)]
    assert not any("*" in cell for row in compare(runs)[0].rows for cell in row)
    other = made(tmp_path / "c", 0.3, 0.9, evaluation={"name": "k-fold", "folds": 3, "repeats": 4})
    summary = json.loads((other / "summary.json").read_text())
    summary["metrics"]["test"] |= {"samples": 91, "groups": 30}
    (other / "summary.json").write_text(json.dumps(summary))
    rows = {name: cells for name, *cells in compare([runs[0], other])[0].rows}
    assert not any("*" in cell for cells in rows.values() for cell in cells)
    assert rows["rows tested"] == ["90", "91, other data"]
    assert (rows["repeats"], rows["groups"]) == (["1", "4"], ["–", "30"])
    summary["metrics"] = {}
    (other / "summary.json").write_text(json.dumps(summary | {"status": "interrupted"}))
    rows = {name: cells for name, *cells in compare([other, runs[0], made(tmp_path / "d", 0.8, 0.50001)])[0].rows}
    assert rows["rows tested"] == ["–", "90", "90"]
    assert rows["loss"] == ["–", "0.500", "0.500"], "what looks equal has no star"


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_pooled_run_of_the_same_rows_is_of_the_same_data(tmp_path: Path, task: str) -> None:
    """It has one site, of another name, with all sites' rows."""
    described = {"name": task} | ({"classes": 2} if task == "classification" else {})
    features = {"reader": "csv", "file": "table.csv", "features": ["a", "b"], "label": "y"}
    spec = run_spec(
        task=described,
        data=features | ({"values": ["0", "1"]} if task == "classification" else {}),
        evaluation={"name": "k-fold", "folds": 2, "refit": False},
        training={"epochs": 1},
    )
    draw = np.random.default_rng(0)
    for place, site in enumerate(SITES):
        (tmp_path / site).mkdir()
        table = pd.DataFrame(draw.normal(size=(40 + place, 3)), columns=["a", "b", "y"])
        table["y"] = (table["y"] > 0).astype(int) if task == "classification" else table["y"] + table["a"]
        table.to_csv(tmp_path / site / "table.csv", index=False)
    data = {site: read_site(spec, tmp_path / site, place) for place, site in enumerate(SITES)}
    run(spec, data, tmp_path / "apart")
    run(pooled_spec(spec, data), {SITE: pooled_data(data)}, tmp_path / "pooled")
    fewer = {site: data[site] for site in SITES[:2]}
    run(pooled_spec(spec, fewer), {SITE: pooled_data(fewer)}, tmp_path / "fewer")
    tables = [compare([tmp_path / "apart", tmp_path / other])[0] for other in ("pooled", "fewer")]
    rows = [next(cells for name, *cells in table.rows if name == "rows tested") for table in tables]
    assert rows == [["123", "123"], ["123", "81, other data"]]


def test_a_terminal_is_told_no_control_characters(tmp_path: Path) -> None:
    first, second = (made(tmp_path / name, 0.8, 0.5) for name in ("a", "b\x1b[31m"))
    done = command("compare", first, second)
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output


def test_what_cannot_be_compared_is_one_sentence(tmp_path: Path) -> None:
    first = made(tmp_path / "first", 0.8, 0.5)
    assert "expected at least two" in str(command("compare", first).exception)
    assert "has no run.json" in str(command("compare", first, tmp_path).exception)
    other = made(tmp_path / "other", 0.8, 0.5, task={"name": "regression"})
    assert "their metrics differ" in str(command("compare", first, other).exception)
