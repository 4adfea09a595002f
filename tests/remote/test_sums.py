"""Sums that no samples have are refused, and change nothing for those who send true ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch

from rankdad.common.errors import ProtocolError
from rankdad.common.protocol.arrays import pack_sums
from rankdad.common.protocol.codec import pack
from rankdad.common.protocol.messages import Failure, Kind, Message
from rankdad.common.rounds.sums import Sums
from rankdad.common.run.replica import Replica
from rankdad.remote.aggregator import Aggregator
from tests.conftest import SITES, run_spec
from tests.remote.test_aggregator import hello_of

STAGES = {"labels": 4, "sums": 12, "squares": 12}  # rows and classes; counts and sums of six features; of their squares
TRUE = torch.tensor([[10.0, 5, 4, 1], [10.0, 4, 4, 2]], dtype=torch.float64)


def of(**changes: float) -> torch.Tensor:
    """True sums but for one of the second fold's."""
    sums = TRUE.clone()
    for place, value in changes.items():
        sums[1, int(place[1:])] = value
    return sums


@pytest.mark.parametrize(
    ("stage", "values", "status", "said"),
    [
        ("sums", pack_sums(torch.ones(2, 12)), 409, "d.stage: got sums, expected labels"),
        ("means", pack_sums(TRUE), 422, "d.values: there is no preparation stage 'means'"),
        ("x" * 64, pack_sums(TRUE), 422, "d.stage: "),
        ("labels", pack_sums(TRUE[0]), 422, "d.values: got 32 bytes, expected 64"),
        ("labels", pack_sums(of(_0=math.nan)), 422, "d.values: a number is NaN"),
        ("labels", pack_sums(of(_0=1e308)), 422, "d.values: a number is NaN or beyond"),
        ("labels", pack_sums(of(_2=-1.0)), 422, "d.values: counts: expected no number below 0"),
        ("labels", pack_sums(of(_0=10.5)), 422, "d.values: rows: expected whole numbers"),
        ("labels", pack_sums(of(_1=11.0)), 422, "d.values: counts: expected whole numbers up to 10"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else str(value)[:40],
)
def test_sums_that_no_samples_have_are_refused(
    tmp_path: Path, stage: str, values: bytes, status: int, said: str
) -> None:
    made = begun(tmp_path)
    with contextlib.closing(made):
        true = msgpack.unpackb(labels_of(made))
        body = msgpack.packb(true | {"d": {"stage": stage, "values": values}})
        with pytest.raises(ProtocolError) as error:
            made.take("alpha", body)
        assert (error.value.status, str(error.value)[: len(said)]) == (status, said)
        assert not made.barrier.holds("alpha")
        for site in SITES:
            answers = made.take(site, labels_of(made))
        assert set(answers) == set(SITES)
        assert torch.equal(made.state.totals["labels"], 3 * TRUE)
        assert made.state.stage == "sums"


def begun(tmp_path: Path, clock: Callable[[], float] = lambda: 0.0, **changes: Any) -> Aggregator:
    spec = run_spec(
        task={"name": "classification", "classes": 3, "class_weights": "balanced"},
        preparation={"standardise": "federated"},
        evaluation={"name": "k-fold", "folds": 2, "refit": False},
        **changes,
    )
    made = Aggregator(spec, Replica(spec), tmp_path / "run", clock)
    assert {stage.name: stage.size for stage in made.plan.stages} == STAGES
    for site in SITES:
        made.take(site, hello_of(made, samples=((10, 2, 2),) * 2))
    return made


def test_sums_need_every_site_whatever_the_quorum(tmp_path: Path) -> None:
    """Else squares would be of other samples than the counts of the round before, and scales wrong."""
    now = [0.0]
    made = begun(tmp_path, lambda: now[0], federation={"sites": list(SITES), "quorum": 1, "grace": 1})
    with contextlib.closing(made):
        for site in SITES[:-1]:
            made.take(site, labels_of(made))
        now[0] = 9.0
        assert (made.tick(), made.barrier.missing()) == ({}, SITES[-1:])
        made.take(SITES[0], pack(Message(Kind.FAILURE, 1, Failure(site=SITES[0], reason="gone")), made.plan, up=True))
        assert made.ended, "it cannot be done without"


def labels_of(made: Aggregator) -> bytes:
    return pack(Message(Kind.SUMS, 1, Sums(stage="labels", values=TRUE)), made.plan, up=True)
