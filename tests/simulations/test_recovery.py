"""Crashes at every yield of a small run: whoever dies, it ends with the weights of one that was never disturbed."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file

from rankdad.common.errors import PolicyError, ProtocolError, UserError
from rankdad.common.policy import EVERYTHING, Policy
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Ask, Message
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.checkpoints import Checkpoints, take_over
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.data import SiteData
from rankdad.local.starting import starting_state
from rankdad.local.training import Result, train
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.export import export
from rankdad.remote.ledger import Retention
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.rounds import Ready
from rankdad.simulations import footprint as footprint_module
from rankdad.simulations.footprint import Footprint, footprint
from tests.conftest import SITES, run_spec

Data = Callable[..., dict[str, SiteData]]
EVERY = 3  # steps between two checkpoints
LEDGER_OPTIONS = LedgerOptions(every=EVERY)


@dataclass
class Site:
    """A site's process: what dies with it, and its folder, which does not."""

    spec: RunSpec
    name: str
    data: SiteData
    folder: Path
    training: Generator[Message | Ask, Message | None, Result] = field(init=False)
    message: Message | Ask | None = None
    result: Result | None = None
    policy: Policy = EVERYTHING
    notices: list[str] = field(default_factory=list)

    def start(self, aggregator: Aggregator) -> None:
        replica = Replica(self.spec)
        plan = make_plan(self.spec, replica.model)
        run_state = RunState(self.spec, plan, replica)
        checkpoints = Checkpoints(self.folder, plan, self.name, data_sha256=self.data.sha256())
        offered = {"oldest": aggregator.status.oldest}
        options = (run_state, checkpoints, self.policy, self.notices.append)
        self.state = starting_state(self.name, offered, lambda: aggregator.snapshot(self.name), *options)
        began = run_state.round

        def between_steps() -> None:
            if run_state.steps % EVERY == 0 and run_state.round > began:
                kept = self.state
                checkpoints.save(run_state, kept.residuals, {"follows": kept.follows}, kept.moments)

        self.training = train(self.spec, plan, self.data, self.state, EVERYTHING, between_steps=between_steps)
        self.message = next(self.training)

    def hear(self, update: Message | None) -> None:
        try:
            self.message = self.training.send(update)
        except StopIteration as stop:
            self.message, self.result = None, stop.value


class Run:
    """All sites and the aggregator, one after the other, from the beginning or from what a folder holds.

    `crash` is asked before and after every message.
    """

    def __init__(
        self, spec: RunSpec, data: dict[str, SiteData], folder: Path, ledger: LedgerOptions = LEDGER_OPTIONS
    ) -> None:
        self.spec, self.folder, self.ledger = spec, folder, ledger
        self.now = 0.0
        self.gone: set[str] = set()  # sites that are not there for a while
        self.answers: dict[str, bytes] = {}
        self.waiting: set[str] = set()  # whose request is held
        self._start_aggregator()
        self.sites = {name: Site(spec, name, data[name], folder / name) for name in spec.federation.sites}
        try:
            for site in self.sites.values():
                site.start(self.aggregator)
        except BaseException:
            self.aggregator.abandon()
            raise

    def _start_aggregator(self) -> None:
        directory = self.folder / "run"
        resumes = (directory / "ledger").exists()
        self.aggregator = Aggregator(self.spec, Replica(self.spec), directory, lambda: self.now, ledger=self.ledger)
        try:
            if resumes:
                self.aggregator.resume()
                self.hand_on(self.aggregator.tick())
        except BaseException:
            self.aggregator.abandon()
            raise

    def restart(self, victim: str) -> None:
        if victim == "aggregator":
            self.aggregator.close()  # closes files that a dead process would not have open
            self._start_aggregator()
        else:
            self.sites[victim].start(self.aggregator)
            self.answers.pop(victim, None)
            self.waiting.discard(victim)

    def hand_on(self, answers: dict[str, bytes]) -> None:
        self.answers |= {site: body for site, body in answers.items() if site in self.waiting}
        self.waiting.difference_update(answers)

    def go(self, crash: Callable[[int], str | None]) -> str:
        """Run to the end; returns the sites' one digest."""
        messages = 0
        while any(site.result is None for site in self.present()):
            self.now += 1.0
            self.hand_on(self.aggregator.tick())
            for site in self.present():
                self.answer_questions(site)
                if site.message is None:
                    continue
                assert isinstance(site.message, Message)
                body = pack(site.message, self.aggregator.plan, up=True)
                if site.name not in self.answers:
                    self.waiting.add(site.name)
                    self.hand_on(self.aggregator.take(site.name, body))
                messages += 1
                victim = crash(messages)
                if victim and victim not in self.gone:
                    self.restart(victim)
                elif site.name in self.answers:
                    answer = self.answers.pop(site.name)
                    site.hear(unpack(answer, self.aggregator.plan, up=False))
            assert messages < 2000, "the run does not end"
        self.aggregator.close()
        (digest,) = {tuple(site.result.weights_sha256.items()) for site in self.present() if site.result}
        assert len({value for _, value in digest}) == 1
        assert self.aggregator.recorder.progress.aggregator_sha256 == digest[0][1]
        self.messages = messages
        return digest[0][1]

    def present(self) -> list[Site]:
        return [site for site in self.sites.values() if site.name not in self.gone]

    def answer_questions(self, site: Site) -> None:
        while isinstance(site.message, Ask):
            known = self.aggregator.recorded(site.name, site.message.round)
            site.hear(None if known is None else unpack(known, self.aggregator.plan, up=False))


METHODS: list[dict[str, Any]] = [
    {"name": "rank-dad", "rank": 2},
    {"name": "powersgd", "rank": 2},
    {"name": "rank-dad", "rank": 1, "wire": "int8"},
    {"name": "rank-dad", "rank": 1, "wire": "int8", "preset": "diloco", "local_steps": 2},
]


def crash_everywhere(tmp_path: Path, site_data: Data, method: dict[str, Any], every: int) -> None:
    """With dropout, Adam, clipping, a schedule, and evaluation rounds between the epochs."""
    spec = run_spec(
        method=method,
        model={"name": "mlp", "hidden": [16, 16], "dropout": 0.2},
        training={"epochs": 2, "batch_size": 12, "schedule": {"name": "cosine", "warmup": 2}, "clip": 1.0},
    )
    data = site_data(spec)
    run = Run(spec, data, tmp_path / "undisturbed")
    undisturbed = run.go(lambda message: None)
    for number, victim in enumerate(("aggregator", "alpha", "gamma")):
        for when in range(1 + number * every // 3, run.messages + 1, every):
            disturbed = Run(spec, data, tmp_path / f"{victim}-{when}")
            assert disturbed.go(_once(victim, when)) == undisturbed, (victim, when)


def _once(victim: str, when: int) -> Callable[[int], str | None]:
    return lambda message: victim if message == when else None


@pytest.mark.parametrize("method", METHODS, ids=["rank-dad", "powersgd", "int8", "local"])
def test_whoever_dies_the_weights_are_the_same(tmp_path: Path, site_data: Data, method: dict[str, Any]) -> None:
    crash_everywhere(tmp_path, site_data, method, every=90)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("method", METHODS, ids=["rank-dad", "powersgd", "int8", "local"])
def test_whoever_dies_whenever_the_weights_are_the_same(
    tmp_path: Path, site_data: Data, method: dict[str, Any], every: int
) -> None:
    crash_everywhere(tmp_path, site_data, method, every)


def test_everybody_dies_again_and_again(tmp_path: Path, site_data: Data) -> None:
    """With early stopping: the epochs without improvement are counted across deaths, and the best weights kept."""
    stopping = {
        "epochs": 9,
        "batch_size": 12,
        "early_stopping": {"patience": 2},
        "optimizer": {"name": "adam", "lr": 0.1},
    }
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training=stopping)
    data = site_data(spec)
    calm = Run(spec, data, tmp_path / "undisturbed")
    undisturbed = calm.go(lambda message: None)
    assert 3 <= calm.aggregator.state.epoch < 9, "it stops early"
    victims = ["aggregator", *SITES]
    often = Run(spec, data, tmp_path / "often")
    assert often.go(lambda message: victims[message // 7 % 4] if message % 7 == 0 else None) == undisturbed
    assert often.aggregator.state.epoch == calm.aggregator.state.epoch
    best = [load_file(tmp_path / name / "run" / "model" / "best.safetensors") for name in ("undisturbed", "often")]
    assert all(torch.equal(best[0][name], best[1][name]) for name in best[0])


def crash_in_the_second_fold(tmp_path: Path, site_data: Data, pick: Callable[[list[int]], list[int]]) -> None:
    spec = run_spec(
        method=METHODS[0],
        preparation={"standardise": "federated"},
        evaluation={"name": "k-fold", "folds": 2},
        training={"epochs": 1, "batch_size": 5, "schedule": {"name": "cosine", "warmup": 2}},
    )
    data = site_data(spec, (40, 30, 21))
    run, fold_of = Run(spec, data, tmp_path / "undisturbed"), dict[int, int]()
    undisturbed = run.go(lambda message: fold_of.update({message: run.aggregator.state.fold}))
    second = [message for message, fold in fold_of.items() if fold == 1]
    figures = run.aggregator.recorder.progress.study.summary()
    for victim in ("aggregator", "beta"):
        for when in pick(second):
            disturbed = Run(spec, data, tmp_path / f"{victim}-{when}")
            assert disturbed.go(_once(victim, when)) == undisturbed, (victim, when)
            assert disturbed.aggregator.recorder.progress.study.summary() == figures
    most, steps = footprint(run.aggregator.plan), run.aggregator.recorder.progress.step
    assert size_of(tmp_path / "undisturbed" / "run" / "ledger") <= whole(most, steps, 3)
    assert size_of(tmp_path / "undisturbed" / "run" / "checkpoints") <= 2 * most.checkpoint
    run_state = RunState(spec, run.aggregator.plan, Replica(spec))
    Checkpoints(tmp_path / "undisturbed" / "alpha", run.aggregator.plan, "alpha").load(run_state)
    assert run_state.fold == 2
    exported = export(tmp_path / "undisturbed" / "run", run_state.steps, tmp_path / "exported")
    assert (exported.fold, exported.replica.digest()) == (2, run_state.replica.digest())


def test_whoever_dies_in_a_later_fold_the_weights_and_figures_are_the_same(tmp_path: Path, site_data: Data) -> None:
    """Before its first step, when checkpoints are of the fold before; in it; and when it is over."""
    crash_in_the_second_fold(tmp_path, site_data, lambda second: [second[1], second[len(second) // 2], second[-1] + 1])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_whoever_dies_whenever_in_a_later_fold_they_are_the_same(tmp_path: Path, site_data: Data, every: int) -> None:
    moments = lambda second: [*range(1, 12), *second, second[-1] + 1][::every]  # noqa: E731
    crash_in_the_second_fold(tmp_path, site_data, moments)


def test_a_site_that_lost_its_disk_in_a_later_fold_goes_on(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(
        method={"name": "rank-dad", "rank": 1}, evaluation={"name": "k-fold", "folds": 2}, training={"epochs": 2}
    )
    run = Run(spec, site_data(spec, (40, 30, 21)), tmp_path)

    def crash(message: int) -> str | None:
        run_state = run.aggregator.state
        if run_state.fold != 1 or run_state.step != 2 or run.aggregator.recorder.progress.resets:
            return None
        shutil.rmtree(tmp_path / "beta")
        return "beta"

    digest = run.go(crash)
    (reset,) = run.aggregator.recorder.progress.resets
    assert reset["site"] == "beta"
    assert export(tmp_path / "run", None, tmp_path / "replayed").replica.digest() == digest


@pytest.mark.parametrize(
    "changes", [{"fold": 3}, {"roster": [[9, 9, 9]]}, {"roster": [[9, 9]] * 3}, {"total": torch.ones(3, 1)}]
)
def test_a_snapshot_of_other_folds_is_refused_and_changes_nothing(
    tmp_path: Path, site_data: Data, changes: dict[str, Any]
) -> None:
    spec = run_spec(
        preparation={"standardise": "federated"},
        evaluation={"name": "k-fold", "folds": 2},
        training={"epochs": 1, "batch_size": 5},
    )
    run = Run(spec, site_data(spec, (40, 30, 21)), tmp_path)
    run.go(lambda message: None)
    good = Aggregator(spec, Replica(spec), tmp_path / "run", time.perf_counter, ledger=LEDGER_OPTIONS)
    with contextlib.closing(good):
        snapshot = good.snapshot("beta")
    assert snapshot is not None
    size = int.from_bytes(snapshot[:4], "little")
    document, tensors = json.loads(snapshot[4 : 4 + size]), safetensors.torch.load(snapshot[4 + size :])
    if "total" in changes:
        tensors |= {"total/sums": changes["total"]}
    standing = json.dumps(document | {name: value for name, value in changes.items() if name != "total"}).encode()
    run_state = RunState(spec, run.aggregator.plan, Replica(spec))
    with pytest.raises(ProtocolError, match="snapshot cannot be used"):
        take_over(run_state, len(standing).to_bytes(4, "little") + standing + safetensors.torch.save(tensors))
    assert (run_state.round, run_state.fold, run_state.roster) == (0, 0, ())
    take_over(run_state, snapshot)
    assert run_state.fold == document["fold"] == 2


@pytest.mark.parametrize("method", [{"name": "rank-dad", "rank": 2}, {"name": "powersgd", "rank": 2}])
def test_a_snapshot_that_would_fail_later_is_refused_at_once(
    tmp_path: Path, site_data: Data, method: dict[str, Any]
) -> None:
    """Each of these ended the site with a traceback, in its next step or at the end of its fold."""
    spec = run_spec(method=method, training={"epochs": 3})
    run = Run(spec, site_data(spec), tmp_path)
    run.go(lambda message: None)
    good = Aggregator(spec, Replica(spec), tmp_path / "run", time.perf_counter, ledger=LEDGER_OPTIONS)
    with contextlib.closing(good):
        snapshot = good.snapshot("beta")
    assert snapshot is not None
    head = 4 + int.from_bytes(snapshot[:4], "little")
    tensors = safetensors.torch.load(snapshot[head:])
    weights = tensors["replica/weights/3.weight"]
    for changes in (
        {"replica/exp_avg/3.weight": None},
        {"replica/step/3.weight": None},
        {"replica/step/3.weight": weights.clone()},
        {"replica/other/3.weight": weights.clone()},
        {"best/3.weight": weights[:1].clone()},
        {"best/3.weight": None},
        {"best/other": weights.clone()},
        {"basis/3.weight": torch.ones(2, 99)},
        {"basis/3.weight": torch.ones(99, weights.shape[1])},
        {"basis/3.weight": torch.ones(16)},
        {"basis/other": torch.ones(2, 16)},
    ):
        changed = {name: value for name, value in (tensors | changes).items() if value is not None}
        assert changed.keys() != tensors.keys() or changed[name := next(iter(changes))].shape != tensors[name].shape
        with pytest.raises(ProtocolError, match="snapshot cannot be used"):
            take_over(
                RunState(spec, run.aggregator.plan, Replica(spec)), snapshot[:head] + safetensors.torch.save(changed)
            )


def test_a_checkpoint_of_another_run_is_refused_and_a_torn_one_passed_over(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2})
    run = Run(spec, site_data(spec), tmp_path)
    run.go(lambda message: None)
    kept = sorted((tmp_path / "alpha").iterdir())
    assert len(kept) == 2
    kept[1].write_bytes(kept[1].read_bytes()[:200])
    run_state = RunState(spec, run.aggregator.plan, Replica(spec))
    assert Checkpoints(tmp_path / "alpha", run.aggregator.plan, "alpha").load(run_state) is not None
    assert run_state.round == int(kept[0].name[:12]) > 0
    assert run_state.roster == run.aggregator.state.roster
    with pytest.raises(UserError, match="another run, version or owner"):
        Checkpoints(tmp_path / "alpha", run.aggregator.plan, "beta").load(run_state)
    assert Checkpoints(tmp_path / "nowhere", run.aggregator.plan, "alpha").load(run_state) is None


@pytest.mark.parametrize("name", ["powersgd", "edad"])
def test_any_steps_model_comes_out_of_the_ledger_alone(tmp_path: Path, site_data: Data, name: str) -> None:
    method: dict[str, Any] = {"name": name} | ({"rank": 2} if name == "powersgd" else {})
    spec = run_spec(method=method, training={"epochs": 2, "batch_size": 12, "schedule": {"name": "cosine"}})
    run = Run(spec, site_data(spec), tmp_path)
    digest = run.go(lambda message: None)
    steps = run.aggregator.recorder.progress.step
    assert export(tmp_path / "run", None, tmp_path / "last").replica.digest() == digest
    assert load_file(tmp_path / "last" / "model" / "final.safetensors").keys() == Replica(spec).weights().keys()
    replica = Replica(spec)
    Checkpoints(tmp_path / "alpha", run.aggregator.plan, "alpha").load(RunState(spec, run.aggregator.plan, replica))
    assert 0 < replica.step < steps
    assert export(tmp_path / "run", replica.step, tmp_path / "earlier").replica.digest() == replica.digest() != digest
    with pytest.raises(UserError, match=f"got {steps + 1}, expected 1 to {steps}"):
        export(tmp_path / "run", steps + 1, tmp_path / "beyond")


QUORUM: dict[str, Any] = {"sites": list(SITES), "quorum": 2, "grace": 2.0, "compare_every": 5}


def without(run: Run, site: str, since: int, until: int, *, killed: bool) -> Callable[[int], str | None]:
    """A site that is not there from one message to another; then it is started again, or goes on where it stood."""

    def crash(message: int) -> str | None:
        if message == since:
            run.gone.add(site)
        if message != until:
            return None
        run.gone.discard(site)
        return site if killed else None

    return crash


@pytest.mark.parametrize("method", METHODS, ids=["rank-dad", "powersgd", "int8", "local"])
@pytest.mark.parametrize("killed", [True, False], ids=["restarted", "late"])
def test_a_quorum_goes_on_without_a_site_which_catches_up(
    tmp_path: Path, site_data: Data, method: dict[str, Any], killed: bool
) -> None:
    training = {"epochs": 3, "batch_size": 8 // method.get("local_steps", 1)}
    spec = run_spec(method=method, training=training, federation=QUORUM)
    run = Run(spec, site_data(spec), tmp_path)
    digest = run.go(without(run, "gamma", 17, 41, killed=killed))
    progress = run.aggregator.recorder.progress
    assert 3 <= progress.left_out["gamma"] < progress.step - 5, "it was away for a while, and came back"
    assert set(progress.left_out) == {"gamma"}
    assert set(progress.weights_sha256) == set(SITES)
    assert progress.drift == 0.0
    assert export(tmp_path / "run", None, tmp_path / "replayed").replica.digest() == digest


def test_a_step_that_left_a_site_out_changes_none_of_its_moments(tmp_path: Path, site_data: Data) -> None:
    training = {"epochs": 1, "batch_size": 4}
    spec = run_spec(method={"name": "dsgd", "local_steps": 2}, training=training, federation=QUORUM)
    run = Run(spec, site_data(spec, (48, 48, 48)), tmp_path)
    away, gamma = without(run, "gamma", 7, 15, killed=False), run.sites["gamma"].state
    before: dict[int, Any] = {}  # its moments, by the round in which it stands

    def crash(message: int) -> str | None:
        before.setdefault(gamma.run.round, gamma.moments)
        return away(message)

    run.go(crash)
    assert run.aggregator.recorder.progress.left_out["gamma"] == 1
    steps = [before.get(round_, before[4]) for round_ in range(1, 6)]
    assert [one is other for one, other in pairwise(steps)] == [False, True, False, False]


def test_a_site_gone_for_good_is_left_out_and_the_run_says_so(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 2}, federation=QUORUM)
    data = site_data(spec)
    undisturbed = Run(spec, data, tmp_path / "undisturbed")
    undisturbed.go(lambda message: None)
    run = Run(spec, data, tmp_path)
    digest = run.go(without(run, "beta", 10, 10_000, killed=True))
    progress = run.aggregator.recorder.progress
    assert set(progress.weights_sha256) == {"alpha", "gamma"}
    assert progress.left_out["beta"] > progress.step / 2
    assert run.now <= undisturbed.now + QUORUM["grace"] + 1, "only the first round without it waits for its grace"
    assert export(tmp_path / "run", None, tmp_path / "replayed").replica.digest() == digest


def test_an_aggregator_that_dies_in_a_run_of_a_quorum_goes_on_from_its_ledger(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 3}, federation=QUORUM)
    run = Run(spec, site_data(spec), tmp_path)
    away = without(run, "gamma", 14, 50, killed=False)
    digest = run.go(lambda message: away(message) or ("aggregator" if message % 9 == 0 else None))
    assert export(tmp_path / "run", None, tmp_path / "replayed").replica.digest() == digest


@pytest.mark.parametrize("retention", list(Retention))
def test_a_site_that_lost_its_disk_goes_on_without_residuals_and_the_ledger_says_so(
    tmp_path: Path, site_data: Data, retention: Retention
) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 1}, training={"epochs": 3})
    run = Run(spec, site_data(spec), tmp_path, LedgerOptions(retention=retention, every=EVERY))

    def crash(message: int) -> str | None:
        if message == 50:
            shutil.rmtree(tmp_path / "beta")
            return "beta"
        return "aggregator" if message == 53 else None

    digest = run.go(crash)
    (reset,) = run.aggregator.recorder.progress.resets
    assert reset["site"] == "beta"
    assert 10 <= reset["round"] < 20
    assert export(tmp_path / "run", None, tmp_path / "replayed").replica.digest() == digest
    (notice,) = run.sites["beta"].notices
    assert "beta: has lost its checkpoints; goes on" in notice
    assert notice.endswith("takes over its weights, which it cannot compare with its own")


@pytest.mark.parametrize(
    ("accepts", "lost", "sentence"),
    [
        (0, True, r'\(accept_replica 0\); "accept_replica": 0.001 in its policy file lets in'),
        (1e-3, False, r'no longer reaches back .* than 0.001 \(accept_replica\); "accept_replica": null in its'),
    ],
    ids=["none left", "its own are said to be too old"],
)
def test_a_site_goes_on_from_the_aggregators_weights_only_as_its_policy_says(
    tmp_path: Path,
    site_data: Data,
    accepts: float,
    lost: bool,
    sentence: str,
) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 1}, training={"epochs": 3})
    run = Run(spec, site_data(spec), tmp_path)
    run.sites["beta"].policy = Policy(accept_replica=accepts)

    def crash(message: int) -> str | None:
        if message != 50:
            return None
        if lost:
            shutil.rmtree(tmp_path / "beta")
        run.aggregator.status = replace(run.aggregator.status, oldest=10**9)
        return "beta"

    with pytest.raises(PolicyError, match=sentence):
        run.go(crash)
    run.aggregator.abandon()
    assert (tmp_path / "beta").exists() is not lost


def test_the_tail_alone_is_enough_to_recover_and_has_a_bound(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "powersgd", "rank": 1}, training={"epochs": 4})
    data = site_data(spec)
    undisturbed = Run(spec, data, tmp_path / "undisturbed").go(lambda message: None)
    victims = ["aggregator", *SITES]
    run = Run(spec, data, tmp_path, LedgerOptions(retention=Retention.TAIL, every=EVERY))
    assert run.go(lambda message: victims[message // 13 % 4] if message % 13 == 0 else None) == undisturbed
    for kind in ("contributions", "updates"):
        assert 2 <= len(list((tmp_path / "run" / "ledger").glob(f"{kind}-*"))) <= 4
    steps = run.aggregator.recorder.progress.step
    assert export(tmp_path / "run", steps - 1, tmp_path / "exported").steps == steps - 1
    with pytest.raises(UserError, match="keeps only the last checkpoints"):
        export(tmp_path / "run", 2, tmp_path / "exported")


def dying(every: int) -> Callable[[int], str | None]:
    return lambda message: "aggregator" if message % every == 0 else None


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def whole(most: Footprint, steps: int, epochs: int) -> int:
    """Return what a ledger takes that keeps all updates, and the last contributions."""
    kept = min(steps, footprint_module.WINDOW)
    return steps * most.step_update + kept * (most.step - most.step_update) + epochs * most.epoch + most.once


@pytest.mark.parametrize("method", [*METHODS, {"name": "dsgd"}], ids=["rank-dad", "powersgd", "int8", "local", "dsgd"])
@pytest.mark.parametrize("retention", list(Retention))
def test_a_run_takes_no_more_disk_than_was_predicted(
    tmp_path: Path, site_data: Data, method: dict[str, Any], retention: Retention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not much less: contributions of three times EVERY steps, the updates of all or of as many."""
    monkeypatch.setattr(footprint_module, "WINDOW", 3 * EVERY)
    spec = run_spec(method=method, training={"epochs": 3}, federation={"sites": list(SITES), "compare_every": 0})
    run = Run(spec, site_data(spec), tmp_path, LedgerOptions(retention=retention, every=EVERY))
    run.go(lambda message: None)
    most, steps = footprint(run.aggregator.plan), run.aggregator.recorder.progress.step
    ledger, checkpoints = (size_of(tmp_path / "run" / name) for name in ("ledger", "checkpoints"))
    assert checkpoints <= 2 * most.checkpoint
    if retention is Retention.ALL:
        assert 0.3 * whole(most, steps, 3) < ledger <= whole(most, steps, 3)
    else:
        assert ledger + checkpoints <= most.tail(epochs=2)


def test_the_tables_of_a_run_are_whole_after_crashes(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 2, "batch_size": 12})
    data = site_data(spec)
    tables = []
    for name, every in (("undisturbed", 10_000), ("disturbed", 7)):
        run = Run(spec, data, tmp_path / name)
        run.go(dying(every))
        found = []
        for table, timed in (("steps.csv", ("seconds", "aggregation_seconds")), ("metrics.csv", ())):
            rows = pd.read_csv(tmp_path / name / "run" / table)
            assert (rows[list(timed)] >= 0).all(axis=None), "no time runs backwards after a restart"
            found.append(rows.drop(columns=list(timed)).to_csv())
        tables.append(found)
    assert tables[0] == tables[1]


def test_the_last_checkpoint_lost_too_is_said(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 3})
    run = Run(spec, site_data(spec), tmp_path)
    run.go(lambda message: None)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint is readable"):
        Aggregator(spec, Replica(spec), tmp_path / "run", time.perf_counter, ledger=LEDGER_OPTIONS)


def test_a_site_that_loses_its_state_while_a_round_is_aggregated_is_reset_for_the_next(
    tmp_path: Path, site_data: Data
) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 2, "batch_size": 12})
    run = Run(spec, site_data(spec), tmp_path)
    aggregate = run.aggregator.aggregate
    lost: list[int] = []

    def lose(ready: Ready) -> Any:
        if not lost and run.aggregator.snapshot("beta") is not None:
            lost.append(ready.round)
        return aggregate(ready)

    run.aggregator.aggregate = lose  # type: ignore[method-assign]
    run.go(lambda message: "aggregator" if message % 5 == 0 and lost else None)
    assert [reset["round"] for reset in run.aggregator.recorder.progress.resets] == [lost[0] + 1]


def test_a_site_that_comes_back_with_other_data_is_refused_by_itself(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 2})
    data = site_data(spec)
    run = Run(spec, data, tmp_path)

    def crash(message: int) -> str | None:
        if message != 20:
            return None
        run.sites["beta"].data = data["alpha"]
        return "beta"

    with contextlib.closing(run.aggregator), pytest.raises(UserError, match="a site goes on with the same data"):
        run.go(crash)
