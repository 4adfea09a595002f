"""Trees of aggregators in one process: exact methods stay exact, and all end with equal weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.common.lowrank.factors import Factor
from rankdad.common.methods import Contribution, MethodState
from rankdad.common.methods.base import pooled
from rankdad.common.preparation import description, in_memory
from rankdad.common.preparation.coefficients import OWN
from rankdad.common.preparation.rows import Rows
from rankdad.common.protocol.messages import Message
from rankdad.common.protocol.plan import make_plan
from rankdad.common.rounds.sums import Sums
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec.data import TableData
from rankdad.common.spec.tasks import Regression
from rankdad.simulations.lockstep import run
from rankdad.simulations.pooling import first_rows
from rankdad.simulations.site_folders import partitioned_data
from rankdad.simulations.spec import read_simulation
from rankdad.simulations.tree import region_directory
from rankdad.simulations.verifying import verify
from tests.conftest import run_spec, sampled
from tests.runs import summary_of
from tests.simulations.trees import REGIONS, SITES, data_of, spec_of

DIGITS = Path(__file__).parent.parent.parent / "simulations" / "specs" / "digits-256.json"


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    sampled(
        [
            {"name": "dsgd", "wire": "float64"},
            {"name": "dad", "wire": "float64"},
            {"name": "edad", "wire": "float64"},
            {"name": "powersgd", "rank": 2, "wire": "float64"},
            {"name": "rank-dad", "rank": 3, "wire": "float64", "local_steps": 2},
            {"name": "rank-dad", "rank": 2, "wire": "int8"},
            {"name": "top-k", "density": 0.3, "wire": "int8"},
        ],
        3,
    ),
    ids=lambda method: "-".join(map(str, method.values())),
)
def test_a_tree_ends_with_equal_weights_and_what_adds_up_exactly_as_without_it(
    tmp_path: Path, method: dict[str, Any]
) -> None:
    ends: list[dict[str, Tensor]] = []
    for name, regions in (("flat", {}), ("tree", REGIONS)):
        spec = spec_of(method=method, regions=regions, training={"optimizer": {"name": "adam", "lr": 0.01}})
        results = run(spec, data_of(spec, tmp_path / "data"), tmp_path / name)
        ends.append(results["s0"].final)
    flat, tree = (summary_of(tmp_path / name) for name in ("flat", "tree"))
    assert set(tree["weights_sha256"]) == {*SITES, *REGIONS}
    assert set(tree["weights_sha256"].values()) == {tree["aggregator_sha256"]}
    for region in REGIONS:
        own = summary_of(tmp_path / "tree" / "regions" / region)
        assert (own["status"], own["weights_sha256"]) == ("completed", tree["weights_sha256"])
    assert tree["sites"] == ["north", "s3", "south"]
    assert tree["metrics"]["test"]["samples"] == flat["metrics"]["test"]["samples"]
    if method["name"] not in ("rank-dad", "top-k"):
        assert all(torch.allclose(ends[1][name], value, rtol=0, atol=1e-9) for name, value in ends[0].items())
        assert tree["metrics"]["test"] == pytest.approx(flat["metrics"]["test"], nan_ok=True)


@pytest.mark.slow
def test_projections_for_a_factored_moment_pass_a_tree(tmp_path: Path) -> None:
    ends = []
    for name, regions in (("flat", {}), ("tree", REGIONS)):
        training = {"optimizer": {"name": "adam", "lr": 0.01, "second_moment": "factored"}}
        spec = spec_of(method={"name": "dad", "wire": "float64"}, regions=regions, training=training)
        ends.append(run(spec, data_of(spec, tmp_path / "data"), tmp_path / name)["s0"].final)
    assert all(torch.allclose(ends[1][name], value, rtol=0, atol=1e-9) for name, value in ends[0].items())


@pytest.mark.parametrize(
    "document",
    [{"name": "rank-dad", "rank": 2, "reducer": "exact"}, {"name": "top-k", "density": 0.3}],
    ids=["rank-dad", "top-k"],
)
def test_what_a_region_keeps_back_arrives_later(document: dict[str, Any]) -> None:
    """All that was applied and all that regions and aggregator keep add up to all gradients."""
    torch.manual_seed(0)
    spec = spec_of(method={"wire": "float64", "feedback": "both"} | document)
    model = Replica(spec).model
    plan = make_plan(spec, model)
    method = spec.method.method(plan.routes, model, spec.seed)
    states, top = {name: MethodState() for name in ("north", "south")}, MethodState()
    whole = applied = torch.zeros(plan.routes[0].matrix, dtype=torch.float64)
    for step in range(5):
        sent = {
            name: [Contribution(weight, _payload(plan, dense=document["name"] == "top-k")) for weight in weights]
            for name, weights in (("north", (3.0, 5.0 + step)), ("south", (2.0, 1.0)))
        }
        whole = whole + _dense(pooled([*sent["north"], *sent["south"]])[0])
        total, regions = sum(one.weight for own in sent.values() for one in own), []
        for name, own in sent.items():
            weight = sum(one.weight for one in own)
            payload, states[name] = method.combine(0, own, weight / total, states[name], step)
            assert not isinstance(payload[0], Factor) or payload[0].rows == 2
            regions.append(Contribution(weight, payload))
        update, top = method.aggregate(0, regions, top, step)
        applied = applied + _dense(update[0])
    kept = sum(_dense(state.residuals[plan.routes[0].name]) for state in (*states.values(), top))
    assert float((whole - applied).norm()) > 0.1 * float(whole.norm())
    assert torch.allclose(applied + kept, whole, rtol=0, atol=1e-10)


def _payload(plan: Any, *, dense: bool = False) -> tuple[Any, ...]:
    pairs = (route.matrix for route in plan.routes)
    draw = torch.randn
    factors = [Factor(draw(6, out).double(), draw(6, columns).double()) for out, columns in pairs]
    return tuple(map(_dense, factors)) if dense else tuple(factors)


def _dense(residual: Tensor | Factor) -> Tensor:
    return residual.gradient() if isinstance(residual, Factor) else residual


def test_a_region_out_of_data_keeps_its_residual_and_sends_no_rows() -> None:
    spec = spec_of(method={"name": "rank-dad", "rank": 2, "wire": "float64", "feedback": "both"})
    model = Replica(spec).model
    plan = make_plan(spec, model)
    method = spec.method.method(plan.routes, model, spec.seed)
    _, state = method.combine(0, [Contribution(4.0, _payload(plan))], 0.5, MethodState(), 0)
    payload, after = method.combine(0, [Contribution(0.0, _payload(plan))], 0.0, state, 1)
    assert all(isinstance(value, Factor) and value.rows == 0 for value in payload)
    assert after.residuals is state.residuals


def test_table_one_of_a_region_is_that_of_its_rows_together() -> None:
    torch.manual_seed(0)
    parts = [Rows(torch.randn(n, 3).double() + n, torch.randn(n).double() * n) for n in (4, 9, 1)]
    together = Rows(torch.cat([in_memory(part.inputs) for part in parts]), torch.cat([part.labels for part in parts]))
    task = Regression(name="regression")
    table = {"reader": "csv", "file": "table.csv", "features": ["a", "b", "c"], "label": "y"}
    schema = run_spec(task={"name": "regression"}, data=table).data
    assert isinstance(schema, TableData)
    found = description.joined_squares([description.sums(task, part, schema) for part in parts])
    expected = description.sums(task, together, schema)
    for name, value in found.items():
        assert torch.allclose(value, expected[name], rtol=1e-12), name
    assert set(found) == {"table-squares", "table-label-squares"}


@pytest.mark.slow
@pytest.mark.parametrize("task", [{"name": "regression"}, {"name": "classification", "classes": 3}])
def test_coefficients_of_a_tree_are_those_without_it_and_each_site_s_stay_in_its_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: dict[str, Any]
) -> None:
    """A region of one small site had coefficients of too few patients, and sites got the sum of all sites' own."""
    told = list[Tensor]()
    real = RunState.follow

    def follow(self: RunState, message: Message) -> None:
        if isinstance(message.body, Sums) and message.body.stage == OWN:
            told.append(message.body.values)
        real(self, message)

    monkeypatch.setattr(RunState, "follow", follow)
    regions, found = {"north": ["s0", "s1", "far"], "far": ["s2"], "south": ["s4"]}, {}
    for name, tree in (("tree", regions), ("star", {})):
        spec = spec_of(regions=tree, task=task, model={"name": "linear"}, training={"solver": "exact"})
        run(spec, data_of(spec, tmp_path / "data"), tmp_path / name)
        found[name] = summary_of(tmp_path / name)["coefficients"]
    assert len(told) > len(SITES)
    assert all(total[:, 0].any() and not total[:, 1:].any() for total in told), "nobody's own coefficients come down"
    inside = {name: summary_of(region_directory(tmp_path / "tree", name))["coefficients"] for name in regions}
    pooled = [found["star"]["pooled"], found["tree"]["pooled"], *(one["pooled"] for one in inside.values())]
    assert [(one["problem"], one["rows"]) for one in pooled] == [("", pooled[0]["rows"])] * 5
    for key in ("estimate", "se", "p"):
        first, *others = ([row[key] for row in one["coefficients"]] for one in pooled)
        assert all(one == pytest.approx(first, rel=1e-8, abs=1e-12) for one in others)
    alone = found["star"]["sites"]
    assert found["tree"]["sites"] == {site: alone[site] for site in ("s3", "s5") if site in alone}
    assert inside["north"]["sites"] == {site: alone[site] for site in ("s0", "s1") if site in alone}
    assert inside["far"]["sites"] == {site: alone[site] for site in ("s2",) if site in alone}
    assert not inside["south"]["sites"], "of too few patients"
    assert {"s0", "s5"} <= set(alone)


@pytest.mark.slow
def test_check_prints_bytes_by_level_and_verify_the_error_of_both_levels() -> None:
    words = [str(DIGITS), "--sites", "8", "--regions", "2"]
    shown = CliRunner().invoke(app, ["check", *words]).output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]
    levels = [row for row in rows if len(row) == 6 and row[0] in ("1", "2")]
    assert levels == [["1", "1", "2", "8,944", "8,944", "–"], ["2", "2", "4", "17,888", "17,888", "4,472"]]
    done = CliRunner().invoke(app, ["verify", *words, "--set", "run.model.hidden=[16]"])
    assert done.exit_code == 0
    found = re.findall(
        r"error through 2 levels of aggregators \S+?(?:, (\S+) times as much)?; through one", done.output
    )
    assert len(found) == 6
    assert all(0.99 <= float(times) <= 1.05 for times in found if times), "chosen entries may do better by chance"


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rank", [1, 4])
def test_the_error_of_two_levels_is_at_most_1_05_of_that_of_one(tmp_path: Path, rank: int) -> None:
    keyed = 'simulation.policy={"keyed_folds": true}'  # sites of seven rows
    file = read_simulation(DIGITS, [f"run.method.rank={rank}", keyed], sites=256, regions=8)
    found, _ = verify(file.run, first_rows(file.run, partitioned_data(file, tmp_path)))
    for one in found:
        assert one.one_level is not None
        if one.method in ("dsgd", "dad", "edad"):
            assert one.is_exact("float32")
        else:
            assert one.error <= 1.05 * one.one_level, one.method
