"""The aggregator's end of a connection: uvicorn's protocol, known to the registry, and audited TLS handshakes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

import uvicorn
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from rankdad.common.errors import ProtocolError, UserError, one_line
from rankdad.remote.auth import Context, names_of
from rankdad.remote.connections import MAX_PER_SITE, ConnectionRegistry
from rankdad.remote.proxies import Headers, Proxy


class HttpConnection(HttpToolsProtocol):
    """HTTP/1.1 on one connection, as uvicorn speaks it.

    This does what uvicorn cannot: pass on a client's certificate, end a held request with its connection, and close one
    connection in favour of another. Headers, framing and what follows an answer are limited by nginx.

    Args:
        config: uvicorn's.
        state: uvicorn's.
        registry: all connections.
        proxy: the trusted proxy at the other end of a Unix socket.
    """

    def __init__(
        self, config: uvicorn.Config, state: ServerState, registry: ConnectionRegistry, proxy: Proxy | None = None
    ) -> None:
        super().__init__(config, state, {"connection": self})
        self.site = ""
        self.waiting: asyncio.Future[bytes | None] | None = None  # answer of the request that is held
        self._registry, self._proxy = registry, proxy

    @property
    def address(self) -> str:
        """Address of the other end."""
        return self.client[0] if self.client else ""

    def names(self, headers: Headers) -> tuple[str, ...]:
        """Return the names in the caller's certificate, which a proxy passes on in a request's headers.

        Raises:
            ProtocolError: see `Proxy.names`.
        """
        if self._proxy is not None:
            return self._proxy.names(headers)
        return names_of(self.transport.get_extra_info("peercert"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add the connection."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._registry.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection, and end the request that is held."""
        self._registry.remove(self)
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(ClientDisconnect())
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        """Start the request's handler, with the caller's address as the proxy says it."""
        if self._proxy is not None:
            address = self._proxy.address(self.headers)
            self.client = self.scope["client"] = (address, 0) if address else None
        super().on_headers_complete()

    def evict(self) -> None:
        """Make room: refuse a held request, else close the connection."""
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(
                ProtocolError(
                    429, f"more than {MAX_PER_SITE} connections of one site at once", code="too-many-connections"
                )
            )
        elif self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # in the middle of a body or answer
        else:
            self.transport.close()


class Handshake:
    """A TLS handshake: counted, timed, and audited if it fails.

    Args:
        accepted: socket of the new connection.
        address: address of its other end.
        make: creates the connection's protocol.
        secure: creates its TLS context.
        registry: all connections.
    """

    def __init__(
        self,
        accepted: socket.socket,
        address: str,
        make: Callable[[], HttpConnection],
        secure: Callable[[], Context],
        registry: ConnectionRegistry,
    ) -> None:
        self.site, self.address = "", address
        self._registry = registry
        registry.add(self)
        self._task = asyncio.get_running_loop().create_task(self._shake(accepted, address, make, secure))

    def evict(self) -> None:
        """Make room for another."""
        self._task.cancel()

    async def _shake(
        self, accepted: socket.socket, address: str, make: Callable[[], HttpConnection], secure: Callable[[], Context]
    ) -> None:
        context = None
        try:
            context = secure()
            loop = asyncio.get_running_loop()
            seconds = self._registry.timeouts.handshake
            await loop.connect_accepted_socket(make, accepted, ssl=context, ssl_handshake_timeout=seconds)
        except (OSError, UserError) as error:
            accepted.close()
            cause = (context and context.failure) or error
            reason = getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or one_line(cause)
            self._registry.audit.refused(address, "", 0, f"TLS: {reason}")
        finally:
            self._registry.remove(self)


async def accept(listening: socket.socket, handle: Callable[[socket.socket, str], object]) -> None:
    """Accept connections forever.

    Args:
        listening: the listening socket.
        handle: called with each connection and its address.
    """
    listening.setblocking(False)
    while True:
        try:
            accepted, address = await asyncio.get_running_loop().sock_accept(listening)
        except OSError:  # no descriptors left, or the caller disconnected
            await asyncio.sleep(0.1)
        else:
            handle(accepted, str(address[0]))
