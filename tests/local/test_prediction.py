"""`rankdad predict`: what stands beside predictions, which rows are refused, which weights it takes, its warnings."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner, Result

from rankdad.common.documents import validate
from rankdad.common.errors import PARTLY, DataError, UserError
from rankdad.common.run.checkpoints import Checkpoints
from rankdad.common.run.saved import saved_model
from rankdad.common.run.standalone import save_torch
from rankdad.local.cli import mount
from rankdad.local.trained_rows import FILE
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.cli import mount as mount_remote
from rankdad.simulations.lockstep import run as run_lockstep
from rankdad.simulations.lockstep import simulate
from rankdad.simulations.spec import SimulationFile
from tests.conftest import OPEN, run_document, run_spec, written_data

SCHEMA = {
    "reader": "csv",
    "file": "heart.csv",
    "features": ["age", "sex", "visit", "chol"],
    "categorical": {"sex": ["m", "w"]},
    "dates": {"visit": {"since": "2020-01-01", "unit": "days"}},
    "log": ["chol"],
    "group": "patient",
    "label": "ill",
    "values": ["no", "yes"],
    "missing": "drop",
}


def patients(count: int, seed: int) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    age = generator.integers(30, 80, count)
    return pd.DataFrame(
        {
            "patient": [f"P{seed}-{number}" for number in range(count)],
            "ward": generator.choice(["A", "B"], count),
            "age": age,
            "sex": generator.choice(["m", "w"], count),
            "visit": pd.date_range("2020-01-01", periods=count).strftime("%d.%m.%Y"),
            "chol": generator.integers(150, 300, count),
            "ill": np.where(age + generator.normal(0, 5, count) > 55, "yes", "no"),
        }
    )


def trained(folder: Path, table: Callable[[int], pd.DataFrame], data: dict[str, Any], **changes: Any) -> Path:
    """Simulate a run of two hospitals with tables of these seeds; return its directory."""
    for seed, site in enumerate(("alpha", "beta")):
        (folder / "data" / site).mkdir(parents=True)
        table(seed).to_csv(folder / "data" / site / "heart.csv", index=False)
    run = run_document(
        task={"name": "classification", "classes": 2}, data=data, federation={"sites": ["alpha", "beta"]}, **changes
    )
    simulation = {
        "source": {"name": "folders", "path": str(folder / "data")},
        "partition": {"name": "folder"},
        "policy": OPEN,
    }
    simulate(validate(SimulationFile, {"run": run, "simulation": simulation}), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two hospitals, in `run`, and their folders."""
    folder = tmp_path_factory.mktemp("hospitals")
    settings = {"training": {"epochs": 12, "batch_size": 48, "optimizer": {"name": "adam", "lr": 0.3}}}
    standardised = {"preparation": {"standardise": "federated"}}
    trained(folder, lambda seed: patients(60, seed), SCHEMA, model={"name": "linear"}, **standardised, **settings)
    return folder


def predict(model: Path, data: Path, *options: str) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    mount(app)
    return CliRunner().invoke(
        app, ["predict", str(model), str(data), "--output", str(data.parent / "out.csv"), *options]
    )


def predicted(data: Path) -> pd.DataFrame:
    return pd.read_csv(data.parent / "out.csv", dtype=str, keep_default_na=False)


def written(folder: Path, table: pd.DataFrame) -> Path:
    table.to_csv(folder / "new.csv", index=False)
    return folder / "new.csv"


@pytest.mark.slow
def test_predictions_stand_beside_ids_and_what_is_kept(hospitals: Path, tmp_path: Path) -> None:
    new = patients(20, 9)
    data = written(tmp_path, new.drop(columns="ill"))
    done = predict(hospitals / "run", data, "--keep", "ward", "--keep", "age")
    assert done.exit_code == 0, done.output
    found = predicted(data)
    assert list(found) == ["row", "patient", "ward", "age", "predicted", "probability_no", "probability_yes", "outside"]
    assert found["patient"].tolist() == new["patient"].tolist()
    assert found["ward"].tolist() == new["ward"].tolist()
    assert found["row"].tolist() == [str(row) for row in range(2, 22)]
    assert (found["predicted"] == new["ill"]).mean() > 0.7
    assert f"weights: {hospitals}/run/model/best.safetensors" in done.output
    failed = predict(hospitals / "run", data, "--keep", "wart").exception
    assert "has no column wart; did you mean ward?" in str(failed)


@pytest.mark.slow
def test_new_patients_need_no_name(tmp_path: Path) -> None:
    """A model that was trained on patients with a key predicts for a table without it."""
    schema = SCHEMA | {"key": "patient", "group": None}
    trained(tmp_path, lambda seed: patients(40, seed), schema, model={"name": "linear"}, training={"epochs": 1})
    named = patients(20, 9).drop(columns="ill")
    found = list[pd.DataFrame]()
    for table in (named, named.drop(columns="patient")):
        data = written(tmp_path, table)
        assert predict(tmp_path / "run", data).exit_code == 0
        found.append(predicted(data))
    assert [one.columns[0] for one in found] == ["patient", "row"]
    assert found[1]["row"].tolist() == [str(row) for row in range(2, 22)]
    assert found[0].drop(columns="patient").equals(found[1].drop(columns="row"))


@pytest.mark.slow
def test_of_what_was_the_same_in_all_rows_a_model_has_learned_nothing(tmp_path: Path) -> None:
    """Its weight is the one it began with: predictions moved by that, and nothing was said."""
    schema = SCHEMA | {"features": ["age", "sex", "chol", "dial"], "dates": {}}
    network = {"name": "mlp", "hidden": [8]}
    settings = {"preparation": {"standardise": "federated"}, "training": {"epochs": 2}}
    trained(tmp_path, lambda seed: patients(60, seed).assign(dial=0.0, sex="m"), schema, model=network, **settings)
    new = patients(20, 9).drop(columns="ill").assign(dial=0.0, sex="m")
    found = list[pd.DataFrame]()
    for table in (new, new.assign(dial=1.0, sex="w")):
        data = written(tmp_path, table)
        done = predict(tmp_path / "run", data)
        assert done.exit_code == 0
        found.append(predicted(data))
    usual, other = found
    assert usual["probability_yes"].equals(other["probability_yes"])
    assert (set(usual["outside"]), set(other["outside"])) == ({""}, {"sex; dial"})
    for column in ("sex", "dial"):
        assert f"column {column}: 20 of 20 values do not occur in training" in done.output


@pytest.mark.slow
def test_single_rows_are_refused_with_a_reason_and_the_others_predicted(hospitals: Path, tmp_path: Path) -> None:
    whole = patients(12, 9)
    spoiled = whole.astype(object)
    for row, column, cell in (
        (1, "age", "abc"),
        (3, "sex", "x"),
        (4, "visit", "31.2.2020"),
        (5, "chol", "0"),
        (7, "age", ""),
        (8, "ill", "maybe"),
    ):
        spoiled.loc[row, column] = cell
    data = written(tmp_path, spoiled)
    done = predict(hospitals / "run", data)
    assert done.exit_code == PARTLY, done.output
    assert "5 of 12 rows refused" in done.output
    assert "1 of 12 labels are not used" in done.output
    assert "6 samples: AUC" in done.output
    found = predicted(data)
    reasons = {row: reason for row, reason in enumerate(found["refused"]) if reason}
    assert list(reasons) == [1, 3, 4, 5, 7]
    columns = [reason.partition(": ")[0] for reason in reasons.values()]
    assert columns == [
        f"row {row}, column {name}" for row, name in ((3, "age"), (5, "sex"), (6, "visit"), (7, "chol"), (9, "age"))
    ]
    assert (found["predicted"] == "").tolist() == [row in reasons for row in range(12)]
    assert (found["label"] == "").tolist() == [row in (*reasons, 8) for row in range(12)]
    assert found["patient"].tolist() == whole["patient"].tolist()

    predict(hospitals / "run", written(tmp_path, whole))
    others = [row for row in range(12) if row not in reasons]
    assert found.loc[others, "probability_yes"].tolist() == predicted(data).loc[others, "probability_yes"].tolist()


@pytest.mark.slow
def test_values_far_from_those_of_training_are_counted_by_column(hospitals: Path, tmp_path: Path) -> None:
    new = patients(20, 9)
    new["age"] *= 10
    new.loc[:2, "visit"] = "01.01.1990"
    done = predict(hospitals / "run", written(tmp_path, new))
    far = re.findall(r"column (\w+): (\d+) of 20 values lie", done.output)
    assert far == [("age", "20"), ("visit", "3")]
    assert predicted(tmp_path / "new.csv")["outside"].tolist() == ["age; visit"] * 3 + ["age"] * 17
    assert "standard deviations" not in predict(hospitals / "run", written(tmp_path, patients(20, 9))).output


@pytest.mark.slow
def test_rows_that_were_trained_on_are_told(hospitals: Path, tmp_path: Path) -> None:
    own = hospitals / "data" / "alpha" / "heart.csv"
    trained = len(np.load(hospitals / "run" / "sites" / "alpha" / FILE))
    assert 40 < trained < 60
    data = written(tmp_path, pd.concat([pd.read_csv(own), patients(5, 9)]))
    for model in (
        hospitals / "run",
        hospitals / "run" / "sites" / "alpha",
        hospitals / "run" / "sites" / "alpha" / "model",
    ):
        said = predict(model, data).output
        assert f"warning: {trained} of 65 rows were used in training" in said
    assert "used in training" not in predict(hospitals / "run" / "sites" / "beta", data).output
    assert "used in training" not in predict(hospitals / "run", written(tmp_path, patients(5, 9))).output


@pytest.mark.slow
def test_whatever_weights_there_are_are_taken_and_named(hospitals: Path, tmp_path: Path) -> None:
    run, data = hospitals / "run", written(tmp_path, patients(9, 9))
    save_torch(saved_model(run, "best"), tmp_path / "model.pt2")
    exported = tmp_path / "exported" / "model"
    exported.mkdir(parents=True)
    for name in ("final.safetensors", "model.json", "preparation.safetensors"):
        (exported / name).write_bytes((run / "model" / name).read_bytes())
    scores: dict[str, list[str]] = {}
    for model, said in (
        (run, "model/best.safetensors"),
        (run / "model" / "best.safetensors", "model/best.safetensors"),
        (run / "sites" / "alpha", "alpha/model/best.safetensors"),
        (tmp_path / "model.pt2", "model.pt2"),
        (run / "model" / "final.safetensors", "model/final.safetensors"),
        (tmp_path / "exported", "model/final.safetensors, since there are no best ones"),
    ):
        done = predict(model, data)
        assert done.exit_code == 0, done.exception
        assert f"{said}\n" in done.output
        scores[str(model)] = predicted(data)["probability_yes"].tolist()
    found = list(scores.values())
    assert found[:4] == [found[0]] * 4
    assert found[4] == found[5]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.onnx", b"", "is for other programs"),
        ("model.pt2", b"PK\x03\x04", "is no file of `rankdad export --torch`"),
        ("weights.bin", b"", "holds no weights that can be predicted with; expected a run's or a site's directory"),
        ("000000000001-0000000000000000.safetensors", b"x" * 64, "is no checkpoint with a model"),
        ("folder/x", b"", "holds no trained model; expected a run's"),
    ],
)
def test_what_holds_no_weights_is_told(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    failed = predict(path.parent if path.parent != tmp_path else path, written(tmp_path, patients(2, 0))).exception
    assert said in str(failed)


@pytest.mark.slow
def test_a_run_that_was_cut_short_predicts_from_its_checkpoint(tmp_path: Path) -> None:
    spec = run_spec(data={"shape": [6]}, preparation={"standardise": "federated"})
    data: Any = written_data(tmp_path / "data", spec)

    def keep(aggregator: Aggregator) -> None:
        if aggregator.state.between_steps and aggregator.state.steps == 3:
            Checkpoints(tmp_path / "run" / "checkpoints", aggregator.plan, "aggregator").save(aggregator.state, {})

    run_lockstep(spec, data, tmp_path / "run", on_round=keep)
    file = tmp_path / "data" / "alpha" / "data.npz"
    (tmp_path / "run" / "model").rename(tmp_path / "gone")
    done = predict(tmp_path / "run", file)
    assert done.exit_code == 0, done.exception
    assert "checkpoints/" in done.output
    assert "the last weights after step 3" in done.output
    assert np.allclose(
        predicted(file)[[f"probability_{place}" for place in range(3)]].astype(float).sum(axis=1), 1, atol=1e-4
    )
    assert json.loads((tmp_path / "run" / "run.json").read_text())["name"] == spec.name


def test_a_table_of_which_no_row_can_be_predicted_is_an_error(hospitals: Path, tmp_path: Path) -> None:
    for table in (patients(20, 9)[:0], patients(3, 9).assign(age="old")):
        failed = predict(hospitals / "run", written(tmp_path, table)).exception
        assert isinstance(failed, UserError)
        assert "new.csv: " in str(failed)


def test_names_that_begin_like_formulas_are_written_as_text(hospitals: Path, tmp_path: Path) -> None:
    new = patients(6, 9)
    new["ward"] = ["=cmd|'/C calc'!A0", "@SUM(A1)", "+1 b", "-x", "-5", "A"]
    new.loc[0, "patient"] = "=1+1"
    data = written(tmp_path, new.rename(columns={"ward": "=ward"}))
    assert predict(hospitals / "run", data, "--keep", "=ward").exit_code == 0
    found = predicted(data)
    assert found["'=ward"].tolist() == ["'=cmd|'/C calc'!A0", "'@SUM(A1)", "'+1 b", "'-x", "-5", "A"]
    assert found["patient"].tolist() == ["'=1+1", *new["patient"][1:]]


def test_predictions_do_not_overwrite_the_data(hospitals: Path, tmp_path: Path) -> None:
    data = written(tmp_path, patients(6, 9))
    before = data.read_bytes()
    done = predict(hospitals / "run", data, "--output", str(tmp_path / "." / "new.csv"))
    assert "--output: " in str(done.exception)
    assert "is the data file and would be overwritten" in str(done.exception)
    assert data.read_bytes() == before


@pytest.mark.slow
def test_a_damaged_torch_file_is_named(hospitals: Path, tmp_path: Path) -> None:
    """Strides beyond the numbers, a bomb, a member that is said to be encrypted, a broken stream."""
    path, listed = tmp_path / "model.pt2", "model/data/weights/model_weights_config.json"
    save_torch(saved_model(hospitals / "run", "best"), path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    strides = json.loads(members[listed])
    strides["config"]["network.1.weight"]["tensor_meta"]["strides"] = [{"as_int": 1000}, {"as_int": 1}]
    bomb = {"model/data/weights/weight_0": bytes(1 << 20)}
    for changed, packed in (({listed: json.dumps(strides)}, zipfile.ZIP_STORED), (bomb, zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(path, "w", packed) as archive:
            for name, content in (members | changed).items():
                archive.writestr(name, content)
        with pytest.raises(DataError, match="is no file of `rankdad export --torch`"):
            saved_model(path, "best")
    sound = path.read_bytes()
    for place, value in ((8, 1), (10, 99)):  # of a member's entry: flags, compression
        broken = bytearray(sound)
        for found in re.finditer(b"PK\x01\x02", sound):
            broken[found.start() + place] = value
        path.write_bytes(broken)
        with pytest.raises(DataError, match="is no file of `rankdad export --torch`"):
            saved_model(path, "best")


@pytest.mark.slow
def test_what_export_has_written_is_predicted_from(hospitals: Path, tmp_path: Path) -> None:
    app = typer.Typer()
    mount_remote(app)
    run, exported = hospitals / "run", tmp_path / "exported"
    words = ["export", str(run), "--output", str(exported), "--torch"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    assert f"{exported}/model.pt2: {run}/model/best.safetensors, and what prepares its inputs" in done.output
    data = written(tmp_path, patients(9, 9))
    scores = []
    for model in (run, exported / "model.pt2"):
        assert predict(model, data).exit_code == 0
        scores.append(predicted(data)["probability_yes"].tolist())
    assert scores[0] == scores[1]
