"""A mistake is an error with the command's sentence; a damaged directory is named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

import rankdad
from rankdad.common.errors import RankdadError
from tests.conftest import run_document
from tests.library.frames import RUN, SIMULATION, patients, simulated


def bad_frame(change: Callable[[pd.DataFrame], Any]) -> Callable[[Path], Any]:
    return lambda folder: simulated(data=change(patients(40, 0)))


def twice(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.set_axis(["patient", "age", "age", "sex", "ill"], axis=1)


def copied(folder: Path, **changes: str) -> Path:
    """A run's directory with another summary."""
    place = folder / "copied"
    place.mkdir()
    shutil.copy(folder / "run" / "run.json", place)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    (place / "summary.json").write_text(json.dumps(summary | changes))
    return place


BAD: dict[str, tuple[Callable[[Path], Any], type[RankdadError], str]] = {
    "method": (
        lambda folder: simulated(data=patients(40, 0), method="rankdad"),
        rankdad.SpecError,
        r"run.method: got 'rankdad', expected one of dsgd, dad, .*rank-dad.*fedavg.*converged",
    ),
    "method's field": (
        lambda folder: simulated(data=patients(40, 0), method={"name": "rank-dad", "ranks": 2}),
        rankdad.SpecError,
        r"run.method.ranks: is not known here: did you mean rank\?",
    ),
    "column": (bad_frame(lambda f: f.rename(columns={"chol": "cholesterol"})), rankdad.DataError, "has no column chol"),
    "label": (bad_frame(lambda f: f.assign(ill="maybe")), rankdad.DataError, "column ill: holds 'maybe'"),
    "empty": (bad_frame(lambda f: f[:0]), rankdad.DataError, "data: is empty, expected a row for each sample"),
    "no columns": (bad_frame(lambda f: f[[]]), rankdad.DataError, "data: is empty"),
    "twice": (bad_frame(twice), rankdad.DataError, "data: has two columns 'age': rename or remove one"),
    "index": (bad_frame(lambda f: f.set_index(f["age"])), rankdad.DataError, "data: has two columns 'age'"),
    "numbered": (
        bad_frame(lambda f: f.set_axis(range(5), axis=1)),
        rankdad.DataError,
        r"data: has a column 0 \(int\), expected text: frame.columns = frame.columns.astype\(str\)",
    ),
    "array": (bad_frame(lambda f: f.to_numpy()), rankdad.UserError, "data: got a ndarray, expected a DataFrame"),
    "site's array": (bad_frame(lambda f: {"alpha": [1]}), rankdad.UserError, "data: got a list for the site alpha"),
    "no site": (bad_frame(lambda f: {}), rankdad.UserError, "data: got no site"),
    "site's name": (bad_frame(lambda f: {"../up": f}), rankdad.SpecError, r"\.\./up"),
    "site's frame": (bad_frame(lambda f: {"a": f, "b": f[:0]}), rankdad.DataError, "data/b: is empty"),
    "place": (bad_frame(lambda f: "nowhere.csv"), rankdad.DataError, "^nowhere.csv: does not exist"),
    "few": (bad_frame(lambda f: f[:2]), rankdad.DataError, "is left without samples: 2 samples for 3 sites"),
    "reader": (
        lambda folder: rankdad.simulate(run_document(), data=patients(40, 0)),
        rankdad.UserError,
        "source: table does not fit data.reader npz",
    ),
    "sites": (lambda folder: simulated(data=patients(40, 0), sites=0), rankdad.SpecError, "sites: got 0, expected a"),
    "sites' name": (lambda folder: simulated(data=patients(40, 0), sites="a"), rankdad.SpecError, "sites: got 'a'"),
    "sites of a mapping": (
        lambda folder: simulated(data={"a": patients(40, 0)}, sites=2),
        rankdad.SpecError,
        "the source 'folders' has its own sites",
    ),
    "site without data": (
        lambda folder: simulated(data={"a": patients(40, 0)}, sites=["a", "b"]),
        rankdad.SpecError,
        "simulation.source.path: names a, expected the site b too",
    ),
    "no data": (
        lambda folder: rankdad.simulate(RUN),
        rankdad.SpecError,
        "simulation: is missing, and no data are given",
    ),
    "no federation": (
        lambda folder: rankdad.simulate({k: v for k, v in RUN.items() if k != "federation"}, data=patients(40, 0)),
        rankdad.SpecError,
        "^federation: is missing",
    ),
    "spec": (lambda folder: rankdad.simulate(3), rankdad.UserError, "spec: got an int, expected a file's path"),  # type: ignore[arg-type]
    "spec's file": (lambda folder: rankdad.simulate(folder / "no.json"), rankdad.UserError, "no.json: cannot be read"),
    "field": (
        lambda folder: rankdad.simulate(RUN | {"models": {}}, data=patients(40, 0)),
        rankdad.SpecError,
        r"^models: is not known here: did you mean model\?",
    ),
    "policy": (
        lambda folder: rankdad.simulate(RUN | {"method": {"name": "dad"}}, data=patients(90, 0)),
        rankdad.PolicyError,
        "^method.name: ",
    ),
    "taken": (
        lambda folder: simulated(data=patients(40, 0), output=folder / "run"),
        rankdad.UserError,
        "already has a run",
    ),
    "not finite": (
        lambda folder: rankdad.simulate(
            {
                "run": RUN | {"training": {"epochs": 1, "optimizer": {"name": "sgd", "lr": 1e38}}},
                "simulation": SIMULATION,
            },
            data=patients(90, 0),
        ),
        rankdad.RunFailedError,
        "holds NaN or infinity: lower the learning rate",
    ),
    "no run": (lambda folder: rankdad.load(folder), rankdad.UserError, "holds no run, expected the directory of"),
    "no directory": (lambda folder: rankdad.load(folder / "no"), rankdad.UserError, "holds no run"),
    "not finished": (
        lambda folder: rankdad.load(copied(folder, status="running")),
        rankdad.UserError,
        "its run has not been completed: running$",
    ),
    "failed": (
        lambda folder: rankdad.load(copied(folder, status="failed", reason="beta: its disk is full")),
        rankdad.UserError,
        "its run has not been completed: failed: beta: its disk is full",
    ),
    "a site's metrics": (
        lambda folder: rankdad.load(folder / "run" / "sites" / "beta").metrics,
        rankdad.UserError,
        "metrics.csv: only the run's directory",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_errors_with_the_commands_sentence(
    run: rankdad.Run, folder: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call, kind, said = BAD[case]
    shutil.rmtree(folder / "copied", ignore_errors=True)
    with pytest.raises(kind, match=said) as raised:
        call(folder)
    assert "\n" not in str(raised.value)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.drop(columns="age"), "has no column age"),
        (lambda f: f[:0], "data: is empty"),
        (twice, "data: has two columns 'age'"),
        (lambda f: f.assign(sex="x"), "no row can be used|holds 'x'"),
        (lambda f: "nowhere.csv", r"nowhere.csv\S*: does not exist"),
    ],
)
def test_so_are_mistakes_in_what_is_to_be_predicted(run: rankdad.Run, change: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(rankdad.UserError, match=said):
        run.predict(change(patients(10, 3)))


@pytest.mark.parametrize("damage", ["[]", '{"status": "completed", "metrics": 3}', '{"status": "completed"}'])
def test_a_damaged_summary_is_named(run: rankdad.Run, tmp_path: Path, damage: str) -> None:
    shutil.copytree(run.directory, tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text(damage)
    if damage == '{"status": "completed"}':
        assert "3 sites" in rankdad.load(tmp_path / "run")._repr_html_()
        return
    with pytest.raises(rankdad.UserError, match=r"summary.json: .*expected"):
        rankdad.load(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("run.json", rankdad.load),
        ("summary.json", rankdad.load),
        ("metrics.csv", lambda folder: rankdad.load(folder).metrics),
        ("steps.csv", lambda folder: rankdad.load(folder).report()),
        ("plan.json", lambda folder: rankdad.load(folder).report()),
        ("fold-1.csv", lambda folder: rankdad.load(folder).predictions),
        ("model/model.json", lambda folder: rankdad.load(folder).model),
        ("model/best.safetensors", lambda folder: rankdad.load(folder).model),
        ("model/preparation.safetensors", lambda folder: rankdad.load(folder).model),
    ],
)
def test_a_pipe_in_place_of_a_file_is_named_and_not_waited_for(
    run: rankdad.Run, tmp_path: Path, name: str, use: Callable[[Path], object]
) -> None:
    shutil.copytree(run.directory, tmp_path / "run")
    path = next((tmp_path / "run").rglob(name))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(rankdad.UserError, match=f"{name}: is not a file"):
        use(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda value: value.to(torch.complex64), "in torch.complex64, expected torch.float32"),
        (lambda value: value.to(torch.int8), "in torch.int8, expected torch.float32"),
        (lambda value: value / 0, "NaN or infinity in"),
    ],
)
def test_weights_of_other_numbers_than_the_networks_are_named(
    run: rankdad.Run, tmp_path: Path, change: Callable[[torch.Tensor], torch.Tensor], said: str
) -> None:
    shutil.copytree(run.directory, tmp_path / "run")
    path = tmp_path / "run" / "model" / "best.safetensors"
    save_file({name: change(value) for name, value in load_file(path).items()}, path)
    with pytest.raises(rankdad.DataError, match=f"best.safetensors: has .*{said}"):
        rankdad.load(tmp_path / "run").predict(patients(3, 4))


def test_a_model_without_its_preparation_predicts_nothing(run: rankdad.Run, tmp_path: Path) -> None:
    shutil.copytree(run.directory, tmp_path / "run")
    (tmp_path / "run" / "model" / "preparation.safetensors").unlink()
    with pytest.raises(rankdad.UserError, match=r"preparation.safetensors: does not hold fit/mean, which the run"):
        rankdad.load(tmp_path / "run").predict(patients(3, 4))
