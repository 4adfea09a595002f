"""Nodes of the platform, without its sockets: the weights of the same run over HTTP, whatever process works when."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from safetensors.torch import load_file

from common.documents import validate
from common.errors import RankdadError
from common.replica import weights_sha256
from common.spec import RunSpec
from local.data import read_site
from platforms.coinstac import site_run as driver
from platforms.coinstac.compspec import compspec
from remote import aggregator as aggregator_module
from simulations.lockstep import run
from tests.conftest import run_document
from tests.platforms.nodes import REMOTE, Iterations, member

EVERY = 3  # steps between two checkpoints
METHODS = [
    {"name": "rank-dad", "rank": 2},
    {"name": "powersgd", "rank": 2},
    {"name": "rank-dad", "rank": 3, "wire": "int8", "reducer": "block"},
]


@pytest.fixture(autouse=True)
def _checkpoints_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (driver, aggregator_module):
        monkeypatch.setattr(module, "EVERY", EVERY)


def consortium(folder: Path, method: dict[str, Any], sites: int = 3) -> tuple[RunSpec, dict[str, dict[str, Any]]]:
    """Members whose ids stand in another order than the run's sites."""
    names = [f"site-{number}" for number in range(sites)]
    document = run_document(method=method, training={"epochs": 2, "batch_size": 12}, federation={"sites": names})
    clients = [f"{9 - place}f0c" for place in range(sites)]
    inputs = {
        client: member(folder / client / "base", name, 70 - 9 * place, place, spec=document)
        for place, (client, name) in enumerate(zip(clients, names, strict=True))
    }
    return validate(RunSpec, document), inputs


def over_http(spec: RunSpec, folder: Path, inputs: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return every site's digest after the same run without the platform."""
    clients = {given["site"]: client for client, given in inputs.items()}
    data = {
        site: read_site(spec, folder / clients[site] / "base", place)
        for place, site in enumerate(spec.federation.sites)
    }
    return next(iter(run(spec, data, folder / "http").values())).weights_sha256


def digests(folder: Path) -> dict[str, str]:
    summary = json.loads((folder / REMOTE / "output" / "run" / "summary.json").read_text())
    return dict(summary["weights_sha256"])


@pytest.mark.parametrize(
    ("method", "sites"),
    [
        (METHODS[0], 2),
        (METHODS[0], 8),
        (METHODS[1], 4),
        (METHODS[2], 4),
        pytest.param({"name": "dsgd", "exchanges": "per-tensor"}, 2, marks=pytest.mark.slow),
    ],
)
def test_weights_are_those_of_the_run_over_http(tmp_path: Path, method: dict[str, Any], sites: int) -> None:
    spec, inputs = consortium(tmp_path, method, sites)
    Iterations(tmp_path, inputs).go()
    assert digests(tmp_path) == over_http(spec, tmp_path, inputs)


def never(iteration: int, node: str) -> bool:
    return False


def always(iteration: int, node: str) -> bool:
    return True


def aggregator_sometimes(iteration: int, node: str) -> bool:
    return iteration % 4 == 0 and node == REMOTE


def sites_sometimes(iteration: int, node: str) -> bool:
    return iteration % 5 == 0 and node != REMOTE


@pytest.mark.parametrize(
    ("method", "replaced", "forgotten"),
    [
        (METHODS[0], always, never),
        (METHODS[1], always, never),
        (METHODS[0], never, always),
        (METHODS[0], aggregator_sometimes, sites_sometimes),
        (METHODS[1], sites_sometimes, aggregator_sometimes),
        (METHODS[2], sites_sometimes, sites_sometimes),
    ],
)
def test_a_fresh_process_goes_on_where_the_last_one_stood(
    tmp_path: Path, method: dict[str, Any], replaced: Callable[[int, str], bool], forgotten: Callable[[int, str], bool]
) -> None:
    spec, inputs = consortium(tmp_path, method)
    Iterations(tmp_path, inputs, replaced, forgotten).go()
    assert digests(tmp_path) == over_http(spec, tmp_path, inputs)


def test_every_site_has_its_results_before_the_end(tmp_path: Path) -> None:
    spec, inputs = consortium(tmp_path, METHODS[0])
    run = Iterations(tmp_path, inputs)
    shown = run.go()
    metrics = pd.read_csv(tmp_path / REMOTE / "output" / "run" / "metrics.csv")
    for client, given in inputs.items():
        own = tmp_path / client / "output"
        assert weights_sha256(load_file(own / "model" / "final.safetensors")) == digests(tmp_path)[given["site"]]
        assert json.loads((own / "summary.json").read_text())["status"] == "completed"
        assert pd.read_csv(own / "metrics.csv").equals(metrics)
        assert "</html>" in (own / "report.html").read_text()
        assert (own / "predictions" / "fold-1.csv").read_text().startswith("row,label,predicted,")
    test = json.loads((own / "summary.json").read_text())["metrics"]["test"]
    assert shown["global_metrics"]["auc"] == pytest.approx(test["auc"])
    assert set(shown["site_metrics"]) == set(spec.federation.sites)
    assert set(shown) == set(compspec()["computation"]["output"]), "the description says what is shown"
    assert all(base64.b64decode(png).startswith(b"\x89PNG") for png in shown["global_stats"].values())
    assert all(said["progress"] for outputs in run.outputs for said in outputs.values())
    assert run.outputs[5]["9f0c"]["progress"] == "site-0: step 3 of 8, epoch 1"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epochs": "many"}, ['owner: Epochs (epochs): got "many", expected a whole number']),
        ({"epochs": 0, "lr": -1, "rank": "x"}, ["Epochs (epochs): got 0", "(lr): got -1", '(rank): got "x"']),
        ({"batch_sizes": 3}, ["owner: batch_sizes: is not known here: did you mean batch_size?"]),
        ({"sites": "site-0, site-1, site-9"}, ["site-9 does not take part", "site-2: is not among the owner's sites"]),
        ({"shape": "7"}, ["site-0: ", "data.npz: x has shape [70, 6], expected [samples, 7]", "site-2: "]),
        ({"classes": 2}, ["y holds a value in row"]),
        ({"spec": {"name": "x"}}, ["owner: Whole specification (spec): task: is missing"]),
        (
            {"spec": {**run_document(), "federation": {"quorum": 2}}},
            ["federation.quorum: the platform waits for every"],
        ),
        ({"spec": {**run_document(), "model": {"name": "factory", "factory": "a:b"}}}, ["a:b"]),
    ],
)
def test_what_is_wrong_with_the_owners_inputs_is_said_in_the_first_iteration(
    tmp_path: Path, changes: dict[str, Any], said: list[str]
) -> None:
    _, inputs = consortium(tmp_path, METHODS[0])
    form = {"classes": 3, "shape": "6", "epochs": 2, **changes}
    run = Iterations(tmp_path, {client: own | {"spec": {}} | form for client, own in inputs.items()})
    with pytest.raises(RankdadError) as raised:
        run.go(most=2)
    assert not [words for words in said if words not in str(raised.value)], str(raised.value)
    assert len(set(str(raised.value).splitlines())) == len(str(raised.value).splitlines()), "nothing is said twice"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"site": "Site One"}, '(site): got "Site One", expected small letters'),
        ({"site": "site-0"}, "site-0: 2 members have given this name (site)"),
        ({"site": ""}, "member 8f0c: Name of your site (site): got nothing"),
        ({"data_file": []}, "site-1: Data file (data_file): got no file, expected one"),
        ({"data_file": ["a.npz", "b.npz"]}, "site-1: Data file (data_file): got 2 files, expected one"),
        ({"data_file": ["../../7f0c/base/data.npz"]}, "site-1: data.npz: leads out of the folder"),
        ({"data_file": ["other.npz"]}, "site-1: other.npz: is not among the files"),
        (
            {"min_rows": 50},
            "site-1: training.batch_size: the run makes steps of 12 samples here, but this site",
        ),
        ({"max_rank": 1}, "site-1: method.rank: the run asks for 2 rows, but this site's policy allows at most 1"),
        ({"min_rows": "few"}, 'site-1: Fewest samples behind anything that leaves (min_rows): got "few"'),
    ],
)
def test_what_is_wrong_at_one_member_is_said_to_all_in_the_first_iteration(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    _, inputs = consortium(tmp_path, METHODS[0])
    inputs["8f0c"] |= changes
    with pytest.raises(RankdadError) as raised:
        Iterations(tmp_path, inputs).go(most=2)
    assert said in str(raised.value)


def test_a_site_that_cannot_go_on_ends_the_run_for_all_with_its_reason(tmp_path: Path) -> None:
    _, inputs = consortium(tmp_path, {"name": "dsgd"})
    for given in inputs.values():
        given["spec"]["training"]["optimizer"] = {"name": "sgd", "lr": 1e30}
    with pytest.raises(RankdadError, match=r"site-\d: .* holds NaN or infinity"):
        Iterations(tmp_path, inputs).go()
    summary = json.loads((tmp_path / REMOTE / "output" / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"


def test_an_output_that_no_site_makes_ends_the_run_and_names_the_member(tmp_path: Path) -> None:
    _, inputs = consortium(tmp_path, METHODS[0])
    run = Iterations(tmp_path, inputs)
    outputs = {client: {"rankdad": {"stage": "sent"}} for client in inputs}
    run.start(REMOTE)
    with pytest.raises(RankdadError, match=r"member 7f0c: rankdad\.sent\.round: Field required"):
        run.work(REMOTE, outputs)


BRAIN = "Measure:volume\t{name}\nLeft-Hippocampus\t{left}\nRight-Hippocampus\t{right}\n"


def tables(folder: Path, reader: str, old: bool) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Members whose table stands in the form as the platform puts it there, now or in older versions."""
    owner = {"reader": reader, "rank": 1, "label": "sex", "values": "F, M", "epochs": 1, "batch_size": 8, "hidden": "4"}
    owner |= {"features": "age, left"} if reader == "csv" else {"regions": [{"value": ["Left-Hippocampus"]}]}
    inputs: dict[str, dict[str, Any]] = {}
    for place, client in enumerate(("b2", "a1")):
        base = folder / client / "base"
        base.mkdir(parents=True)
        generator = random.Random(place)
        rows = {
            f"s{number}.txt": {"sex": generator.choice("MF"), "age": generator.randint(20, 80), "left": number}
            for number in range(30)
        }
        for name in rows:
            text = BRAIN.format(name=name, left=generator.random(), right=generator.random())
            (base / name).write_text(text)
        listed = [["subject", "sex", "age", "left"], *([name, *row.values()] for name, row in rows.items())]
        covariates = [[listed], ["sex", "age"], ["string", "number"]] if old else rows
        inputs[client] = {"site": f"site-{place}", "covariates": covariates, "min_rows": 1, **owner}
    return inputs, owner


@pytest.mark.parametrize("old", [False, True], ids=["", "as older platforms"])
@pytest.mark.parametrize("reader", ["csv", "freesurfer"])
def test_tables_come_with_the_form(tmp_path: Path, reader: str, old: bool) -> None:
    inputs, _ = tables(tmp_path, reader, old)
    shown = Iterations(tmp_path, inputs).go()
    assert shown["global_metrics"]["samples"] == 12
    laid_out = tmp_path / "b2" / "output" / "data"
    assert pd.read_csv(laid_out / "covariates.csv")["file"].tolist() == [f"s{number}.txt" for number in range(30)]
    assert len(list(laid_out.iterdir())) == (1 if reader == "csv" else 31)


@pytest.mark.parametrize(
    ("row", "said", "kept"),
    [
        (
            {"age": "Miller, born in 1960", "sex": "M"},
            "site-0: covariates.csv: row 9, column age: holds a value, expected a finite number",
            "'Miller, born in 1960'",
        ),
        (
            {"age": 30, "sex": "X", "left": 1},
            "site-0: covariates.csv: row 9, column sex: holds a value, expected one of ",
            "'X'",
        ),
    ],
)
def test_no_cell_of_a_members_table_is_told_to_others(tmp_path: Path, row: Any, said: str, kept: str) -> None:
    inputs, _ = tables(tmp_path, "csv", old=False)
    inputs["b2"]["covariates"]["s7.txt"] = row
    with pytest.raises(RankdadError) as raised:
        Iterations(tmp_path, inputs).go(most=2)
    assert said in str(raised.value)
    assert kept not in str(raised.value)
    assert kept in (tmp_path / "b2" / "output" / "error.txt").read_text()


def test_no_name_of_a_subjects_file_is_told_to_others(tmp_path: Path) -> None:
    inputs, _ = tables(tmp_path, "freesurfer", old=False)
    (tmp_path / "b2" / "base" / "s7.txt").write_text("Measure:volume\ts7.txt\nRight-Hippocampus\t1\n")
    with pytest.raises(RankdadError, match=r"^site-0: the file of sample 8: has no region or measure Left-Hippocampus"):
        Iterations(tmp_path, inputs).go(most=2)
    (tmp_path / "b2" / "base" / "s7.txt").unlink()
    with pytest.raises(RankdadError) as raised:
        Iterations(tmp_path, inputs).go(most=2)
    assert "s7.txt" not in str(raised.value)
