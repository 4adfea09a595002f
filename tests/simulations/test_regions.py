"""Trees of aggregators in one process: exact methods stay exact, all end alike, and what crashes goes on."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.common.data import SiteData, read_site
from rankdad.common.errors import ProtocolError, RunFailedError, UserError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.methods import Contribution, MethodState
from rankdad.common.methods.base import pooled
from rankdad.common.policy import EVERYTHING
from rankdad.common.preparation import description, in_memory
from rankdad.common.preparation.coefficients import OWN
from rankdad.common.preparation.rows import Rows
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Failure, Kind, Message
from rankdad.common.protocol.plan import make_plan
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.common.rounds.hello import RegionHello
from rankdad.common.rounds.step import Step
from rankdad.common.rounds.sums import Sums
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.common.spec.tasks import Regression
from rankdad.local.training import TrainingState, train
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.export import export
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.records import DamageError, Retention
from rankdad.remote.region import Region
from rankdad.remote.run_reader import FILE
from rankdad.simulations.lockstep import run, simulate
from rankdad.simulations.pooling import first_rows
from rankdad.simulations.site_folders import partitioned_data
from rankdad.simulations.spec import read_simulation
from rankdad.simulations.tree import Tree, region_directory
from rankdad.simulations.verifying import verify
from tests.conftest import run_spec, sampled, write_site
from tests.runs import summary_of

SITES = ("s0", "s1", "s2", "s3", "s4", "s5")
REGIONS = {"north": ["s0", "s1", "s2"], "south": ["s4", "far-south"], "far-south": ["s5"]}
DIGITS = Path(__file__).parent.parent.parent / "simulations" / "specs" / "digits-256.json"


def spec_of(*, regions: dict[str, list[str]] | None = None, **changes: Any) -> RunSpec:
    training = {"dtype": "float64"} | changes.pop("training", {})
    federation = {"sites": list(SITES), "regions": REGIONS if regions is None else regions, "compare_every": 5}
    return run_spec(federation=federation, training=training, **changes)


def data_of(spec: RunSpec, folder: Path) -> dict[str, SiteData]:
    counts = dict(zip(SITES, (48, 32, 17, 20, 9, 30), strict=True))
    folders = {site: write_site(folder / site, count, at) for at, (site, count) in enumerate(counts.items())}
    return {site: read_site(spec, folder, at) for at, (site, folder) in enumerate(folders.items())}


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


def trainings(spec: RunSpec, tree: Tree, data: dict[str, SiteData]) -> dict[str, Any]:
    plan = tree.top.plan
    states = {site: TrainingState(site, RunState(spec, plan, Replica(spec))) for site in SITES}
    return {site: train(spec, plan, data[site], states[site], EVERYTHING) for site in SITES}


@pytest.mark.slow
def test_a_region_that_crashes_before_its_update_sends_the_same_bytes_again(tmp_path: Path) -> None:
    spec = spec_of(method={"name": "rank-dad", "rank": 2}, regions={"north": ["s0", "s1"]})
    tree = Tree(spec, lambda: Replica(spec), tmp_path / "run", ledger=LedgerOptions(every=2))
    generators = trainings(spec, tree, data_of(spec, tmp_path / "data"))
    answers: dict[str, bytes] = {}
    for _ in range(12):
        heard: dict[str, bytes] = {}
        for site, training in generators.items():
            message = training.send(unpack(answers[site], tree.top.plan, up=False) if answers else None)
            while not isinstance(message, Message):
                message = training.send(None)
            body = pack(message, tree.top.plan, up=True)
            if site == "s1" and message.round == 11:
                tree.above(site).take(site, body)  # and nothing goes up
                break
            heard |= tree.take(site, body)
        answers = heard
    region = tree.regions["north"]
    assert region.outgoing is not None
    before, round_ = region.outgoing.body, region.outgoing.ready.round
    region.aggregator.abandon()
    tree.top.abandon()
    again = Tree(spec, lambda: Replica(spec), tmp_path / "run", ledger=LedgerOptions(every=2))
    again.top.resume()
    again.regions["north"].aggregator.resume()
    again.regions["north"].aggregator.tick()
    assert again.regions["north"].aggregator.run_id == tree.top.run_id
    outgoing = again.regions["north"].outgoing
    assert outgoing is not None
    assert (outgoing.ready.round, outgoing.body) == (round_, before)
    message = unpack(before, tree.top.plan, up=True, region=True)
    assert isinstance(message.body, Step)
    for name in again.nodes:
        again.of(name).abandon()


@pytest.mark.slow
def test_one_site_that_cannot_go_on_ends_the_run_of_all_regions_and_is_named(tmp_path: Path) -> None:
    spec = spec_of()
    data = data_of(spec, tmp_path / "data")
    in_memory(data["s5"].samples.inputs).fill_(float("nan"))
    with pytest.raises(RunFailedError, match="s5"):
        run(spec, data, tmp_path / "run")
    assert summary_of(tmp_path / "run")["reason"].startswith("south: far-south: s5: ")
    for region in REGIONS:
        assert summary_of(tmp_path / "run" / "regions" / region)["status"] == "failed"


def test_a_region_that_speaks_for_others_sites_is_refused(tmp_path: Path) -> None:
    spec = spec_of()
    tree = Tree(spec, lambda: Replica(spec), tmp_path)
    plan, known = tree.top.plan, ("spec_sha256", "weights_sha256")
    fields: dict[str, Any] = {name: getattr(plan, name) for name in known}
    fields |= {**OUR_VERSION, "plan_sha256": plan.sha256()}
    samples = dict.fromkeys(("s0", "s1", "s3"), ((10, 2, 2),))
    hello = RegionHello.model_validate(fields | {"samples": samples, "dropped": {}, "warnings": {}})
    with pytest.raises(ProtocolError, match=r"d\.samples: names others than north has: s2, s3"):
        tree.top.take("north", pack(Message(Kind.HELLO, 0, hello), plan, up=True, region=True))
    own = fields | {"samples": dict.fromkeys(("s0", "s1", "s2"), ((10, 2, 2),)), "dropped": {}, "warnings": {}}
    for field, lie in (("dropped", {"s3": 1}), ("warnings", {"one-class": ["s3"]})):
        hello = RegionHello.model_validate(own | {field: lie})
        with pytest.raises(ProtocolError, match=rf"d\.{field}.*: names others than north has"):
            tree.top.take("north", pack(Message(Kind.HELLO, 0, hello), plan, up=True, region=True))
    tree.close()


def test_an_update_from_above_that_is_not_due_ends_the_region_s_run_with_a_sentence(tmp_path: Path) -> None:
    spec = spec_of(regions={"north": ["s0"]})
    tree = Tree(spec, lambda: Replica(spec), tmp_path / "run")
    training = trainings(spec, tree, data_of(spec, tmp_path / "data"))["s0"]
    next(training)
    region = tree.regions["north"]
    assert region.aggregator.take("s0", pack(training.send(None), tree.top.plan, up=True)) == {}
    wrong = Message(Kind.DECISION, 0, spec_decision())
    answers = region.answer(pack(wrong, tree.top.plan, up=False))
    told = unpack(answers["s0"], tree.top.plan, up=False).body
    assert isinstance(told, Failure)
    assert "the update of round 0 from above is invalid: k: got DECISION in round 0, expected HELLO" in told.reason
    tree.close()


def spec_decision() -> Any:
    from rankdad.common.rounds.decision import Decision

    return Decision(epoch=0, best=True, stop=False)


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
def test_256_sites_in_8_regions_in_lockstep(tmp_path: Path) -> None:
    """Weights are equal at all; the aggregator moves what 8 children send, a region what its 32 do."""
    assignments = [
        "run.training.epochs=2",
        'simulation.policy={"min_rows": 1, "rows_per_rank": null, "keyed_folds": true}',
    ]
    file = read_simulation(DIGITS, assignments, sites=256, regions=8)
    summary = simulate(file, tmp_path / "run", quiet=True)
    assert len(summary["weights_sha256"]) == 264
    assert set(summary["weights_sha256"].values()) == {summary["aggregator_sha256"]}
    plan = make_plan(file.run, Replica(file.run).model)
    most = {"up": max(exchange.down.payload_bytes(plan.wire) for exchange in plan.exchanges)}
    own = summary_of(tmp_path / "run" / "regions" / "region-1")
    assert (len(summary["sites"]), len(own["sites"])) == (8, 32)
    for one in (summary, own):
        assert one["bytes_up_per_site_step"] < most["up"] + 200


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


def to_the_end(spec: RunSpec, data: dict[str, SiteData], directory: Path, ledger: LedgerOptions) -> str:
    """Let a run with a ledger end; return the digest of its weights."""
    tree = Tree(spec, lambda: Replica(spec), directory, ledger=ledger)
    generators, answers = trainings(spec, tree, data), dict[str, bytes]()
    while not tree.top.ended:
        heard: dict[str, bytes] = {}
        for site, training in generators.items():
            message = training.send(unpack(answers[site], tree.top.plan, up=False) if answers else None)
            while not isinstance(message, Message):
                message = training.send(None)
            heard |= tree.take(site, pack(message, tree.top.plan, up=True))
        answers = heard
    tree.close()
    return tree.top.recorder.progress.aggregator_sha256


@pytest.mark.slow
def test_a_region_goes_on_in_its_own_directory_alone_and_its_model_comes_from_a_tail(tmp_path: Path) -> None:
    """Started as another region it combined that one's contributions; as the aggregator above it answered sites."""
    spec = spec_of(method={"name": "rank-dad", "rank": 2}, regions={"north": ["s0", "s1"], "south": ["s2", "s3"]})
    options = LedgerOptions(retention=Retention.TAIL, every=2)
    digest = to_the_end(spec, data_of(spec, tmp_path / "data"), tmp_path / "run", options)
    north = region_directory(tmp_path / "run", "north")
    said = r"--output: \S+ is the directory of region north, and this is "
    with pytest.raises(UserError, match=said + "region south"):
        Aggregator(spec, Replica(spec), north, perf_counter, ledger=options, name="south")
    with pytest.raises(UserError, match=said + "the top aggregator"):
        Aggregator(spec, Replica(spec), north, perf_counter, ledger=options)
    assert export(north, None, tmp_path / "exported").replica.digest() == digest


@pytest.mark.slow
def test_a_damaged_update_of_a_region_is_asked_for_above(tmp_path: Path) -> None:
    spec = spec_of(method={"name": "rank-dad", "rank": 2}, regions={"north": ["s0", "s1"]})
    options = LedgerOptions(every=1000)
    digest = to_the_end(spec, data_of(spec, tmp_path / "data"), tmp_path / "run", options)
    directory = region_directory(tmp_path / "run", "north")
    with closing(sqlite3.connect(directory / FILE)) as file, file:
        file.execute("UPDATE updates SET body = CAST('' AS BLOB) WHERE round = 3")
    top = Aggregator(spec, Replica(spec), tmp_path / "run", perf_counter, ledger=options)
    own = Aggregator(spec, Replica(spec), directory, perf_counter, ledger=options, name="north")
    Region(own)
    with pytest.raises(DamageError, match="the update of round 3 is damaged"):
        own.resume()
    own.abandon()
    own = Aggregator(spec, Replica(spec), directory, perf_counter, ledger=options, name="north")
    Region(own, top.persistence.update)
    own.resume()
    assert own.state.replica.digest() == digest
    assert own.persistence.update(3) == top.persistence.update(3)
    own.abandon()
    top.abandon()
