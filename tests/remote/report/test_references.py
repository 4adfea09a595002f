"""What the verdict, the page and `compare` say of a model beside each hospital alone and linear models."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rankdad.remote.report.compare import compare
from rankdad.remote.report.references import reference_table, worth
from rankdad.remote.report.run_report import report
from rankdad.remote.report.run_results import RunResults, read_results
from rankdad.simulations.lockstep import run
from tests.conftest import SITES, run_document, run_spec, written_data

NAMES = ["local", "linear", "site"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("references")
    spec = run_spec(evaluation={"name": "k-fold", "folds": 2, "refit": False, "references": NAMES})
    run(spec, written_data(folder / "data", spec, (60, 40, 24)), folder / "run")
    return folder / "run"


def made(directory: Path, test: dict[str, float], sites: str, task: str = "classification", **references: Any) -> Path:
    """A run's directory with these figures."""
    directory.mkdir()
    described: dict[str, Any] = {"name": task} | ({"classes": 2} if task == "classification" else {})
    (directory / "run.json").write_text(json.dumps(run_document(task=described)))
    metrics = {"test": {"samples": 90, **test}, "references": references}
    (directory / "summary.json").write_text(json.dumps({"metrics": metrics}))
    (directory / "sites.csv").write_text(sites)
    return directory


def test_the_verdict_says_what_training_together_adds_and_where_it_does_not(tmp_path: Path) -> None:
    interval = {"low": 0.87, "high": 0.91, "method": "DeLong"}
    local = {"samples": 90, "values": {"auc": 0.89}, "intervals": {"auc": interval}}
    linear = {"samples": 90, "values": {"auc": 0.95}, "intervals": {}}
    sites = (
        "site,samples,auc,local_samples,local_auc,local_auc_low,local_auc_high\n"
        "alpha,40,0.886,40,0.907,0.85,0.95\nbeta,30,0.8,30,0.93,0.9,0.96\ngamma,20,0.9,0,,,\ndelta,9,0.9,9,0.8,0.7,1\n"
    )
    found = read_results(made(tmp_path / "run", {"auc": 0.9}, sites, local=local, linear=linear))
    assert list(worth(found)) == [
        "The same model, trained at each hospital alone, has an AUC of 0.890 (95 % interval 0.870 to 0.910): this "
        "model is 0.010 better, which is no more than chance may make.",
        "At 2 of 3 hospitals its own model has the better AUC: alpha (0.907 against 0.886, within chance), beta (0.930 "
        "against 0.800).",
        "There is no model of its own to compare with at gamma.",
        "A linear model of all hospitals has an AUC of 0.950: this model is 0.050 worse.",
    ]


def test_a_smaller_error_is_the_better_one_and_other_rows_are_not_compared(tmp_path: Path) -> None:
    local, site = ({"samples": count, "values": {"mae": 3.0}} for count in (90, 80))
    sites = "site,samples,mae,local_samples,local_mae\nalpha,90,2.5,90,3.0\n"
    found = read_results(made(tmp_path / "run", {"mae": 2.5}, sites, "regression", local=local, site=site))
    first, second, *others = worth(found)
    assert first.endswith("has an MAE of 3.000: this model is 0.500 better.")
    assert second == "At the one hospital its own model has no better MAE."
    assert not any("of 3.000" in text for text in others), "80 rows are not the same rows"


def test_a_tie_is_no_matter_of_chance(tmp_path: Path) -> None:
    local = {
        "samples": 90,
        "values": {"auc": 0.9},
        "intervals": {"auc": {"low": 0.8, "high": 0.95, "method": "DeLong"}},
    }
    (said,) = worth(read_results(made(tmp_path / "run", {"auc": 0.9}, "site,samples\n", local=local)))
    assert said.endswith("(95 % interval 0.800 to 0.950): this model is as good.")


def test_page_and_table_say_what_the_tables_of_a_run_say(finished: Path) -> None:
    found: RunResults = read_results(finished)
    summary = json.loads((finished / "summary.json").read_text())["metrics"]
    with (finished / "sites.csv").open(newline="") as file:
        rows = {row["site"]: row for row in csv.DictReader(file)}
    table = reference_table(found)
    assert table is not None
    assert [row[0] for row in table.rows] == ["all sites", *SITES]
    pooled = [summary["test"]["auc"], *(summary["references"][name]["values"]["auc"] for name in NAMES)]
    assert [cell.split()[0] for cell in table.rows[0][1:]] == [f"{value:.3f}" for value in pooled]
    for site, *cells in table.rows[1:]:
        keys = ("auc", "local_auc", "linear_auc", "site_auc")
        assert [cell.split()[0] for cell in cells] == [f"{float(rows[site][key]):.3f}" for key in keys]
    html = report(finished)
    assert f"has an AUC of {summary['references']['local']['values']['auc']:.3f}" in html
    assert html.index("trained at each hospital alone") < html.index("Is it worth it?") < html.index("Hospital by")
    forest = next(one for one in re.findall(r"<svg.*?</svg>", html, re.DOTALL) if "Test AUC of each site" in one)
    assert "each hospital alone" in forest.partition(">")[2], "the figure's legend names them"
    assert forest.count("var(--orange)") >= 2


def test_runs_side_by_side_show_their_references(finished: Path, tmp_path: Path) -> None:
    local = {"samples": 90, "values": {"auc": 0.6}}
    other = made(tmp_path / "other", {"auc": 0.7}, "site,samples\n", local=local)
    document = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps(document | {"task": {"name": "classification", "classes": 3}}))
    table, _ = compare([finished, other])
    rows = {name: cells for name, *cells in table.rows}
    assert rows["AUC, each hospital alone"][1] == "0.600"
    assert rows["AUC, linear, all hospitals"][1] == "–"
    assert rows["AUC, linear, all hospitals"][0] != "–"
