"""What is counted up to a target, and the command that prints it."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.cli import app
from benchmarks.target.bench import arranged
from benchmarks.target.curves import HeldOut, Point, best, first_reaching, least_lead, train
from benchmarks.target.settings import METHODS
from benchmarks.target.tables import ON_LINK, Trained, markdown, to_quality, to_targets
from rankdad.common.data import SiteData
from rankdad.common.documents import validate
from rankdad.common.preparation import in_memory
from rankdad.common.spec.tasks import Regression
from rankdad.simulations.lockstep import run
from rankdad.simulations.resolving import with_columns
from rankdad.simulations.site_folders import partitioned_data
from rankdad.simulations.spec import SimulationFile
from tests.conftest import run_document, run_spec
from tests.runs import summary_of

Data = Callable[..., dict[str, SiteData]]
DIGITS = Path("simulations/specs/digits.json")
SMALL = ["--set", "run.training.epochs=2", "--set", "run.training.validation=0.0", "--set", "run.model.hidden=[16]"]


def point(megabytes: float, **values: float) -> Point:
    return Point(1, 1, 1.0, megabytes * 5e5, megabytes * 5e5, 8.0, 2.0, values)


MEASURED: list[dict[str, Any]] = [
    {"name": "powersgd", "rank": 1},
    {"name": "rank-dad", "rank": 1, "wire": "int8"},
    {"name": "dsgd", "local_steps": 2},
]


@pytest.mark.slow
@pytest.mark.parametrize("method", MEASURED, ids=lambda method: str(method["name"]))
def test_bytes_and_exchanges_of_the_last_test_are_those_of_the_runs_summary(
    tmp_path: Path, site_data: Data, method: dict[str, Any]
) -> None:
    spec = run_spec(method=method, training={"validation": 0.0, "epochs": 3})
    data = site_data(spec)
    curve = train(spec, data, every=0.4)
    run(spec, data, tmp_path / "run")
    summary, last = summary_of(tmp_path / "run"), curve[-1]
    assert last.step == summary["steps"]
    assert last.exchanges == summary["steps"] * (2 if method["name"] == "powersgd" else 1)
    assert last.bytes_up == pytest.approx(summary["bytes_up_per_site_step"] * summary["steps"])
    assert last.bytes_down == pytest.approx(summary["bytes_down_per_site_step"] * summary["steps"])
    assert last.values["auc"] == pytest.approx(summary["metrics"]["test"]["auc"], abs=2e-3)
    assert [p.bytes for p in curve] == sorted(p.bytes for p in curve)
    assert len(curve) > 3
    assert all(0 < p.parallel < p.seconds < p.parallel * 3 for p in curve)


@pytest.mark.slow
def test_a_training_ends_with_the_test_that_reaches_all_targets(site_data: Data) -> None:
    spec = run_spec(training={"validation": 0.0, "epochs": 4})
    data = site_data(spec)
    whole = train(spec, data, every=0.1)
    target = ("auc", sorted(p.values["auc"] for p in whole)[len(whole) // 2])
    part = train(spec, data, every=0.1, enough=[target])
    assert [p.values for p in part] == [p.values for p in whole[: len(part)]]
    assert first_reaching(part[:-1], target) is None
    assert first_reaching(whole, target) is not None
    assert part[-1].bytes == first_reaching(whole, target).bytes  # type: ignore[union-attr]


def test_targets_of_errors_are_reached_from_above() -> None:
    curve = [point(1, mae=6.0, pearson_r=0.2), point(2, mae=4.0, pearson_r=0.7), point(3, mae=5.0, pearson_r=0.8)]
    assert first_reaching(curve, ("mae", 5.0)) is curve[1]
    assert first_reaching(curve, ("mae", 3.9)) is None
    assert first_reaching(curve, ("pearson_r", 0.75)) is curve[2]
    assert (best(curve, "mae"), best(curve, "pearson_r")) == (4.0, 0.8)


def test_the_least_lead_is_over_all_budgets_from_the_rivals_first_test_on() -> None:
    rival = [point(2, auc=0.90), point(4, auc=0.95), point(6, auc=0.94)]
    own = [point(1, auc=0.5), point(3, auc=0.97), point(5, auc=0.93)]
    lead, budget = least_lead(own, rival, "auc")  # at 2 MB: 0.5 against 0.90
    assert lead == pytest.approx(-0.4)
    assert budget == 2e6
    assert least_lead(rival, own, "auc")[0] == pytest.approx(-0.07)  # at 3 MB: 0.90 against 0.97
    assert least_lead([point(1, mae=4.0)], [point(2, mae=5.0)], "mae")[0] == pytest.approx(1.0)


def test_a_row_is_the_mean_of_the_seeds_that_reach_the_target() -> None:
    runs = [
        Trained("even", "dsgd", 0, [point(1, auc=0.8), point(3, auc=0.9)]),
        Trained("even", "dsgd", 1, [point(1, auc=0.9)]),
        Trained("even", "dsgd", 2, [point(1, auc=0.7)]),
        Trained("even", "Flower FedAvg", 0, []),
    ]
    row, without = to_targets(runs, [("auc", 0.9)]).to_dict("records")
    assert (row["reached"], row["MB a site"], row[ON_LINK]) == ("2 of 3", 2.0, pytest.approx(2.0 + 2 / 12.5))
    assert without["reached"] == "not installed"
    assert len(to_quality(runs, "auc")) == 1
    assert "| even | Flower FedAvg | AUC 0.9 | not installed | – |" in markdown(to_targets(runs, [("auc", 0.9)]))


def test_numbers_are_measured_in_their_own_unit() -> None:
    held = HeldOut(Regression(name="regression"), torch.zeros(3, 1), torch.tensor([0.0, 1.0, 2.0]), unit=5.0)
    values = held.metrics(torch.tensor([[1.0], [2.0], [3.0]]))
    assert values == {"mae": pytest.approx(5.0), "pearson_r": pytest.approx(1.0)}


def test_all_methods_of_the_list_are_methods() -> None:
    for method in METHODS:
        validate(SimulationFile, simulation(method=json.loads(method)))


def simulation(**changes: Any) -> dict[str, Any]:
    run = run_document(data={"shape": [64]}, task={"name": "classification", "classes": 10}, **changes)
    return {"run": run, "simulation": {"source": {"name": "digits"}}}


def test_folders_of_tables_are_put_together_and_dealt_out_anew(tmp_path: Path) -> None:
    for place, folder in enumerate(("one", "two")):
        (tmp_path / folder).mkdir()
        names = [f"{folder}-{number}" for number in range(20 + place)]
        size = "".join(f"{name},{number}.5,1\n" for number, name in enumerate(names))
        age = "".join(f"{name},{number}\n" for number, name in enumerate(reversed(names)))
        (tmp_path / folder / "size.csv").write_text(f"subject,size,width\n{size}")
        (tmp_path / folder / "people.csv").write_text(f"subject,age\n{age}")
    table = {"reader": "csv", "file": "size.csv", "covariates": "people.csv", "key": "subject", "label": "age"}
    run = run_document(task={"name": "regression"}, data=table | {"features": ["*"]})
    source = {"name": "folders", "path": str(tmp_path)}
    document = {"run": run, "simulation": {"source": source, "partition": {"name": "folder"}}}
    file = with_columns(arranged(validate(SimulationFile, document), "even", tmp_path / "one"))
    data = partitioned_data(file, tmp_path / "sites")
    assert sorted(len(site.samples) for site in data.values()) == [13, 14, 14]
    inputs = torch.cat([in_memory(site.samples.inputs)[:, 0] for site in data.values()])
    ages = torch.cat([site.samples.labels for site in data.values()])
    ends = torch.tensor([19.0 if key.startswith("one") else 20.0 for site in data.values() for key in site.keys])
    assert torch.equal(inputs - 0.5 + ages, ends)


@pytest.mark.exhaustive
def test_the_command_writes_curves_targets_and_a_picture(tmp_path: Path) -> None:
    words = ["target", str(DIGITS), *SMALL, "--method", '{"name":"dsgd"}', "--target", "auc=0.6", "--every", "0.5"]
    done = CliRunner().invoke(app, [*words, "--seeds", "0,1", "--sites", "even,own", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    with (tmp_path / "curves.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["sites"], row["seed"], row["epoch"]) for row in rows] == [
        (kind, seed, epoch) for kind in ("even", "own") for seed in "01" for epoch in ("0.5", "1.0", "1.5", "2.0")
    ]
    assert "| even | dsgd | AUC 0.6 | 2 of 2 |" in done.output
    assert (tmp_path / "targets.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--sites", "odd"], "expected even, unequal"),
        (["--target", "auc"], "expected such as auc=0.995"),
        (["--target", "f1=0.5"], "expected such as auc=0.995"),
        (["--target", "mae=4"], "--target: none is of auc"),
        (["--method", '{"name":"edad","local_steps":3}'], "local_steps"),
    ],
)
def test_what_cannot_be_measured_is_named(tmp_path: Path, words: list[str], named: str) -> None:
    done = CliRunner().invoke(app, ["target", str(DIGITS), *SMALL, "--output", str(tmp_path), *words])
    assert done.exit_code
    assert named in done.output.replace("\n", " ") + str(done.exception)


@pytest.mark.exhaustive
def test_without_flower_its_row_says_so(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    python.chmod(0o755)
    words = ["target", str(DIGITS), *SMALL, "--method", '{"name":"dsgd","preset":"fedavg"}', "--target", "auc=0.6"]
    flower = ["--flower", "--flower-python", str(python), "--output", str(tmp_path)]
    done = CliRunner().invoke(app, [*words, *flower])
    assert done.exit_code == 0, done.output
    assert "| even | Flower FedAvg | AUC 0.6 | not installed | – |" in done.output


@pytest.mark.exhaustive
def test_processes_give_the_same_curve_and_their_own_seconds(tmp_path: Path) -> None:
    words = ["target", str(DIGITS), *SMALL, "--method", '{"name":"dsgd","local_steps":3}', "--target", "auc=0.6"]
    columns = []
    for place, extra in enumerate(([], ["--processes"])):
        folder = tmp_path / str(place)
        done = CliRunner().invoke(app, [*words, *extra, "--output", str(folder)])
        assert done.exit_code == 0, done.output
        with (folder / "curves.csv").open(newline="", encoding="utf-8") as file:
            columns.append([(row["bytes_up"], row["bytes_down"], row["auc"]) for row in csv.DictReader(file)])
            file.seek(0)
            seconds = [(row["seconds"], row["parallel"]) for row in csv.DictReader(file)]
    assert columns[0] == columns[1]
    assert all(elapsed == beside for elapsed, beside in seconds)
