"""Splits a stream of bytes into HTTP/1 messages; a state machine without I/O.

Output contains all input bytes, in pieces of one message each. Other protocols, such as TLS, pass unchanged. Responses
to HEAD requests are not supported.

    state     holds back                  ends
    HEAD      the head's bytes so far     at the empty line: BODY, SIZE or REST, or HEAD if there is no body
    BODY      nothing                     after content-length bytes: HEAD
    SIZE      the chunk's size so far     at the line's end: CHUNK, or TRAILER after size 0
    CHUNK     nothing                     after the chunk and its line's end: SIZE
    TRAILER   a line so far               at an empty line: HEAD
    REST      nothing                     with the connection: a response without length, or another protocol
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

MAX_HEAD = 65536  # bytes
MAX_LINE = 4096  # bytes of a chunk's size or of a trailer

_START = re.compile(rb"(?P<verb>[A-Z]+) \S+ HTTP/1\.[01]\r\n|HTTP/1\.[01] (?P<status>\d{3})[ \r]")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r\n", re.IGNORECASE)
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*[;\r]")
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked[ \t]*\r\n", re.IGNORECASE)


class _State(Enum):
    HEAD = auto()
    BODY = auto()
    SIZE = auto()
    CHUNK = auto()
    TRAILER = auto()
    REST = auto()


@dataclass(frozen=True)
class Piece:
    """Bytes of one message.

    Args:
        data: the bytes.
        size: only for a message's first piece, its whole head: minimum bytes of the message.
        last: whether the message ends here.
    """

    data: bytes
    size: int | None = None
    last: bool = False


class Framer:
    """One direction of a connection."""

    def __init__(self) -> None:
        self._state = _State.HEAD
        self._held = b""
        self._left = 0

    @property
    def parses(self) -> bool:
        """Whether the stream has been HTTP so far."""
        return self._state is not _State.REST

    def split(self, data: bytes) -> Iterator[Piece]:
        """Yield the pieces that these bytes complete."""
        while data:
            if self._state is _State.REST:
                yield Piece(data)
                return
            if self._state in (_State.BODY, _State.CHUNK):
                taken, data = data[: self._left], data[self._left :]
                self._left -= len(taken)
                last = self._state is _State.BODY and not self._left
                if not self._left:
                    self._state = _State.HEAD if last else _State.SIZE
                yield Piece(taken, last=last)
                continue
            mark, longest = (b"\r\n\r\n", MAX_HEAD) if self._state is _State.HEAD else (b"\r\n", MAX_LINE)
            seen = max(0, len(self._held) - len(mark))
            self._held += data
            end = self._held.find(mark, seen)
            if end < 0:
                if len(self._held) <= longest and not (self._state is _State.HEAD and not self._held[:1].isupper()):
                    return
                self._state, data = _State.REST, self.rest()
                continue
            data = self._held[end + len(mark) :]
            whole, self._held = self._held[: end + len(mark)], b""
            yield self._head(whole) if self._state is _State.HEAD else self._line(whole)

    def rest(self) -> bytes:
        """Return the held-back bytes at the end of the stream."""
        rest, self._held = self._held, b""
        return rest

    def _head(self, head: bytes) -> Piece:
        start = _START.match(head)
        if start is None:
            self._state = _State.REST
            return Piece(head)
        status = int(start["status"] or 0)
        if 100 <= status < 200:  # interim response; after 101 another protocol follows
            self._state = _State.REST if status == 101 else _State.HEAD
            return Piece(head)
        if status in (204, 304):
            return Piece(head, len(head), last=True)
        if _CHUNKED.search(head):
            self._state = _State.SIZE
            return Piece(head, len(head) + len(b"0\r\n\r\n"))
        length = _LENGTH.search(head)
        if length is None and status:
            self._state = _State.REST
            return Piece(head, len(head))
        self._left = int(length[1]) if length else 0
        self._state = _State.BODY if self._left else _State.HEAD
        return Piece(head, len(head) + self._left, last=not self._left)

    def _line(self, line: bytes) -> Piece:
        if self._state is _State.TRAILER:
            last = line == b"\r\n"
            self._state = _State.HEAD if last else _State.TRAILER
            return Piece(line, last=last)
        size_line = _SIZE.match(line)
        if size_line is None:
            self._state = _State.REST
            return Piece(line)
        size = int(size_line[1], 16)
        self._left = size + len(b"\r\n")
        self._state = _State.CHUNK if size else _State.TRAILER
        return Piece(line)
