"""Points at which a process kills itself by SIGKILL, in the midst of a piece of work.

A forked process patches itself before it runs. The one that takes its place does not, and so meets what was left
behind. This module is preloaded by the server that processes are forked from, and imports all that they need.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import safetensors.torch
from starlette.responses import Response

from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.protocol.messages import Kind
from rankdad.common.run.replica import Replica
from rankdad.local.drivers import running
from rankdad.local.drivers.bounded import BoundedTransport
from rankdad.local.drivers.http_library import httpx
from rankdad.remote import run_store
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.run_file import RunFile
from rankdad.remote.run_store import RunStore
from rankdad.remote.updates import Reduction

ON_ITS_WAY = 0.03  # seconds in which what was handed to the network leaves, and is read

for _name in ("torch._dynamo", "rankdad.remote.process", "tests.conftest"):
    importlib.import_module(_name)

Original = Callable[..., Any]
Concerns = Callable[..., bool]


@dataclass
class Crash:
    """Where a process dies.

    Args:
        point: name of one of `POINTS`.
        step: before this step is taken, the point is passed.
        skip: then it is passed so many times more.
    """

    point: str
    step: int = 0
    skip: int = 0

    def arm(self) -> None:
        """Patch this process so that it dies there."""
        self._done = 0

        def count(original: Original, replica: Replica, *arguments: Any) -> None:
            original(replica, *arguments)
            self._done = replica.step

        for name in ("apply", "load_state"):
            _patch(Replica, name, count)
        POINTS[self.point](self._is_due)

    def _is_due(self) -> bool:
        if self._done < self.step:
            return False
        self.skip -= 1
        return self.skip < 0


Due = Callable[[], bool]


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def _patch(owner: Any, name: str, work: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, lambda *arguments, **named: work(original, *arguments, **named))


def _always(*_: object, **__: object) -> bool:
    return True


def _before(owner: Any, name: str, concerns: Concerns = _always) -> Callable[[Due], None]:
    """Die where a function is called with arguments that concern us."""

    def arm(due: Due) -> None:
        def work(original: Original, *arguments: Any, **named: Any) -> Any:
            if concerns(*arguments) and due():
                die()
            return original(*arguments, **named)

        _patch(owner, name, work)

    return arm


def _after(owner: Any, name: str, concerns: Concerns = _always) -> Callable[[Due], None]:
    """Die where a function has done its work, and its caller does not know yet."""

    def arm(due: Due) -> None:
        def work(original: Original, *arguments: Any, **named: Any) -> Any:
            result = original(*arguments, **named)
            if concerns(*arguments) and due():
                die()
            return result

        _patch(owner, name, work)

    return arm


def _upload(due: Due) -> None:
    def half(body: bytes) -> Iterator[bytes]:
        yield body[: len(body) // 2]
        time.sleep(ON_ITS_WAY)
        die()

    def handle(original: Original, transport: httpx.BaseTransport, request: httpx.Request) -> Any:
        if request.content and due():
            vars(request)["stream"] = half(request.content)
        return original(transport, request)

    _patch(BoundedTransport, "handle_request", handle)


def _wait(due: Due) -> None:
    def trace(event: str, _: object) -> None:
        if event == "http11.receive_response_headers.started" and due():
            time.sleep(ON_ITS_WAY)
            die()

    def handle(original: Original, transport: httpx.BaseTransport, request: httpx.Request) -> Any:
        request.extensions["trace"] = trace
        return original(transport, request)

    _patch(BoundedTransport, "handle_request", handle)


def _download(due: Due) -> None:
    def handle(original: Original, transport: httpx.BaseTransport, request: httpx.Request) -> Any:
        answer = original(transport, request)
        if due():
            next(answer.iter_raw(), None)
            die()
        return answer

    _patch(BoundedTransport, "handle_request", handle)


def _half_a_checkpoint(due: Due) -> None:
    def save_file(original: Original, tensors: Any, path: Path, *arguments: Any) -> None:
        original(tensors, path, *arguments)
        if Path(path).suffix == ".tmp" and due():
            os.truncate(path, os.path.getsize(path) // 2)  # noqa: PTH202
            die()

    _patch(safetensors.torch, "save_file", save_file)


def _half_a_summary(due: Due) -> None:
    def write_text(original: Original, path: Path, text: str, **named: Any) -> None:
        if path.name == "summary.tmp" and due():
            original(path, text[: len(text) // 2], **named)
            die()
        original(path, text, **named)

    _patch(Path, "write_text", write_text)


def _some_answers(due: Due) -> None:
    """Let one answer through whole, and die before the next."""
    dying: list[bool] = []

    async def call(original: Original, response: Response, *arguments: Any) -> None:
        if dying:
            await asyncio.sleep(ON_ITS_WAY)
            die()
        if due():
            dying.append(True)
        await original(response, *arguments)

    _patch(Response, "__call__", call)


def _half_an_answer(due: Due) -> None:
    async def call(original: Original, response: Response, scope: Any, receive: Any, send: Any) -> None:
        async def send_half(message: dict[str, Any]) -> None:
            if message["type"] != "http.response.body":
                await send(message)
                return
            body = message["body"]
            await send(message | {"body": body[: len(body) // 2], "more_body": True})
            await asyncio.sleep(ON_ITS_WAY)
            die()

        await original(response, scope, receive, send_half if due() else send)

    _patch(Response, "__call__", call)


def _is_checkpoint(_: object, path: Path) -> bool:
    return Path(path).suffix == ".safetensors"


def _is_farewell(_: object, ready: Any, *__: object) -> bool:
    return bool(ready.kind is Kind.GOODBYE)


POINTS: dict[str, Callable[[Due], None]] = {
    # A site's
    "compute": _after(FactorCapture, "backward"),
    "upload": _upload,
    "wait": _wait,
    "download": _download,
    "result": _before(running, "save_model"),
    # Anybody's
    "half a checkpoint": _half_a_checkpoint,
    "checkpoint in place": _after(os, "replace", _is_checkpoint),
    # The aggregator's, in the order of a round
    "contribution": _after(Aggregator, "_receive"),
    "aggregate": _after(Reduction, "make"),
    "update": _before(RunStore, "follow"),
    "half a commit": _after(RunFile, "_put_update"),
    "committed": _after(RunFile, "commit"),
    "followed": _after(RunStore, "follow"),
    "half an answer": _half_an_answer,
    "some answers": _some_answers,
    "half a summary": _half_a_summary,
    # Then, where a checkpoint is due
    "before what goes": _before(RunFile, "retire"),
    "what goes": _after(RunFile, "retire"),
    # Before the first round
    "half a new file": _before(RunFile, "_set"),
    "new file": _after(RunFile, "_prepare"),
    # At the end
    "farewell": _after(Aggregator, "_open_next", _is_farewell),
    "end": _before(Aggregator, "close"),
    "model": _before(run_store, "save_model"),
}
