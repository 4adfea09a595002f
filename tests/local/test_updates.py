"""Updates that parse and lie: a site follows them, or ends in one sentence, whatever they are the answer to."""

from __future__ import annotations

import contextlib
import random
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rankdad.common.data import SiteData, read_site
from rankdad.common.errors import ProtocolError, RankdadError
from rankdad.common.policy import EVERYTHING
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Ask, DataWarning, Kind
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.solver import NOT_EXACT
from rankdad.local.training import TrainingState, train
from rankdad.remote.aggregator import Aggregator
from tests.conftest import run_spec, write_site
from tests.hostile import mutant

TABLE = {"reader": "csv", "file": "d.csv", "features": ["a", "b"], "label": "y", "values": [0, 1, 2]}
SPECS: dict[str, dict[str, Any]] = {
    "factors": {"method": {"name": "rank-dad", "rank": 2}, "preparation": {"standardise": "federated"}},
    "two exchanges": {"method": {"name": "powersgd", "rank": 2}, "evaluation": {"name": "k-fold", "folds": 2}},
    "int8": {"method": {"name": "dsgd", "wire": "int8"}, "task": {"name": "regression"}},
    "activations": {"method": {"name": "edad"}, "training": {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}},
    "exact": {
        "method": {"name": "dsgd"},
        "model": {"name": "linear"},
        "training": {"solver": "exact"},
        "evaluation": {"name": "k-fold", "folds": 2, "references": ["local", "site"]},
    },
    "combat": {
        "method": {"name": "dsgd"},
        "preparation": {"harmonise": {"name": "combat", "keep": ["age"]}},
        "data": TABLE,
    },
}


def follow(
    spec: RunSpec,
    data: SiteData,
    folder: Path,
    change: Callable[[int, bytes], bytes],
    quiet: tuple[type[Exception], ...] = (RankdadError,),
) -> list[bytes]:
    """Take part as the only site, and return all updates."""
    aggregator = Aggregator(spec, Replica(spec), folder, time.perf_counter)
    plan, updates = aggregator.plan, list[bytes]()
    training = train(spec, plan, data, TrainingState("alpha", RunState(spec, plan, Replica(spec))), EVERYTHING)
    with contextlib.closing(aggregator), contextlib.suppress(StopIteration, *quiet):
        message = next(training)
        while True:
            while isinstance(message, Ask):
                message = training.send(None)
            answers = aggregator.take("alpha", pack(message, plan, up=True))
            updates.append(answers["alpha"])
            message = training.send(unpack(change(len(updates) - 1, updates[-1]), plan, up=False))
    return updates


QUICK = ("factors", "int8")  # of which one update of each kind is attacked; of the others all


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "whole"),
    [*((own, False) for own in QUICK), *(pytest.param(own, True, marks=pytest.mark.slow) for own in SPECS)],
)
def test_an_update_that_lies_ends_in_a_sentence_or_is_followed(tmp_path: Path, name: str, whole: bool) -> None:
    spec = run_spec(**SPECS[name], federation={"sites": ["alpha"], "compare_every": 2})
    folder = write_site(tmp_path / "data", 24, 0)
    rows = (f"{row % 5},{row % 7},{row},{row % 3}" for row in range(24))
    (folder / "d.csv").write_text("a,b,age,y\n" + "\n".join(rows))
    data = read_site(spec, folder, 0)
    honest = follow(spec, data, tmp_path / "honest", lambda place, update: update)
    assert {msgpack.unpackb(honest[0])["k"], msgpack.unpackb(honest[-1])["k"]} == {Kind.HELLO, Kind.GOODBYE}
    last = {msgpack.unpackb(update)["k"]: place for place, update in enumerate(honest)}  # of every kind
    for attacked in range(len(honest)) if whole else last.values():
        for seed in range(2 if whole else 1):
            dice = random.Random(f"{attacked}, {seed}")

            def change(place: int, update: bytes, attacked: int = attacked, dice: random.Random = dice) -> bytes:
                return mutant(dice, update, honest) if place == attacked else update

            began = time.monotonic()
            follow(spec, data, tmp_path / f"{attacked}-{seed}", change)
            assert time.monotonic() - began < 60


def test_a_step_is_weighted_by_the_samples_of_who_takes_part(tmp_path: Path) -> None:
    """A tiny weight made error feedback send the rest of a batch, row after row."""
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, federation={"sites": ["alpha"]})
    data = read_site(spec, write_site(tmp_path / "data", 24, 0), 0)

    def change(place: int, update: bytes) -> bytes:
        document = msgpack.unpackb(update)
        if document["k"] == Kind.STEP:
            weight, loss, size = struct.unpack("<3d", document["m"])
            document["m"] = struct.pack("<3d", weight * 1e-7, loss, size)
        packed: bytes = msgpack.packb(document)
        return packed

    with pytest.raises(ProtocolError, match="m: the weight of the step: got 8e-07, expected 8"):
        follow(spec, data, tmp_path / "run", change, quiet=())


LINEAR = {"model": {"name": "linear"}, "method": {"name": "dsgd"}}


@pytest.mark.parametrize(
    ("solver", "warnings", "exact"), [("steps", (), True), ("exact", (), False), ("auto", (NOT_EXACT,), True)]
)
def test_a_solver_that_a_run_or_a_policy_does_not_have_is_refused(
    tmp_path: Path, solver: str, warnings: tuple[DataWarning, ...], exact: bool
) -> None:
    """An aggregator that lies got the sums of an exact solution out of a site whose policy keeps them."""
    spec = run_spec(**LINEAR, training={"solver": solver}, federation={"sites": ["alpha"]})
    data = replace(read_site(spec, write_site(tmp_path / "data", 24, 0), 0), warnings=warnings)

    def change(place: int, update: bytes) -> bytes:
        document = msgpack.unpackb(update)
        document["d"]["exact"] = exact
        packed: bytes = msgpack.packb(document)
        return packed

    with pytest.raises(ProtocolError) as refused:
        follow(spec, data, tmp_path / "run", change, quiet=())
    assert (refused.value.code, refused.value.field) == ("solver-differs", "d.exact")
