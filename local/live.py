"""The live page that a site serves about its own run, to this machine alone."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request

from rankdad.common.errors import UserError
from rankdad.common.gradients.factors import Factor, singular_values
from rankdad.common.protocol.messages import Body, Decision, PooledMetrics, Step
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import shown
from rankdad.page.history import MAX_SPECTRUM, History
from rankdad.page.serving import Guard, Page
from rankdad.page.stream import Stream
from rankdad.page.tail import Tail
from rankdad.page.viewers import own_token

HOST = "127.0.0.1"
AGGREGATOR = "aggregator"
WAITING = "pack"  # the lap after which a site waits for the aggregator


def _listen(port: int, ports: int) -> socket.socket:
    for tried in range(port, min(port + ports, 1 << 16)):
        try:
            return socket.create_server((HOST, tried))
        except OSError as error:
            problem = error.strerror or str(error)
    raise UserError(f"--page: cannot listen on {HOST} port {port}: {problem}", code="cannot-listen", field="--page")


class SitePage:
    """Serves the page in a thread of its own while a `with` block runs.

    Args:
        site: its name.
        rows: that it takes part with.
        spec: the run.
        plan: of the run.
        run: where it is.
        port: of this machine; 0 takes a free one.
        ports: how many are tried, from `port` on.
        token: file of the token.

    Attributes:
        address: of the page.
    """

    def __init__(
        self, site: str, rows: int, spec: RunSpec, plan: Plan, run: RunState, port: int, ports: int, token: Path
    ) -> None:
        self._site, self._rows, self._spec, self._plan, self._run = site, rows, spec, plan, run
        layouts = [plan.layout(exchange, up=False).slots for exchange in range(len(plan.exchanges))]
        self._slots = [slot for slots in layouts for slot in slots]
        self._layers = [slot.name for slot in self._slots if len(slot.widths) == 2]
        self._history = History([site], self._layers, list(dict.fromkeys(("loss", spec.training.monitor))))
        self._began = self._since = self._step_began = time.time()
        self._laps = dict.fromkeys(("compute", "reduce", "pack", "wait"), 0.0)
        self._last, self._waits = time.perf_counter(), False
        self._loss: float | None = None
        self._pooled: PooledMetrics | None = None
        self.traffic: Callable[[], tuple[int, int]] = lambda: (0, 0)  # bytes up and down so far
        self._fold, self._ranks, self._step_seconds, self._steps = run.fold, list[float](), 0.0, 0
        self._token, self._tail = own_token(token), Tail()
        self._stream = Stream(self.document, self._history)
        self._page = Page(f"{spec.name} at {site}", self._stream, Guard(self._allows), closing=self._tail.stop)
        self._listening = _listen(port, ports)
        self.address = f"http://{HOST}:{self._listening.getsockname()[1]}/page/"
        app = Starlette()
        for verb, path, endpoint in self._page.routes():
            app.add_route(path, endpoint, methods=[verb])
        options: dict[str, Any] = {"ws": "none", "lifespan": "off", "log_config": None, "log_level": "critical"}
        self._server = uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=1, access_log=False, **options))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._serve, name="page", daemon=True)

    def __enter__(self) -> SitePage:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._page.close)
        self._server.should_exit = True
        self._thread.join(5)

    def _serve(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self._listening])

        asyncio.run(serve())

    def _allows(self, _: Request, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self._token.encode())

    def lap(self, name: str) -> None:
        """Take note that a stretch of work has ended, as `Timings.lap` does."""
        now = time.perf_counter()
        if name == "begin":
            self._laps = dict.fromkeys(self._laps, 0.0)
        else:
            self._laps["compute" if name == "end" else name] += now - self._last
        if name == WAITING and not self._waits:
            self._since = time.time()
        self._last, self._waits = now, name == WAITING

    def followed(self, body: Body) -> None:
        """Take note of an update."""
        if isinstance(body, Step):
            self._ranks += [value.rows for value in body.payload if isinstance(value, Factor)]
            every, factors = self._spec.record.spectra, [one for one in body.payload if isinstance(one, Factor)]
            if every and self._run.steps % every == 0 and len(factors) == len(self._layers):
                spectra = [singular_values(factor, MAX_SPECTRUM) for factor in factors]
                self._history.add_spectra(self._run.steps, dict(zip(self._layers, spectra, strict=True)))
            if self._run.steps > self._steps:
                self._end_step(body)
        elif isinstance(body, PooledMetrics) and body.split == "validation":
            self._pooled = body
            values = {str(name): value for name, value in body.values.items() if value is not None}
            if self._loss is not None:
                values["train_loss"] = self._loss
            self._history.add_epoch({"pooled": values})
        elif isinstance(body, Decision):
            return
        if self._run.fold != self._fold:
            self._fold = self._run.fold
            self._history.begin_fold()

    def _end_step(self, body: Step) -> None:
        now, laps = time.time(), self._laps
        seconds, computed = now - self._step_began, laps["compute"] + laps["reduce"] + laps["pack"]
        self._history.add_step(
            body.loss, seconds, 0.0, self._ranks, times={self._site: (computed, math.nan, laps["wait"])}
        )
        self._loss, self._ranks, self._step_began = body.loss, [], now
        self._step_seconds, self._steps = self._step_seconds + seconds, self._run.steps

    def document(self) -> dict[str, Any]:
        """Return what the page says, by part: see `remote.live`, of which a site knows less."""
        run, spec, pooled = self._run, self._spec, self._pooled
        measured = pooled is not None and pooled.samples > 0
        steps, up, down = run.steps_in_all, *self.traffic()
        left = max(0, steps - run.steps) * self._step_seconds / max(1, self._steps)
        per_step = 1 / max(1, self._steps)
        dense = 2 * self._plan.dense_bytes * self._steps
        where = run.where or "waits for all to say hello"
        return {
            "run": {
                "name": spec.name,
                "method": "exact" if run.exact else spec.method.name,
                "members": f"at {self._site}",
                "noun": "site",
                "sites": [self._site],
                "layers": self._layers,
                "metric": str(spec.training.monitor),
                "metric_name": shown(spec.training.monitor),
            },
            "stand": {
                "status": "running" if run.farewell is None else "completed",
                "reason": "",
                "where": where,
                "step": run.steps,
                "steps": steps,
                "loss": self._loss,
                "validation": pooled.values.get(spec.training.monitor) if pooled else None,
                "best_epoch": run.best_epoch + 1 if measured else None,
                "best_value": None,
                "seconds": round(time.time() - self._began),
                "step_seconds": self._step_seconds / max(1, self._steps),
                "ends": round(time.time() + left) if self._steps else None,
            },
            "traffic": {
                "up": up,
                "down": down,
                "dense": self._plan.dense_bytes,
                "step_up": round(up * per_step),
                "step_down": round(down * per_step),
                "ratio": round(dense / max(1, up + down), 2),
            },
            "waiting": {
                "sites": [AGGREGATOR] if self._waits else [],
                "since": round(self._since, 1),
                "without": [],
            },
            "times": self._history.times(),
            "sites": [
                {
                    "name": self._site,
                    "kind": "in" if self._waits else "awaited",
                    "state": "waits" if self._waits else "works",
                    "rows": self._rows,
                    "version": self._plan.version,
                    "left_out": 0,
                    "refused": 0,
                    "refusal": "",
                    "warnings": [],
                }
            ],
            "seen": {self._site: round(time.time())},
            "log": self._tail.lines(),
        }
