"""The exact solver of linear models as the training itself, against scikit-learn on the same folds."""

from __future__ import annotations

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
from torch import Tensor

from rankdad.common.data import SiteData, read_site
from rankdad.common.documents import validate
from rankdad.common.policy import MinLevel, Policy
from rankdad.common.preparation import linear
from rankdad.common.spec import RunSpec
from rankdad.library import simulate
from rankdad.local.prediction import predict_file
from rankdad.platforms.coinstac.completion import complete
from rankdad.platforms.coinstac.inputs import read as read_form
from rankdad.platforms.coinstac.table_profile import describe
from rankdad.remote.report.result_lines import result_lines
from rankdad.remote.report.run_report import report
from rankdad.remote.results.solving import undertrained
from rankdad.simulations.first_spec import first_spec
from tests.conftest import run_spec
from tests.simulations.solving import ADMITS_24, COLUMNS, SIZES, TASKS, document, table, trained
from tests.simulations.solving import folder as folder


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
    for remedy in ("no better than a guess", "training.epochs", "training.optimizer.lr", "training.solver"):
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
def test_a_single_epoch_is_no_sign_that_the_model_was_improving(folder: Path, tmp_path: Path) -> None:
    training = {"epochs": 1, "batch_size": 64, "batches": "even", "optimizer": {"name": "sgd", "lr": 0.05}}
    spec = validate(RunSpec, document("days", training=training, evaluation={"name": "holdout"}))
    summary, _, _ = trained(folder, tmp_path / "run", spec, Policy(min_rows=1, rows_per_rank=None))
    assert (summary["best_epoch"], summary["undertrained"]) == (1, {})


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
