"""Nodes that come, go and fail, as a run's sites."""

from __future__ import annotations

from queue import SimpleQueue

from rankdad.common.protocol.lost import Lost
from rankdad.remote.roll import TRIES, Roll


def send(roll: Roll[str]) -> list[tuple[str, bytes]]:
    """Send what is due, as messages that are called by their nodes."""
    sent = list(roll.due())
    for site, node, _ in sent:
        roll.sends(site, f"to {node}")
    return [(node, reply) for _, node, reply in sent]


def test_a_reply_is_sent_once_and_again_when_its_node_was_away_is_another_or_has_failed() -> None:
    inbox = SimpleQueue[tuple[str, object]]()
    roll = Roll[str](inbox, patience=60)
    roll.post("alpha", b"0")
    assert send(roll) == []  # nobody is there
    roll.present({"alpha": "node 1", "beta": "node 2"})
    assert send(roll) == [("node 1", b"0")]
    assert roll.sent == {"to node 1": "alpha"}
    roll.present({"alpha": "node 1"})
    assert send(roll) == []
    roll.present({"alpha": "node 3"})
    assert send(roll) == [("node 3", b"0")]
    roll.gone("alpha")
    assert send(roll) == []
    roll.present({"alpha": "node 3"})
    assert send(roll) == [("node 3", b"0")]
    roll.failed("alpha", "its process has crashed")
    assert send(roll) == [("node 3", b"0")]
    roll.answered("alpha", b"call")
    assert send(roll) == []
    assert inbox.get_nowait() == ("alpha", b"call")
    assert inbox.empty()


def test_a_site_is_given_up_after_some_failures_in_a_row_or_at_once_or_when_it_stays_away() -> None:
    inbox = SimpleQueue[tuple[str, object]]()
    roll = Roll[str](inbox, patience=0)
    for name in ("alpha", "beta", "gamma"):
        roll.post(name, b"0")
    roll.present({"alpha": "node 1", "beta": "node 2", "gamma": "node 3"})
    for _ in range(TRIES):
        assert inbox.empty()
        send(roll)
        roll.failed("alpha", "crashed")
    assert inbox.get_nowait() == ("alpha", Lost("crashed"))
    roll.failed("beta", "not installed", final=True)
    assert inbox.get_nowait() == ("beta", Lost("not installed"))
    roll.present({})
    assert inbox.empty()
    roll.present({})
    site, lost = inbox.get_nowait()
    assert (site, type(lost)) == ("gamma", Lost)
    assert send(roll) == []


def test_a_message_that_the_engine_does_not_take_is_tried_and_given_up() -> None:
    inbox = SimpleQueue[tuple[str, object]]()
    roll = Roll[str](inbox, patience=60)
    roll.post("alpha", bytes(1000))
    roll.present({"alpha": "node 1"})
    while inbox.empty():
        for site, _, _ in list(roll.due()):
            roll.sends(site, None)
    assert inbox.get_nowait() == ("alpha", Lost("the engine does not take a message of 1000 bytes"))
