"""`import rankdad`: runs, figures and predictions are those of the commands, and the caller's process is left alone."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import rankdad
from rankdad.common.spec.method import named_method
from rankdad.given import Data, given_simulation
from rankdad.simulations.site_folders import partitioned_data
from tests.conftest import OPEN, run_document, write_site
from tests.library.frames import RUN, SCHEMA, SIMULATION, command, patients, simulated

ROOT = Path(__file__).parent.parent.parent


def digest(run: rankdad.Run) -> str:
    (one,) = set(run.summary["weights_sha256"].values())
    return str(one)


@pytest.mark.slow
def test_weights_and_figures_are_those_of_the_command(run: rankdad.Run, frame: pd.DataFrame, folder: Path) -> None:
    frame.to_csv(folder / "heart.csv", index=False)
    source = {"name": "table", "path": str(folder / "heart.csv")}
    (folder / "run.json").write_text(json.dumps({"run": RUN, "simulation": SIMULATION | {"source": source}}))
    done = command("simulate", folder / "run.json", "--lockstep", "--output", folder / "command", "--json")
    assert done.exit_code == 0, done.exception
    summary = json.loads((folder / "command" / "summary.json").read_text())
    assert run.summary["weights_sha256"] == summary["weights_sha256"]
    assert run.summary["metrics"] == summary["metrics"]
    for name in ("metrics.csv", "sites.csv"):
        assert (run.directory / name).read_bytes() == (folder / "command" / name).read_bytes()
    again = rankdad.load(folder / "command")
    pd.testing.assert_frame_equal(again.metrics, run.metrics)
    pd.testing.assert_frame_equal(again.predictions, run.predictions)
    assert run.spec == rankdad.RunSpec.read(folder / "run.json")


@pytest.mark.slow
def test_figures_come_as_documented(run: rankdad.Run) -> None:
    with (run.directory / "metrics.csv").open() as file:
        assert list(run.metrics) == file.readline().strip().split(",")
    assert run.metrics["site"].unique().tolist() == ["pooled", "alpha", "beta", "gamma"]
    assert run.sites["site"].tolist() == ["alpha", "beta", "gamma"]
    assert run.metrics["auc"].dtype == float
    columns = ["site", "fold", "row", "patient", "label", "predicted", "probability_0", "probability_1"]
    assert list(run.predictions) == columns
    assert run.predictions["predicted"].dtype == run.predictions["label"].dtype == np.int64
    accuracy = (run.predictions["predicted"] == run.predictions["label"]).mean()
    assert accuracy == pytest.approx(run.summary["metrics"]["test"]["accuracy"])
    page = run._repr_html_()
    assert f"{accuracy:.4f}" in page
    assert "small: rank-dad, 3 sites, test AUC" in repr(run)
    path = run.report()
    assert path == run.directory / "report.html"
    assert path.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.slow
@pytest.mark.parametrize("key", [None, "patient"])
def test_predictions_are_those_of_the_command_and_stand_in_the_frames_rows(
    run: rankdad.Run, folder: Path, tmp_path: Path, key: str | None
) -> None:
    new = patients(30, 1).set_axis([f"row {number}" for number in range(30)])
    new.loc["row 3", "age"] = np.nan  # imputed
    new["sex"] = new["sex"].astype(object)
    new.loc["row 5", "sex"] = "x"  # refused
    new["ill"] = new["ill"].astype(object)
    new.loc["row 7", "ill"] = None  # of which nobody knows the label
    blank = pd.DataFrame([[None] * 5], ["blank"], new.columns)
    new = pd.concat([new[:4], blank, new[4:]])  # passed over, as in a file
    path = tmp_path / "new.csv"
    new.to_csv(path, index=False)
    if key is not None:
        shutil.copytree(run.directory / "model", tmp_path / "keyed" / "model")
        model = tmp_path / "keyed" / "model" / "model.json"
        document = json.loads(model.read_text())
        document["run"]["data"] |= {"key": key, "group": None}
        model.write_text(json.dumps(document))
        run = rankdad.load(tmp_path / "keyed")
    done = command("predict", run.directory, path, "--output", tmp_path / "out.csv", "--keep", "chol")
    assert done.exit_code == 3, done.exception
    written = (tmp_path / "out.csv").read_text()

    from_file = run.predict(path, keep=["chol"])
    assert from_file.to_csv(index=False, float_format="%.6g") == written
    found = run.predict(new, keep=["chol"])
    assert found.index.tolist() == [name for name in new.index if name != "blank"]
    without = from_file if key else from_file.drop(columns="row")
    assert found.to_csv(index=False, float_format="%.6g") == without.to_csv(index=False, float_format="%.6g")
    assert "holds 'x'" in str(found.loc["row 5", "refused"])
    assert found["refused"].ne("").sum() == 1
    assert found["probability_1"].isna().sum() == 1
    assert pd.isna(found["label"]["row 7"])


@pytest.mark.slow
def test_the_model_takes_raw_rows(run: rankdad.Run, caplog: pytest.LogCaptureFixture) -> None:
    new = patients(12, 2).drop(columns="ill")
    rows = run.inputs(new)
    assert rows.dtype == torch.float32
    assert rows[:, 0].tolist() == new["age"].tolist()
    assert rows[:, 1].isnan().tolist() == new["chol"].isna().tolist()
    assert isinstance(run.model, torch.nn.Module)
    assert not run.model.training
    expected = run.predict(new)[["probability_0", "probability_1"]].to_numpy()
    np.testing.assert_allclose(run.model(rows).detach().numpy(), expected, rtol=1e-6)
    new["sex"] = ["m", "x"] * 6
    with pytest.raises(rankdad.DataError, match="row 3, column sex: holds 'x'"):
        run.inputs(new)
    caplog.clear()
    run.predict(patients(120, 0).assign(age=900))
    assert "120 of 120 values lie more than 4 standard deviations" in caplog.text


def test_every_kind_of_spec_is_the_same_run(frame: pd.DataFrame, tmp_path: Path) -> None:
    whole = {"run": RUN, "simulation": SIMULATION | {"source": {"name": "digits"}}}
    for name, document in (("whole.json", whole), ("alone.json", RUN)):
        (tmp_path / name).write_text(json.dumps(document))
    parsed = rankdad.RunSpec.model_validate(RUN)
    odd = {**RUN, "seed": np.int64(0), "federation": {"sites": ("alpha", "beta", "gamma")}}
    specs: list[Any] = [whole, RUN, parsed, odd, str(tmp_path / "whole.json"), tmp_path / "alone.json"]
    before = json.dumps(RUN)
    digests = {given_simulation(spec, tmp_path, data=frame, method=None).run.sha256() for spec in specs}
    assert digests == {parsed.sha256()}
    assert json.dumps(RUN) == before
    named = given_simulation(RUN, tmp_path, data=frame, sites=["x", "y"], method="converged").run
    assert named.federation.sites == ("x", "y")
    assert (named.method.name, getattr(named.method, "reducer", "")) == ("rank-dad", "spi")
    without = {name: value for name, value in RUN.items() if name != "federation"}
    assert given_simulation(without, tmp_path, data=frame, sites=2).run.federation.sites == ("site-01", "site-02")


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("dsgd", {"name": "dsgd"}),
        ("rank-dad", {"name": "rank-dad", "rank": 7, "wire": "int8"}),
        ("powersgd", {"name": "powersgd", "rank": 7}),
        ("fedavg", {"name": "dsgd", "preset": "fedavg"}),
        ("converged", {"name": "rank-dad", "rank": 7, "preset": "converged"}),
        ("sparseloco", {"name": "top-k", "preset": "sparseloco"}),
        ({"name": "dad"}, {"name": "dad"}),
    ],
)
def test_a_method_has_a_name_or_that_of_a_preset(method: str | dict[str, Any], expected: dict[str, Any]) -> None:
    own = {"name": "rank-dad", "rank": 7, "wire": "int8"}
    assert named_method(method, own) == expected
    rankdad.RunSpec.model_validate(RUN | {"method": named_method(method)})


@pytest.mark.slow
def test_every_kind_of_data_is_the_same_samples(frame: pd.DataFrame, tmp_path: Path) -> None:
    parts = dict(zip(("alpha", "beta", "gamma"), (frame[:50], frame[50:80], frame[80:]), strict=True))
    for site, part in parts.items():
        (tmp_path / "sites" / site).mkdir(parents=True)
        part.to_csv(tmp_path / "sites" / site / "heart.csv", index=False)
    frame.to_csv(tmp_path / "one.csv", index=False)
    folders: dict[str, Data] = {
        "folder": tmp_path / "sites",
        "frames": dict(parts),
        "folders": {site: tmp_path / "sites" / site for site in reversed(parts)},
        "files and frames": {**parts, "beta": str(tmp_path / "sites" / "beta" / "heart.csv")},
        "index": {site: part.set_index("patient") for site, part in parts.items()},
    }
    tables: dict[str, Data] = {"frame": frame, "table": str(tmp_path / "one.csv")}
    for kinds in (folders, tables):
        digests = set()
        for kind, data in kinds.items():
            place = tmp_path / "runs" / kind
            dealt = partitioned_data(given_simulation(RUN, place, data=data), place)
            digests.add(tuple(own.sha256() for own in dealt.values()))
        assert len(digests) == 1
    without = {name: value for name, value in RUN.items() if name != "federation"}
    assert given_simulation(without, tmp_path, data=tmp_path / "sites").run.federation.sites == tuple(parts)
    two = given_simulation(RUN, tmp_path, data={"x": frame, "y": frame})
    assert two.run.federation.sites == ("x", "y")
    pool = write_site(tmp_path / "pool", 90, 0) / "data.npz"
    assert len(partitioned_data(given_simulation(run_document(), tmp_path / "npz", data=pool), tmp_path / "npz")) == 3


@pytest.mark.slow
def test_a_frame_is_written_as_the_schema_reads(frame: pd.DataFrame, tmp_path: Path) -> None:
    """Decimal commas, gaps of any kind, text that looks like numbers, numbers that look like thousands."""
    rows = frame.assign(
        chol=pd.array([None, 1.234, *frame["age"][2:].tolist()], dtype="Float64"),
        patient=[f"{number:04}" for number in range(len(frame))],
    )
    digests = set()
    for number, written in enumerate(({}, {"delimiter": ";", "decimal": ","}, {"delimiter": "\t", "decimal": "."})):
        document = RUN | {"data": SCHEMA | written}
        dealt = partitioned_data(given_simulation(document, tmp_path / str(number), data=rows), tmp_path / str(number))
        digests.add(tuple(own.sha256() for own in dealt.values()))
    assert len(digests) == 1


@pytest.mark.slow
def test_a_running_loop_a_thread_and_strange_settings_change_neither_the_weights_nor_the_process(
    run: rankdad.Run, frame: pd.DataFrame
) -> None:
    root, handlers, level = logging.getLogger(), list(logging.getLogger().handlers), logging.getLogger().level
    ours = logging.getLogger("rankdad")
    threads, before = threading.active_count(), (list(ours.handlers), ours.level, set(os.environ))
    torch.set_num_threads(2)
    torch.manual_seed(7)
    random, numbers = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    torch.set_default_dtype(torch.float64)
    try:

        async def main() -> rankdad.Run:
            with torch.inference_mode():
                found = simulated(data=frame)
                found.predict(frame)
                assert torch.is_inference_mode_enabled()
            return found

        found = asyncio.run(main())
        assert digest(found) == digest(run)
        assert next(found.model.parameters()).dtype == torch.float32
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), random)
    assert np.random.get_state()[1].tolist() == numbers  # type: ignore[index]
    assert (root.handlers, root.level) == (handlers, level)
    assert (list(ours.handlers), ours.level, set(os.environ)) == before
    assert threading.active_count() <= threads  # those of another test may end meanwhile


@pytest.mark.slow
def test_a_temporary_directory_is_there_as_long_as_its_run(frame: pd.DataFrame) -> None:
    first, second = (simulated(data=frame, sites=["alpha"], pooled=pooled) for pooled in (False, True))
    assert second.spec.federation.sites == ("together",)
    place, predictions, model, rows = first.directory, first.predictions, first.model, first.inputs(frame[:2])
    assert place != second.directory
    gc.collect()
    assert place.exists()
    del first
    gc.collect()
    assert not place.exists()
    assert not place.parent.exists()
    assert len(predictions)
    assert model(rows).shape == (2, 2)
    shutil.rmtree(second.directory)
    with pytest.raises(rankdad.UserError, match=r"metrics.csv: does not exist: has it been removed\?"):
        _ = second.metrics


def test_what_a_run_leaves_can_be_loaded_whoever_made_it(run: rankdad.Run, folder: Path, tmp_path: Path) -> None:
    new = patients(9, 4)
    site = rankdad.load(str(run.directory / "sites" / "beta"))
    own = run.predictions[run.predictions["site"] == "beta"].drop(columns="site").reset_index(drop=True)
    pd.testing.assert_frame_equal(site.predictions, own)
    pd.testing.assert_frame_equal(site.predict(new), run.predict(new))
    assert "small: rank-dad, 3 sites" in site._repr_html_() + repr(site)
    shutil.copytree(run.directory, tmp_path / "aggregator", ignore=shutil.ignore_patterns("sites"))
    aggregator = rankdad.load(tmp_path / "aggregator")
    pd.testing.assert_frame_equal(aggregator.predict(new), run.predict(new))
    with pytest.raises(rankdad.UserError, match="holds no predictions: a site keeps them"):
        _ = aggregator.predictions


@pytest.mark.slow
def test_a_site_may_have_fewer_test_samples_than_its_policy_lets_it_evaluate(tmp_path: Path) -> None:
    spec = {"run": RUN, "simulation": {"policy": OPEN | {"min_rows": 5}}}
    frames = {"large": patients(60, 6), "small": patients(15, 7)}
    run = rankdad.simulate(spec, data=frames, sites=["large", "small"])
    assert run.summary["warnings"]["sets-too-small-to-evaluate"] == ["small"]
    assert set(run.predictions["site"]) == {"large"}
    alone = rankdad.simulate(spec, data=frames, sites=["small"])
    assert alone.summary["metrics"]["test"] is None
    with pytest.raises(rankdad.UserError, match="holds no predictions: no site tests as many samples"):
        _ = alone.predictions


@pytest.mark.slow
def test_columns_called_site_and_fold_come_back_beside_ours(frame: pd.DataFrame) -> None:
    schema = SCHEMA | {"group": "site", "key": "fold"}
    given = frame.rename(columns={"patient": "site"}).assign(fold=lambda f: f.index.map("k{}".format))
    found = rankdad.simulate({"run": RUN | {"data": schema}, "simulation": SIMULATION}, data=given).predictions
    assert list(found)[:4] == ["site", "fold", "data_fold", "data_site"]
    assert set(found["site"]) == {"alpha", "beta", "gamma"}
    assert found["fold"].dtype == np.int64
    assert set(found["data_site"]) <= set(given["site"])
    assert set(found["data_fold"]) <= set(given["fold"])


@pytest.mark.slow
def test_texts_that_spreadsheets_take_for_formulas_and_sites_called_null_come_back_as_they_were(tmp_path: Path) -> None:
    frame = patients(90, 5).assign(
        ill=lambda f: f["ill"].map({0: "-", 1: "+"}), patient=lambda f: f.index.map("00{}".format)
    )
    document = RUN | {"data": SCHEMA | {"values": ["-", "+"]}}
    found = rankdad.simulate({"run": document, "simulation": SIMULATION}, data=frame, sites=["null", "na"])
    assert set(found.predictions["predicted"]) <= {"-", "+"}
    assert {type(name) for name in found.predictions["patient"]} == {str}
    assert found.sites["site"].tolist() == ["null", "na"]
    assert set(found.predict(frame)["label"]) == {"-", "+"}


@pytest.mark.slow
def test_progress_is_shown_to_a_terminal_alone(
    frame: pd.DataFrame, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated(data=frame)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    simulated(data=frame, progress=False)
    assert capsys.readouterr() == ("", "")
    simulated(data=frame)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "rank-dad" in shown.err
    assert "completed" in shown.err


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_processes_of_their_own_give_the_same_weights_and_the_same_sentences(
    run: rankdad.Run, frame: pd.DataFrame, tmp_path: Path
) -> None:
    found = simulated(data={"alpha": frame[:40], "beta": frame[40:80], "gamma": frame[80:]}, processes=True)
    here = simulated(data={"alpha": frame[:40], "beta": frame[40:80], "gamma": frame[80:]})
    assert digest(found) == digest(here) != digest(run)
    pd.testing.assert_frame_equal(found.predictions, here.predictions)
    with pytest.raises(rankdad.UserError, match="has no column chol; it has") as caught:
        simulated(data={"alpha": frame, "beta": frame.drop(columns="chol")}, processes=True, output=tmp_path / "bad")
    assert caught.value.code == "column-missing"
    with pytest.raises(rankdad.UserError, match="already has a run"):
        simulated(data=frame, processes=True, output=run.directory)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_the_notebook_runs_from_beginning_to_end() -> None:
    import nbclient
    import nbformat

    path = ROOT / "docs" / "tutorials" / "library.ipynb"
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    drawn = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert any("steps" in page and "completed" in page for page in drawn)  # how far it was
    assert any("test AUC" in page for page in drawn)  # what it came to
    assert not [output for output in outputs if output.output_type == "error"]


def test_help_shows_what_to_pass_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert dir(rankdad) == sorted(rankdad.__all__)
    for called in (rankdad.simulate, rankdad.load, rankdad.Run.predict):
        help(called)
        text = capsys.readouterr().out
        assert "Example:" in text
        assert "Raises:" in text
    code = "import sys, rankdad; rankdad.DataError; print('torch' in sys.modules, 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
