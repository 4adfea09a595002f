"""Crashes at every yield of a small run: whoever dies, it ends with the weights of one that was never disturbed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from common.checkpoints import Checkpoints, take_over
from common.course import Course
from common.errors import UserError
from common.messages import Ask, Message
from common.plan import make_plan
from common.protocol import pack, unpack
from common.replica import Replica
from common.spec import RunSpec
from local.data import SiteData
from local.training import Result, TrainingState, train
from remote import aggregator as aggregator_module
from remote.aggregator import Aggregator, Keeping
from remote.export import export
from remote.rounds import Answer, Effect, Ready
from tests.conftest import SITES, run_spec

Data = Callable[..., dict[str, SiteData]]
EVERY = 3  # steps between two checkpoints
KEEPING = Keeping()


@pytest.fixture(autouse=True)
def _checkpoints_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregator_module, "EVERY", EVERY)


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

    def start(self, snapshot: Callable[[str], bytes | None]) -> None:
        replica = Replica(self.spec)
        plan = make_plan(self.spec, replica.model)
        course, checkpoints = Course(self.spec, plan, replica), Checkpoints(self.folder, plan, self.name)
        loaded = checkpoints.load(course)
        self.state = TrainingState(self.name, course, loaded[1] if loaded else {})
        if loaded is None and (offered := snapshot(self.name)) is not None:
            take_over(course, offered)
        began = course.round

        def between_steps() -> None:
            if replica.step % EVERY == 0 and course.round > began:
                checkpoints.save(course, self.state.residuals)

        self.training = train(self.spec, plan, self.data, self.state, between_steps=between_steps)
        self.message = next(self.training)

    def hear(self, update: Message | None) -> None:
        try:
            self.message = self.training.send(update)
        except StopIteration as stop:
            self.message, self.result = None, stop.value


class Run:
    """All sites and the aggregator, one after the other; `crash` is asked before and after every message."""

    def __init__(self, spec: RunSpec, data: dict[str, SiteData], folder: Path, keeping: Keeping = KEEPING) -> None:
        self.spec, self.folder, self.keeping = spec, folder, keeping
        self.now = 0.0
        self.gone: set[str] = set()  # sites that are not there for a while
        self.answers: dict[str, bytes] = {}
        self.waiting: set[str] = set()  # whose request is held
        self.aggregator = self._aggregator()
        self.sites = {name: Site(spec, name, data[name], folder / name) for name in SITES}
        for site in self.sites.values():
            site.start(self.aggregator.snapshot)

    def _aggregator(self) -> Aggregator:
        return Aggregator(self.spec, Replica(self.spec), self.folder / "run", lambda: self.now, keeping=self.keeping)

    def restart(self, victim: str) -> None:
        if victim == "aggregator":
            self.aggregator.close()  # closes files that a dead process would not have open
            self.aggregator = self._aggregator()
            self.carry_out(self.aggregator.resume())
        else:
            self.sites[victim].start(self.aggregator.snapshot)
            self.answers.pop(victim, None)
            self.waiting.discard(victim)

    def carry_out(self, effects: list[Effect]) -> None:
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, Answer):
                self.answers |= dict.fromkeys(self.waiting.intersection(effect.sites), effect.body)
                self.waiting.difference_update(effect.sites)
                continue
            assert isinstance(effect, Ready)
            update = self.aggregator.aggregate(effect)
            effects += self.aggregator.complete(effect, update)
            self.aggregator.follow(effect, update, 0.0)

    def go(self, crash: Callable[[int], str | None]) -> str:
        """Run to the end; returns the sites' one digest."""
        messages = 0
        while any(site.result is None for site in self.present()):
            self.now += 1.0
            self.carry_out(self.aggregator.tick())
            for site in self.present():
                self.answer_questions(site)
                if site.message is None:
                    continue
                assert isinstance(site.message, Message)
                body = pack(site.message, self.aggregator.plan, up=True)
                if site.name not in self.answers:
                    self.waiting.add(site.name)
                    self.carry_out(self.aggregator.receive(site.name, body))
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
    for victim in ("aggregator", "alpha", "gamma"):
        for when in range(1, run.messages + 1, every):
            disturbed = Run(spec, data, tmp_path / f"{victim}-{when}")
            assert disturbed.go(_once(victim, when)) == undisturbed, (victim, when)


def _once(victim: str, when: int) -> Callable[[int], str | None]:
    return lambda message: victim if message == when else None


@pytest.mark.parametrize("method", METHODS, ids=["rank-dad", "powersgd", "int8"])
def test_whoever_dies_the_weights_are_the_same(tmp_path: Path, site_data: Data, method: dict[str, Any]) -> None:
    crash_everywhere(tmp_path, site_data, method, every=11)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", METHODS, ids=["rank-dad", "powersgd", "int8"])
def test_whoever_dies_whenever_the_weights_are_the_same(
    tmp_path: Path, site_data: Data, method: dict[str, Any]
) -> None:
    crash_everywhere(tmp_path, site_data, method, every=1)


def test_everybody_dies_again_and_again(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 2, "batch_size": 12})
    data = site_data(spec)
    undisturbed = Run(spec, data, tmp_path / "undisturbed").go(lambda message: None)
    victims = ["aggregator", *SITES]
    often = Run(spec, data, tmp_path / "often")
    assert often.go(lambda message: victims[message // 7 % 4] if message % 7 == 0 else None) == undisturbed


def test_a_checkpoint_of_another_run_is_refused_and_a_torn_one_passed_over(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2})
    run = Run(spec, site_data(spec), tmp_path)
    run.go(lambda message: None)
    kept = sorted((tmp_path / "alpha").iterdir())
    assert len(kept) == 2
    kept[1].write_bytes(kept[1].read_bytes()[:200])
    course = Course(spec, run.aggregator.plan, Replica(spec))
    assert Checkpoints(tmp_path / "alpha", run.aggregator.plan, "alpha").load(course) is not None
    assert course.round == int(kept[0].stem) > 0
    assert course.roster == run.aggregator.course.roster
    with pytest.raises(UserError, match="another run, version or owner"):
        Checkpoints(tmp_path / "alpha", run.aggregator.plan, "beta").load(course)
    assert Checkpoints(tmp_path / "nowhere", run.aggregator.plan, "alpha").load(course) is None


@pytest.mark.parametrize("name", ["powersgd", "edad"])
def test_any_steps_model_comes_out_of_the_ledger_alone(tmp_path: Path, site_data: Data, name: str) -> None:
    method: dict[str, Any] = {"name": name} | ({"rank": 2} if name == "powersgd" else {})
    spec = run_spec(method=method, training={"epochs": 2, "batch_size": 12, "schedule": {"name": "cosine"}})
    run = Run(spec, site_data(spec), tmp_path)
    digest = run.go(lambda message: None)
    steps = run.aggregator.recorder.progress.step
    assert export(tmp_path / "run", None, tmp_path / "last").digest() == digest
    assert load_file(tmp_path / "last" / "model" / "final.safetensors").keys() == Replica(spec).weights().keys()
    replica = Replica(spec)
    Checkpoints(tmp_path / "alpha", run.aggregator.plan, "alpha").load(Course(spec, run.aggregator.plan, replica))
    assert 0 < replica.step < steps
    assert export(tmp_path / "run", replica.step, tmp_path / "earlier").digest() == replica.digest() != digest
    with pytest.raises(UserError, match=f"got {steps + 1}, expected 1 to {steps}"):
        export(tmp_path / "run", steps + 1, tmp_path / "beyond")
