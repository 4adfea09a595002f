"""A site under an engine, which takes out the site's calls one at a time and hands in the replies.

The site runs in a thread of its own, as it runs over HTTP. Its words stay there: the aggregator hears what ends it
in a message of ours, never by an exception that the engine would carry.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self

from rankdad.common.available_memory import available
from rankdad.common.documents import parse_json, validate
from rankdad.common.errors import ProtocolError, RankdadError, RunFailedError, UserError, public_reason, visible
from rankdad.common.protocol.calls import STOPPED, Call, Reply, What, packed, unpacked
from rankdad.common.protocol.codec import pack_failure
from rankdad.common.protocol.message_sizes import body_limit
from rankdad.common.protocol.messages import failure_message
from rankdad.common.protocol.plan import Plan
from rankdad.common.protocol.retention import Receipt
from rankdad.local.drivers.http import MAX_RUN_BYTES, RefusedError
from rankdad.local.shutdown_signals import ShutdownError

LOOK = 0.2  # seconds between two looks at whether the engine stops the site


class TooLargeError(UserError):
    """The engine would drop a message here without a word: others may hear of how many bytes."""

    is_public = True


class CarriedConnection:
    """A site's connection to the aggregator, whose calls somebody else carries.

    Args:
        name: of the site.
        send: takes a call's bytes.
        receive: returns the reply's bytes, once they are there.
        dropped: returns why the engine here drops a message of so many bytes; "" for one that it carries.

    Attributes:
        has_given_up: whether the site has said that it cannot go on.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[bytes], None],
        receive: Callable[[], bytes],
        dropped: Callable[[int], str] = lambda size: "",
    ) -> None:
        self.name, self.has_given_up = name, False
        self._send, self._receive, self._dropped = send, receive, dropped
        self._run, self._number, self._limit = "", 0, MAX_RUN_BYTES

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def run(self) -> dict[str, Any]:
        """Ask for the run; every later call names it.

        Raises:
            UserError: what answers is no aggregator of rankdad.
        """
        document = None
        with suppress(ValueError):
            document = parse_json(self._body(self._call("run")))
        if not isinstance(document, dict):
            raise UserError("what answers is not an aggregator of rankdad", code="not-an-aggregator")
        self._run = str(document.get("id", ""))[:16]
        return document

    def expect(self, plan: Plan) -> None:
        """Take answers as large as this plan's, but none beyond the memory."""
        largest = max(self._limit, 2 * body_limit(plan, up=False) + 2 * plan.replica_bytes)
        self._limit = min(largest, available() or largest)

    def exchange(self, body: bytes, round_: int, computed: float | None = None) -> bytes:
        """Send a contribution, and return its round's update.

        Raises:
            RefusedError: the aggregator refused it.
        """
        return self._body(self._call("send", round=round_, body=body, computed=computed))

    def recorded(self, round_: int) -> bytes | None:
        """Return the update of a round if it is complete.

        Raises:
            RefusedError: the round is one of the future, or is no longer kept.
        """
        return self._call("ask", round=round_).body

    def snapshot(self) -> bytes | None:
        """Return the run's newest state, for a site that has lost its own; None if there is none yet."""
        return self._call("snapshot").body

    def give_up(self, body: bytes) -> None:
        """Say that this site cannot go on."""
        self.has_given_up = True
        with suppress(RankdadError):
            self._call("give-up", body=body)

    def done(self) -> Receipt | None:
        """Say that this site has all that it needs of the run, and return what has become of its contributions."""
        with suppress(RankdadError, ValueError):
            body = self._call("done").body
            return None if body is None else validate(Receipt, parse_json(body))
        return None

    def end(self, error: BaseException | None) -> bytes:
        """Return the last call, to which there is no reply."""
        reason = "" if error is None else visible(public_reason(error))
        return packed(Call(what="end", number=self._number + 1, site=self.name, run=self._run, reason=reason))

    def _call(self, what: What, **fields: Any) -> Reply:
        self._number += 1
        call = packed(Call(what=what, number=self._number, site=self.name, run=self._run, **fields))
        if why := self._dropped(len(call)):
            raise TooLargeError(why, code="message-too-large")
        self._send(call)
        reply = unpacked(Reply, self._receive(), self._limit)
        if reply.number != self._number:
            text = f"number: got the reply to call {reply.number}, expected that to call {self._number}"
            raise ProtocolError(502, text, code="answer-unexpected", field="number")
        if reply.error:
            begin = "the job has ended" if reply.code == STOPPED else f"the aggregator refused ({reply.status})"
            text = f"{begin}: {visible(reply.error)}"
            raise RefusedError(text, reply.status, code=reply.code or "refused", field=visible(reply.field, 200))
        return reply

    def _body(self, reply: Reply) -> bytes:
        if reply.body is None:
            raise ProtocolError(502, "body: the aggregator's reply is empty", code="answer-unexpected", field="body")
        return reply.body


class Carried:
    """A site whose calls an engine carries.

    Args:
        name: of the site, as the engine knows it.
        work: the site's life, given its connection; what ends it is in the site's own log when it raises.
        dropped: see `CarriedConnection`.

    Attributes:
        reason: why the site has ended before its run did, in words that others may hear; "" of one that has not.
        ended: whether the next call, or the one just taken out, is the last.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[CarriedConnection], object],
        dropped: Callable[[int], str] = lambda size: "",
    ) -> None:
        self._calls, self._replies = SimpleQueue[bytes](), SimpleQueue[bytes]()
        self.reason, self.ended = "", False
        self._stopped = threading.Event()
        self._connection = CarriedConnection(name, self._calls.put, self._receive, dropped)
        self._thread = threading.Thread(target=self._live, args=(work,), name="rankdad", daemon=True)
        self._last: tuple[bytes, bytes] | None = None  # a reply, and the call that came of it

    def advance(self, reply: bytes, stops: Callable[[], bool] = lambda: False) -> bytes | None:
        """Hand in a reply, and return the next call: to the same reply, handed in once more, the same call.

        Args:
            reply: to the last call; the first begins.
            stops: tells whether the engine ends the site.

        Returns:
            The call; None if the engine ends the site.
        """
        if self._last is not None and self._last[0] == reply:
            return self._last[1]
        if self._last is None:
            self._thread.start()
        elif not self._thread.is_alive() and self._calls.empty():  # it has said so already
            return self._last[1]
        else:
            self._replies.put(reply)
        while True:
            with suppress(Empty):
                self._last = reply, self._calls.get(timeout=LOOK)
                return self._last[1]
            if stops():
                self._stopped.set()
                return None

    def stop(self, seconds: float = 0.0) -> None:
        """End the site as soon as it waits, as a signal would; started again it goes on."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _receive(self) -> bytes:
        while True:
            if self._stopped.is_set():
                raise ShutdownError(signal.SIGTERM)
            with suppress(Empty):
                return self._replies.get(timeout=LOOK)

    def _live(self, work: Callable[[CarriedConnection], object]) -> None:
        connection, ended = self._connection, None
        try:
            try:
                work(connection)
            except (RunFailedError, ShutdownError, RefusedError):
                raise
            except Exception as error:
                if not connection.has_given_up:  # else its driver has said so
                    connection.give_up(pack_failure(failure_message(connection.name, 0, error, final=False)))
                raise
        except BaseException as error:  # its words may quote data: `work` has put them into the site's own log
            ended = error
            self.reason = visible(public_reason(error))
        finally:
            self.ended = True
            self._calls.put(connection.end(ended))
