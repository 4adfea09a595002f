"""A small run in one process, any of whose members may die between two messages and start again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from rankdad.common.data import SiteData
from rankdad.common.policy import EVERYTHING, Policy
from rankdad.common.protocol.messages import Ask
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.checkpoints import Checkpoints
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local import site as local
from rankdad.local.observer import Observer
from rankdad.local.site import site_of
from rankdad.local.starting import save_state, starting_state
from rankdad.local.training import Result
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.run_reader import FILE
from rankdad.simulations.footprint import Footprint

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
    site: local.Site[Result] = field(init=False)
    result: Result | None = None
    policy: Policy = EVERYTHING
    notices: list[str] = field(default_factory=list)
    retain: bool = True

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
                save_state(checkpoints, self.state)

        policy = EVERYTHING.model_copy(update={"retain": self.retain})
        self.site = site_of(self.spec, plan, self.data, self.state, policy, Observer(between_steps=between_steps))
        self.site.take()

    def hear(self, answer: bytes | None) -> None:
        self.site.take(answer)
        if self.site.due is None:
            self.result = self.site.result


class Run:
    """All sites and the aggregator, one after the other, from the beginning or from what a folder holds.

    `crash` is asked before and after every message. `refuse` are sites whose policy lets nothing stay.
    """

    def __init__(
        self,
        spec: RunSpec,
        data: dict[str, SiteData],
        folder: Path,
        ledger: LedgerOptions = LEDGER_OPTIONS,
        refuse: Collection[str] = (),
    ) -> None:
        self.spec, self.folder, self.ledger = spec, folder, ledger
        self.now = 0.0
        self.gone: set[str] = set()  # sites that are not there for a while
        self.answers: dict[str, bytes] = {}
        self.waiting: set[str] = set()  # whose request is held
        self._start_aggregator()
        self.sites = {
            name: Site(spec, name, data[name], folder / name, retain=name not in refuse)
            for name in spec.federation.sites
        }
        try:
            for site in self.sites.values():
                site.start(self.aggregator)
        except BaseException:
            self.aggregator.abandon()
            raise

    def _start_aggregator(self) -> None:
        directory = self.folder / "run"
        resumes = (directory / FILE).exists()
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
                body = site.site.say()
                if body is None:
                    continue
                assert isinstance(body, bytes)
                if site.name not in self.answers:
                    self.waiting.add(site.name)
                    self.hand_on(self.aggregator.take(site.name, body))
                messages += 1
                victim = crash(messages)
                if victim and victim not in self.gone:
                    self.restart(victim)
                elif site.name in self.answers:
                    site.hear(self.answers.pop(site.name))
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
        while isinstance(site.site.due, Ask):
            site.hear(self.aggregator.recorded(site.name, site.site.due.round))


METHODS: list[dict[str, Any]] = [
    {"name": "rank-dad", "rank": 2},
    {"name": "powersgd", "rank": 2},
    {"name": "rank-dad", "rank": 1, "wire": "int8"},
    {"name": "rank-dad", "rank": 1, "wire": "int8", "preset": "diloco", "local_steps": 2},
    {"name": "top-k", "preset": "sparseloco", "density": 0.1, "local_steps": 2},
]
NAMES = ["rank-dad", "powersgd", "int8", "local", "sparse"]
FACTORED = {"optimizer": {"name": "adam", "lr": 0.01, "second_moment": "factored"}}


def dying(every: int) -> Callable[[int], str | None]:
    return lambda message: "aggregator" if message % every == 0 else None


def tables_of(directory: Path) -> dict[str, list[list[str]]]:
    """Return a run's tables, but for what a clock has measured, which never runs backwards."""
    found = {}
    for name in ("steps", "metrics"):
        table = pd.read_csv(directory / f"{name}.csv", dtype=str, keep_default_na=False)
        timed = [column for column in table if "seconds" in str(column)]
        assert not any(value.startswith("-") for value in table[timed].to_numpy().flatten())
        found[name] = table.drop(columns=timed).to_numpy().tolist()
    return found


def size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(own.stat().st_size for own in path.iterdir())


def whole(most: Footprint, steps: int, epochs: int) -> int:
    """Return what a ledger takes that keeps all updates, and the last contributions."""
    kept = min(steps, most.window)
    return steps * most.step_update + kept * (most.step - most.step_update) + epochs * most.epoch + most.once
