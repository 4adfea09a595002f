"""Nodes that fall silent."""

from __future__ import annotations

from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from rankdad.remote.signs import Signs

BEATS, CALLS = True, False


@pytest.mark.parametrize(
    ("heard", "lost"),
    [
        ([], ["alpha"]),  # never heard
        ([(0, BEATS)], ["alpha"]),
        ([(5, CALLS)], []),  # an engine without heartbeats
        ([(5, BEATS), (95, BEATS)], []),
        ([(5, BEATS), (95, CALLS)], []),
        ([(5, CALLS), (6, BEATS), (30, CALLS)], ["alpha"]),
    ],
)
def test_a_node_is_lost_once_if_it_is_never_heard_or_its_heartbeats_stop(
    monkeypatch: pytest.MonkeyPatch, heard: list[tuple[int, bool]], lost: list[str]
) -> None:
    now, inbox = [0.0], SimpleQueue[tuple[str, object]]()
    monkeypatch.setattr("rankdad.remote.signs.time", SimpleNamespace(monotonic=lambda: now[0]))
    watch = Signs(["alpha", "beta"], 60, inbox)
    for at, beats in heard:
        now[0] = at
        watch.heard("alpha", beats=beats)
        watch.heard("nobody", beats=beats)
    now[0] = 100
    watch.heard("beta", beats=True)
    watch.look()
    watch.look()
    assert [inbox.get()[0] for _ in range(inbox.qsize())] == lost
