"""The service that COINSTAC talks to: one WebSocket message in, one out, for a site or for the aggregator.

The socket opens before torch is imported: the platform gives up on a container that is slow to answer. Whatever takes
long runs in one thread beside the event loop, so that the socket stays open for the platform's probes.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, Protocol

import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from pydantic import ValidationError

from common.coinstac.messages import NodeState, Reply
from common.errors import ProtocolError, RankdadError, one_line

BREATH = 0.02  # seconds in which a connection stands before imports hold the interpreter
MOST_BYTES = 2**30  # of a message to us: the platform's own limit is far below
NODES = {"local": "local.drivers.coinstac:SiteNode", "remote": "remote.coinstac:AggregatorNode"}


class Node(Protocol):
    """A site or the aggregator."""

    def advance(self, given: Mapping[str, Any], state: NodeState) -> Reply:
        """Return what the node says in one iteration."""

    def close(self) -> None:
        """Let go of the node's files."""


class Service:
    """A node behind its socket.

    Args:
        allow_factories: model factories that the image's maker permits.
    """

    def __init__(self, allow_factories: tuple[str, ...] = ()) -> None:
        self._allow_factories = allow_factories
        self._node: tuple[tuple[str, str], Node] | None = None  # with its mode and its output folder
        self._warm = False
        self._worker = ThreadPoolExecutor(1, "node")  # one: thread counts of tensor operations are a thread's own

    def app(self) -> FastAPI:
        """Return the application."""
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        app.add_api_websocket_route("/", self._iterate)
        return app

    def _warm_up(self) -> None:
        """Begin to import what takes long, once: the platform's first message comes soon after its probe."""
        if not self._warm:
            self._warm = True
            self._worker.submit(importlib.import_module, "torch._dynamo")  # which optimizers import late

    async def _iterate(self, socket: WebSocket) -> None:
        await socket.accept()
        asyncio.get_running_loop().call_later(BREATH, self._warm_up)
        try:
            text = await socket.receive_text()
            answer = await asyncio.get_running_loop().run_in_executor(self._worker, self.answer, text)
            await socket.send_text(answer)
            await socket.receive()  # the platform closes
        except (WebSocketDisconnect, KeyError):
            return  # a probe, or a platform that has gone

    def answer(self, text: str) -> str:
        """Return the answer to one message: the node's, or what keeps it from going on, which ends the run for all."""
        try:
            mode, given, state = _parsed(text)
            reply = self._node_of(mode, state.outputDirectory).advance(given, state)
            data = {"output": reply.output, "cache": {}, "success": reply.success}
            return json.dumps({"type": "stdout", "data": data, "end": True}, allow_nan=False)
        except RankdadError as error:
            said = str(error)
        except Exception as error:
            traceback.print_exc()
            said = f"rankdad could not go on: {one_line(error)}; the container's log has more"
        _say(f"error: {said}")
        return json.dumps({"type": "stderr", "data": said, "code": 1, "end": True})

    def _node_of(self, mode: str, folder: str) -> Node:
        """Return the node; a container has one as long as it lives, unless somebody starts another run in it."""
        if self._node is None or self._node[0] != (mode, folder):
            if self._node is not None:
                self._node[1].close()
            module, _, name = NODES[mode].partition(":")
            node: Node = getattr(importlib.import_module(module), name)(self._allow_factories, _say)
            self._node = (mode, folder), node
        return self._node[1]


def _parsed(text: str) -> tuple[str, Mapping[str, Any], NodeState]:
    """Return what a message asks: mode, input, state.

    Raises:
        ProtocolError: it is no message of the platform's.
    """
    try:
        message = json.loads(text)
        mode, data = message["mode"], message["data"]
        state = NodeState.model_validate(data["state"])
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        raise ProtocolError(422, f"the message is none of the platform's: {one_line(error)}") from None
    if mode not in list(NODES):
        raise ProtocolError(422, f"mode: got {str(mode)[:40]!r}, expected local or remote")
    given = data.get("input")
    if not isinstance(given, dict):
        raise ProtocolError(422, "input: is missing, or no object")
    return mode, given, state


def _say(line: str) -> None:
    print(line, flush=True)


def serve(host: str, port: int, allow_factories: tuple[str, ...] = ()) -> None:
    """Serve until a signal comes.

    Args:
        host: address to listen on.
        port: of it.
        allow_factories: model factories that the image's maker permits.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    service = Service(allow_factories)
    config = uvicorn.Config(
        service.app(),
        host=host,
        port=port,
        ws="websockets-sansio",
        ws_max_size=MOST_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        lifespan="off",
        log_level="warning",
        access_log=False,
    )
    _Server(config).run()


def leave(_number: int, _frame: FrameType | None) -> None:
    """End this process at once: what is computed is on the disk as far as it has got, and cannot be asked to stop."""
    sys.stdout.flush()
    os._exit(0)


class _Server(uvicorn.Server):
    """A uvicorn that says when it listens, and waits for nobody when it is told to stop."""

    async def startup(self, sockets: Any = None) -> None:
        """Listen."""
        await super().startup(sockets)
        if self.started:
            _say(f"listening on port {self.config.port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Leave."""
        leave(sig, frame)
