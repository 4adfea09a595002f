"""Flower's nodes as a run's sites. One thread works with the engine, in a loop of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from rankdad.common.errors import visible
from rankdad.platforms.flower.settings import FlowerSettings
from rankdad.platforms.flower.site import BODY, KEY, LOST, NAME
from rankdad.remote.calls import StoppedRunError
from rankdad.remote.roll import Roll

INTERVAL = 0.25  # seconds between two looks for answers: Flower's own loop waits for three
ROLL_CALL = 3.0  # seconds between two looks at which nodes are there
LOAD, UNAVAILABLE, UNVERIFIED = 1, 5, 7  # Flower's codes of errors
WORDS = {
    LOAD: "its node cannot load rankdad: it is not installed there, or is of another version",
    UNVERIFIED: "its node trusts none of those who have signed the job",
}
Key = tuple[int, str]  # a node's number, and since when it is there


class Nodes:
    """The nodes of a run.

    Args:
        grid: the engine's, which this alone uses while it works.
        inbox: gets every call with its site's name, or why a site is lost.
        settings: of the server.
        say: told what the engine's log should have.
    """

    def __init__(
        self, grid: Grid, inbox: SimpleQueue[tuple[str, object]], settings: FlowerSettings, say: Callable[[str], None]
    ) -> None:
        self._grid, self._registered = grid, settings.registered
        self._roll = Roll[Key](inbox, settings.patience, say)
        self._outbox = SimpleQueue[tuple[str, bytes]]()
        self._asked: dict[str, Key] = {}  # by the number of the message that asks a node for its name
        self._names: dict[Key, str] = {}
        self._ends = threading.Event()
        self._error: StoppedRunError | None = None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Carry messages within a `with`."""
        thread = threading.Thread(target=self._work, name="nodes", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._roll.settle(lambda: self._error is not None, self._outbox.empty)
            self._ends.set()
            thread.join(30)

    def post(self, site: str, reply: bytes) -> None:
        """Send a reply to a site."""
        self._outbox.put((site, reply))

    def stops(self) -> bool:
        """Return False: the engine ends a job by a signal.

        Raises:
            StoppedRunError: the nodes can be reached no more, or are not those of the run.
        """
        if self._error is not None:
            raise self._error
        return False

    def _work(self) -> None:
        looked = 0.0
        try:
            while not self._ends.wait(INTERVAL):
                while not self._outbox.empty():
                    self._roll.post(*self._outbox.get())
                if self._roll.places and time.monotonic() - looked > ROLL_CALL:
                    looked = time.monotonic()
                    self._roll.present(self._look())
                for site, node, reply in list(self._roll.due()):
                    self._roll.sends(site, self._push(node, {BODY: reply}))
                self._receive()
        except StoppedRunError as error:
            self._error = error
        except Exception as error:
            said = f"Flower's own messages fail ({type(error).__name__}): the same job, submitted again, goes on"
            self._error = StoppedRunError(said, code="engine-failed")

    def _look(self) -> dict[str, Key]:
        """Return the nodes that are there, by the sites' names."""
        found: dict[str, Key] = {}
        for node in self._grid.get_nodes():
            key = node.node_id, node.last_activated_at
            name = node.name if self._registered else self._names.get(key)
            if name is None:
                self._ask(key)
            elif name in self._roll.places and found.setdefault(name, key) != key:
                said = f"{name}: two nodes have this name, {found[name][0]} and {key[0]}: unregister one of them"
                raise StoppedRunError(said, code="site-twice", site=name)
            elif name not in self._roll.places and not self._registered:
                said = f"node {key[0]} says that its name is '{visible(name, 63)}', which is no site of this run: "
                raise StoppedRunError(said + "its settings are missing, no JSON, or another's", code="site-unknown")
        return found

    def _ask(self, key: Key) -> None:
        if key not in self._asked.values() and (number := self._push(key, {})) is not None:
            self._asked[number] = key

    def _push(self, node: Key, record: dict[str, bytes]) -> str | None:
        """Send a record to a node, and return the message's number; None if the engine has not taken it."""
        message = Message(RecordDict({KEY: ConfigRecord({**record})}), node[0], "query")
        return next(iter(self._grid.push_messages([message])), None)

    def _receive(self) -> None:
        sites = self._roll.sent
        expected = [*sites, *self._asked]
        for answer in self._grid.pull_messages(expected) if expected else ():
            number = answer.metadata.reply_to_message_id
            record: dict[str, Any] = {} if answer.has_error() else dict(answer.content.get(KEY) or {})
            if number in self._asked:
                key = self._asked.pop(number)
                if NAME in record:
                    self._names[key] = str(record[NAME])
            elif number in sites and answer.has_error():
                self._failed(sites[number], answer.error.code)
            elif number in sites and LOST in record:
                said = f"its node cannot start its process ({visible(str(record[LOST]), 60)})"
                self._roll.failed(sites[number], said)
            elif number in sites:
                self._roll.answered(sites[number], record.get(BODY))

    def _failed(self, site: str, code: int) -> None:
        if code == UNAVAILABLE:
            self._roll.gone(site)
        else:
            self._roll.failed(
                site, WORDS.get(code, f"its node fails with error {code} of Flower's"), final=code in WORDS
            )
