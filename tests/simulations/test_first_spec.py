"""`rankdad init`: from tables as they come to a run, in two commands."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

from rankdad.common.documents import load_json, validate
from rankdad.common.errors import RankdadError, UserError
from rankdad.local.cli import mount as mount_local
from rankdad.remote.report.run_report import report
from rankdad.simulations.cli import mount
from rankdad.simulations.first_spec import first_spec
from rankdad.simulations.spec import SimulationFile
from tests import messy
from tests.conftest import SHARED

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return messy.write(tmp_path_factory.mktemp("messy"))


def run(*words: str) -> str:
    app = typer.Typer()
    mount(app)
    done = CliRunner().invoke(app, words)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def predicting(model: Path, data: Path, output: Path) -> str:
    """What `rankdad predict` says."""
    app = typer.Typer()
    app.callback()(lambda: None)
    mount_local(app)
    done = CliRunner().invoke(app, ["predict", str(model), str(data), "--output", str(output)])
    assert done.exit_code == 0, done.exception
    return done.output


def simulated(data: Path, output: Path, *options: str) -> dict[str, Any]:
    """The summary of a run whose spec was written a moment ago."""
    directory = output.with_suffix("")
    run("simulate", str(output), "--data", str(data), "--lockstep", "--output", str(directory), *options)
    summary: dict[str, Any] = load_json(directory / "summary.json")
    return summary


@pytest.mark.exhaustive
def test_five_messy_hospitals_are_trained_on_in_two_commands(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "run.json"
    said = run("init", str(folder), "--label", "Stadium", "--positive", "> 0", "--output", str(output))
    data = load_json(output)["run"]["data"]
    assert data["features"] == ["Alter", "Geschlecht", "Größe", "Blutdruck", "Cholesterin", "CRP", "Schmerz"]
    assert data["categorical"] == {"Geschlecht": ["m", "w"], "Schmerz": ["atypical", "none", "typical"]}
    assert (data["group"], data["encoding"], data["missing"]) == ("Patient", "cp1252", "impute")
    assert data["missing_values"] == {"Größe": ["?"], "Cholesterin": ["0"], "CRP": ["<0,5"]}
    assert data["missing_indicators"] == ["Cholesterin", "CRP"]
    for note in load_json(output)["notes"]:
        assert f"note: {note}" in said
    assert len(output.read_text().splitlines()) < 40

    fewer = ("run.training.epochs=8", "run.evaluation.folds=2", "run.evaluation.refit=false")
    summary = simulated(folder, output, *(word for assignment in fewer for word in ("--set", assignment)))
    assert summary["metrics"]["test"]["auc"] > 0.7
    assert summary["metrics"]["test"]["samples"] == 150 + 130 + 110 + 135 + 80

    done = predicting(tmp_path / "run", folder / "aachen", tmp_path / "scores.csv")
    assert "rows refused" not in done
    assert "rows were used in training" in done
    scores = pd.read_csv(tmp_path / "scores.csv")
    assert list(scores) == ["row", "Patient", "label", "predicted", "probability_no", "probability_yes", "outside"]
    assert len(scores) == 150
    page = report(tmp_path / "run")
    for said in ("Table 1", "Cholesterin", *(site for site in messy.HOSPITALS)):
        assert said in page


def test_notes_offer_dates_and_name_levels_of_one_hospital(folder: Path, tmp_path: Path) -> None:
    notes = first_spec(folder, "Stadium").get("notes", [])
    assert any('add to data "dates": {"Aufnahme": {"since": "2020-01-01"}}' in note for note in notes)
    assert any("'<0,5' is read as missing" in note and "CRP" in note for note in notes)
    for site, levels in (("a", "männlich weiblich"), ("b", "m w"), ("c", "m w")):
        (tmp_path / site).mkdir()
        rows = [f"{number},{levels.split()[number % 2]},{number % 3 % 2}" for number in range(30)]
        (tmp_path / site / "t.csv").write_text("\n".join(["alter,sex,ill", *rows]))
    said = "column sex: levels at one hospital alone: männlich, weiblich at a: are they written in one way?"
    assert said in first_spec(tmp_path, "ill")["notes"]


def test_without_a_rule_stages_are_classes_and_the_rule_is_offered(folder: Path) -> None:
    document = first_spec(folder, "Stadium")
    assert document["run"]["task"] == {"name": "classification", "classes": 5}
    assert any('--positive "> 0"' in note for note in document["notes"])


@pytest.mark.parametrize(
    ("values", "order"),
    [("control case", ["control", "case"]), ("no yes", ["no", "yes"]), ("ill healthy", ["healthy", "ill"]),
     ("alive dead", ["alive", "dead"]), ("left right", ["left", "right"])],
)  # fmt: skip
def test_the_outcome_is_no_control(tmp_path: Path, values: str, order: list[str]) -> None:
    """The risk of being a control was predicted, since "control" comes after "case"."""
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        frame = pd.DataFrame({"age": rng.normal(60, 9, 60).round(1), "status": rng.choice(values.split(), 60)})
        (tmp_path / site).mkdir()
        frame.to_csv(tmp_path / site / "table.csv", index=False)
    document = first_spec(tmp_path, "status")
    assert document["run"]["data"]["values"] == order


def refused(folder: Path, label: str, positive: str | None = None, **options: Any) -> tuple[str, str]:
    """Code and field of the error with which no spec is written."""
    with pytest.raises(UserError) as caught:
        first_spec(folder, label, positive, **options)
    assert "\n" not in str(caught.value)
    return caught.value.code, caught.value.field


@pytest.mark.parametrize(
    ("label", "positive", "code", "field"),
    [
        ("Stadum", None, "column-missing", "--label"),
        ("Geschlecht", "> 0", "rule-needs-numbers", "--positive"),
        ("Aufnahme", None, "label-unusable", "--label"),
        ("Stadium", "above 0", "field-invalid", "run.data.positive"),
    ],
)
def test_what_cannot_be_predicted_is_said_in_one_sentence(
    folder: Path, label: str, positive: str | None, code: str, field: str
) -> None:
    assert refused(folder, label, positive)[0] == code
    assert refused(folder, label, positive)[1].startswith(field)


def test_hospitals_whose_tables_do_not_belong_together_are_said(tmp_path: Path) -> None:
    for site, text in (("a", "x,y\n1,0\n2,0\n"), ("b", "x,y\n1,0\n3,0\n")):
        (tmp_path / site).mkdir()
        (tmp_path / site / "t.csv").write_text(text)
    assert refused(tmp_path, "y") == ("label-constant", "--label")
    for site in ("a", "b"):
        (tmp_path / site / "t.csv").write_text("x,y\n1,sick\n2,none\n3,sick\n4,none\n")
    assert refused(tmp_path, "y") == ("label-constant", "--label")
    (tmp_path / "a" / "more.csv").write_text("z\n1\n")
    assert refused(tmp_path, "y") == ("tables-differ", "data.file")
    assert refused(tmp_path / "gone", "y") == ("data-missing", "DATA")


def write_hospitals(folder: Path, rows: Sequence[int]) -> None:
    """Write a table of so many rows for each hospital."""
    for place, count in enumerate(rows):
        generator = np.random.default_rng(place)
        table = pd.DataFrame(generator.normal(size=(count, 3)).round(3), columns=["a", "b", "c"])
        table["y"] = (table["a"] + generator.normal(size=count) > 0).astype(int)
        (folder / f"site{place}").mkdir()
        table.to_csv(folder / f"site{place}" / "t.csv", index=False)


@pytest.mark.parametrize("rows", [(30, 400), (60, 60, 60), (9, 12), (3000, 4000), (40, 26, 175)])
def test_settings_suit_every_size(tmp_path: Path, rows: tuple[int, ...]) -> None:
    write_hospitals(tmp_path, rows)
    document = first_spec(tmp_path, "y")
    file = validate(SimulationFile, document)
    allowed = [note.partition("allow ")[2] for note in document["notes"] if "simulation.policy" in note]
    changed = document["simulation"].get("policy", {})
    assert [re.findall(r"(\w+) (null|\d+)", note) for note in allowed] == (
        [[(name, json.dumps(value)) for name, value in changed.items()]] if changed else []
    ), "one note, of what stands in the file"
    training, policy = file.run.training, file.simulation.policy
    steps = -(-round(max(rows) * 0.8) // training.step_size)
    assert steps == 1 or min(rows) / 4 >= policy.min_rows
    assert 100 <= steps * training.epochs <= 200
    assert file.run.model.name == ("mlp" if sum(rows) > 5000 else "linear")


@pytest.mark.parametrize("rows", [(30, 400), (9, 12), (90, 100, 150)])
def test_what_hospitals_would_do_by_their_own_policies_is_what_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: tuple[int, ...]
) -> None:
    """The simulation was solved exactly; at the hospitals the same run made steps, and had no coefficients."""
    write_hospitals(tmp_path, rows)
    document = first_spec(tmp_path, "y")
    (note,) = (note for note in document["notes"] if "real hospitals" in note)
    (tmp_path / "sim.json").write_text(json.dumps(document))
    words = ("simulate", "sim.json", "--lockstep", "--output", "run", "--set", "simulation.policy={}")
    monkeypatch.chdir(tmp_path)
    try:
        run(*words)
    except RankdadError:
        assert "refuse this run" in note
    else:
        assert load_json(tmp_path / "run" / "summary.json")["solver"]["name"] == "steps"
        assert "without coefficients" in note


def reference(inputs: Any, labels: Any) -> float:
    """AUC of scikit-learn's logistic regression on the pooled table, each row predicted once."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    scores = cross_val_predict(model, inputs, labels, cv=5, method="decision_function")
    return float(roc_auc_score(labels, scores))


@pytest.mark.exhaustive
def test_defaults_alone_reach_logistic_regression_on_breast_cancer(tmp_path: Path) -> None:
    inputs, labels = load_breast_cancer(return_X_y=True, as_frame=True)
    table = tmp_path / "cells.csv"
    inputs.assign(diagnosis=labels.map({0: "malignant", 1: "benign"})).to_csv(table, index=False)
    output = tmp_path / "run.json"
    run("init", str(table), "--label", "diagnosis", "--output", str(output))
    auc = simulated(table, output, "--set", "run.evaluation.refit=false")["metrics"]["test"]["auc"]
    assert auc > reference(inputs, labels) - 0.01


@pytest.mark.exhaustive
@pytest.mark.shared_data
@pytest.mark.skipif(not (SHARED / "abide_freesurfer").is_dir(), reason="needs ABIDE's tables")
@pytest.mark.timeout(900)
def test_defaults_alone_reach_logistic_regression_on_sex(tmp_path: Path) -> None:
    tables = []
    for folder in sorted((SHARED / "abide_freesurfer").iterdir()):
        if folder.is_dir():
            brains, people = (pd.read_csv(folder / f"{name}.csv") for name in ("freesurfer", "participants"))
            tables.append(brains.merge(people, on="subject"))
    pooled = pd.concat(tables).sample(frac=1, random_state=0)
    output = tmp_path / "run.json"
    run("init", str(SHARED / "abide_freesurfer"), "--label", "sex", "--output", str(output))
    auc = simulated(SHARED / "abide_freesurfer", output, "--set", "run.evaluation.refit=false")["metrics"]["test"][
        "auc"
    ]
    assert auc > reference(pooled.drop(columns=["subject", "sex"]), pooled["sex"] == "M") - 0.01


def test_a_hospital_whose_label_is_the_same_stand_in_in_every_row_has_no_rows_with_a_label(tmp_path: Path) -> None:
    generator = np.random.default_rng(4)
    for site in ("a", "b"):
        table = pd.DataFrame({"age": generator.normal(60, 9, 80), "score": generator.normal(50, 7, 80).round(2)})
        (tmp_path / site).mkdir()
        table.assign(score=table["score"] if site == "a" else -9).to_csv(tmp_path / site / "table.csv", index=False)
    with pytest.raises(RankdadError) as caught:
        first_spec(tmp_path, "score")
    assert (caught.value.code, caught.value.field) == ("rows-too-few", "--label")


def test_texts_of_small_hospitals_are_neither_inputs_nor_in_the_spec(tmp_path: Path) -> None:
    for site in ("bonn", "kiel"):
        (tmp_path / site).mkdir()
        rows = [f"{age},Mrs {site}-{age} fell on the stairs,{'yes' if age % 2 else 'no'}" for age in range(40, 58)]
        (tmp_path / site / "t.csv").write_text("\n".join(["age,seen,ill", *rows]) + "\n")
    assert "Mrs" not in json.dumps(first_spec(tmp_path, "ill"))
    with pytest.raises(UserError) as raised:
        first_spec(tmp_path, "ill", exclude=("age",))
    assert (raised.value.code, raised.value.field) == ("no-inputs", "data.features")
    assert '"reader": "text"' in str(raised.value)


def test_names_of_text_files_are_no_inputs_and_the_reader_is_named(tmp_path: Path) -> None:
    for site in ("bonn", "kiel"):
        (tmp_path / site).mkdir()
        rows = [f"txt/{site}{row:04}.txt,{'yes' if row % 2 else 'no'}" for row in range(40)]
        (tmp_path / site / "t.csv").write_text("\n".join(["file,ill", *rows]) + "\n")
    with pytest.raises(UserError) as raised:
        first_spec(tmp_path, "ill")
    assert (raised.value.code, '"holds": "file"' in str(raised.value)) == ("no-inputs", True)
