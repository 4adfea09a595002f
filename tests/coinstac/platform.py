"""The platform's side of the COINSTAC contract: one run of a consortium, with faults on demand."""

from __future__ import annotations

import asyncio
import random
import secrets
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.coinstac.client import Limits, PlatformError, dumps, exchange, probe
from tests.coinstac.nodes import Node, ProcessNode, Stop

Start = Callable[[str, str, str, Path], Node]
When = Literal["before", "during", "answered"]
BEGINS = 30.0  # seconds in which a call that is waited for begins, on a busy machine too
KILLS_AFTER_SENDING: tuple[When, ...] = ("during", "answered")


@dataclass(frozen=True)
class Faults:
    """What goes wrong.

    `kills` are (iteration, node, when): "before" the message is sent; "during" the computation, `kill_after` seconds
    after the message was sent, or once that event is set; "answered", when the answer has arrived, and is lost. After
    the latter two the same message goes to a fresh node, which is harder than the platform: there a death during an
    iteration ends the run.
    """

    fresh_every_iteration: bool = False
    leave_old_running: bool = False  # with the former, and as under Singularity: until the end of the run
    kills: Collection[tuple[int, str, When]] = ()
    kill_after: float | threading.Event = 0.05


@dataclass(frozen=True)
class Call:
    """One message to a node, and its answer."""

    seconds: float  # from opening the connection to the answer
    bytes_in: int
    bytes_out: int
    input: Any
    output: Any
    success: bool
    cache: dict[str, Any]  # merged
    cache_bytes: int


@dataclass
class Iteration:
    """All that happened between two outputs of the remote."""

    number: int
    seconds: float = 0.0
    calls: dict[str, Call] = field(default_factory=dict)


class Platform:
    """One run: sites and a remote, called in turns until the remote says `success`.

    Args:
        inputs: Of each site, as in the simulator's inputspec.json: `{variable: {"value": …}}`.
        folder: For the folders of all nodes; `nodes[name].input` is where a site's files belong.
        start: Makes a node from name, client id, run id and folder; `functools.partial` adds its options.
        client_ids: Of the sites; by default their alphabetical order is not that of the sites.
        limits: What is given up at.
        faults: What goes wrong.
    """

    def __init__(
        self,
        inputs: Sequence[Mapping[str, Mapping[str, Any]]],
        folder: Path,
        start: Start = ProcessNode,
        *,
        client_ids: Sequence[str] | None = None,
        limits: Limits | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.limits, self.faults = limits or Limits(), faults or Faults()
        ids = client_ids or shuffled_ids(len(inputs))
        run_id = secrets.token_hex(12)
        self.sites = [start(f"local{i}", ids[i], run_id, folder) for i in range(len(inputs))]
        self.remote = start("remote", "remote", run_id, folder)
        self.nodes = {node.name: node for node in (*self.sites, self.remote)}
        self.owner = ids[0]
        self.inputs = [{variable: entry["value"] for variable, entry in site.items()} for site in inputs]
        self.iterations: list[Iteration] = []
        self.errors: dict[str, BaseException] = {}
        self.stops: dict[str, Stop] = {}
        self._caches: dict[str, dict[str, Any]] = {name: {} for name in self.nodes}
        self._kills = set(self.faults.kills)
        if unknown := {name for _, name, _ in self._kills} - set(self.nodes):
            raise ValueError(f"no such nodes to kill: {sorted(unknown)}")

    def run(self) -> Any:
        """Run until the remote says `success`, and return its last output.

        Raises:
            ComputationError: The first node that answered with an error.
            PlatformError: The contract was broken, or nothing came in time.
        """
        before = fingerprint(self.sites)
        output = asyncio.run(self._run())
        if fingerprint(self.sites) != before:
            raise PlatformError("a computation wrote into its input, which is read-only")
        if self._kills:
            raise PlatformError(f"the run ended before {sorted(self._kills)}")
        return output

    def cache_bytes(self) -> int:
        """Return the size of the largest cache of all calls."""
        return max(call.cache_bytes for iteration in self.iterations for call in iteration.calls.values())

    async def _run(self) -> Any:
        try:
            inputs: list[Any] = list(self.inputs)
            for number in range(1, self.limits.iterations + 1):
                self.iterations.append(Iteration(number))
                began = time.perf_counter()
                sites = await self._all(
                    {site.name: self._call(site, "local", inputs[i], number) for i, site in enumerate(self.sites)}
                )
                gathered = {site.client_id: sites[site.name].output for site in self.sites}
                answer = (await self._all({"remote": self._call(self.remote, "remote", gathered, number)}))["remote"]
                self.iterations[-1].seconds = time.perf_counter() - began
                if answer.success:
                    return answer.output
                inputs = [answer.output] * len(self.sites)
            raise PlatformError(f"no success after {self.limits.iterations} iterations")
        finally:
            await self._end()

    async def _all(self, calls: Mapping[str, Coroutine[Any, Any, Call]]) -> dict[str, Call]:
        """Wait for all of them; the first error counts when all have ended."""
        results = dict(zip(calls, await asyncio.gather(*calls.values(), return_exceptions=True), strict=True))
        answered: dict[str, Call] = {}
        for name, result in results.items():
            if isinstance(result, BaseException):
                self.errors[name] = result
            else:
                answered[name] = result
                self.iterations[-1].calls[name] = result
        for error in self.errors.values():
            raise error
        return answered

    async def _call(self, node: Node, mode: str, given: Any, number: int) -> Call:
        """Take a node through one iteration."""
        message = self._message(node, mode, given, number)
        if self._kill_now(number, node, "before"):
            await self._ready(node)
            await asyncio.to_thread(node.kill)
        for when in KILLS_AFTER_SENDING:
            if self._kill_now(number, node, when):
                await self._ready(node)
                lost = asyncio.create_task(exchange(node, message, self.limits))
                after = self.faults.kill_after if when == "during" else None
                if isinstance(after, threading.Event):
                    await asyncio.to_thread(after.wait, BEGINS)
                else:
                    await asyncio.wait([lost], timeout=after)
                await asyncio.to_thread(node.kill)
                await asyncio.gather(lost, return_exceptions=True)
        await self._ready(node)
        began = time.perf_counter()
        answer, size = await exchange(node, message, self.limits)
        seconds = time.perf_counter() - began
        if self.faults.fresh_every_iteration and not self.faults.leave_old_running:
            await asyncio.to_thread(node.stop, self.limits.grace)
        cache = self._caches[node.name] = self._caches[node.name] | answer["cache"]
        sizes = (len(message.encode()), size)
        return Call(seconds, *sizes, given, answer["output"], answer["success"], cache, len(dumps(cache).encode()))

    def _kill_now(self, number: int, node: Node, when: When) -> bool:
        due = (number, node.name, when) in self._kills
        self._kills.discard((number, node.name, when))
        return due

    def _message(self, node: Node, mode: str, given: Any, number: int) -> str:
        state = node.directories() | {"clientId": node.client_id, "iteration": number, "owner": self.owner}
        data = {"input": given, "cache": self._caches[node.name], "state": state}
        message = dumps({"mode": mode, "data": data})
        if (size := len(message.encode())) > self.limits.message:
            raise PlatformError(f"{node.name}: a message of {size} bytes to it is larger than {self.limits.message}")
        return message

    async def _ready(self, node: Node) -> None:
        """Replace a node that is not there, and probe it, as before every message."""
        if self.faults.fresh_every_iteration or not await asyncio.to_thread(node.alive):
            await asyncio.to_thread(node.start)
        await probe(node, self.limits)

    async def _end(self) -> None:
        """Stop every node, and leave nothing behind."""
        started = [node for node in self.nodes.values() if node.started]
        try:
            stops = await asyncio.gather(*(asyncio.to_thread(node.stop, self.limits.grace) for node in started))
            self.stops = {node.name: stop for node, stop in zip(started, stops, strict=True)}
        finally:
            for node in self.nodes.values():
                node.close()


def shuffled_ids(count: int) -> list[str]:
    """Return random ids whose alphabetical order is not their own."""
    ids = sorted(secrets.token_hex(12) for _ in range(count))
    while count > 1 and ids == sorted(ids):
        random.shuffle(ids)
    return ids


def fingerprint(nodes: Sequence[Node]) -> dict[Path, tuple[int, int]]:
    """Return what tells whether a node's input was changed."""
    return {
        path: (status.st_size, status.st_mtime_ns)
        for node in nodes
        for path in sorted(node.input.rglob("*"))
        if not path.is_dir()
        for status in [path.stat()]
    }
