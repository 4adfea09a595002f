"""Sends a trainer's contributions, early ones while it goes on computing, and fetches their updates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import TypeVar

from rankdad.common.errors import RankdadError
from rankdad.common.protocol.codec import pack
from rankdad.common.protocol.messages import Ask, Kind, Message
from rankdad.common.protocol.plan import Plan
from rankdad.local.drivers.http import AggregatorClient

T = TypeVar("T")


class Sender:
    """The way of a trainer's messages to the aggregator and back, and a stopwatch of what the trainer computes.

    What is sent early has threads of its own, which do nothing but I/O: two send contributions, two ask for updates,
    each pair in the order of rounds. So both directions of the link are busy at once, also while a message is answered.

    Args:
        client: connected to the aggregator.
        plan: of the run.
        lap: told the name of each stretch of work when it ends, for timings.
    """

    def __init__(self, client: AggregatorClient, plan: Plan, lap: Callable[[str], None] = lambda name: None) -> None:
        self._client, self._plan, self._lap = client, plan, lap
        self._early: dict[int, tuple[bytes, Future[bytes]]] = {}  # by round: what was sent, and its update
        self._sending, self._asking = _Threads("sending"), _Threads("asking")
        self._last: Future[bytes] | None = None  # the update before
        self.traffic = 0, 0  # bytes of contributions so far, and of updates
        self._computed, self._since = 0.0, perf_counter()  # in this step, until it was last interrupted

    def send(self, message: Message) -> None:
        """Send a contribution whose round may not be due yet, and return at once."""
        body, seconds = pack(message, self._plan, up=True), self._seconds()
        kept, answer = Future[bool](), Future[bytes]()
        self._early[message.round] = body, answer
        self._sending.do(partial(self._client.offer, body, message.round, seconds), kept)
        self._asking.do(partial(self._collect, body, message.round, seconds, kept, self._last), answer)
        self._last = answer
        self._lap("pack")

    def _collect(
        self, body: bytes, round_: int, seconds: float, kept: Future[bool], before: Future[bytes] | None
    ) -> bytes:
        """Return the update of an early contribution; send that again if it is lost, once its round is due."""
        answer = self._client.collect(round_) if kept.result() else None
        if answer is not None:
            return answer
        if before is not None:
            before.result()
        return self._client.exchange(body, round_, seconds)

    def exchange(self, message: Message | Ask) -> bytes | None:
        """Send a contribution, unless that has been done, and return its round's update; or ask for one."""
        seconds = self._seconds()
        answer: bytes | None
        if isinstance(message, Ask):
            answer = self._client.recorded(message.round)
        else:
            body = pack(message, self._plan, up=True)
            self._lap("pack")
            answer = self._exchange(body, message.round, seconds)
            self.traffic = self.traffic[0] + len(body), self.traffic[1] + len(answer)
        self._lap("wait")
        last = not isinstance(message, Ask) and message.exchange == len(self._plan.exchanges) - 1
        over = last or (isinstance(message, Message) and message.kind is not Kind.STEP)
        self._computed, self._since = 0.0 if over else seconds, perf_counter()
        return answer

    def _exchange(self, body: bytes, round_: int, seconds: float) -> bytes:
        sent, answer = self._early.pop(round_, (b"", Future[bytes]()))
        if sent == body:
            return answer.result()
        if sent:  # an update has left this site out: what was sent before that is refused
            with contextlib.suppress(RankdadError):
                answer.result()
        return self._client.exchange(body, round_, seconds)

    def _seconds(self) -> float:
        """Return for how long the trainer has computed in this step."""
        return self._computed + perf_counter() - self._since


class _Threads:
    """Two that begin one piece of work after the other, beside whoever asks for it; started with the first.

    They are daemons: a request may be held for long, and a process that cannot go on does not wait for it.
    """

    def __init__(self, name: str) -> None:
        self._name, self._works = name, SimpleQueue[Callable[[], None]]()
        self._runs = False

    def do(self, work: Callable[[], T], outcome: Future[T]) -> None:
        """Do this when all before has begun; its outcome is what it returns or raises."""

        def settle() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:  # whoever asks for the outcome raises it
                outcome.set_exception(error)

        self._works.put(partial(copy_context().run, settle))  # for the names in a log
        if not self._runs:
            self._runs = True
            for _ in range(2):
                Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._works.get()()
