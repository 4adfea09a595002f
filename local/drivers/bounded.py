"""A transport for httpx that limits the time and the size of every request and answer."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

from rankdad.local.drivers.http_library import httpcore, httpx

MIN_BYTES_PER_SECOND = 10_000  # bytes per second of the slowest link that is accepted
MAX_HEAD_BYTES = 1 << 17  # bytes besides the body: status line, headers, chunk sizes, trailers
LOOK = 0.2  # seconds between two calls of `look`
PIECE_BYTES = 1 << 16  # sent at once: the slowest link needs less than its timeout for it
ERRORS = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError, httpcore.TimeoutException)


class TooLargeError(Exception):
    """An answer is larger than allowed."""


class NoProxyError(httpx.ConnectError):
    """The proxy cannot be reached: its host and port."""


class BoundedTransport(httpx.BaseTransport):
    """Send requests as `httpx.HTTPTransport` does, within limits.

    A request's timeouts limit how long the link may be idle. A link is too slow if it falls below
    MIN_BYTES_PER_SECOND, however fast it began. The request's extension `size` limits the answer, in bytes.

    Args:
        context: for addresses with https://.
        proxy: to the aggregator.
        backend: opens connections.
        look: called repeatedly while waiting for an answer; an exception from it ends the request.

    Raises:
        TooLargeError: the answer exceeds its limit.
        httpx.ReadTimeout: no answer has arrived in time.
        httpx.TransportError: the link is broken or too slow, or the other end does not speak HTTP.
    """

    def __init__(
        self,
        context: ssl.SSLContext | None = None,
        proxy: httpx.Proxy | None = None,
        backend: httpcore.NetworkBackend | None = None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        options: dict[str, Any] = {
            "ssl_context": context,
            "network_backend": _Backend(backend or httpcore.SyncBackend(), look, proxied=proxy is not None),
        }
        if proxy is None:
            self._pool = httpcore.ConnectionPool(**options)
        else:
            self._pool = httpcore.HTTPProxy(str(proxy.url), proxy.raw_auth, **options)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and return the head of its answer; the body is read within the limits."""
        url = request.url
        with _errors_of_httpx():
            answer = self._pool.handle_request(
                httpcore.Request(
                    request.method,
                    httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        body = _Body(answer, request.extensions["size"])
        return httpx.Response(answer.status, headers=answer.headers, stream=body, extensions=answer.extensions)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


@contextlib.contextmanager
def _errors_of_httpx() -> Iterator[None]:
    try:
        yield
    except ERRORS as error:
        cause = next((first for first in error.args if isinstance(first, Exception)), error)
        raise getattr(httpx, type(error).__name__)(str(error)) from cause
    except ValueError as error:  # a chunk size with thousands of digits
        raise httpx.RemoteProtocolError("what came is not HTTP") from error


class _Body(httpx.SyncByteStream):
    """An answer's body; small chunks count with their overhead."""

    def __init__(self, answer: httpcore.Response, size: int) -> None:
        self._answer, self._size = answer, size

    def __iter__(self) -> Iterator[bytes]:
        names = {name.lower() for name, _ in self._answer.headers}
        if self._answer.status in (200, 202) and not names & {b"content-length", b"transfer-encoding"}:
            raise httpx.RemoteProtocolError("its answer does not say where it ends")  # it may be truncated
        wire, size = self._answer.extensions["network_stream"], 0
        with _errors_of_httpx():
            for piece in self._answer.iter_stream():
                size += len(piece)
                wire.allowed = MAX_HEAD_BYTES + 2 * size
                if size > self._size:
                    raise TooLargeError
                yield piece

    def close(self) -> None:
        self._answer.close()


class _Stream(httpcore.NetworkStream):
    """Limit time and size of the traffic on a connection, for each direction in turn."""

    def __init__(self, stream: httpcore.NetworkStream, look: Callable[[], None]) -> None:
        self._stream, self._look = stream, look
        self._reads: bool | None = None
        self._moved, self._until = 0, 0.0
        self.allowed = MAX_HEAD_BYTES  # bytes that may come

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._turn(True, timeout or 0.0)
        try:
            data = self._come(max_bytes)
        except httpcore.ReadTimeout:
            if self._moved:
                raise httpcore.ReadError(
                    f"its answer came more slowly than {MIN_BYTES_PER_SECOND:,} bytes per second"
                ) from None
            raise
        self._move(len(data), timeout or 0.0)
        if self._moved > self.allowed:
            raise TooLargeError
        return data

    def _come(self, max_bytes: int) -> bytes:
        while True:
            self._look()
            seconds = min(LOOK, self._left(httpcore.ReadTimeout))
            with contextlib.suppress(httpcore.ReadTimeout):
                return self._stream.read(max_bytes, seconds)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._turn(False, timeout or 0.0)
        for start in range(0, len(buffer), PIECE_BYTES):
            self._look()
            piece = buffer[start : start + PIECE_BYTES]
            self._stream.write(piece, self._left(httpcore.WriteTimeout))
            self._move(len(piece), timeout or 0.0)

    def _turn(self, reads: bool, seconds: float) -> None:
        if self._reads is not reads:
            self._reads, self._moved, self.allowed, self._until = reads, 0, MAX_HEAD_BYTES, time.monotonic() + seconds

    def _left(self, late: type[Exception]) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise late("timed out")
        return left

    def _move(self, count: int, seconds: float) -> None:
        self._moved += count
        self._until = min(self._until + count / MIN_BYTES_PER_SECOND, time.monotonic() + seconds)

    def close(self) -> None:
        self._stream.close()

    def start_tls(self, *arguments: Any, **options: Any) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(*arguments, **options), self._look)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    def __init__(self, backend: httpcore.NetworkBackend, look: Callable[[], None], *, proxied: bool) -> None:
        self._backend, self._look, self._proxied = backend, look, proxied

    def connect_tcp(self, host: str, port: int, *arguments: Any, **options: Any) -> httpcore.NetworkStream:
        try:
            return _Stream(self._backend.connect_tcp(host, port, *arguments, **options), self._look)
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            if not self._proxied:
                raise
            cause = next((first for first in error.args if isinstance(first, Exception)), error)
            raise NoProxyError(f"{host}:{port}") from cause
