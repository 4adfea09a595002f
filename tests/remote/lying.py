"""A run of which one site lies, and sums that no rows add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdad.common.data import SiteData
from rankdad.common.errors import ProtocolError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.metrics.paired import measures
from rankdad.common.policy import EVERYTHING
from rankdad.common.preparation.coefficients import OWN
from rankdad.common.projections import Projections
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Ask, Kind, Message
from rankdad.common.rounds.hello import Hello
from rankdad.common.rounds.step import Step
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.solver import weights_of
from rankdad.local.training import Result, TrainingState, train
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.persistence import LedgerOptions
from tests.conftest import SITES, run_spec

LIAR, HONEST = SITES[0], SITES[1:]  # what the first in the plan says has often decided for all
METHOD = {"name": "rank-dad", "rank": 2}
FEDERATION: dict[str, Any] = {"sites": list(SITES), "quorum": 2, "grace": 5, "compare_every": 4}


class Run:
    """Two honest sites, and one that has said a true hello and then is first in every round with its lies."""

    def __init__(
        self,
        directory: Path,
        data: dict[str, SiteData],
        ledger: LedgerOptions | None = None,
        federation: dict[str, Any] = FEDERATION,
        method: dict[str, Any] | None = None,
    ) -> None:
        self.now = 0.0
        optimizer = {"name": "adam", "lr": 0.01, "second_moment": "factored"}
        training = {"optimizer": optimizer}
        self.spec = run_spec(federation=federation, method=method or METHOD, training=training)
        self.aggregator = Aggregator(self.spec, Replica(self.spec), directory, lambda: self.now, ledger=ledger)
        self.plan = self.aggregator.plan
        self.answers: dict[str, bytes] = {}
        self.trainings = {site: self._training(site, data[site]) for site in SITES}
        self.refused: list[str] = []

    def _training(self, site: str, data: SiteData) -> Any:
        state = TrainingState(site, RunState(self.spec, self.plan, Replica(self.spec)))
        return train(self.spec, self.plan, data, state, EVERYTHING)

    @property
    def round(self) -> int:
        return self.aggregator.barrier.round

    def go(self, *lies: Lie, **hello: Any) -> dict[str, Result]:
        results: dict[str, Result] = {}
        messages = {site: next(training) for site, training in self.trainings.items()}
        messages = {site: self._told(site, message) for site, message in messages.items()}
        true = messages[LIAR].body
        assert isinstance(true, Hello)
        self.hello = messages[LIAR] = replace(messages[LIAR], body=true.model_copy(update=hello))
        for site in SITES:
            self._receive(site, messages[site])
        while len(results) < len(HONEST):
            for lie in lies:
                told = lie(self)
                try:
                    if told is not None:
                        self._receive(LIAR, told)
                except ProtocolError as error:
                    self.refused.append(f"{error.status} {error}")
            answers = dict(self.answers)
            for site in HONEST:
                try:
                    update = unpack(answers[site], self.plan, up=False)
                    messages[site] = self._told(site, self.trainings[site].send(update))
                except StopIteration as stop:
                    results[site] = stop.value
                    continue
                self._receive(site, messages[site])
            self.now += 10.0
            self.answers |= self.aggregator.tick()
        self.aggregator.close()
        return results

    def _told(self, site: str, message: Message | Ask) -> Message:
        while isinstance(message, Ask):
            known = self.aggregator.recorded(site, message.round)
            message = self.trainings[site].send(None if known is None else unpack(known, self.plan, up=False))
        return message

    def _receive(self, site: str, message: Message) -> None:
        self.answers |= self.aggregator.take(site, pack(message, self.plan, up=True))


Lie = Callable[[Run], Message | None]


def step_of(weight: float, size: float = 0.0, rows: float = 0.0, columns: float = 0.0) -> Lie:
    """A step all of whose numbers are the same, and whose projections are."""

    def lie(run: Run) -> Message:
        due = run.aggregator.state.due
        exchange = due.exchange if due else 0
        layout = run.plan.layout(exchange, up=True)
        widths = [slot.widths for slot in layout.projections]
        projections = tuple(
            Projections(torch.full((out,), rows), torch.full((inputs,), columns)) for out, inputs in widths
        )
        arrays = [[torch.full((s.rows, width), size) for width in s.widths] for s in layout.slots]
        payload = tuple(Factor(*own) if len(own) == 2 else own[0] for own in arrays)
        return Message(Kind.STEP, run.round, Step(weight, 0.0, 0.0, payload, projections), exchange)

    return lie


@pytest.fixture
def data(site_data: Callable[..., dict[str, SiteData]]) -> dict[str, SiteData]:
    return site_data(run_spec())


def put(values: torch.Tensor, *changes: tuple[int | tuple[int, ...], float]) -> torch.Tensor:
    """Return float64 numbers, some changed: one by its place in the last axis, or by its whole place."""
    changed = values.clone()
    for place, value in changes:
        changed[place if isinstance(place, tuple) else (..., place)] = value
    return changed


def sums_lies(spec: RunSpec, stage: str, values: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what no rows add up to, of a fold's sums [folds, ...] that are sent."""
    yield "NaN", put(values, (0, float("nan")))
    yield "infinity", put(values, (0, float("inf")))
    yield "a negative square", put(values, (0, -1.0))
    yield "beyond all sums", put(values, (1, 1e299))
    yield "another size", torch.zeros(3, dtype=torch.float64)
    if stage.startswith(("linear", "fold", "unpenalised-")) and stage != "unpenalised-curvature":
        yield "a slope beyond its loss", put(values, (1, 1e9))
        yield "no loss", put(values, (0, 0.0))
    if stage == "linear-1":
        yield "a curvature of more rows", put(values, (1 + weights_of(spec), 1e9))
        yield "a curvature beyond its diagonal", put(values, (2 + weights_of(spec), 1e9))
    if stage == "curvature":
        yield "more rows than there are", put(values, (0, 1e6))
        yield "a diagonal below 0", put(values, (1, -1.0))
        yield "an entry beyond its diagonal", put(values, (2, 1e9))
    if stage == OWN:
        people, told, rows, freedom = range(4)
        yield "more patients than rows", put(values, (people, 1e6))
        yield "half a patient", put(values, (people, 0.5))
        yield "something else", put(values, (told, 4.0))
        yield "figures without a fit", put(values, (told, 0.0), (4, 0.5))
        yield "a fit of no rows", put(values, (told, 1.0), (rows, 0.0), (freedom, 0.0))
        yield "more freedom than rows", put(values, (told, 1.0), (rows, 9.0), (freedom, 9.0))
        yield "more than is explained", put(values, (told, 1.0), (rows, 20.0), (freedom, 9.0), (4, 1.5))
        yield "a negative error", put(values, (-1, -1.0))


def squares_lies(spec: RunSpec, stage: str, values: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what no rows come to, of sums [rivals, measures, 1 or 2] that are sent."""
    for at, name in enumerate(measures(spec.task)):
        for value in (float("nan"), float("inf"), -1.0, 1e299, 1e5):
            yield f"{name} {value}", put(values, ((1, at, 0), value))
        if values.shape[2] > 1:
            yield f"{name}, a product", put(values, ((1, at, 1), 10 + 2 * float(values[1, at].abs().max()) * 1e3))
    loss = measures(spec.task).index("loss")
    yield "another size", torch.zeros(3, dtype=torch.float64)
    yield "no squares of what differs", put(values, ((0, loss, 0), 0.0))


EXACT = {"model": {"name": "linear"}, "training": {"solver": "exact"}, "method": {"name": "dsgd"}}
