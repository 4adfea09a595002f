"""Updates that parse and lie: a site follows them, or ends in one sentence, whatever they are the answer to."""

from __future__ import annotations

import contextlib
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from common.course import Course
from common.errors import RankdadError
from common.messages import Ask, Kind
from common.policy import EVERYTHING
from common.protocol import pack, unpack
from common.replica import Replica
from common.spec import RunSpec
from local.data import SiteData, read_site
from local.training import TrainingState, train
from remote.aggregator import Aggregator
from remote.carrying import carry_out
from tests.conftest import run_spec, write_site

EXTREMES = (0.0, 1.0, -1.0, 1e-300, 1e300, -1e300, 3e38, 1e-45, 2.0**53)
TABLE = {"reader": "csv", "file": "d.csv", "features": ["a", "b"], "label": "y", "values": [0, 1, 2]}
SPECS: dict[str, dict[str, Any]] = {
    "factors": {"method": {"name": "rank-dad", "rank": 2}, "preparation": {"standardise": "federated"}},
    "two exchanges": {"method": {"name": "powersgd", "rank": 2}, "evaluation": {"name": "k-fold", "folds": 2}},
    "int8": {"method": {"name": "dsgd", "wire": "int8"}, "task": {"name": "regression"}},
    "activations": {"method": {"name": "edad"}, "training": {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}},
    "combat": {
        "method": {"name": "dsgd"},
        "preparation": {"harmonise": {"name": "combat", "keep": ["age"]}},
        "data": TABLE,
    },
}


def numbers(data: bytes, dice: random.Random) -> bytes:
    """Other numbers of the same size; a few bits of the same; or another size."""
    choice = dice.randrange(6)
    if choice == 0 and len(data) % 8 == 0:
        return b"".join(struct.pack("<d", dice.choice(EXTREMES)) for _ in range(len(data) // 8))
    if choice == 1 and len(data) % 4 == 0:
        return b"".join(struct.pack("<f", dice.choice((0, 1, -1, 1e30, -3e38, 1e-38))) for _ in range(len(data) // 4))
    if choice == 2 and data:
        changed = bytearray(data)
        changed[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        return bytes(changed)
    return dice.choice((bytes(len(data)), b"\xff" * len(data), dice.randbytes(len(data)), data[:-1], data + b"\0", b""))


def lied(value: Any, dice: random.Random) -> Any:
    if isinstance(value, bytes):
        return numbers(value, dice)
    if isinstance(value, dict) and value:
        key = dice.choice(sorted(value))
        return value | {key: dice.choice((None, lied(value[key], dice)))}
    if isinstance(value, int):
        return dice.choice((0, 1, value + 1, -1, 2**53 - 1, 2**63, True))
    if isinstance(value, str):
        return dice.choice(("", "x" * 63, "\x1b[31m", "validation", "test", "alpha"))
    return dice.choice((None, *EXTREMES))


def mutated(update: bytes, dice: random.Random) -> bytes:
    document = msgpack.unpackb(update)
    for _ in range(dice.choice((1, 1, 2))):
        part = document["d"] if "d" in document and dice.random() < 0.9 else document
        key = dice.choice(sorted(part))
        part[key] = lied(part[key], dice)
    packed: bytes = msgpack.packb(document)
    return packed


def follow(spec: RunSpec, data: SiteData, folder: Path, change: Callable[[int, bytes], bytes]) -> list[Kind]:
    """Take part as the only site, and return the kinds of all updates."""
    aggregator = Aggregator(spec, Replica(spec), folder, time.perf_counter)
    plan, kinds = aggregator.plan, list[Kind]()
    training = train(spec, plan, data, TrainingState("alpha", Course(spec, plan, Replica(spec))), EVERYTHING)
    with contextlib.closing(aggregator), contextlib.suppress(StopIteration, RankdadError):
        message = next(training)
        while True:
            while isinstance(message, Ask):
                message = training.send(None)
            kinds.append(message.kind)
            answers = carry_out(aggregator, aggregator.receive("alpha", pack(message, plan, up=True)))
            message = training.send(unpack(change(len(kinds) - 1, answers["alpha"]), plan, up=False))
    return kinds


@pytest.mark.parametrize("changes", SPECS.values(), ids=SPECS)
def test_an_update_that_lies_ends_in_a_sentence_or_is_followed(tmp_path: Path, changes: dict[str, Any]) -> None:
    spec = run_spec(**changes, federation={"sites": ["alpha"], "compare_every": 2})
    folder = write_site(tmp_path / "data", 24, 0)
    rows = (f"{row % 5},{row % 7},{row},{row % 3}" for row in range(24))
    (folder / "d.csv").write_text("a,b,age,y\n" + "\n".join(rows))
    data = read_site(spec, folder, 0)
    honest = follow(spec, data, tmp_path / "honest", lambda place, update: update)
    assert {honest[0], honest[-1]} == {Kind.HELLO, Kind.GOODBYE}
    for attacked in range(len(honest)):
        for seed in range(3):
            dice = random.Random(f"{attacked}, {seed}")

            def change(place: int, update: bytes, attacked: int = attacked, dice: random.Random = dice) -> bytes:
                return mutated(update, dice) if place == attacked else update

            began = time.monotonic()
            follow(spec, data, tmp_path / f"{attacked}-{seed}", change)
            assert time.monotonic() - began < 10
