"""Visits of patients at three hospitals, in a cross-validation that is repeated: what the run says of them."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankdad.common.data import SiteData, read_site
from rankdad.common.errors import FewSamplesError
from rankdad.common.policy import Policy
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.replica import Replica
from rankdad.local.admission import admitted
from rankdad.local.prediction import write_predictions
from rankdad.remote.report.narrative import extent, rows_tested
from rankdad.remote.report.result_lines import show_result
from rankdad.remote.report.run_report import report
from rankdad.remote.results.run_results import read_results
from rankdad.simulations import lockstep
from tests.conftest import SITES, run_spec

DATA = {"reader": "csv", "file": "v.csv", "features": ["a", "b"], "label": "ill", "values": [0, 1], "group": "patient"}


def visits(folder: Path, **changes: Any) -> tuple[Any, dict[str, SiteData]]:
    """Write each hospital's table: 40 patients who came 1 to 6 times."""
    spec, found = (
        run_spec(data=DATA, task={"name": "classification", "classes": 2}, model={"name": "linear"}, **changes),
        {},
    )
    for place, site in enumerate(SITES):
        rng = np.random.default_rng(place)
        own = np.repeat(np.arange(40), rng.integers(1, 7, 40))
        ill, level = rng.integers(0, 2, 40), rng.normal(size=40)
        rows = [f"{site}-{one},{ill[one] + level[one] + rng.normal():.3f},{rng.normal():.3f},{ill[one]}" for one in own]
        (folder / site).mkdir(parents=True, exist_ok=True)
        (folder / site / "v.csv").write_text("patient,a,b,ill\n" + "\n".join(rows))
        found[site] = read_site(spec, folder / site, place)
    return spec, found


def summary_of(folder: Path, evaluation: dict[str, Any]) -> dict[str, Any]:
    spec, data = visits(folder / "data", evaluation=evaluation, training={"epochs": 1})
    lockstep.run(spec, data, folder / "run")
    found: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return found


@pytest.mark.exhaustive
def test_patients_are_counted_and_repeats_add_no_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = summary_of(tmp_path / "once", {"name": "k-fold", "folds": 3})
    twice = summary_of(tmp_path / "twice", {"name": "k-fold", "folds": 3, "repeats": 2})
    for summary in (once, twice):
        test, table1 = summary["metrics"]["test"], summary["table1"]
        assert test["groups"] == table1["pooled"]["groups"] == 120
        assert test["samples"] == table1["pooled"]["rows"] > 300
        assert [table1["sites"][site]["groups"] for site in SITES] == [40, 40, 40]
        assert all("over groups" in one["method"] for one in summary["metrics"]["intervals"].values())
    assert twice["folds"] == 7
    assert twice["metrics"]["folds"]["auc"]["count"] == 6
    one, two = (summary["metrics"]["intervals"]["auc"] for summary in (once, twice))
    assert two["high"] - two["low"] == pytest.approx(one["high"] - one["low"], rel=0.25), "not by √2 narrower"
    run = tmp_path / "twice" / "run"
    with (run / "metrics.csv").open(newline="") as file:
        tests = [row for row in csv.DictReader(file) if row["split"] == "test" and row["site"] == "pooled"]
    aucs = [float(row["auc"]) for row in tests if row["auc"]]
    assert len(aucs) == 6
    assert twice["metrics"]["test"]["auc"] == pytest.approx(np.mean(aucs), abs=0.05)
    with (run / "risks.csv").open(newline="") as file:
        found = Counter[str]()
        for row in csv.DictReader(file):
            found[row["repeat"]] += int(row["negatives"]) + int(row["positives"])
        assert found == dict.fromkeys("12", twice["metrics"]["test"]["samples"])
    results = read_results(run)
    assert "3 sites, 3 folds, 2 times, of at most 1 epoch, " in extent(results)
    show_result(twice, run, results.spec)
    said = capsys.readouterr().out
    assert "120 patients, " in said
    assert "over patients" in said
    assert "group" not in said
    assert "Each row of data counts once a repeat: 2 times." in report(run)
    assert "once a repeat" not in report(tmp_path / "once" / "run")
    assert rows_tested(results) == f"120 patients, {twice['metrics']['test']['samples']} rows"
    risks = results.risks_of(1)
    assert len(risks) == 2
    assert all(float(one.effect("sensitivity").median()) > 1.5 for one in risks), "bands are those of patients"


@pytest.mark.slow
def test_a_site_that_trains_on_nothing_in_a_fold_deals_out_no_groups(tmp_path: Path) -> None:
    assert summary_of(tmp_path, {"name": "leave-one-site-out"})["metrics"]["test"]["groups"] == 120


def test_a_refusal_of_products_counts_patients_and_says_so(tmp_path: Path) -> None:
    """Each fold holds out about 13 of 40 patients, who have three times as many rows."""
    changes = {"evaluation": {"name": "k-fold", "folds": 3, "references": ["linear"]}}
    spec, data = visits(tmp_path, preparation={"standardise": "federated"}, **changes)
    plan = make_plan(spec, Replica(spec).model)
    with pytest.raises(
        FewSamplesError, match=r"numbers of \d\d patients here about 3 columns \(2 inputs and one for the "
    ):
        admitted(Policy(min_rows=5, rows_per_rank=7), spec, plan, data[SITES[0]])


def test_predictions_stand_beside_their_patient(tmp_path: Path) -> None:
    spec, data = visits(tmp_path)
    own = data[SITES[0]]
    rows = own.splits[0].test
    write_predictions(tmp_path / "predictions", spec, own, 0, torch.zeros(len(rows), 2))
    with (tmp_path / "predictions" / "fold-1.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    with (tmp_path / SITES[0] / "v.csv").open(newline="") as file:
        patients = [row["patient"] for row in csv.DictReader(file)]
    assert list(found[0])[:3] == ["row", "patient", "label"]
    assert [row["patient"] for row in found] == [patients[int(row["row"]) - 2] for row in found]


def test_a_linear_model_is_refused_where_the_label_sets_few_patients_apart(tmp_path: Path) -> None:
    """The product of a class that two patients have with any column is a sum over these two; a level would be moved."""
    changes = {"evaluation": {"name": "k-fold", "folds": 3, "references": ["linear"]}}
    spec, data = visits(tmp_path, preparation={"standardise": "federated"}, **changes)
    own, plan = data[SITES[0]], make_plan(spec, Replica(spec).model)
    policy = Policy(min_rows=4, rows_per_rank=None)
    admitted(policy, spec, plan, own)
    assert own.groups is not None
    own.samples.labels[:] = own.groups < 2
    with pytest.raises(
        FewSamplesError, match=r"^evaluation.references.* the label singles out [12] patients? here"
    ) as refused:
        admitted(policy, spec, plan, own)
    admitted(policy.mended(refused.value.change), spec, plan, own)


def test_repeats_of_folds_take_patients_for_each_sum_of_products(tmp_path: Path) -> None:
    evaluation = {"name": "k-fold", "folds": 3, "references": ["linear"]}
    policy = Policy(min_rows=2, rows_per_rank=1)
    for repeats, refused in ((1, False), (4, True)):
        changes = {"evaluation": {**evaluation, "repeats": repeats}, "preparation": {"standardise": "federated"}}
        spec, data = visits(tmp_path, **changes)
        plan, own = make_plan(spec, Replica(spec).model), data[SITES[0]]
        if refused:
            with pytest.raises(FewSamplesError, match=r"numbers of \d+ patients"):
                admitted(policy, spec, plan, own)
        else:
            admitted(policy, spec, plan, own)
