"""Nodes of the platform, without its sockets: the weights of the same run over HTTP, whatever process works when."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from rankdad.common.data import read_site
from rankdad.common.documents import validate
from rankdad.common.errors import RankdadError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.models import build_model
from rankdad.common.protocol.plan import make_plan
from rankdad.common.spec import RunSpec
from rankdad.common.staleness import Sent
from rankdad.common.tensors import weights_sha256
from rankdad.platforms.coinstac import aggregator_node, site_run
from rankdad.platforms.coinstac.compspec import compspec
from rankdad.platforms.coinstac.limits import largest_message
from rankdad.platforms.coinstac.site_node import SiteNode
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.results.run_results import RunResults
from rankdad.simulations.lockstep import run as lockstep
from tests.conftest import run_document
from tests.platforms.conftest import FIGURES
from tests.platforms.nodes import REMOTE, Iterations, member, site_file

EVERY = 3  # steps between two checkpoints
METHODS = [
    {"name": "rank-dad", "rank": 2},
    {"name": "powersgd", "rank": 2},
    {"name": "rank-dad", "rank": 3, "wire": "int8", "reducer": "block"},
    {"name": "rank-dad", "rank": 2, "wire": "int8", "preset": "diloco", "local_steps": 2},
    {"name": "top-k", "preset": "sparseloco", "density": 0.1, "local_steps": 2},
]


@pytest.fixture(autouse=True)
def _checkpoints_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (site_run, aggregator_node):
        monkeypatch.setattr(module, "LedgerOptions", partial(LedgerOptions, every=EVERY))


def consortium(
    folder: Path, method: dict[str, Any], sites: int = 3, epochs: int = 2
) -> tuple[RunSpec, dict[str, dict[str, Any]]]:
    """Members whose ids stand in another order than the run's sites; int8 comes with a factored second moment."""
    names = [f"site-{number}" for number in range(sites)]
    factored = method.get("wire") == "int8" and "local_steps" not in method
    moment = "factored" if factored else "elementwise"
    training = {"epochs": epochs, "batch_size": 12, "optimizer": {"name": "adam", "lr": 0.01, "second_moment": moment}}
    document = run_document(method=method, training=training, federation={"sites": names})
    clients = [f"{9 - place}f0c" for place in range(sites)]
    inputs = {
        client: member(folder / client / "base", name, 70 - 9 * place, place, spec=document)
        for place, (client, name) in enumerate(zip(clients, names, strict=True))
    }
    return validate(RunSpec, document), inputs


def over_http(spec: RunSpec, folder: Path, inputs: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return every site's digest after the same run without the platform."""
    clients = {name_at(folder, client): client for client in inputs}
    data = {
        site: read_site(spec, folder / clients[site] / "base", place)
        for place, site in enumerate(spec.federation.sites)
    }
    return next(iter(lockstep(spec, data, folder / "http").values())).weights_sha256


def name_at(folder: Path, client: str) -> str:
    return str(json.loads((folder / client / "base" / "site.json").read_text())["name"])


def digests(folder: Path) -> dict[str, str]:
    summary = json.loads((folder / REMOTE / "output" / "run" / "summary.json").read_text())
    return dict(summary["weights_sha256"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "sites"),
    [
        (METHODS[0], 2),
        pytest.param(METHODS[0], 8, marks=pytest.mark.slow),
        (METHODS[1], 3),
        (METHODS[2], 3),
        (METHODS[3], 2),
    ],
)
def test_weights_are_those_of_the_run_over_http_and_no_message_is_larger_than_predicted(
    tmp_path: Path, method: dict[str, Any], sites: int
) -> None:
    spec, inputs = consortium(tmp_path, method, sites)
    run = Iterations(tmp_path, inputs)
    run.go()
    assert digests(tmp_path) == over_http(spec, tmp_path, inputs)
    handed = max(len(json.dumps(outputs)) for outputs in run.outputs[2:])
    assert handed <= largest_message(spec, make_plan(spec, build_model(spec)))


def never(iteration: int, node: str) -> bool:
    return False


def always(iteration: int, node: str) -> bool:
    return True


def aggregator_sometimes(iteration: int, node: str) -> bool:
    return iteration % 4 == 0 and node == REMOTE


def sites_sometimes(iteration: int, node: str) -> bool:
    return iteration % 5 == 0 and node != REMOTE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "replaced", "forgotten", "epochs"),
    [
        (METHODS[0], always, never, 1),
        (METHODS[0], never, always, 1),
        (METHODS[0], aggregator_sometimes, sites_sometimes, 2),
        pytest.param(METHODS[1], sites_sometimes, aggregator_sometimes, 2, marks=pytest.mark.slow),
        (METHODS[2], sites_sometimes, sites_sometimes, 1),
        (METHODS[3], sites_sometimes, aggregator_sometimes, 2),
    ],
)
def test_a_fresh_process_goes_on_where_the_last_one_stood(
    tmp_path: Path,
    method: dict[str, Any],
    replaced: Callable[[int, str], bool],
    forgotten: Callable[[int, str], bool],
    epochs: int,
) -> None:
    spec, inputs = consortium(tmp_path, method, 2, epochs)
    Iterations(tmp_path, inputs, replaced, forgotten).go()
    assert digests(tmp_path) == over_http(spec, tmp_path, inputs)


@pytest.mark.slow
def test_every_site_has_its_results_before_the_end(tmp_path: Path, drawings: list[RunResults]) -> None:
    spec, inputs = consortium(tmp_path, METHODS[0])
    run = Iterations(tmp_path, inputs)
    shown = run.go()
    metrics = pd.read_csv(tmp_path / REMOTE / "output" / "run" / "metrics.csv")
    for client in inputs:
        own = tmp_path / client / "output"
        assert (
            weights_sha256(load_file(own / "model" / "final.safetensors"))
            == digests(tmp_path)[name_at(tmp_path, client)]
        )
        assert json.loads((own / "summary.json").read_text())["status"] == "completed"
        assert pd.read_csv(own / "metrics.csv").equals(metrics)
        assert "</html>" in (own / "report.html").read_text()
        assert (own / "predictions" / "fold-1.csv").read_text().startswith("row,label,predicted,")
    test = json.loads((own / "summary.json").read_text())["metrics"]["test"]
    assert shown["global_metrics"]["auc"] == pytest.approx(test["auc"])
    assert set(shown["site_metrics"]) == set(spec.federation.sites)
    assert set(shown) == set(compspec()["computation"]["output"]), "the description says what is shown"
    assert len(drawings) == 1, "one drawing for all sites, the report and what people are shown"
    for client in inputs:  # the app shows pictures by their paths in the viewer's own folder
        assert client in shown["local_stats"]
        found = [(tmp_path / client / "output" / path).read_bytes() for path in shown["global_stats"]]
        assert found == list(FIGURES.values())
        assert (tmp_path / client / "output" / "report.html").read_text().count("<svg>") == len(FIGURES)
        assert "report.html" in (tmp_path / client / "output" / "index.html").read_text()
    assert all(said["progress"] for outputs in run.outputs for said in outputs.values())
    assert run.outputs[5]["9f0c"]["progress"] == "site-0: step 3 of 8, epoch 1"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"spec": {"name": "x"}}, ["owner: Whole specification (spec): task: is missing"]),
        (
            {"spec": {**run_document(), "federation": {"quorum": 2}}},
            ["federation.quorum: the platform waits for every"],
        ),
        ({"spec": {**run_document(), "model": {"name": "factory", "factory": "a:b"}}}, ["a:b"]),
        ({"widths": 3}, ["owner: widths: is not known here: remove it"]),
        (
            {"spec": run_document(federation={"sites": ["site-0", "site-1", "site-9"]})},
            ["federation.sites: site-9 does not take part", "site-2: is not among the owner's sites"],
        ),
        (
            {"spec": run_document(data={"shape": [7]})},
            ["site-0", "shape-differs"],
        ),
    ],
)
def test_what_is_wrong_with_the_owners_inputs_is_said_in_the_first_iteration(
    tmp_path: Path, changes: dict[str, Any], said: list[str]
) -> None:
    _, inputs = consortium(tmp_path, METHODS[0])
    run = Iterations(tmp_path, {client: own | changes for client, own in inputs.items()}, typed=False)
    with pytest.raises(RankdadError) as raised:
        run.go(most=2)
    assert not [words for words in said if words not in str(raised.value)], str(raised.value)
    assert len(set(str(raised.value).splitlines())) == len(str(raised.value).splitlines()), "nothing is said twice"


@pytest.mark.parametrize(
    ("changes", "own", "said"),
    [
        ({}, {"name": "Site One"}, "8f0c: Files (files): the JSON file of this site has a wrong field"),
        ({}, {"name": "site-0"}, "site-0: 2 members have this name"),
        ({}, {"name": "pooled"}, "the name pooled in this site's JSON file is reserved"),
        ({"files": []}, {}, "8f0c: Files (files): got no file, expected your table"),
        (
            {"files": ["site.json"]},
            {"name": "b"},
            "b (member 8f0c): Files (files): file-missing",
        ),
        ({"files": ["../../7f0c/base/data.npz"]}, {}, "8f0c: Files (files): contains an invalid file name"),
        ({"files": ["other.npz"]}, {}, "Files (files): a chosen file is not in the platform's folder"),
        (
            {},
            {"name": "site-1", "policy": {"min_rows": 50}},
            "site-1 (member 8f0c): Fewest rows behind anything that leaves (min_rows): the run makes steps of 12",
        ),
        (
            {},
            {"name": "site-1", "policy": {"max_rank": 1}},
            "Largest rank that leaves (max_rank): the run asks for 2 rows, but this site's policy allows at most 1",
        ),
        ({"min_rows": "few"}, {}, '(min_rows): got "few", expected a whole number of at least 1'),
    ],
)
def test_what_is_wrong_at_one_member_is_said_to_all_in_the_first_iteration(
    tmp_path: Path, changes: dict[str, Any], own: dict[str, Any], said: str
) -> None:
    _, inputs = consortium(tmp_path, METHODS[0])
    inputs["8f0c"] |= changes
    if own:
        site_file(tmp_path / "8f0c" / "base", **own)
    with pytest.raises(RankdadError) as raised:
        Iterations(tmp_path, inputs, typed=False).go(most=2)
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


@pytest.mark.slow
def test_what_may_still_join_a_later_step_survives_a_process(tmp_path: Path) -> None:
    _, inputs = consortium(tmp_path, METHODS[0], 2)
    run, client = Iterations(tmp_path, inputs), "9f0c"
    with pytest.raises(AssertionError, match="no end"):
        run.iterate(6)
    first = run.nodes[client]
    assert isinstance(first, SiteNode)
    assert first._run is not None
    before, change = first._run._state, Factor(torch.rand(3, 2), torch.rand(3, 6))
    before.sent = (Sent(2, 12.0, 0.5, {"layers.0.weight": change}),)
    assert first._run.relock()
    first._run._due = True
    first._run._between_steps()
    run.start(client)
    fresh = run.nodes[client]
    assert isinstance(fresh, SiteNode)
    goes_on = fresh._resumed(run.state(client))
    state = goes_on._state
    goes_on.close()
    for node in run.nodes.values():
        node.close()
    ((late, kept),) = zip(before.sent, state.sent, strict=True)
    assert (kept.step, kept.weight, kept.share) == (late.step, late.weight, late.share)
    found = kept.change["layers.0.weight"]
    assert isinstance(found, Factor)
    assert torch.equal(found.delta, change.delta)
    assert torch.equal(found.activation, change.activation)
