"""Regions that crash, lie or lose a file: the run goes on to the same bytes, or ends with a named reason."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from rankdad.common.data import SiteData
from rankdad.common.errors import ProtocolError, RunFailedError, UserError
from rankdad.common.preparation import in_memory
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Failure, Kind, Message
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.common.rounds.decision import Decision
from rankdad.common.rounds.hello import RegionHello
from rankdad.common.rounds.step import Step
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.export import export
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.records import DamageError, Retention
from rankdad.remote.region import Region
from rankdad.remote.run_reader import FILE
from rankdad.simulations.lockstep import run
from rankdad.simulations.tree import Tree, region_directory
from tests.runs import summary_of
from tests.simulations.trees import REGIONS, data_of, spec_of, trainings


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
    wrong = Message(Kind.DECISION, 0, Decision(epoch=0, best=True, stop=False))
    answers = region.answer(pack(wrong, tree.top.plan, up=False))
    told = unpack(answers["s0"], tree.top.plan, up=False).body
    assert isinstance(told, Failure)
    assert "the update of round 0 from above is invalid: k: got DECISION in round 0, expected HELLO" in told.reason
    tree.close()


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
