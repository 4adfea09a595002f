"""The exact solver of linear models as the training itself, against scikit-learn on the same folds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from statsmodels.api import Logit, add_constant
from torch import Tensor

from rankdad.common.data import SiteData, read_site
from rankdad.common.documents import load_json, validate
from rankdad.common.errors import DataError, FewSamplesError, SpecError, UserError
from rankdad.common.needs import patients_for_sums
from rankdad.common.policy import MinLevel, Policy
from rankdad.common.preparation import Preparing, linear
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.library import simulate
from rankdad.local.admission import admitted
from rankdad.local.prediction import predict_file
from rankdad.platforms.coinstac.completion import complete
from rankdad.platforms.coinstac.inputs import read as read_form
from rankdad.platforms.coinstac.table_profile import describe
from rankdad.remote.report.references import worth
from rankdad.remote.report.result_lines import result_lines
from rankdad.remote.report.run_report import report
from rankdad.remote.results.run_results import read_results
from rankdad.remote.results.solving import undertrained
from rankdad.simulations.first_spec import first_spec
from rankdad.simulations.lockstep import run
from tests.conftest import run_spec

SIZES = {"large": 640, "middle": 210, "small": 24}
ADMITS_24 = Policy(min_rows=1, min_level=MinLevel(count=1), rows_per_rank=None)  # a fold holds out 4 of 24 rows
COLUMNS = ["age", "bp", "bmi", "sugar", "rate"]
TASKS: dict[str, dict[str, Any]] = {"sick": {"name": "classification", "classes": 2}, "days": {"name": "regression"}}


def table(count: int, seed: int) -> pd.DataFrame:
    drawn = np.random.default_rng(seed)
    frame = pd.DataFrame(drawn.normal([60, 130, 27, 5, 70], [10, 20, 4, 1, 12], (count, 5)).round(2), columns=COLUMNS)
    score = ((frame - frame.mean()) / frame.std()).to_numpy() @ np.array([0.8, -0.4, 0.5, 0.0, 0.2])
    frame["sick"] = np.where(drawn.random(count) < 1 / (1 + np.exp(0.5 - score)), "yes", "no")
    frame["days"] = (9 + 3 * score + drawn.normal(0, 2, count)).round(2)
    return frame


def document(label: str, **changes: Any) -> dict[str, Any]:
    data = {"reader": "csv", "file": "t.csv", "features": COLUMNS, "label": label}
    return {
        **{"name": "members", "task": TASKS[label], "preparation": {"standardise": "federated"}},
        "data": data | ({"values": ["no", "yes"]} if label == "sick" else {}),
        "evaluation": {"name": "k-fold", "folds": 5, "stratified": True},
        "federation": {"sites": list(SIZES)},
        **changes,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("members")
    for seed, (site, count) in enumerate(SIZES.items()):
        (made / site).mkdir()
        table(count, seed).to_csv(made / site / "t.csv", index=False)
    return made


def trained(
    folder: Path, output: Path, spec: RunSpec, policies: Mapping[str, Policy] | Policy = ADMITS_24
) -> tuple[dict[str, Any], dict[str, SiteData], dict[tuple[str, int], Tensor]]:
    data = {site: read_site(spec, folder / site, place) for place, site in enumerate(SIZES)}
    found: dict[tuple[str, int], Tensor] = {}

    def tested(site: str, fold: int, outputs: Tensor) -> None:
        found[site, fold] = outputs

    each = policies if isinstance(policies, Mapping) else dict.fromkeys(SIZES, policies)
    run(spec, data, output, policies=each, tested=tested)
    summary: dict[str, Any] = load_json(output / "summary.json")
    return summary, data, found


def pooled(data: Mapping[str, SiteData], fold: int, part: str) -> tuple[Any, Any]:
    rows = {site: getattr(own.splits[fold], part) for site, own in data.items()}
    inputs = [own.samples.inputs[rows[site]] for site, own in data.items()]
    labels = torch.cat([own.samples.labels[rows[site]] for site, own in data.items()])
    return torch.cat([one for one in inputs if isinstance(one, Tensor)]).numpy(), labels.numpy()


def expected(data: Mapping[str, SiteData], label: str) -> tuple[Any, Any]:
    """The truth, and what scikit-learn makes of it on the same folds: chances, or numbers."""
    truth, theirs = [], []
    for fold in range(5):
        reference = make_pipeline(StandardScaler(), LogisticRegression() if label == "sick" else LinearRegression())
        reference.fit(*pooled(data, fold, "train"))
        inputs, labels = pooled(data, fold, "test")
        truth += labels.tolist()
        theirs += (reference.predict_proba(inputs)[:, 1] if label == "sick" else reference.predict(inputs)).tolist()
    return np.array(truth), np.array(theirs)


def check_test(summary: dict[str, Any], data: Mapping[str, SiteData], label: str) -> None:
    test, (truth, theirs) = summary["metrics"]["test"], expected(data, label)
    assert test["samples"] == len(truth) == sum(SIZES.values())
    if label == "sick":
        assert test["auc"] == pytest.approx(roc_auc_score(truth, theirs), abs=0.01)
    else:
        assert test["r2"] == pytest.approx(r2_score(truth, theirs), abs=0.02)
        assert test["mae"] == pytest.approx(mean_absolute_error(truth, theirs), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("label", ["sick", "days"])
def test_members_of_unequal_size_get_what_scikit_learn_makes_of_all_rows(
    folder: Path, tmp_path: Path, label: str
) -> None:
    """Fold by fold, by the defaults of a specification, and the model that is kept."""
    spec = validate(RunSpec, document(label))
    summary, data, found = trained(folder, tmp_path / "run", spec)
    assert summary["solver"]["name"] == "exact"
    assert (summary["steps"], summary["epochs"], summary["undertrained"]) == (0, 0, {})
    check_test(summary, data, label)
    outputs = torch.cat([found[site, fold] for fold in range(5) for site in SIZES])
    if label == "sick":  # scikit-learn stops at a tolerance
        assert outputs.softmax(1)[:, 1].numpy() == pytest.approx(expected(data, label)[1], abs=1e-3)
    rows = summary["coefficients"]["pooled"]
    assert rows["rows"] == sum(SIZES.values())
    assert set(summary["coefficients"]["sites"]) >= {"large", "middle"}
    table = pd.read_csv(tmp_path / "run" / "coefficients.csv")
    assert list(table["name"][table["site"] == "all sites"]) == ["intercept", *COLUMNS]
    page = report(tmp_path / "run")
    assert "What each column adds" in page
    assert "odds ratio" in page if label == "sick" else "odds ratio" not in page
    assert ('<th scope="col">df</th>' in page) == (label == "days"), "z has no degrees of freedom"
    assert any(line.startswith("solver:") for line in result_lines(summary, spec))


@pytest.mark.slow
@pytest.mark.parametrize("label", ["sick", "days"])
@pytest.mark.parametrize(
    ("policy", "solver"),
    [(ADMITS_24, "exact"), pytest.param(Policy(min_rows=3, rows_per_rank=3), "steps", marks=pytest.mark.slow)],
    ids=["exact", "steps"],
)
def test_the_platforms_form_trains_a_linear_model_enough_by_its_defaults(
    folder: Path, tmp_path: Path, label: str, policy: Policy, solver: str
) -> None:
    """One small member makes the steps larger, and not fewer."""
    filled = read_form({"task": TASKS[label]["name"], "label": label, "features": ",".join(COLUMNS)})
    assert not filled.problems
    profiles = {site: describe(filled, folder / site / "t.csv", policy.min_rows).public for site in SIZES}
    made, _ = complete(filled, profiles, list(SIZES))
    spec = made.model_copy(update={"data": made.data.model_copy(update={"file": "t.csv"})})
    summary, data, _ = trained(folder, tmp_path / "run", spec, policy)
    assert summary["solver"]["name"] == solver
    check_test(summary, data, label)


@pytest.mark.slow
@pytest.mark.parametrize("label", ["sick", "days"])
def test_init_and_simulate_train_a_linear_model_enough_by_their_defaults(
    folder: Path, tmp_path: Path, label: str
) -> None:
    """The lines of the simulation's policy are those that its exact solution needs."""
    tables = tmp_path / "tables"
    for site in SIZES:
        (tables / site).mkdir(parents=True)
        pd.read_csv(folder / site / "t.csv")[[*COLUMNS, label]].to_csv(tables / site / "t.csv", index=False)
    written = first_spec(tables, label)
    done = simulate(written, output=tmp_path / "run", progress=False)
    assert done.summary["solver"]["name"] == "exact"
    data = {site: read_site(done.spec, tables / site, place) for place, site in enumerate(done.spec.federation.sites)}
    check_test(done.summary, data, label)


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


def test_a_relay_is_refused_where_there_are_no_links(folder: Path, tmp_path: Path) -> None:
    simulation = {"source": {"name": "folders", "path": str(folder)}, "partition": {"name": "folder"}, "relay": {}}
    with pytest.raises(UserError) as refused:
        simulate({"run": document("sick"), "simulation": simulation}, output=tmp_path / "run", progress=False)
    assert (refused.value.code, refused.value.field) == ("options-exclude", "simulation.relay")


@pytest.mark.slow
def test_balanced_classes_weigh_as_in_scikit_learn(folder: Path, tmp_path: Path) -> None:
    task = {"task": TASKS["sick"] | {"class_weights": "balanced"}, "evaluation": {"name": "holdout"}}
    spec = validate(RunSpec, document("sick", **task))
    summary, data, found = trained(folder, tmp_path / "run", spec)
    assert summary["solver"]["name"] == "exact"
    reference = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", tol=1e-8))
    reference.fit(*pooled(data, 0, "train"))
    outputs = torch.cat([found[site, 0] for site in SIZES])
    expected = reference.predict_proba(pooled(data, 0, "test")[0])[:, 1]
    assert outputs.softmax(1)[:, 1].numpy() == pytest.approx(expected, abs=1e-4)


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


@pytest.mark.slow
@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_solved_run_is_a_run_like_any_other(folder: Path, tmp_path: Path, processes: bool) -> None:
    """References, predictions, its saved model: in one process, and between processes over HTTP."""
    references = {"evaluation": {"name": "k-fold", "folds": 3, "references": ["local", "linear", "site"]}}
    simulation = {
        "source": {"name": "folders", "path": str(folder)},
        "partition": {"name": "folder"},
        "policy": {"min_rows": 1, "rows_per_rank": None},
    }
    spec = {"run": document("sick", **references), "simulation": simulation}
    done = simulate(spec, output=tmp_path / "run", processes=processes, progress=False)
    assert (done.summary["solver"]["name"], done.summary["method"]) == ("exact", "exact")
    alone = done.summary["metrics"]["references"]
    local = alone["local"]["values"]["auc"]
    assert set(alone) == {"local", "site"}
    assert alone["site"]["values"]["loss"] == pytest.approx(alone["local"]["values"]["loss"], rel=1e-3)
    page = report(tmp_path / "run")
    assert "is that same model, and is shown once" in page
    assert "linear, each hospital alone" not in page
    assert not any(word in page for word in ("dsgd", "adam", "12 epochs"))
    assert 0.5 < local <= done.summary["metrics"]["test"]["auc"] + 0.02
    assert len(set(done.summary["weights_sha256"].values())) == 1
    assert done.summary["aggregator_sha256"] in done.summary["weights_sha256"].values()
    fresh = table(50, 9)
    predicted = done.predict(fresh)
    assert roc_auc_score(fresh["sick"] == "yes", predicted.filter(like="yes").iloc[:, 0]) > 0.7
    assert set(done.coefficients["name"]) == {"intercept", *COLUMNS}


@pytest.mark.slow
def test_a_solved_run_needs_no_reference_but_itself(folder: Path, tmp_path: Path) -> None:
    """Sites sent a comparison with the linear reference, which is left out, and the run failed at its first test."""
    evaluation = {"name": "k-fold", "folds": 2, "refit": False, "references": ["linear"]}
    summary, _, _ = trained(folder, tmp_path / "run", validate(RunSpec, document("sick", evaluation=evaluation)))
    assert (summary["status"], summary["solver"]["name"]) == ("completed", "exact")
    assert summary["metrics"]["differences"] == {}


@pytest.mark.slow
def test_a_run_whose_last_epoch_was_the_best_warns_and_names_the_remedy(folder: Path, tmp_path: Path) -> None:
    optimizer = {"name": "sgd", "lr": 0.001}
    training = {"epochs": 3, "batch_size": 64, "batches": "even", "optimizer": optimizer}
    spec = validate(RunSpec, document("days", training=training, evaluation={"name": "k-fold", "folds": 2}))
    summary, _, _ = trained(folder, tmp_path / "run", spec, Policy(min_rows=1, rows_per_rank=None))
    found = summary["undertrained"]
    assert (found["trainings"], found["of"]) == (3, 3)
    for remedy in ("training.epochs", "training.optimizer.lr", "training.solver"):
        assert remedy in found["warning"]
    assert f"warning: {found['warning']}" in list(result_lines(summary, spec))
    assert found["warning"][1:] in report(tmp_path / "run").replace("&#34;", '"')
    enough = training | {"epochs": 12, "optimizer": {"name": "sgd", "lr": 0.5}}
    spec = validate(RunSpec, document("days", training=enough, evaluation={"name": "holdout"}))
    summary, _, _ = trained(folder, tmp_path / "enough", spec, Policy(min_rows=1, rows_per_rank=None))
    assert summary["best_epoch"] < 12
    assert summary["undertrained"] == {}


def test_of_trainings_without_what_is_monitored_it_is_not_said_that_they_ended_too_early() -> None:
    """Early stopping was off, the last epoch was kept, and more epochs were advised."""
    stops = {"epochs": 40, "early_stopping": {"patience": 5}}
    found = undertrained(run_spec(training=stops), trainings=0, measured=1, unmeasured=5)
    assert (found["of"], found["unmeasured"]) == (1, 5)
    assert "training.epochs" not in str(found["warning"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_where_sites_keep_sums_back_a_training_is_solved_or_named(tmp_path: Path, seed: int) -> None:
    """A level that two patients have: slopes at two weights differ by these two alone, and sites answer none."""
    for place, (site, count) in enumerate({"large": 120, "middle": 60, "small": 45}.items()):
        frame = table(count, 3 * seed + place).assign(rare=0)
        if site != "small":
            frame.loc[7, "rare"] = 1
        (tmp_path / site).mkdir()
        frame.to_csv(tmp_path / site / "t.csv", index=False)
    base = document("sick")
    spec = validate(RunSpec, base | {"data": base["data"] | {"features": [*COLUMNS, "rare"]}})
    policy = Policy(min_rows=8, min_level=MinLevel(count=1), rows_per_rank=None)
    summary, data, found = trained(tmp_path, tmp_path / "run", spec, policy)
    assert summary["solver"]["name"] == "exact"
    unsolved = summary["solver"].get("unsolved", [])
    lines = "\n".join(result_lines(summary, spec))
    assert ("the exact solution did not converge in" in lines) == bool(unsolved)
    assert lines.startswith("solved exactly, ") == (not unsolved)
    for fold in range(5):
        reference = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-8))
        reference.fit(*pooled(data, fold, "train"))
        theirs = reference.decision_function(pooled(data, fold, "test")[0])
        ours = torch.cat([found[site, fold] for site in SIZES if (site, fold) in found]).double()
        apart = np.abs((ours[:, 1] - ours[:, 0]).numpy() - theirs)
        rare = pooled(data, fold, "test")[0][:, -1] > 0  # whose own weight two patients, or one, have made
        if spec.training_name(fold) not in unsolved:
            assert apart[~rare].max() < 0.1
            assert apart.max() < 0.5


@pytest.mark.exhaustive
def test_of_a_model_that_is_not_solved_no_coefficients_are_told_and_predict_warns(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(linear, "ROUNDS", 1)
    summary, *_ = trained(folder, tmp_path / "run", validate(RunSpec, document("sick")))
    assert "final model" in summary["solver"]["unsolved"]
    fit = summary["coefficients"]["pooled"]
    assert (fit["problem"], fit["coefficients"]) == ("unsolved", [])
    predict_file(tmp_path / "run", folder / "small", tmp_path / "out.csv", "best")
    assert "warning: the model has not reached its exact solution" in capsys.readouterr().err
    trained(folder, tmp_path / "steps", validate(RunSpec, document("sick", training={"solver": "steps"})))
    predict_file(tmp_path / "steps", folder / "small", tmp_path / "out.csv", "best")
    assert "exact solution" not in capsys.readouterr().err


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
