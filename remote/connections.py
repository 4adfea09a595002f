"""Limits on connections to the aggregator, and their eviction.

A connection is unauthenticated until a request on it authenticates a site or, without authentication, names one.
Unauthenticated connections are few. A site's newest connections replace its oldest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request

from rankdad.common.errors import ProtocolError
from rankdad.remote.audit import Audit

MAX_UNAUTHENTICATED = 64  # connections
MAX_PER_SITE = 4  # connections of a run, and thus concurrent requests
VIEWER, MAX_OF_VIEWERS = "(viewer)", 256  # owner of the page's connections; not a valid name of a site


@dataclass(frozen=True)
class Timeouts:
    """Timeouts for requests.

    Args:
        handshake: seconds for a TLS handshake.
        body: seconds for a small body.
        bytes_per_second: minimum rate of a larger body.
        refused: seconds for which the rest of a refused body is discarded; a reset would cut off the answer.
        hold: seconds for which a request is held; proxies cut idle connections after 30 or 60.
    """

    handshake: float = 10.0
    body: float = 10.0
    bytes_per_second: int = 10_000
    refused: float = 2.0
    hold: float = 25.0


class Connection(Protocol):
    """The aggregator's end of a connection."""

    site: str

    @property
    def address(self) -> str:
        """The other end's address."""

    def evict(self) -> None:
        """Close it, to make room for another."""


class ConnectionRegistry:
    """All connections by site.

    Args:
        audit: log of refusals.
        timeouts: for their requests.
    """

    def __init__(self, audit: Audit, timeouts: Timeouts = Timeouts()) -> None:
        self.audit, self.timeouts = audit, timeouts
        self._unauthenticated: dict[Connection, None] = {}
        self._sites: dict[tuple[str, str], dict[Connection, None]] = {}  # by run and site
        self._keys: dict[Connection, tuple[str, str]] = {}

    def add(self, connection: Connection) -> None:
        """Add a new, unauthenticated connection."""
        _add(self._unauthenticated, connection, MAX_UNAUTHENTICATED)

    def identify(self, connection: Connection, site: str, run: str = "") -> None:
        """Assign a connection to a site and, if there are several, a run."""
        key = run, site
        if self._keys.get(connection) == key:
            return
        self.remove(connection)
        connection.site = site
        self._keys[connection] = key
        _add(self._sites.setdefault(key, {}), connection, MAX_OF_VIEWERS if site == VIEWER else MAX_PER_SITE)

    def present(self, run: str = "") -> set[str]:
        """Return the sites with a connection, for one run if there are several."""
        return {site for of, site in self._sites if of == run}

    def remove(self, connection: Connection) -> None:
        """Forget a connection."""
        self._unauthenticated.pop(connection, None)
        key = self._keys.pop(connection, None)
        if key is not None:
            of_site = self._sites.get(key, {})
            of_site.pop(connection, None)
            if not of_site:
                self._sites.pop(key, None)


def _add(connections: dict[Connection, None], connection: Connection, limit: int) -> None:
    connections[connection] = None
    if len(connections) > limit:
        # Evict from the address with the most connections, so that one machine cannot block others.
        address = Counter(other.address for other in connections).most_common(1)[0][0]
        oldest = next(other for other in connections if other.address == address)
        del connections[oldest]
        oldest.evict()


async def read_body(request: Request, limit: int, timeouts: Timeouts) -> bytes:
    """Read a body within limits of size and time.

    Raises:
        ProtocolError: 413 for a body that is too large, 408 for one that is too slow.
    """
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise ProtocolError(413, f"the body has {declared[:20]} bytes, expected at most {limit}", code="body-too-large")
    chunks, size, began = [], 0, asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(began + timeouts.body) as deadline:
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise ProtocolError(413, f"the body has more than {limit} bytes", code="body-too-large")
                chunks.append(chunk)
                deadline.reschedule(began + timeouts.body + size / timeouts.bytes_per_second)
    except TimeoutError:
        raise ProtocolError(
            408, f"the body was slower than {timeouts.bytes_per_second} bytes per second", code="body-too-slow"
        ) from None
    request.scope["state"]["read"] = True
    return b"".join(chunks)
