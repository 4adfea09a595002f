"""TensorBoard and MLflow: read by their own readers, they have the figures of metrics.csv, each once."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import ViewType
from mlflow.tracking import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from rankdad.command import new_app
from rankdad.common.data import SiteData
from rankdad.common.errors import UserError
from rankdad.remote.tracking import EVENTS, trackers_of
from rankdad.simulations.cli import mount
from rankdad.simulations.lockstep import run
from tests.conftest import SITES, run_spec
from tests.e2e.test_crashes import wait_for_steps
from tests.e2e.test_processes import rankdad, simulation, start

BOTH: dict[str, Any] = {"tensorboard": True, "mlflow": True}
Values = dict[tuple[str, str], list[tuple[int, float]]]  # by training and key: epochs and values


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def in_tensorboard(directory: Path) -> Values:
    found: Values = {}
    for path in sorted((directory / "tensorboard").rglob(EVENTS)):
        read = EventAccumulator(str(path.parent), size_guidance={"scalars": 0})
        read.Reload()
        training = path.parent.relative_to(directory / "tensorboard").as_posix().removeprefix(".")
        for tag in read.Tags()["scalars"]:
            found[training, tag] = [(event.step, event.value) for event in read.Scalars(tag)]
    return found


def in_mlflow(uri: str) -> tuple[Values, dict[str, str], str]:
    client = MlflowClient(tracking_uri=uri)
    experiments = [one for one in client.search_experiments(view_type=ViewType.ALL) if one.name == "small"]
    (only,) = client.search_runs([one.experiment_id for one in experiments])
    found: Values = {}
    for key in only.data.metrics:
        first, _, rest = key.partition("/")
        training, name = (first, rest) if first.startswith(("fold", "final")) else ("", key)
        history = client.get_metric_history(only.info.run_id, key)
        found[training, name] = sorted((metric.step, metric.value) for metric in history)
    return found, dict(only.data.params), only.info.status


def in_table(directory: Path) -> Values:
    found: Values = {}
    for row in csv.DictReader((directory / "metrics.csv").read_text().splitlines()):
        training = f"fold-{row['fold']}-of-2" if "folds" in directory.name else ""
        for name, value in row.items():
            if value and name not in ("fold", "epoch", "split", "site", "samples", "auc_error", "candidate"):
                key = f"{'test/' * (row['split'] == 'test')}{name}/{row['site']}"
                found.setdefault((training, key), []).append((int(row["epoch"]), float(value)))
    return found


def check(found: Values, expected: Values, epochs: int) -> None:
    """Check that all figures are there, once each, and the traffic, which grows."""
    traffic = {key: values for key, values in found.items() if key[1].startswith(("traffic/", "seconds/"))}
    assert found.keys() - traffic.keys() == expected.keys()
    for key, values in expected.items():
        assert [epoch for epoch, _ in found[key]] == [epoch for epoch, _ in values], key
        assert [value for _, value in found[key]] == pytest.approx([value for _, value in values], rel=1e-6), key
    assert {name for _, name in traffic} == {"traffic/bytes_up", "traffic/bytes_down", "seconds/step"}
    for values in traffic.values():
        assert [epoch for epoch, _ in values] == list(range(1, epochs + 1))
    for (_, name), values in traffic.items():
        assert name == "seconds/step" or [value for _, value in values] == sorted({value for _, value in values})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "folds"])
def test_both_have_the_figures_of_the_run(
    site_data: Callable[..., dict[str, SiteData]], tmp_path: Path, name: str
) -> None:
    evaluation = {"name": "k-fold", "folds": 2, "refit": False} if name == "folds" else {"name": "holdout"}
    spec = run_spec(record=BOTH, evaluation=evaluation, training={"epochs": 3})
    directory = tmp_path / name
    run(spec, site_data(spec), directory)
    told, params, status = in_mlflow((directory / "mlflow").as_uri())
    check(in_tensorboard(directory), in_table(directory), 3)
    check(told, in_table(directory), 3)
    assert all(any(key == f"train_loss/{site}" for _, key in told) for site in SITES)
    assert (params["spec_sha256"], status) == (spec.sha256(), "FINISHED")
    (path, *_) = (directory / "tensorboard").rglob(EVENTS)
    read = EventAccumulator(str(path.parent))
    read.Reload()
    (text,) = read.Tensors("run")
    assert spec.sha256().encode() in text.tensor_proto.string_val[0]
    plain = run_spec(evaluation=evaluation, training={"epochs": 3})
    run(plain, site_data(plain), tmp_path / "plain")
    digests = [
        json.loads((at / "summary.json").read_text())["aggregator_sha256"] for at in (directory, tmp_path / "plain")
    ]
    assert digests[0] == digests[1]
    assert not {"tensorboard", "mlflow"} & {path.name for path in (tmp_path / "plain").iterdir()}


@pytest.mark.exhaustive
def test_an_aggregator_that_was_killed_writes_no_epoch_twice(tmp_path: Path) -> None:
    file = simulation(tmp_path, record=BOTH, training={"epochs": 60})
    process = start("simulate", file, "--output", tmp_path / "run", "--ledger", new_session=True)
    wait_for_steps(tmp_path / "run", 120)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = in_tensorboard(tmp_path / "run")["", "loss/pooled"]
    assert len(before) > 10, "it had written some"
    done = rankdad("simulate", "--resume", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    expected = in_table(tmp_path / "run")
    assert len(expected["", "loss/pooled"]) == 60
    check(in_tensorboard(tmp_path / "run"), expected, 60)
    told, _, status = in_mlflow((tmp_path / "run" / "mlflow").as_uri())
    check(told, expected, 60)
    assert status == "FINISHED"


@pytest.mark.slow
def test_only_the_operators_environment_says_where_mlflow_is(
    site_data: Callable[..., dict[str, SiteData]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "elsewhere").as_uri())
    spec = run_spec(record={"mlflow": True})
    run(spec, site_data(spec), tmp_path / "run")
    check(in_mlflow((tmp_path / "elsewhere").as_uri())[0], in_table(tmp_path / "run"), 2)
    assert not (tmp_path / "run" / "mlflow").exists()
    assert not (tmp_path / "run" / "tensorboard").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UserError, match=r"^MLFLOW_TRACKING_URI: MLflow cannot be reached: ") as refused:
        run(spec, site_data(spec), tmp_path / "other")
    assert "secret" not in str(refused.value)
    assert not (tmp_path / "other").exists()
    for wrong in ("http://evil.example", {"uri": "x"}):
        with pytest.raises(UserError, match=r"record\.mlflow"):
            run_spec(record={"mlflow": wrong})


def test_a_server_that_goes_away_holds_up_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tracker,) = trackers_of(run_spec(record={"mlflow": True}), tmp_path).values()
    tracker.begin("run-1", {"name": "small"}, None)
    (tmp_path / "mlflow").rename(tmp_path / "away")
    (tmp_path / "mlflow").write_text("")
    for epoch in range(1, 10):
        tracker.note("", epoch, {"auc/pooled": 0.5})
    tracker.close("completed")
    said = [record.getMessage() for record in caplog.records if record.name == "rankdad.remote.tracking"]
    assert [line.partition(": MLflow could not log an epoch")[2].split(":")[0] for line in said] == [
        "",
        "",
        "; giving up on it",
    ]


@pytest.mark.parametrize(("extra", "library"), [("tensorboard", "TensorBoard"), ("mlflow", "MLflow")])
@pytest.mark.parametrize("options", [(), ("--lockstep",)])
def test_a_missing_extra_is_one_sentence_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str, library: str, options: tuple[str, ...]
) -> None:
    for module in ("tensorboard", "mlflow"):
        monkeypatch.setitem(sys.modules, module, None)
    app = new_app("test")
    mount(app)
    file = simulation(tmp_path, record={extra: True})
    done = CliRunner().invoke(app, ["simulate", str(file), "--output", str(tmp_path / "run"), *options])
    assert isinstance(done.exception, UserError)
    said = f"record.{extra}: needs {library}, which is not installed: pip install 'rankdad[{extra}]'"
    assert str(done.exception) == said
    assert not list((tmp_path / "run").rglob("*.csv"))


def test_a_spec_without_them_has_another_digest() -> None:
    assert run_spec(record={"tensorboard": False, "mlflow": False}).sha256() == run_spec().sha256()
    assert len({run_spec(record={name: True}).sha256() for name in BOTH} | {run_spec().sha256()}) == 3
