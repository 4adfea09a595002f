"""Whether a run is solved exactly or trained by steps, and what is refused with which reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from statsmodels.api import Logit, add_constant

from rankdad.common.data import read_site
from rankdad.common.data.folds import Split
from rankdad.common.documents import validate
from rankdad.common.errors import DataError, FewSamplesError, SpecError
from rankdad.common.needs import patients_for_sums
from rankdad.common.policy import Policy
from rankdad.common.preparation import Preparing
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.library import simulate
from rankdad.local.admission import admitted
from rankdad.local.sums import linear_sets
from rankdad.remote.report.references import worth
from rankdad.remote.report.result_lines import result_lines
from rankdad.remote.results.run_results import read_results
from rankdad.simulations.first_spec import first_spec
from tests.conftest import run_spec
from tests.simulations.solving import ADMITS_24, COLUMNS, SIZES, document, table, trained
from tests.simulations.solving import folder as folder


@pytest.mark.parametrize("column", ["sick", "sex"])
def test_values_that_the_spec_writes_differently_are_refused_as_such(folder: Path, tmp_path: Path, column: str) -> None:
    for site in SIZES:
        (tmp_path / site).mkdir()
        own = pd.read_csv(folder / site / "t.csv")
        own["sex"] = np.where(np.arange(len(own)) % 2, "f", "m")
        own[column] = own[column].str.upper() if site == "middle" else own[column]
        own.to_csv(tmp_path / site / "t.csv", index=False)
    run = document("sick")
    run["data"] = run["data"] | {"features": [*COLUMNS, "sex"], "categorical": {"sex": ["f", "m"]}}
    simulation = {"source": {"name": "folders", "path": str(tmp_path)}, "partition": {"name": "folder"}}
    with pytest.raises(DataError) as refused:
        simulate({"run": run, "simulation": simulation}, output=tmp_path / "run", progress=False)
    assert (refused.value.code, refused.value.field) == ("values-spelled-apart", column)


@pytest.mark.slow
def test_where_a_policy_lets_no_sums_out_all_sites_take_steps_and_say_why(folder: Path, tmp_path: Path) -> None:
    training = {"solver": "auto", "epochs": 2, "batch_size": 256, "batches": "even"}
    evaluation = {"name": "holdout", "references": ["linear"]}
    spec = validate(RunSpec, document("sick", training=training, evaluation=evaluation))
    policies = dict.fromkeys(SIZES, ADMITS_24) | {"small": Policy(min_rows=1, rows_per_rank=4)}
    summary, _, _ = trained(folder, tmp_path / "run", spec, policies)
    assert summary["solver"]["name"] == "steps"
    assert "small" in summary["solver"]["why"]
    assert summary["solver"]["code"] == "exact-solver-not-allowed"
    assert summary["solver"]["from_patients"] == patients_for_sums(spec, Policy()) > 30
    assert any(line.startswith("solver:  steps: ") for line in result_lines(summary, spec))
    assert "no-linear" in {one.code for one in worth(read_results(tmp_path / "run"))}
    assert summary["warnings"]["exact-solver-not-allowed"] == ["small"]
    assert (summary["epochs"], summary["coefficients"]) == (2, {})
    training |= {"solver": "steps", "validation": 0}
    steps = validate(RunSpec, document("sick", training=training, evaluation={"name": "holdout"}))
    asked, _, _ = trained(folder, tmp_path / "steps", steps, policies)
    assert asked["weights_sha256"] == summary["weights_sha256"]
    assert asked["metrics"] == summary["metrics"], "read around what they were counted around"
    exact = validate(RunSpec, document("sick", training={"solver": "exact"}))
    with pytest.raises(FewSamplesError) as refused:
        trained(folder, tmp_path / "exact", exact, policies)
    assert (refused.value.code, refused.value.field) == ("linear-needs-samples", "training.solver")


def test_where_steps_are_refused_as_well_the_refusal_names_both_lines_of_the_policy(folder: Path) -> None:
    """It told of small steps alone, which an exact solution does not make."""
    spec = validate(RunSpec, document("sick", training={"solver": "auto", "batch_size": 3}))
    plan, data = make_plan(spec, Replica(spec).model), read_site(spec, folder / "small", 2)
    with pytest.raises(FewSamplesError) as refused:
        admitted(Policy(min_rows=4, rows_per_rank=4), spec, plan, data)
    assert (refused.value.code, refused.value.field) == ("steps-of-too-few", "training.batch_size")
    assert "(min_rows)" in str(refused.value)
    assert "rows_per_rank 4" in str(refused.value)
    steps = validate(RunSpec, document("sick", training={"solver": "steps", "batch_size": 3}))
    with pytest.raises(FewSamplesError) as refused:
        admitted(Policy(min_rows=4, rows_per_rank=4), steps, plan, data)
    assert "rows_per_rank" not in str(refused.value)


def test_no_sum_is_withheld_of_one_row(folder: Path) -> None:
    """Three rows to train on were refused as "0 samples, but none of fewer than 1"."""
    spec = validate(RunSpec, document("sick", training={"solver": "exact"}))
    data = read_site(spec, folder / "small", 2)
    few = [Split(one.train[:3], one.validation, one.test) for one in data.splits]
    assert linear_sets(spec, replace(data, splits=tuple(few))).differ == 1


@pytest.mark.parametrize(
    ("changes", "solver"),
    [
        ({}, "auto"),
        ({"training": {"solver": "exact", "epochs": 3}}, "exact"),
        ({"training": {"solver": "auto", "epochs": 3}}, "auto"),
        ({"training": {"epochs": 3}}, "steps"),
        ({"training": {"optimizer": {"name": "sgd", "lr": 0.1}}}, "steps"),
        ({"training": {"validation": 0, "test": 0.3}}, "auto"),
        ({"method": {"name": "rank-dad", "rank": 1}}, "steps"),
        ({"method": {"name": "dsgd"}}, "auto"),
        ({"model": {"name": "mlp", "hidden": [4]}}, "steps"),
        ({"data": {"shape": [128]}}, "auto"),
        ({"data": {"shape": [256]}}, "steps"),
        ({"task": {"name": "regression", "loss": "mae"}}, "steps"),
        ({"tuning": {"weight_decay": [0.0, 0.1]}}, "steps"),
        ({"training": {"solver": "auto", "early_stopping": {"patience": 2}}}, "steps"),
    ],
)
def test_which_solver_a_specification_asks_for(changes: dict[str, Any], solver: str) -> None:
    plain: dict[str, Any] = {"name": "x", "task": {"name": "regression"}, "data": {"shape": [5]}}
    spec = validate(RunSpec, plain | {"federation": {"sites": ["a", "b"]}} | changes)
    assert spec.solver == solver
    assert spec.trained_by == {"auto": "exact or dsgd", "steps": spec.method.name}.get(solver, solver)
    again = validate(RunSpec, json.loads(spec.model_dump_json()))
    assert (again.solver, again.sha256()) == (solver, spec.sha256())
    assert spec.validation == (spec.training.validation if solver == "steps" else 0)


def test_what_cannot_be_solved_is_refused_by_name() -> None:
    with pytest.raises(SpecError) as refused:
        Preparing(run_spec(training={"solver": "exact"}))
    assert (refused.value.code, refused.value.field) == ("solver-not-exact", "training.solver")


@pytest.mark.exhaustive
def test_a_hospital_too_small_for_rounds_is_named_and_init_asks_for_its_line(tmp_path: Path) -> None:
    """Of 12 patients no two rounds differ by 8: it kept all its sums back, and weights stayed near 0."""
    tables = tmp_path / "tables"
    for place, (site, count) in enumerate({"large": 180, "middle": 120, "small": 12}.items()):
        (tables / site).mkdir(parents=True)
        table(count, place)[[*COLUMNS, "sick"]].to_csv(tables / site / "t.csv", index=False)
    written = first_spec(tables, "sick")
    policy = written["simulation"]["policy"]
    assert policy["min_rows"] < 12 / 4
    done = simulate(written, output=tmp_path / "run", progress=False)
    assert (done.summary["solver"]["name"], "unsolved" in done.summary["solver"]) == ("exact", False)
    rows = pd.concat([table(count, place) for place, count in enumerate((180, 120, 12))])
    fit = Logit(rows.sick == "yes", add_constant(rows[COLUMNS])).fit(disp=False)
    told = done.summary["coefficients"]["pooled"]["coefficients"]
    kept = {one["name"]: one["estimate"] for one in told if one["name"] in COLUMNS}
    assert kept == pytest.approx(dict(fit.params[COLUMNS]), rel=1e-3)
    stricter = written | {"simulation": written["simulation"] | {"policy": policy | {"min_rows": 8}}}
    summary = simulate(stricter, output=tmp_path / "steps", progress=False).summary
    assert (summary["solver"]["name"], summary["solver"]["code"]) == ("steps", "exact-solver-not-allowed")
