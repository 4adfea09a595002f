"""Sends a trainer's contributions, and times what the trainer computes."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from rankdad.common.protocol.codec import pack
from rankdad.common.protocol.messages import Ask, Kind, Message
from rankdad.common.protocol.plan import Plan
from rankdad.local.drivers.http import AggregatorClient


class Sender:
    """The way of a trainer's messages to the aggregator and back, and a stopwatch of what the trainer computes.

    Args:
        client: connected to the aggregator.
        plan: of the run.
        lap: told the name of each stretch of work when it ends, for timings.
    """

    def __init__(self, client: AggregatorClient, plan: Plan, lap: Callable[[str], None] = lambda name: None) -> None:
        self._client, self._plan, self._lap = client, plan, lap
        self._computed, self._since = 0.0, perf_counter()  # in this step, until it was last interrupted

    def exchange(self, message: Message | Ask) -> bytes | None:
        """Send a contribution, and return its round's update; or ask for one."""
        seconds = self._computed + perf_counter() - self._since
        answer: bytes | None
        if isinstance(message, Ask):
            answer = self._client.recorded(message.round)
        else:
            body = pack(message, self._plan, up=True)
            self._lap("pack")
            answer = self._client.exchange(body, message.round, seconds)
        self._lap("wait")
        last = not isinstance(message, Ask) and message.exchange == len(self._plan.exchanges) - 1
        over = last or (isinstance(message, Message) and message.kind is not Kind.STEP)
        self._computed, self._since = 0.0 if over else seconds, perf_counter()
        return answer
