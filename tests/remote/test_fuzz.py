"""Thousands of broken messages of every kind, each when its kind is due: taken or refused, and nothing else happens."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from rankdad.common.data import SiteData, read_site
from rankdad.common.errors import ProtocolError
from rankdad.common.protocol import codec as protocol
from rankdad.common.protocol.codec import pack_failure
from rankdad.common.protocol.messages import Failure, Kind, Message
from rankdad.common.rounds.base import Ready
from rankdad.common.rounds.registry import ROUNDS
from rankdad.remote.aggregator import Aggregator, Answers
from rankdad.remote.barrier import Effect
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.updates import Update
from rankdad.simulations import lockstep, tree
from tests.conftest import SITES, run_spec, write_site
from tests.hostile import mutant
from tests.texts import DATA, notes, write_notes
from tests.texts import MODEL as TRANSFORMER

MODEL = {"name": "factory", "factory": "tests.factories:masked"}
TABLE = {"reader": "csv", "file": "d.csv", "features": ["a", "b"], "label": "y", "values": [0, 1, 2]}
VISITS = TABLE | {"label": "age", "values": [], "group": "patient"}
TREE = {"sites": list(SITES), "regions": {"north": list(SITES[:2])}}  # whose aggregator above is besieged
FEDERATED = {"standardise": "federated"}
FACTORED = {"second_moment": "factored"}
RUNS: dict[str, dict[str, Any]] = {
    "compared": {
        "method": {"name": "rank-dad", "rank": 2, "wire": "int8"},
        "federation": TREE | {"compare_every": 2},
    },
    "buffers": {"method": {"name": "dsgd", "wire": "float16"}, "model": MODEL},
    "regression": {
        "method": {"name": "edad", "wire": "bfloat16"},
        "task": {"name": "regression"},
        "preparation": FEDERATED,
    },
    "folds": {
        "method": {"name": "powersgd", "rank": 2, "wire": "float64"},
        "task": {"name": "classification", "classes": 3, "class_weights": "balanced"},
        "evaluation": {"name": "k-fold", "folds": 2},
    },
    "several labels": {
        "method": {"name": "top-k", "density": 0.1, "wire": "int2"},
        "task": {"name": "multi-label", "labels": 2},
        "model": {"name": "mlp", "hidden": [32, 32]},
    },
    "visits": {
        "method": {"name": "rank-dad", "rank": 1, "wire": "int4"},
        "task": {"name": "regression"},
        "data": VISITS,
        "training": {"epochs": 2, "batch_size": 10, "optimizer": {"name": "adam", "lr": 0.01} | FACTORED},
        "evaluation": {"name": "holdout", "references": ["linear"]},
        "federation": TREE,
    },
    "texts": {
        "method": {"name": "rank-dad", "rank": 2},
        "task": {"name": "language-model"},
        "data": DATA,
        "model": TRANSFORMER,
    },
    "table": {
        "method": {"name": "dad"},
        "data": TABLE | {"group": "patient"},
        "preparation": {"harmonise": {"name": "combat", "keep": ["age"]}},
        "model": {"name": "mlp", "hidden": [64, 64]},
        "federation": TREE,
    },
}


class Recording(Aggregator):
    """An aggregator that keeps all contributions."""

    sent: list[bytes]

    def take(self, site: str, body: bytes) -> Answers:
        self.sent.append(body)
        return super().take(site, body)


class Rows:
    """Tables of a run that are not written."""

    def row(self, name: str, row: Any) -> None:
        json.dumps(row)


class Besieged(Aggregator):
    """An aggregator that is sent broken contributions before every true one."""

    rng: random.Random
    others: list[bytes]
    most: dict[Kind, int]  # for each true one
    answered: Counter[tuple[Kind, int]]

    def take(self, site: str, body: bytes) -> Answers:
        failure = pack_failure(Message(Kind.FAILURE, self.barrier.round, Failure(site=site, reason="is ill")))
        for valid in (body, failure):
            kind = kind_of(valid)
            for _ in range(self.most[kind]):
                self._attack(site, kind, mutant(self.rng, valid, self.others))
        return super().take(site, body)

    def _open_next(self, ready: Ready, update: Update) -> list[Effect]:
        for _ in range(10):  # what sites read
            with contextlib.suppress(ProtocolError):
                protocol.unpack(mutant(self.rng, update.packed, self.others), self.plan, up=False)
        return super()._open_next(ready, update)

    def _attack(self, site: str, kind: Kind, body: bytes) -> None:
        before, status = self._state(), 200
        try:
            effects = self._receive(site, body)
        except ProtocolError as error:
            status = error.status
        self.answered[kind, status] += 1
        if status != 200:
            assert self._state() == before, (status, body[:200])
            return
        self._complete_aside(effects)
        self._restore(before)

    def _complete_aside(self, effects: list[Effect]) -> None:
        """Complete a round that a broken contribution has closed, on the side."""
        for ready in effects:
            if isinstance(ready, Ready):
                update = self.source.make(self.store.collected(ready))
                assert update is not None
                copy.deepcopy(self.state).follow(protocol.unpack(update.packed, self.plan, up=False))
                own = self.recorder
                kept = {id(whole): whole for whole in (self.spec, self.plan)}
                tables = {id(own._file): Rows(), id(own.history): own.history}
                copy.deepcopy(own, kept | tables).record(ready, update.message.body, len(update.packed), 0.0)
                json.loads((own.directory / "summary.json").read_text(), parse_constant=pytest.fail)

    def _state(self) -> dict[str, Any]:
        own = {name: copy.copy(value) for name, value in vars(self.barrier).items()}
        own["problems"], own["departed"] = dict(self.recorder.progress.problems), set(self._departed)
        own["outcome"], own["residuals"] = self.store.outcome, self.store.residuals
        own["waiting"] = list(self.persistence.file._waiting)
        return own

    def _restore(self, state: dict[str, Any]) -> None:
        for name in vars(self.barrier):
            setattr(self.barrier, name, state[name])
        self.recorder.progress.problems = state["problems"]
        self._departed, self.store.outcome, self.store.residuals = (
            state["departed"],
            state["outcome"],
            state["residuals"],
        )


def kind_of(body: bytes) -> Kind:
    return ROUNDS[msgpack.unpackb(body)["k"]].kind


def data_of(folder: Path, changes: dict[str, Any]) -> dict[str, SiteData]:
    spec, found = run_spec(**changes), {}
    for place, (site, count) in enumerate(zip(SITES, (40, 30, 21), strict=True)):
        labels = np.random.default_rng(place).integers(0, 2, (count, 2))
        own = write_site(folder / site, count, place, **({"y": labels} if spec.task.name == "multi-label" else {}))
        rows = (f"{row % 5},{row % 7},{row},{row % 3},{row // 3}" for row in range(count))
        (own / "d.csv").write_text("a,b,age,y,patient\n" + "\n".join(rows))
        write_notes(own, notes(count, place))
        found[site] = read_site(spec, own, place)
    return found


def run(kind: type[Aggregator], folder: Path, changes: dict[str, Any], **more: Any) -> tuple[Any, str]:
    """Return the aggregator of a run in this process, and the digest that it ends with."""
    made: list[Aggregator] = []

    def make(*arguments: Any, **options: Any) -> Aggregator:
        if "name" in options:
            return Aggregator(*arguments, **options)
        made.append(kind(*arguments, **options | {"ledger": LedgerOptions()}))
        for name, value in more.items():
            setattr(made[0], name, value)
        return made[0]

    changes = {"training": {"epochs": 1}} | changes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "Aggregator", make)
        data = data_of(folder / "data", changes)
        results = lockstep.run(run_spec(**changes), data, folder / "run", allowed_factories=[MODEL["factory"]])
    (digest,) = set(results["alpha"].weights_sha256.values())
    return made[0], digest


@pytest.mark.slow
@pytest.mark.parametrize(
    "count", [200, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(1800)])]
)
def test_broken_messages_of_every_kind_are_taken_or_refused_and_change_nothing(tmp_path: Path, count: int) -> None:
    recorded = {
        name: run(Recording, tmp_path / "undisturbed" / name, changes, sent=[]) for name, changes in RUNS.items()
    }
    sent = Counter(kind_of(body) for aggregator, _ in recorded.values() for body in aggregator.sent)
    sent[Kind.FAILURE] = sum(sent.values())
    assert set(sent) == {one.kind for one in ROUNDS.values()}
    most = {kind: math.ceil(count / times) for kind, times in sent.items()}
    rng, answered = random.Random(0), Counter[tuple[Kind, int]]()
    for name, (undisturbed, digest) in recorded.items():
        more = {"rng": rng, "others": undisturbed.sent, "most": most, "answered": answered}
        assert run(Besieged, tmp_path / "besieged" / name, RUNS[name], **more)[1] == digest, name
    for kind in sent:
        statuses = {status: times for (of, status), times in sorted(answered.items()) if of is kind}
        print(f"{kind.name:<10} {sum(statuses.values()):>6} messages {statuses}")
        assert sum(statuses.values()) >= count
        assert set(statuses) <= {200, 409, 410, 413, 422}
