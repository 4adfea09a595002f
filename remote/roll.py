"""Which node of an engine is which site, and what each has to be sent: for engines whose nodes come and go in a run.

A reply that has no call yet is due again when its node was away, has come back, or has failed: a site's process gives
the same call to the same reply, and a new process begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeVar

from rankdad.common.protocol.lost import Lost

TRIES = 5  # failures of a node in a row after which its site is given up
LAST_REPLIES = 15.0  # seconds for the last replies of a job that ends
LOOK = 0.25  # seconds between two looks at whether they have arrived
N = TypeVar("N", bound=Hashable)  # a node, as long as it stays


@dataclass
class Place(Generic[N]):
    """A site, and what it is to be sent."""

    node: N | None = None
    reply: bytes | None = None
    message: str | None = None  # the engine's number of what has been sent
    failures: int = 0
    away: bool = False
    since: float = 0.0  # when it was missed


class Roll(Generic[N]):
    """A run's sites, and their nodes.

    Args:
        inbox: gets every call with its site's name, or why a site is lost.
        patience: seconds for which a site without a node is waited for.
        say: told what the engine's log should have.
    """

    def __init__(
        self, inbox: SimpleQueue[tuple[str, object]], patience: float, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self._inbox, self._patience, self._say = inbox, patience, say
        self.places: dict[str, Place[N]] = {}

    def post(self, site: str, reply: bytes) -> None:
        """Take a reply to a site."""
        place = self.places.setdefault(site, Place())
        place.reply, place.message = reply, None

    def present(self, nodes: Mapping[str, N]) -> None:
        """Take note of the nodes that are there, by the sites' names."""
        for name, place in self.places.items():
            node = nodes.get(name)
            if node is not None:
                if node != place.node:
                    self._say(f"{name} is there")
                    place.node, place.message, place.failures = node, None, 0
                place.away = False
            elif not place.away:
                state = "not there yet" if place.node is None else "away"
                self._say(f"{name} is {state}: the run waits {self._patience:g} seconds for it")
                place.node, place.away, place.since = None, True, time.monotonic()
            elif place.reply is not None and time.monotonic() - place.since > self._patience:
                self._lose(name, f"no node of this name has been there for {self._patience:g} seconds")

    def due(self) -> Iterator[tuple[str, N, bytes]]:
        """Yield sites, their nodes and the replies to send."""
        for name, place in self.places.items():
            if place.reply is not None and place.message is None and place.node is not None:
                yield name, place.node, place.reply

    def sends(self, site: str, message: str | None) -> None:
        """Take note of the engine's number of a message; None if the engine has refused it."""
        self.places[site].message = message
        if message is None:
            self.failed(site, f"the engine does not take a message of {len(self.places[site].reply or b'')} bytes")

    def settle(self, failed: Callable[[], bool], posted: Callable[[], bool]) -> None:
        """Wait until all sites that are there have had their last reply, and have answered; in another thread.

        Args:
            failed: returns whether nothing can be sent any more.
            posted: returns whether all replies have been posted.
        """
        until = time.monotonic() + LAST_REPLIES
        while not failed() and time.monotonic() < until:
            time.sleep(LOOK)
            places = [place for place in self.places.values() if place.node is not None]
            if posted() and all(place.reply is None for place in places):
                return

    @property
    def sent(self) -> dict[str, str]:
        """Names of the sites that have not answered yet, by the messages' numbers."""
        return {place.message: name for name, place in self.places.items() if place.message is not None}

    def answered(self, site: str, call: object) -> None:
        """Take a site's call."""
        place = self.places[site]
        place.reply, place.message, place.failures = None, None, 0
        self._inbox.put((site, call))

    def failed(self, site: str, reason: str, *, final: bool = False) -> None:
        """Take note that a message has had no answer: it is sent again, unless that is in vain."""
        place = self.places[site]
        place.message = None
        place.failures += 1
        self._say(f"{site}: {reason}")
        if final or place.failures >= TRIES:
            self._lose(site, reason)

    def gone(self, site: str) -> None:
        """Take note that a site's node is away."""
        place = self.places[site]
        place.node, place.message = None, None

    def _lose(self, site: str, reason: str) -> None:
        self.places[site].reply = None
        self._inbox.put((site, Lost(reason)))
