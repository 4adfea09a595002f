"""What the verdict, the page and `compare` say of a model beside each hospital alone and linear models."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.metrics.paired_sums import Difference
from rankdad.common.spec.tasks import decimals
from rankdad.remote.report.compare import compare
from rankdad.remote.report.differences import apart as in_words
from rankdad.remote.report.differences import ends
from rankdad.remote.report.references import reference_table, worth
from rankdad.remote.report.run_report import report
from rankdad.remote.report.verdict import topics
from rankdad.remote.results.run_results import RunResults, read_results
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


def apart(value: float, low: float, high: float, method: str = "paired DeLong") -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "method": method}


def test_the_verdict_says_what_training_together_adds_and_where_it_does_not(tmp_path: Path) -> None:
    interval = {"low": 0.87, "high": 0.91, "method": "DeLong"}
    local = {"samples": 90, "values": {"auc": 0.883}, "intervals": {"auc": interval}}
    linear, site = ({"samples": 90, "values": {"auc": auc}, "intervals": {}} for auc in (0.95, 0.89))
    ends = ",".join(f"local_auc_difference{end}" for end in ("", "_low", "_high"))
    sites = (
        f"site,samples,auc,local_samples,local_auc,site_samples,{ends}\n"
        "alpha,40,0.886,40,0.907,40,-0.021,-0.06,0.018\nbeta,30,0.8,30,0.93,30,-0.13,-0.21,-0.05\n"
        "gamma,20,0.9,0,,20,,,\ndelta,9,0.9,9,0.8,9,0.1,0.02,0.18\n"
    )
    differences = {"local": {"auc": apart(0.017, 0.006, 0.028)}, "site": {"auc": apart(0.01, -0.004, 0.024)}}
    run = made(tmp_path / "run", {"auc": 0.9}, sites, local=local, linear=linear, site=site)
    metrics = json.loads((run / "summary.json").read_text())["metrics"]
    (run / "summary.json").write_text(json.dumps({"metrics": metrics | {"differences": differences}}))
    said = [one.text.replace("\N{NO-BREAK SPACE}", " ") for one in worth(read_results(run))]
    assert said == [
        "The same model, trained at each hospital alone, has an AUC of 0.883 (95 % interval 0.870 to 0.910): on the "
        "same rows this model's is 0.017 higher, which is better (95 % interval of the difference 0.006 to 0.028).",
        "At 1 of 3 hospitals its own model has the better AUC, and the interval of the difference excludes 0: beta "
        "(0.930 against 0.800; this model less its own: −0.130, 95 % interval −0.210 to −0.050).",
        "At 1 of 3 hospitals its own model has the better AUC on these rows, without an interval that excludes 0: "
        "alpha (0.907 against 0.886; this model less its own: −0.021, 95 % interval −0.060 to 0.018).",
        "There is no own model to compare with at gamma.",
        "A linear model of all hospitals has an AUC of 0.950: this model is 0.050 worse, without an interval of the "
        "difference.",
        "A linear model of each hospital alone has an AUC of 0.890: on the same rows this model's is 0.010 higher (95 "
        "% interval of the difference −0.004 to 0.024, which includes 0: these rows do not show which of the two is "
        "better).",
        "Intervals of differences hold for the models as trained here; they exclude the variation from other training "
        "rows. One such interval in twenty misses by chance.",
    ]


def test_a_smaller_error_is_the_better_one_and_other_rows_are_not_compared(tmp_path: Path) -> None:
    local, site = ({"samples": count, "values": {"mae": 3.0}} for count in (90, 80))
    sites = "site,samples,mae,local_samples,local_mae\nalpha,90,2.5,90,3.0\n"
    found = read_results(made(tmp_path / "run", {"mae": 2.5}, sites, "regression", local=local, site=site))
    first, second, *others = (one.text for one in worth(found))
    assert "this model is 0.500 better" in first
    assert second == "At the one hospital, the MAE of its own model is not better by 0.001 or more."
    assert not any("of 3.000" in text for text in others), "80 rows are not the same rows"


def test_an_own_model_that_is_better_in_the_fourth_digit_is_not_denied(tmp_path: Path) -> None:
    sites = "site,samples,auc,local_samples,local_auc\nalpha,90,0.75069,90,0.75113\nbeta,80,0.8,80,0.7\n"
    run = made(tmp_path / "run", {"auc": 0.77}, sites, local={"samples": 170, "values": {"auc": 0.73}})
    said = {one.code: one.text for one in worth(read_results(run))}
    assert said["own-model-no-better"] == "At none of 2 hospitals is the AUC of its own model better by 0.001 or more."


@pytest.mark.parametrize(
    ("name", "found", "said"),
    [
        (
            "mae",
            apart(-1.06, -1.2, -0.92),
            "1.06 lower, which is better (95 % interval of the difference −1.20 to −0.92",
        ),
        ("mae", apart(1.06, 0.92, 1.2), "1.06 higher, which is worse (95 % interval of the difference 0.92 to 1.20)"),
        (
            "loss",
            apart(-0.01, -0.03, 0.01),
            "0.010 lower (95 % interval of the difference −0.030 to 0.010, which",
        ),
        ("auc", apart(0.0, 0.0, 0.0), "as high"),
        ("auc", apart(0.0012, 0.0003, 0.0021), "0.00120 higher, which is better"),
        ("mae", apart(-812.0, -900.0, -724.0), "812 lower"),
        ("auc", apart(0.015, -0.0004, 0.03), "0.0150 higher (95 % interval of the difference −0.0004 to 0.0300, which"),
    ],
)
def test_a_difference_is_said_with_its_direction_and_its_digits(name: str, found: dict[str, Any], said: str) -> None:
    assert in_words(name, Difference(**found)).replace("\N{NO-BREAK SPACE}", " ").startswith(said)


@pytest.mark.slow
def test_page_and_table_say_what_the_tables_of_a_run_say(finished: Path) -> None:
    found: RunResults = read_results(finished)
    summary = json.loads((finished / "summary.json").read_text())["metrics"]
    with (finished / "sites.csv").open(newline="") as file:
        rows = {row["site"]: row for row in csv.DictReader(file)}
    table = reference_table(found)
    assert table is not None
    assert [row[0] for row in table.rows] == ["all hospitals", "within hospitals", *SITES]
    pooled = [summary["test"]["auc"], *(summary["references"][name]["values"]["auc"] for name in NAMES)]
    assert [cell.split()[0] for cell in table.rows[0][1:]] == [f"{value:.3f}" for value in pooled]
    within = [summary["within_sites"], *(summary["references"][name]["within_sites"] for name in NAMES)]
    assert table.rows[1][1:] == [f"{own['auc']:.3f}" for own in within]
    for site, *cells in table.rows[2:]:
        keys = ("auc", "local_auc", "linear_auc", "site_auc")
        assert [cell.split()[0] for cell in cells] == [f"{float(rows[site][key]):.3f}" for key in keys]
    html = report(finished)
    assert f"has an AUC of {summary['references']['local']['values']['auc']:.3f}" in html
    assert html.index("trained at each hospital alone") < html.index("Is it worth it?") < html.index("<h2>Hospital by")
    forest = next(one for one in re.findall(r"<svg.*?</svg>", html, re.DOTALL) if "Test AUC of each hospital" in one)
    assert "each hospital alone" in forest.partition(">")[2], "the figure's legend names them"
    assert forest.count("var(--orange)") >= 2


@pytest.mark.slow
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


def test_small_errors_keep_their_digits(tmp_path: Path) -> None:
    """A label such as 0.00005 had an error of 0.000, and no hospital's own model could be better."""
    mae, local = 6.05e-7, {"samples": 90, "values": {"mae": 5.12e-7}}
    sites = "site,samples,mae,local_samples,local_mae\nalpha,90,6.05e-7,90,5.12e-7\n"
    found = read_results(made(tmp_path / "run", {"mae": mae}, sites, "regression", local=local))
    first, second, *_ = worth(found)
    assert "0.000000512" in first.text
    assert "0.000000093" in first.text
    assert second.code == "own-model-better-by-chance"
    assert any("0.000000605" in one.text for one in topics(found)["How far off it is"])
    table = reference_table(found)
    assert table is not None
    assert [row[1:] for row in table.rows] == [["0.000000605", "0.000000512"]] * 2
    assert ends(Difference(-7.2e-7, -8.1e-7, -6.3e-7, "")) == "−0.000000720 (−0.000000810 to −0.000000630)"
    assert decimals("mae", 0.05) == 4
    assert decimals("auc", 1e-5) == 3
