"""Connections on which every request and its answer have a time and a size, whatever is at the other end."""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import ssl
import time
from email.errors import MessageError
from email.message import Message
from typing import Any, NamedTuple, cast

SLOWEST = 10_000  # bytes per second of the slowest link: what moves faster may take its time
HEAD = 1 << 17  # bytes of all that is no body: status lines, headers, sizes of chunks, trailers
PIECE = 1 << 16  # bytes that move at once: few enough for the slowest link, within the time for it to stand still


class HeldError(Exception):
    """A request was sent, and nothing of an answer has come in time."""


class TooLargeError(Exception):
    """An answer is larger than any may be."""


class Answer(NamedTuple):
    """What came back: an HTTP status, headers, a body."""

    status: int
    headers: Message
    body: bytes


class Limits:
    """Until when bytes may move, and how many.

    Whoever moves SLOWEST bytes a second is never too slow; what stops or drips is, however fast it began.
    """

    def begin(self, seconds: float, size: int) -> None:
        """Begin with something that may stand still for so long, and have so many bytes."""
        self._seconds, self._size, self.moved = seconds, size, 0
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        """Return for how many seconds to wait for the next bytes.

        Raises:
            TimeoutError: there are none left.
        """
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def move(self, count: int) -> None:
        """Count bytes.

        Raises:
            TooLargeError: there are too many.
        """
        self.moved += count
        self._until = min(self._until + count / SLOWEST, time.monotonic() + self._seconds)
        if self.moved > self._size:
            raise TooLargeError


class _Bytes(io.RawIOBase):
    """What comes from a socket, within limits."""

    def __init__(self, source: socket.socket, limits: Limits) -> None:
        self._socket, self._limits = source, limits
        self._raw = cast(io.RawIOBase, source.makefile("rb", buffering=0))  # outlives the closing of the socket

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(self._limits.left())
        count = self._raw.readinto(buffer)
        self._limits.move(count or 0)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer whose every byte counts, headers, chunks and trailers too."""

    def __init__(self, sock: socket.socket, limits: Limits, **options: Any) -> None:
        super().__init__(sock, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Bytes(sock, limits))


class Connection(http.client.HTTPConnection):
    """A connection with limits; it is opened by the first request, and again after an error."""

    piece = PIECE

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits = Limits()
        # Called with a socket, also for what a proxy answers.
        self.response_class = cast(Any, lambda sock, **more: _Response(sock, self._limits, **more))

    def ask(
        self,
        verb: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        *,
        prompt: float,
        wait: float,
        limit: int,
    ) -> Answer:
        """Send a request, and return its answer.

        Args:
            verb: of the request.
            path: of the request.
            body: of the request.
            headers: of the request.
            prompt: seconds in which the connection stands, and in which it begins to take the request.
            wait: seconds in which an answer begins to come.
            limit: largest size of an answer's body, in bytes.

        Raises:
            HeldError: nothing has come in time.
            TooLargeError: more has come than any answer has.
            OSError, http.client.HTTPException: the link is broken or too slow, or what is there does not speak HTTP.
        """
        try:
            if self.sock is None:
                self.timeout = prompt
                self._limits.begin(prompt, 2 * HEAD)  # of a proxy
                self.connect()
            self._limits.begin(prompt, HEAD + len(body or b""))
            with contextlib.suppress(ConnectionError, ssl.SSLError):  # refused before all was sent: the answer says why
                self.request(verb, path, body, headers)
            self._limits.begin(wait, HEAD + limit + limit // 8)
            return self._answer(limit)
        except BaseException:
            self.close()
            raise

    def _answer(self, limit: int) -> Answer:
        try:
            response = self.getresponse()
            if response.length is None and not response.chunked:
                raise http.client.IncompleteRead(b"")  # http.client takes a head that broke off for a whole one
            body = self._chunks(response, limit) if response.chunked else response.read(limit + 1)
        except TimeoutError:
            if self._limits.moved:
                raise ConnectionError(f"its answer came more slowly than {SLOWEST:,} bytes a second") from None
            raise HeldError from None
        except (ValueError, MessageError):  # of a negative size
            raise http.client.HTTPException("what came is not HTTP") from None
        if len(body) > limit:
            raise TooLargeError
        if response.length:
            raise http.client.IncompleteRead(body, response.length)
        return Answer(response.status, response.headers, body)

    def _chunks(self, response: http.client.HTTPResponse, limit: int) -> bytes:
        """Read a body in chunks, of which each costs time: crumbs are no answer."""
        body = bytearray()
        while len(body) <= limit and (piece := response.read(min(PIECE, limit + 1 - len(body)))):
            body += piece
            if self._limits.moved > HEAD + 2 * len(body):
                raise TooLargeError
        return bytes(body)

    def send(self, data: Any) -> None:
        """Send bytes piece by piece: whoever takes them too slowly is not waited for."""
        rest = memoryview(data)
        while rest:
            piece, rest = rest[: self.piece], rest[self.piece :]
            if self.sock is not None:
                self.sock.settimeout(self._limits.left())
            super().send(piece)
            self._limits.move(len(piece))


class EncryptedConnection(Connection, http.client.HTTPSConnection):
    """The same by TLS."""

    piece = PIECE // 4  # a record, of which each has its own time in Python's ssl
