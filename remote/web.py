"""The aggregator's end of a connection: uvicorn's protocol with further limits, and audited TLS handshakes.

uvicorn has no timeout for headers and does not pass on certificates. Its `limit_concurrency` counts idle connections,
so that a dozen of them block all others. `h11_max_incomplete_event_size` does not limit chunks of one byte, and does
not apply to httptools.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import cast

import uvicorn
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from rankdad.common.errors import ProtocolError, UserError, one_line
from rankdad.remote.auth import Context, names_of
from rankdad.remote.connections import MAX_PER_SITE, ConnectionRegistry
from rankdad.remote.proxies import Proxy

MAX_HEADER_BYTES = 1 << 14  # of a request without its body: line, headers, sizes of chunks, trailers
FRAMED = 8  # bytes of a body that permit one byte of framing


class HttpConnection(HttpToolsProtocol):
    """HTTP/1.1 on one connection, one request at a time.

    Args:
        config: uvicorn's.
        state: uvicorn's.
        registry: all connections.
        proxy: the trusted proxy at the other end of a Unix socket.
    """

    def __init__(
        self, config: uvicorn.Config, state: ServerState, registry: ConnectionRegistry, proxy: Proxy | None = None
    ) -> None:
        super().__init__(config, state, {})
        self.site = ""
        self.names: tuple[str, ...] = ()  # in its client certificate
        self.waiting: asyncio.Future[bytes | None] | None = None  # answer of the request that is held
        self._registry, self._proxy = registry, proxy
        self._head = 0  # bytes of the present request beyond its body and permitted framing
        self._body = 0  # bytes of body in the last data
        self._deadline: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None  # deadline for the rest of an answered request's body

    @property
    def address(self) -> str:
        """Address of the other end."""
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timeout for headers."""
        super().connection_made(cast(asyncio.Transport, transport))
        self.names = names_of(transport.get_extra_info("peercert"))
        self._await_headers()
        self._registry.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        self._end_wait()
        self._end_rest()
        self._registry.remove(self)
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(ClientDisconnect())
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count bytes outside of bodies."""
        self._body = 0
        super().data_received(data)
        self._head = max(0, self._head + len(data) - self._body - self._body // FRAMED)
        if self._head > MAX_HEADER_BYTES:
            self._refuse_headers()

    def on_message_begin(self) -> None:
        """Start a request."""
        super().on_message_begin()
        self.scope["state"] = {"connection": self}
        self._head = 0
        if self._deadline is None:
            self._await_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; ignore trailers."""
        if self._deadline is not None:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body."""
        self._body += len(body)
        if self._rest is None and self.cycle is not None and self.cycle.response_complete:
            self._rest = self.loop.call_later(self._registry.timeouts.refused, self._cut)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._end_rest()
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        """Start the request's handler, unless another one is not answered yet."""
        self._end_wait()
        if sum(len(name) + len(value) + 4 for name, value in self.headers) + len(self.url) > MAX_HEADER_BYTES:
            self._refuse_headers()
        elif self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # pipelining, which our clients never use
        elif self._proxy is None or self._introduced(self._proxy):
            super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed HTTP."""
        self._refuse(400, msg, "request-malformed")

    def _introduced(self, proxy: Proxy) -> bool:
        """Take the caller's address and certificate from the proxy's headers."""
        address = proxy.address(self.headers)
        self.client = self.scope["client"] = (address, 0) if address else None
        try:
            self.names = proxy.names(self.headers)
        except ProtocolError as error:
            self._refuse(error.status, str(error), error.code, error.field)
            return False
        return True

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

    def _await_headers(self) -> None:
        seconds = self._registry.timeouts.headers
        self._deadline = self.loop.call_later(
            seconds, lambda: self._refuse(408, f"the headers did not come within {seconds:g} s", "headers-too-slow")
        )

    def _end_wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut(self) -> None:
        self._registry.audit.refused(self.address, self.site, 408, "the body continued after its request was answered")
        self.transport.abort()

    def _end_rest(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    def _refuse_headers(self) -> None:
        self._refuse(
            431,
            f"the headers, or the body's framing, have more than {MAX_HEADER_BYTES} bytes",
            "headers-too-large",
        )

    def _refuse(self, status: int, reason: str, code: str, field: str = "") -> None:
        """Refuse a malformed request or framing, and close the connection."""
        self._end_wait()
        if self.transport.is_closing():
            return
        self._registry.audit.refused(self.address, self.site, status, reason)
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()  # an answer has begun
            return
        body = json.dumps({"error": reason, "code": code, "field": field}).encode()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
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
            seconds = self._registry.timeouts.headers
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
