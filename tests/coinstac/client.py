"""The platform's WebSocket client: probes, one message out and one in, and its idea of JSON."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from tests.coinstac.nodes import Node

EXACT = 2**53  # integers beyond it are rounded by a reader that has only doubles


class PlatformError(Exception):
    """What ends a run other than the computation's own error: a broken contract, or silence."""


class AbnormalCloseError(PlatformError):
    """The server closed a connection before it had answered."""


class ComputationError(Exception):
    """A node answered with an error; the text is the answer's `data`."""

    def __init__(self, node: str, text: str, code: Any) -> None:
        super().__init__(text)
        self.node, self.code = node, code


@dataclass(frozen=True)
class Limits:
    """What the platform gives up at; `answer` and `iterations` are ours, it has none."""

    message: int = 100 * 2**20
    tries: int = 20  # probes after the first, 200 ms × n apart: 42 s
    grace: float = 10.0
    answer: float = 60.0
    iterations: int = 10_000


def open_connection(node: Node, limits: Limits) -> connect:
    """Open a connection to a node.

    Raises:
        ConnectionRefusedError: Nothing listens.
    """
    return connect(
        f"ws://127.0.0.1:{node.port}/",
        sock=socket.create_connection(("127.0.0.1", node.port), timeout=5),  # past all proxies of the environment
        compression="deflate",  # the platform offers it, and is slow with it
        max_size=limits.message,
        ping_interval=None,
        open_timeout=limits.answer,
        close_timeout=1,
    )


async def probe(node: Node, limits: Limits) -> None:
    """Open a connection only to close it, as the platform does before every message.

    Raises:
        PlatformError: The node died, did not listen in time, or speaks something else.
    """
    for wait in range(1, limits.tries + 2):
        try:
            async with open_connection(node, limits) as connection:
                node.connected()
                await connection.close(1000, "Test Connection")
            return
        except (ConnectionRefusedError, ConnectionResetError, InvalidMessage) as error:
            if not await asyncio.to_thread(node.alive):
                raise PlatformError(f"{node.name} died before it listened: see {node.log}") from error
        except (InvalidHandshake, TimeoutError) as error:
            raise PlatformError(f"{node.name} did not open a connection: {error!r}") from error
        if wait <= limits.tries:
            await asyncio.sleep(0.2 * wait)
    raise PlatformError(f"{node.name} did not listen in time: see {node.log}")


async def exchange(node: Node, message: str, limits: Limits) -> tuple[dict[str, Any], int]:
    """Send a message over a connection of its own, and return the `data` and the size of the answer.

    Raises:
        ComputationError: The answer is an error.
        PlatformError: The answer breaks the contract, or does not come.
    """
    trace = ""
    try:
        async with asyncio.timeout(limits.answer), open_connection(node, limits) as connection:
            if connection.response is None or "Sec-WebSocket-Extensions" in connection.response.headers:
                raise PlatformError(f"{node.name} took up per-message deflate, which makes large messages slow")
            await connection.send(message)
            async for text in connection:
                answer = loads(node, text)
                if answer.get("type") != "stderr":
                    return result(node, answer), len(text.encode()) if isinstance(text, str) else len(text)
                trace += answer.get("data") or ""
                if answer.get("end") is True:
                    if "code" not in answer:
                        raise PlatformError(f"{node.name}: an error without `code` leaves the platform waiting")
                    raise ComputationError(node.name, trace, answer["code"])
    except TimeoutError:
        raise PlatformError(f"{node.name} did not answer in {limits.answer} s") from None
    except (OSError, InvalidHandshake) as error:
        raise AbnormalCloseError(f"{node.name} did not open the second connection: {error!r}") from error
    except ConnectionClosed as closed:
        if closed.sent is not None and closed.sent.code == 1009 and not closed.rcvd_then_sent:
            raise PlatformError(f"{node.name} answered more than {limits.message} bytes") from closed
        code = closed.rcvd.code if closed.rcvd is not None else 1006
        if code != 1000:
            raise AbnormalCloseError(f"{node.name} closed with {code} before it answered: see {node.log}") from closed
    raise PlatformError(f"{node.name} closed with 1000 before it answered: the platform would wait for ever")


def result(node: Node, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the `data` of an answer that ends an iteration well.

    Raises:
        PlatformError: It is none.
    """
    data = answer.get("data")
    if answer.get("type") != "stdout" or answer.get("end") is not True:
        raise PlatformError(f"{node.name} answered neither stdout nor stderr, or without `end`: {dumps(answer)[:200]}")
    if (
        not isinstance(data, dict)
        or data.keys() != {"output", "cache", "success"}
        or not isinstance(data["cache"], dict)
        or not isinstance(data["success"], bool)
    ):
        raise PlatformError(f"{node.name}: `data` must have output, cache (an object) and success (a boolean) alone")
    return data


def dumps(value: Any) -> str:
    """Write JSON as the platform does.

    Raises:
        ValueError: A number is not finite.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def loads(node: Node, text: str | bytes) -> dict[str, Any]:
    """Read JSON as the platform does, whose numbers are doubles and which passes 2.0 on as 2.

    Raises:
        PlatformError: It could not, or a number would change.
    """

    def integer(digits: str) -> int:
        if abs(value := int(digits)) > EXACT:
            raise ValueError(f"the integer {digits} does not fit a double")
        return value

    def number(digits: str) -> float | int:
        if not math.isfinite(value := float(digits)):
            raise ValueError(f"the number {digits} does not fit a double")
        return int(value) if value.is_integer() and abs(value) <= EXACT else value

    def constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        answer = json.loads(text, parse_int=integer, parse_float=number, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise PlatformError(f"{node.name} answered what is not JSON: {error}") from error
    if not isinstance(answer, dict) or not isinstance(text, str):
        raise PlatformError(f"{node.name} answered something else than an object in a text message")
    return answer
