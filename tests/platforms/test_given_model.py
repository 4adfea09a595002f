"""A model of an earlier run: to begin with, or to be tested as it is; figures are those of scikit-learn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file
from sklearn.metrics import balanced_accuracy_score, mean_absolute_error, r2_score, roc_auc_score

from rankdad.platforms.coinstac.fields import GIVEN, TEST
from rankdad.platforms.coinstac.form import FormError
from rankdad.platforms.coinstac.given_model import FILES
from tests.platforms.conftest import stand_in
from tests.platforms.nodes import REMOTE, Iterations
from tests.platforms.test_members import hospitals, table, write
from tests.platforms.test_nodes import always, never

CLIENTS = ("c1", "b2", "a3")
NUMBER: dict[str, Any] = {"task": "regression", "label": "dose", "features": "age", "network": "linear"}
CLASSES: dict[str, Any] = {"categorical": "sex", "network": "mlp-8", "learning_rate": 0.02}
CLASSES |= {"epochs": 4, "rank": 1}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the runs that trained a model of classes and one of a number."""
    found = {}
    for name, form in (("classes", CLASSES), ("number", NUMBER)):
        folder = found[name] = tmp_path_factory.mktemp(name)
        inputs = hospitals(folder, **form)
        gaps(folder)
        with pytest.MonkeyPatch.context() as patch:
            stand_in(patch)
            Iterations(folder, inputs).go()
    return found


def gaps(folder: Path) -> None:
    """Leave some cells of every table empty."""
    for client in CLIENTS:
        own = table(folder, client)
        own.loc[own.index[::9], "age"] = np.nan
        own.loc[own.index[4], "group"] = np.nan
        write(folder, client, own)


def with_model(folder: Path, earlier: Path, start: str, **form: Any) -> dict[str, dict[str, Any]]:
    """Members who choose the model of an earlier run beside their tables."""
    inputs = hospitals(folder, start=start, **form)
    gaps(folder)
    for client, given in inputs.items():
        for name in FILES:
            shutil.copy(earlier / client / "output" / "model" / name, folder / client / "base")
        given["files"] += FILES
    return inputs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classes", "number"])
@pytest.mark.parametrize("fresh", [False, True], ids=["living", "a fresh process each time"])
def test_a_test_alone_trains_nothing_and_has_the_right_figures(
    tmp_path: Path, models: dict[str, Path], name: str, fresh: bool
) -> None:
    form, new = {"classes": CLASSES, "number": NUMBER}[name], tmp_path / "new"
    inputs = with_model(new, models[name], TEST, **form)
    own = table(new, "b2")  # rows that the model has not seen, of another kind
    write(new, "b2", own.assign(age=own["age"].astype(float) + 1))
    run = Iterations(new, inputs, always if fresh else never)
    shown = run.go(5)
    assert len(run.outputs) == 2
    label = str(form.get("label", "group"))
    each = []
    for client in CLIENTS:
        found = pd.read_csv(new / client / "output" / "predictions" / "test.csv")
        known = table(new, client)[label].dropna()
        assert found["label"].astype(str).tolist() == known.astype(type(found["label"][0])).astype(str).tolist()
        each.append(found)
        row, figures = shown["site_metrics"][client], reference(found, form)
        for metric, value in figures.items():
            assert row[metric] == pytest.approx(value, abs=5e-3 if metric == "auc" else 1e-6)
        assert row["samples"] == len(known)
        assert (new / client / "output" / "index.html").exists()
        assert "Test of" in (new / client / "output" / "report.html").read_text()
    together = shown["global_metrics"]
    for metric, value in reference(pd.concat(each), form).items():  # an AUC is a histogram's, and says how exact
        assert together[metric] == pytest.approx(value, abs=together["auc_error"] if metric == "auc" else 1e-6)
    assert together.get("auc_error", 0) < 0.05
    assert all(client in shown["warnings"]["1"] for client in CLIENTS), "they had a part in its training"


def reference(found: pd.DataFrame, form: dict[str, Any]) -> dict[str, float]:
    """Return metrics of predictions by scikit-learn."""
    truth, predicted = found["label"], found["predicted"]
    if form is NUMBER:
        return {"mae": mean_absolute_error(truth, predicted), "r2": r2_score(truth, predicted)}
    return {
        "auc": roc_auc_score(truth == "Case", found["probability_Case"]),
        "balanced_accuracy": balanced_accuracy_score(truth, predicted),
    }


@pytest.mark.exhaustive
def test_a_run_begins_with_the_weights_of_an_earlier_one(tmp_path: Path, models: dict[str, Path]) -> None:
    earlier = models["classes"]
    inputs = with_model(tmp_path / "new", earlier, GIVEN, **CLASSES | {"learning_rate": 1e-7})
    run = Iterations(tmp_path / "new", inputs, lambda iteration, node: iteration % 3 == 0)
    run.go()
    before = load_file(earlier / "c1" / "output" / "model" / "best.safetensors")
    for client in CLIENTS:
        after = load_file(tmp_path / "new" / client / "output" / "model" / "final.safetensors")
        for name, value in before.items():
            assert float((after[name] - value).abs().max()) < 1e-5, "with such a rate they stay where they began"
    other = json.loads((tmp_path / "new" / REMOTE / "output" / "run" / "run.json").read_text())
    assert other["model"]["pretrained"]["file"] == "best.safetensors"


def other_weights(folder: Path) -> None:
    """One member has a model of its own."""
    path = folder / "b2" / "base" / "model.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"run": document["run"] | {"seed": 7}}))


def no_model(folder: Path) -> None:
    for name in FILES:
        (folder / "a3" / "base" / name).unlink()


@pytest.mark.slow
@pytest.mark.parametrize("start", [TEST, GIVEN])
@pytest.mark.parametrize(
    ("form", "change", "code"),
    [
        ({}, other_weights, "models-differ"),
        ({"features": "age"}, lambda folder: None, "model-of-another-run"),
        ({"label": "sex", "categorical": ""}, lambda folder: None, "model-of-another-run"),
        ({"network": "linear"}, lambda folder: None, "model-of-another-run"),
    ],
)
def test_a_model_that_does_not_suit_is_refused(
    tmp_path: Path,
    models: dict[str, Path],
    form: dict[str, Any],
    change: Callable[[Path], object],
    code: str,
    start: str,
) -> None:
    inputs = with_model(tmp_path / "new", models["classes"], start, **{k: v for k, v in (CLASSES | form).items() if v})
    change(tmp_path / "new")
    if start == TEST and "label" not in form and code == "model-of-another-run":
        Iterations(tmp_path / "new", inputs).go(5)  # inputs and network are the model's own
        return
    with pytest.raises(FormError) as raised:
        Iterations(tmp_path / "new", inputs).go(5)
    assert (raised.value.code, raised.value.field) == (code, "start")


@pytest.mark.parametrize("start", [TEST, GIVEN])
def test_a_member_without_the_model_is_named(tmp_path: Path, start: str) -> None:
    inputs = hospitals(tmp_path, start=start)
    with pytest.raises(FormError) as raised:
        Iterations(tmp_path, inputs).go(5)
    assert (raised.value.code, raised.value.field) == ("model-missing", "files")
    assert all(f"{client}: " in str(raised.value) for client in CLIENTS)


@pytest.mark.slow
def test_files_that_are_no_model_are_refused_in_a_sentence(tmp_path: Path, models: dict[str, Path]) -> None:
    earlier = models["classes"]
    for start in (TEST, GIVEN):
        for name, content in (("model.json", b"{"), ("best.safetensors", b"x"), ("preparation.safetensors", b"x")):
            folder = tmp_path / f"{name}-{start == TEST}"
            inputs = with_model(folder, earlier, start, **CLASSES)
            (folder / "b2" / "base" / name).write_bytes(content)
            with pytest.raises(FormError) as raised:
                Iterations(folder, inputs).go(5)
            assert "b2: " in str(raised.value) or raised.value.code == "models-differ"


@pytest.mark.slow
def test_a_small_table_is_not_tested(tmp_path: Path, models: dict[str, Path]) -> None:
    earlier = models["classes"]
    inputs = with_model(tmp_path / "new", earlier, TEST, **CLASSES)
    write(tmp_path / "new", "b2", table(tmp_path / "new", "b2").head(7))
    with pytest.raises(FormError) as raised:
        Iterations(tmp_path / "new", inputs).go(5)
    assert (raised.value.code, raised.value.field) == ("few-samples", "min_rows")
