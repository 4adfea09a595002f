"""What comes too late for its own step, event by event, and what a site that lies about it gets for an answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from rankdad.common.data import SiteData
from rankdad.common.errors import ProtocolError
from rankdad.common.protocol.codec import pack
from rankdad.common.protocol.messages import Kind, Message
from rankdad.common.rounds.base import Ready
from rankdad.common.rounds.decision import Decision
from rankdad.common.rounds.step import Step
from rankdad.common.staleness import Latecomers
from rankdad.remote.barrier import Barrier
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.records import Entry
from rankdad.remote.run_reader import reading
from tests.conftest import SITES
from tests.remote.lying import FEDERATION, LIAR, Run, step_of
from tests.remote.lying import data as data

STEP = Step(8.0, 0.0, 0.0, ())
# In round 9: of the last three steps, in rounds 4, 5 and 8, the first site was late for two, the second for one.
LEFT_OUT = ((4, (0,)), (5, ()), (8, (0, 1)))


def asked(late: Latecomers, place: int, round_: int, body: bytes = b"own", **state: Any) -> str:
    progress = SimpleNamespace(left_out=LEFT_OUT)
    run: Any = SimpleNamespace(progress=progress, trains=True, weight=lambda place, ago: 8.0)
    vars(run).update(state)
    message = Message(Kind.STEP, round_, STEP)
    try:
        age = late.age(SITES[place], place, message, body, run)
    except ProtocolError as error:
        return f"{error.status} {error}"
    if age:
        late.put(place, age, message, body)
    return f"age {age}"


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([(0, 8)], ["age 1"]),
        ([(0, 4)], ["age 3"]),
        ([(0, 4), (0, 8), (1, 8)], ["age 3", "age 1", "age 1"]),
        ([(1, 4)], ["age 0"]),  # it took part
        ([(0, 5)], ["age 0"]),
        ([(0, 3)], ["age 0"]),  # older than three steps: dropped, as without staleness
        ([(0, 8), (0, 8)], ["age 1", "age 0"]),  # again: once is enough
        ([(0, 8), (0, 8, b"other")], ["age 1", "409 alpha has already sent another contribution to round 8"]),
        ([(0, 7)], ["409 r: got a step of alpha in round 7, which was no step's"]),
        ([(0, 8, b"own", {"trains": False})], ["age 0"]),  # no step is to come
        ([(0, 8, b"own", {"weight": lambda place, ago: 0.0})], ["age 0"]),  # it was out of data
    ],
)
def test_event_by_event(events: list[tuple[Any, ...]], said: list[str]) -> None:
    late = Latecomers(3)
    assert [asked(late, *event[:3], **(event[3] if len(event) > 3 else {})) for event in events] == said


def close(barrier: Barrier, kind: Kind) -> Ready:
    body = STEP if kind is Kind.STEP else Decision(epoch=0, best=True, stop=False)
    for site in SITES[1:]:
        effects = barrier.receive(site, b"regular", Message(kind, barrier.round, body), 1.0)
    (ready,) = effects
    assert isinstance(ready, Ready)
    barrier.complete(b"update", 2.0, last=False)
    return ready


def test_what_is_late_joins_the_next_step_to_close_and_no_quorum_counts_it() -> None:
    barrier = Barrier(SITES, 0.0, 2, staleness=3)
    barrier.round = 9
    for place, round_ in ((1, 8), (0, 8), (0, 4)):
        asked(barrier.stale, place, round_)
    assert not barrier.has_quorum
    assert close(barrier, Kind.DECISION).late == ()
    joined = [(late.age, late.place, late.message.round, late.size) for late in close(barrier, Kind.STEP).late]
    assert joined == [(1, 0, 8, 3), (1, 1, 8, 3), (3, 0, 4, 3)], "in order of age and place, whoever came first"
    assert close(barrier, Kind.STEP).late == (), "once"
    joined_since = SimpleNamespace(left_out=((10, (0,)),))
    again = asked(barrier.stale, 1, 10, b"other", progress=joined_since)
    assert again.startswith("409 beta has already sent")


def test_a_site_that_has_lost_its_state_takes_back_what_is_late() -> None:
    barrier = Barrier(SITES, 0.0, 2, staleness=3)
    barrier.round = 9
    for place in (0, 1):
        asked(barrier.stale, place, 8)
    barrier.forget("alpha")
    assert [late.place for late in close(barrier, Kind.STEP).late] == [1]


def late_of(run: Run, round_: int, size: float = 0.0, times: int = 1) -> Message:
    step = step_of(times * run.aggregator.state.weight(0, 1), size)(run)
    assert step is not None
    return replace(step, round=round_)


@pytest.mark.slow
def test_a_site_that_lies_about_what_is_late_is_refused_by_name_and_the_others_end_alike(
    tmp_path: Path,
    data: dict[str, SiteData],
) -> None:
    federation = FEDERATION | {"staleness": 2}
    run = Run(tmp_path, data, LedgerOptions(every=3), federation)
    said: dict[str, str] = {}
    taken: list[int] = []

    def lie(run: Run) -> None:
        left_out = run.aggregator.state.progress.left_out
        if not left_out or not run.aggregator.state.trains:
            return
        last, _ = left_out[-1]
        lies = {
            "another weight": late_of(run, last, times=100),
            "too large": late_of(run, last, size=3e18),
            "the truth": late_of(run, last),
            "the truth again": late_of(run, last),
            "other bytes": late_of(run, last, size=0.01),
            "no step": late_of(run, run.round - 1),
            "too old": late_of(run, 1),
        }
        for name, message in lies.items():
            waiting = len(run.aggregator.barrier.stale)
            try:
                run.aggregator.take(LIAR, pack(message, run.plan, up=True))
            except ProtocolError as error:
                said.setdefault(name, f"{error.status} {error}")
            if len(run.aggregator.barrier.stale) > waiting:
                assert name == "the truth"
                taken.append(last)

    results, progress = run.go(lie), run.aggregator.recorder.progress
    (digest,) = {result.weights_sha256[site] for result in results.values() for site in SITES[1:]}
    assert progress.aggregator_sha256 == digest
    assert said == {
        "another weight": "422 m: the weight: is of 800 samples, expected the 8 that the site has",
        "too large": said["too large"],
        "other bytes": f"409 alpha has already sent another contribution to round {taken[0]}",
        "no step": said["no step"],
    }
    assert said["too large"].startswith("422 b: the gradient of 1.weight has a size of 1.9e+38")
    assert said["no step"].startswith("409 r: got a step of alpha in round")
    with reading(tmp_path) as file:
        records = list(file.records())
    kept = [record.round for record in records if record.entry is Entry.LATE]
    assert len(set(taken)) == len(taken) >= len(kept) > 0, "each counts once, whatever else is sent"
    steps = pd.read_csv(tmp_path / "steps.csv")
    assert progress.late == {LIAR: steps["late"].notna().sum()}
    assert set(steps["late"].dropna()) == {"alpha:1"}
    assert steps["norm:alpha"].isna().all(), "the norm is of the step's own contributions"
