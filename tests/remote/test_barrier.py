"""The barrier, event by event: late, early, duplicate, conflicting, missing, failed."""

from __future__ import annotations

from typing import Any

import pytest

from rankdad.common.errors import ProtocolError
from rankdad.common.protocol.messages import Kind, Message
from rankdad.common.rounds.base import Ready
from rankdad.common.rounds.decision import Decision
from rankdad.remote.barrier import Answer, Barrier, BarrierState, Effect

SITES = ("alpha", "beta")


def contribution(
    round_: int,
    epoch: int = 0,
) -> tuple[bytes, Message]:
    decision = Decision(epoch=epoch, best=True, stop=False)
    return f"{round_} {epoch}".encode(), Message(Kind.DECISION, round_, decision)


Event = tuple[Any, ...]


def play(
    events: list[Event], sites: tuple[str, ...] = SITES, quorum: int | None = None, grace: float = 0.0, round_: int = 0
) -> tuple[Barrier, list[str]]:
    """Feed events to a barrier, one a second; return what came of each, in a word."""
    barrier, said = Barrier(sites, 0.0, quorum, grace), []
    barrier.round = round_
    for now, (verb, *arguments) in enumerate(events, start=1):
        try:
            if verb == "send":
                site, *what = arguments
                effects = barrier.receive(site, *contribution(*what), float(now))
            elif verb == "tick":
                effects = barrier.tick(float(now))
            elif verb == "depart":
                effects = barrier.depart(arguments[0], float(now))
            elif verb == "rejoin":
                barrier.rejoin(arguments[0])
                effects = []
            elif verb == "complete":
                effects = barrier.complete(b"update", float(now), last=bool(arguments))
            else:
                effects = barrier.fail(b"failure")
            said.append(",".join(map(word, effects)) or "wait")
        except ProtocolError as error:
            said.append(str(error.status))
    return barrier, said


def word(effect: Effect) -> str:
    if isinstance(effect, Answer):
        return f"{effect.body.decode()}>{'+'.join(effect.sites)}"
    missing = "".join(str(place) for place in sorted(effect.missing))
    return f"ready {effect.round}" + (f" without {missing}" if missing else "")


A, B, DONE = ("send", "alpha", 0), ("send", "beta", 0), ("complete",)
ALL = "update>alpha+beta"


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([A, B, DONE], ["wait", "ready 0", ALL]),
        ([B, A, DONE], ["wait", "ready 0", ALL]),
        ([A, A, B], ["wait", "wait", "ready 0"]),  # duplicate: waits with the first
        ([A, ("send", "alpha", 0, 5), B], ["wait", "409", "ready 0"]),  # conflicting: nothing changes
        ([("send", "alpha", 1), A, B], ["409", "wait", "ready 0"]),  # early
        ([A, B, A, DONE], ["wait", "ready 0", "wait", ALL]),  # again while aggregating
        ([A, B, ("send", "alpha", 0, 5)], ["wait", "ready 0", "409"]),
        ([A, B, DONE, A], ["wait", "ready 0", ALL, "update>alpha"]),  # late: the stored answer
        ([A, B, DONE, ("send", "alpha", 0, 5)], ["wait", "ready 0", ALL, "update>alpha"]),
        ([A, B, DONE, ("send", "alpha", 1), B], ["wait", "ready 0", ALL, "wait", "update>beta"]),
        ([A, B, DONE, ("send", "alpha", 2)], ["wait", "ready 0", ALL, "409"]),
        ([("send", "../x", 0), ("send", "", 0)], ["404", "404"]),
        ([A, ("fail",), B, A], ["wait", "failure>alpha+beta", "failure>beta", "failure>alpha"]),
        ([A, B, ("fail",), DONE], ["wait", "ready 0", "failure>alpha+beta", "wait"]),  # failed while aggregating
        ([("fail",), ("fail",)], ["failure>alpha+beta", "wait"]),
        ([A, B, ("complete", "last"), A, ("send", "alpha", 1)], ["wait", "ready 0", ALL, "update>alpha", "409"]),
        ([DONE], ["wait"]),  # nothing to complete
    ],
)
def test_event_by_event(events: list[Event], expected: list[str]) -> None:
    assert play(events)[1] == expected


def test_messages_are_in_the_plans_order_whoever_came_first() -> None:
    barrier = Barrier(SITES, 0.0)
    barrier.receive("beta", *contribution(0, 2), 1.0)
    (ready,) = barrier.receive("alpha", *contribution(0, 1), 3.0)
    assert isinstance(ready, Ready)
    assert [message.body.epoch for message in ready.messages if isinstance(message.body, Decision)] == [1, 2]
    assert ready.seconds == 3.0


def test_it_knows_whom_it_waits_for_and_since_when() -> None:
    barrier, _ = play([A, B, DONE, ("send", "beta", 1)])
    assert barrier.missing() == ("alpha",)
    assert barrier.began == 3.0
    barrier.receive("alpha", *contribution(1), 11.0)
    assert barrier.missing() == ()
    assert barrier.state is BarrierState.AGGREGATING


TICK, THREE = ("tick",), ("alpha", "beta", "gamma")


def of(site: str, round_: int = 1) -> Event:
    return ("send", site, round_)


TO_ALL = "update>alpha+beta+gamma"


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        # Two of three are the quorum, three seconds the grace; an event a second.
        ([of("alpha"), of("beta"), TICK, TICK, TICK], ["wait", "wait", "wait", "wait", "ready 1 without 2"]),
        ([of("alpha"), of("beta"), TICK, of("gamma")], ["wait", "wait", "wait", "ready 1"]),  # within the grace
        ([of("alpha"), *[TICK] * 9], ["wait"] * 10),  # no quorum, however long
        # Who departs is not waited for; who came before it departed is in.
        ([("depart", "gamma"), of("alpha"), of("beta")], ["wait", "wait", "ready 1 without 2"]),
        ([of("alpha"), of("beta"), ("depart", "gamma")], ["wait", "wait", "ready 1 without 2"]),
        ([of("gamma"), of("beta"), ("depart", "gamma"), of("alpha")], ["wait", "wait", "wait", "ready 1"]),
        ([("depart", "gamma"), ("depart", "beta"), of("alpha"), TICK], ["wait"] * 4),  # fewer than the quorum
        # The next round does not wait for who was away, until it is heard of at the present.
        (
            [of("alpha"), of("beta"), ("depart", "gamma"), DONE, of("alpha", 2), of("beta", 2)],
            ["wait", "wait", "ready 1 without 2", TO_ALL, "wait", "ready 2 without 2"],
        ),
        (
            [of("alpha"), of("beta"), ("depart", "gamma"), DONE, of("gamma"), of("alpha", 2), of("beta", 2), TICK],
            ["wait", "wait", "ready 1 without 2", TO_ALL, "update>gamma", "wait", "wait", "wait"],
        ),
        (
            [("depart", "gamma"), ("rejoin", "gamma"), of("alpha"), of("beta"), of("gamma")],
            ["wait", "wait", "wait", "wait", "ready 1"],
        ),
        # Too late by a moment: neither refused nor in; it waits for the update as all do.
        (
            [of("alpha"), of("beta"), ("depart", "gamma"), of("gamma"), DONE],
            ["wait", "wait", "ready 1 without 2", "wait", TO_ALL],
        ),
    ],
)
def test_a_quorum_event_by_event(events: list[Event], expected: list[str]) -> None:
    assert play(events, THREE, 2, 3.0, round_=1)[1] == expected


def test_hello_needs_everybody_whatever_the_quorum() -> None:
    barrier, said = play([("send", "alpha", 0), ("send", "beta", 0), *[TICK] * 9], THREE, 2, 1.0)
    assert said == ["wait"] * 11
    assert barrier.missing() == ("gamma",)


def test_who_is_away_is_named_apart_from_who_is_waited_for() -> None:
    barrier, _ = play([("depart", "gamma"), of("alpha")], THREE, 2, 3.0, round_=1)
    assert (barrier.missing(), barrier.without) == (("beta",), ("gamma",))
    barrier, _ = play([("depart", "gamma"), ("depart", "beta"), of("alpha")], THREE, 2, 3.0, round_=1)
    assert (barrier.missing(), barrier.without) == (("beta", "gamma"), ()), "its quorum needs one of them"
