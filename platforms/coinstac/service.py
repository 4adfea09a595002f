"""The WebSocket service for COINSTAC: one message in, one out, for a site or the aggregator.

The socket opens before torch is imported, as the platform gives up on slow containers. Long work runs in one thread
beside the event loop, so that the platform's probes are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from rankdad.common.errors import ProtocolError, RankdadError, UserError, one_line
from rankdad.common.files import is_within

if TYPE_CHECKING:
    from rankdad.platforms.coinstac.outputs import NodeState, Reply

PORT = "COINSTAC_PORT"
BREATH = 0.02  # seconds for a connection before imports block the interpreter
MAX_BYTES = 2**30  # of a received message; the platform's own limit is far lower
MOUNTS = {  # folders in a message's state, by mode
    "local": {"outputDirectory": "output", "baseDirectory": "input"},
    "remote": {"outputDirectory": "output"},
}


class Node(Protocol):
    """A site or the aggregator."""

    def advance(self, given: Mapping[str, Any], state: NodeState) -> Reply:
        """Answer one iteration."""

    def close(self) -> None:
        """Close the node's files."""


class Service:
    """A node behind its socket.

    Args:
        mounts: folder of the platform's mounts, `input` and `output`.
        allow_factories: model factories permitted in the image.
        once: whether to end after one answer.
    """

    def __init__(self, mounts: Path, allow_factories: tuple[str, ...] = (), *, once: bool = False) -> None:
        self._mounts, self._allow_factories, self._once = mounts.resolve(), allow_factories, once
        self._node: tuple[tuple[str, str], Node] | None = None  # with mode and output folder
        self._warm = False
        self._worker = ThreadPoolExecutor(1, "node")  # torch's thread counts are set for each thread

    async def serve(self, host: str, port: int) -> None:
        """Listen forever."""
        # Browsers send an Origin, the platform does not: this excludes pages in a member's browser.
        async with serve(
            self._iterate, host, port, compression=None, max_size=MAX_BYTES, ping_interval=None, origins=[None]
        ):
            _say(f"listening on port {port}")
            await asyncio.get_running_loop().create_future()

    async def _iterate(self, socket: ServerConnection) -> None:
        """Answer one message; probes close without one."""
        loop = asyncio.get_running_loop()
        loop.call_later(BREATH, self._warm_up)
        with contextlib.suppress(ConnectionClosed):
            text = await socket.recv(decode=True)
            await socket.send(await loop.run_in_executor(self._worker, self.answer, text))
            await socket.wait_closed()  # the platform closes
            if self._once:
                leave()

    def _warm_up(self) -> None:
        """Start slow imports once: the platform's first message follows soon after its probe."""
        if not self._warm:
            self._warm = True
            self._worker.submit(importlib.import_module, "torch._dynamo")  # imported late by optimizers

    def answer(self, text: str) -> str:
        """Answer one message with the node's output, or with an error that ends the run."""
        try:
            mode, given, state = _parsed(text)
            self._check_folders(mode, state)
            reply = self._node_of(mode, state.outputDirectory).advance(given, state)
            data = {"output": reply.output, "cache": {}, "success": reply.success}
            return json.dumps({"type": "stdout", "data": data, "end": True}, allow_nan=False)
        except RankdadError as error:
            message = str(error)
        except Exception as error:
            traceback.print_exc()
            message = f"rankdad failed: {one_line(error)}; see the container's log"
        _say(f"error: {message}")
        return json.dumps({"type": "stderr", "data": message, "code": 1, "end": True})

    def _check_folders(self, mode: str, state: NodeState) -> None:
        """Check that a message's folders are in the platform's mounts.

        Raises:
            ProtocolError: one is outside.
        """
        for name, mount in MOUNTS[mode].items():
            folder = self._mounts / mount
            if not is_within(Path(getattr(state, name)), folder):
                raise ProtocolError(
                    422,
                    f"state.{name}: is outside of {folder}, where the platform mounts it",
                    code="path-leads-outside",
                    field=f"state.{name}",
                )

    def _node_of(self, mode: str, folder: str) -> Node:
        """Return the node; a container keeps one unless another run starts in it."""
        if self._node is None or self._node[0] != (mode, folder):
            if self._node is not None:
                self._node[1].close()
            self._node = (mode, folder), _make_node(mode, self._allow_factories)
        return self._node[1]


def _parsed(text: str) -> tuple[str, Mapping[str, Any], NodeState]:
    """Parse a message: mode, input, state.

    Raises:
        ProtocolError: it is malformed.
    """
    from rankdad.platforms.coinstac.outputs import NodeState  # pydantic, after the socket has opened

    try:
        message = json.loads(text)
        mode, data = message["mode"], message["data"]
        state = NodeState.model_validate(data["state"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # ValueError: pydantic's too
        raise ProtocolError(422, f"the message is malformed: {one_line(error)}", code="message-malformed") from None
    if mode not in list(MOUNTS):
        raise ProtocolError(
            422, f"mode: got {str(mode)[:40]!r}, expected local or remote", code="message-malformed", field="mode"
        )
    given = data.get("input")
    if not isinstance(given, dict):
        raise ProtocolError(422, "input: is missing, or not an object", code="message-malformed", field="input")
    return mode, given, state


def _make_node(mode: str, allow_factories: tuple[str, ...]) -> Node:
    """Create a site or the aggregator, importing only its own modules."""
    if mode == "local":
        from rankdad.platforms.coinstac.site_node import SiteNode

        return SiteNode(allow_factories, _say)
    from rankdad.platforms.coinstac.aggregator_node import AggregatorNode

    return AggregatorNode(allow_factories, _say)


def _say(line: str) -> None:
    print(line, flush=True)


def run(host: str, port: int, mounts: Path, allow_factories: tuple[str, ...] = ()) -> None:
    """Serve until a signal arrives; under Singularity, which sets the port in the environment, until one answer.

    There the platform starts a process for every iteration and stops only the last one.

    Args:
        host: address to listen on.
        port: port to listen on.
        mounts: folder of the platform's mounts.
        allow_factories: model factories permitted in the image.

    Raises:
        UserError: the address is in use or not of this machine.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    try:
        asyncio.run(Service(mounts, allow_factories, once=PORT in os.environ).serve(host, port))
    except OSError as error:
        raise UserError(
            f"cannot listen on {host} port {port}: {error.strerror or error}", code="cannot-listen"
        ) from None


def leave(_number: int = 0, _frame: FrameType | None = None) -> None:
    """End this process at once. Finished work is on the disk, and running work cannot be interrupted."""
    sys.stdout.flush()
    os._exit(0)
