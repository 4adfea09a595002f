"""The floor of a synchronous step: the same bytes through the barest barrier there is, with nothing else around it."""

from __future__ import annotations

import asyncio
import socket
import struct
from time import perf_counter

import uvicorn
import uvloop
from fastapi import FastAPI, Request, Response

from rankdad.local.drivers.http_library import httpx

LENGTH = struct.Struct("<I")


class _Meeting:
    """Everyone waits until all have come, and leaves with the last one's bytes."""

    def __init__(self, count: int) -> None:
        self._count, self._waiting = count, list[asyncio.Future[bytes]]()

    async def come(self, body: bytes) -> bytes:
        mine: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        if len(self._waiting) == self._count:
            for other in self._waiting:
                other.set_result(body)
            self._waiting = []
        return await mine


def fastapi_server(listening: socket.socket, sites: int) -> None:
    """Serve a bare FastAPI barrier under uvicorn, until the process is ended."""
    meeting, app = _Meeting(sites), FastAPI()

    async def endpoint(request: Request) -> Response:
        return Response(await meeting.come(await request.body()), media_type="application/msgpack")

    app.add_api_route("/", endpoint, methods=["POST"], response_model=None)
    config = uvicorn.Config(app, loop="uvloop", http="httptools", log_config=None, access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[listening])


def httpx_client(port: int, size: int, steps: int) -> list[float]:
    """Return seconds of each of so many steps through `httpx.Client`."""
    body, seconds = bytes(size), list[float]()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
        for _ in range(steps):
            began = perf_counter()
            assert len(client.post("/", content=body).content) == size
            seconds.append(perf_counter() - began)
    return seconds


def streams_server(listening: socket.socket, sites: int) -> None:
    """Serve a barrier of length-prefixed messages on asyncio streams, until the process is ended."""
    meeting = _Meeting(sites)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                body = await reader.readexactly(*LENGTH.unpack(await reader.readexactly(LENGTH.size)))
                writer.write(LENGTH.pack(len(body)) + await meeting.come(body))
        except asyncio.IncompleteReadError:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, sock=listening, limit=1 << 20)
        await server.serve_forever()

    uvloop.run(main())


def streams_client(port: int, size: int, steps: int) -> list[float]:
    """Return seconds of each of so many steps through asyncio streams."""

    async def main() -> list[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        body, seconds = LENGTH.pack(size) + bytes(size), list[float]()
        for _ in range(steps):
            began = perf_counter()
            writer.write(body)
            assert len(await reader.readexactly(LENGTH.size + size)) == len(body)
            seconds.append(perf_counter() - began)
        writer.close()
        return seconds

    return uvloop.run(main())
