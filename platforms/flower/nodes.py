"""Flower's nodes as a run's sites: which node is which site, what each is sent, and what is sent again.

One thread works with the engine. A reply that has no call yet is sent again whenever its node was away, or has come
back under another identity: a site's process gives the same call to it, and a new one begins anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from rankdad.common.errors import visible
from rankdad.common.protocol.lost import Lost
from rankdad.platforms.flower.message import BODY, KEY, LOST, NAME, text
from rankdad.remote.calls import StoppedRunError

INTERVAL = 0.05  # seconds between two looks for answers: Flower's own loop waits for three
ROLL_CALL = 1.0  # seconds between two looks at which nodes are there
TRIES = 5  # failures of a node in a row after which its site is given up
LOAD, UNAVAILABLE, UNVERIFIED = 1, 5, 7  # Flower's codes of errors: no such app; node away; a bundle without signature
Key = tuple[int, str]  # a node's number, and since when it is there


@dataclass
class _Place:
    """A site, and what it is to be told."""

    node: Key | None = None
    reply: bytes | None = None
    message: str | None = None  # the engine's number of what has been sent
    failures: int = 0
    since: float = field(default_factory=time.monotonic)  # without a node

    def here(self, node: Key) -> None:
        self.node, self.message, self.failures = node, None, 0


class Nodes:
    """The nodes of a run.

    Args:
        grid: the engine's, which this alone uses while it runs.
        inbox: gets every call with its site's name, or why a site is lost.
        registered: whether nodes have the names that their keys are registered under; if not, they are asked.
        patience: seconds for which a site without a node is waited for.
        say: told what the engine's log should have.
    """

    def __init__(
        self,
        grid: Grid,
        inbox: SimpleQueue[tuple[str, object]],
        *,
        registered: bool,
        patience: float,
        say: Callable[[str], None],
    ) -> None:
        self._grid, self._inbox, self._say = grid, inbox, say
        self._registered, self._patience = registered, patience
        self._outbox = SimpleQueue[tuple[str, bytes]]()
        self._places: dict[str, _Place] = {}
        self._asked: dict[str, Key] = {}  # by the number of the message that asks a node for its name
        self._names: dict[Key, str] = {}
        self._ends, self._error = threading.Event(), BaseException()
        self._fails = threading.Event()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Carry messages within a `with`; what is to be sent is sent before it ends."""
        thread = threading.Thread(target=self._work, name="nodes", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ends.set()
            thread.join(30)

    def post(self, site: str, reply: bytes) -> None:
        """Send a reply to a site."""
        self._outbox.put((site, reply))

    def stops(self) -> bool:
        """Return False: the engine ends a job by a signal.

        Raises:
            StoppedRunError: nodes can be worked with no more.
        """
        if not self._fails.is_set():
            return False
        if isinstance(self._error, StoppedRunError):
            raise self._error
        said = f"Flower's own messages fail ({type(self._error).__name__}); the same job, submitted again, goes on"
        raise StoppedRunError(said, code="engine-failed") from self._error

    def _work(self) -> None:
        looked = 0.0
        try:
            while not self._ends.wait(INTERVAL):
                self._take_out()
                if self._places and time.monotonic() - looked > ROLL_CALL:
                    looked = time.monotonic()
                    self._look()
                self._send()
                self._receive()
            self._take_out()
            self._send()
        except Exception as error:
            self._error = error
            self._fails.set()

    def _take_out(self) -> None:
        while True:
            try:
                site, reply = self._outbox.get_nowait()
            except Empty:
                return
            place = self._places.setdefault(site, _Place())
            place.reply, place.message = reply, None

    def _look(self) -> None:
        """Find out which node is which site."""
        nodes: dict[Key, Any] = {(node.node_id, node.last_activated_at): node for node in self._grid.get_nodes()}
        found: dict[str, Key] = {}
        for key, node in nodes.items():
            name = node.name if self._registered else self._names.get(key)
            if name is None:
                self._ask(key)
            elif name not in self._places:
                if not self._registered:
                    said = f"node {key[0]} calls itself {visible(name, 63) or 'nothing'}, which is no site of this run"
                    raise StoppedRunError(f"{said}: its settings say another name, or are missing", code="site-unknown")
            elif name in found and found[name][0] != key[0]:
                said = f"{name}: two nodes have this name: {found[name][0]} and {key[0]}; unregister one of them"
                raise StoppedRunError(said, code="site-twice", site=name)
            else:
                found[name] = max(key, found.get(name, key), key=lambda one: one[1])
        for name, place in self._places.items():
            self._note(name, place, found.get(name))

    def _note(self, name: str, place: _Place, node: Key | None) -> None:
        if node is not None and node != place.node:
            self._say(f"{name} is node {node[0]}")
            place.here(node)
        elif node is None and place.node is not None:
            self._say(f"{name} is away: it is waited for")
            place.node, place.since = None, time.monotonic()
        elif node is None and place.reply is not None and time.monotonic() - place.since > self._patience:
            place.reply = None
            known = "registered under" if self._registered else "that says"
            self._inbox.put((name, Lost(f"no node {known} this name has been there for {self._patience:g} seconds")))

    def _ask(self, key: Key) -> None:
        if key not in self._asked.values() and (number := self._push(key, {})) is not None:
            self._asked[number] = key

    def _send(self) -> None:
        for place in self._places.values():
            if place.reply is not None and place.message is None and place.node is not None:
                place.message = self._push(place.node, {BODY: place.reply})

    def _push(self, node: Key, record: dict[str, bytes]) -> str | None:
        content = RecordDict({KEY: ConfigRecord(dict(record))})
        (number,) = list(self._grid.push_messages([Message(content, node[0], "query")])) or [None]
        return number

    def _receive(self) -> None:
        sites = {place.message: name for name, place in self._places.items() if place.message is not None}
        expected = [*sites, *self._asked]
        for answer in self._grid.pull_messages(expected) if expected else ():
            number = answer.metadata.reply_to_message_id
            record = {} if answer.has_error() else dict(answer.content.get(KEY) or {})
            if number in self._asked:
                key = self._asked.pop(number)
                if NAME in record:
                    self._names[key] = text(record, NAME)
            elif number in sites:
                self._answered(sites[number], self._places[sites[number]], answer, record)

    def _answered(self, name: str, place: _Place, answer: Message, record: dict[str, Any]) -> None:
        if not answer.has_error() and LOST not in record:
            place.reply, place.message, place.failures = None, None, 0
            self._inbox.put((name, record.get(BODY)))
            return
        place.message = None  # and so it is sent again
        code = answer.error.code if answer.has_error() else None
        said = f"its node fails with error {code} of Flower's"
        if code is None:
            said = f"its node cannot start its process ({visible(text(record, LOST), 60)})"
        elif code == LOAD:
            said = "its node cannot load rankdad: it is not installed there, or is of another version"
        elif code == UNVERIFIED:
            said = "its node trusts none of those who have signed the job"
        elif code == UNAVAILABLE:
            place.node = None
            return
        place.failures += 1
        self._say(f"{name}: {said}")
        if place.failures >= TRIES or code in (LOAD, UNVERIFIED):
            place.reply = None
            self._inbox.put((name, Lost(said)))
