"""Sends what a site says, and times what it computes."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from rankdad.common.protocol.messages import Ask, Kind, Message
from rankdad.local.drivers.http import AggregatorClient
from rankdad.local.site import Site


class Sender:
    """The way of what a site says to the aggregator and back, and a stopwatch of what it computes.

    Args:
        client: connected to the aggregator.
        site: whose.
    """

    def __init__(self, client: AggregatorClient, site: Site[Any]) -> None:
        self._client, self._site = client, site
        self._computed, self._since = 0.0, perf_counter()  # in this step, until it was last interrupted

    def exchange(self, due: Message | Ask) -> bytes | None:
        """Send a contribution, and return its round's update; or ask for one."""
        said = self._site.say()
        seconds = self._computed + perf_counter() - self._since
        answer: bytes | None
        if isinstance(said, bytes):
            answer = self._client.exchange(said, due.round, seconds)
        else:
            answer = self._client.recorded(due.round)
        self._site.observer.lap("wait")
        last = not isinstance(due, Ask) and due.exchange == len(self._site.plan.exchanges) - 1
        over = last or (isinstance(due, Message) and due.kind is not Kind.STEP)
        self._computed, self._since = 0.0 if over else seconds, perf_counter()
        return answer
