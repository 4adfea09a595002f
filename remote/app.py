"""The aggregator's HTTP routes. Each holds a request until its round is complete: nobody polls.

POST /rounds/{site}   a contribution; answered with the round's update
GET  /run             the spec, and what a site compares before it reads any data
GET  /status          where the run stands and whom it waits for
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from common import __version__
from common.errors import ProtocolError, RunFailedError, UserError, one_line
from common.protocol import body_limit
from remote.aggregator import Aggregator
from remote.rounds import Answer, Effect, Ready

CONTENT_TYPE = "application/msgpack"


class Server:
    """Carries out the aggregator's effects: answers to requests that wait, and the work of a round that is ready.

    The work runs in the event loop. A thread for it would take half a millisecond a step to hand over to and fro, and
    there is nobody to keep responsive in the meantime: while a round is aggregated, every site waits for it.

    Args:
        aggregator: the run.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        self.aggregator = aggregator
        self.ended = asyncio.Event()
        self.error: BaseException | None = None
        self._limit = body_limit(aggregator.plan, up=True)
        self._told = asyncio.Event()  # everyone knows how the run ended
        self._heard = asyncio.Event()  # a site has sent something
        self._untold = set(aggregator.plan.sites)
        self._waiting: dict[str, list[asyncio.Future[bytes]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def app(self) -> FastAPI:
        """Return the routes."""
        app = FastAPI(title="rankdad aggregator", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
        app.add_api_route("/run", self.run, methods=["GET"])
        app.add_api_route("/status", self.status, methods=["GET"])
        # A plain route: parsing of parameters and bodies by declared types would cost a tenth of a millisecond a step.
        app.add_route("/rounds/{site}", self.contribute, methods=["POST"])
        return app

    async def run(self) -> JSONResponse:
        """Answer with the run's spec and digests."""
        plan = self.aggregator.plan
        spec = self.aggregator.spec.model_dump(mode="json")
        return JSONResponse(
            {"version": plan.version, "run": spec, "plan_sha256": plan.sha256(), "id": self.aggregator.run_id}
        )

    async def status(self) -> JSONResponse:
        """Answer with the run's progress."""
        barrier, progress = self.aggregator.barrier, self.aggregator.recorder.progress
        document: dict[str, Any] = {
            "name": progress.name,
            "status": progress.status,
            "round": barrier.round,
            "epoch": progress.epoch,
            "step": progress.step,
            "steps": progress.steps,
            "waiting_for": list(barrier.missing()),
            "waiting_seconds": barrier.waiting(perf_counter()),
        }
        return JSONResponse(document)

    async def contribute(self, request: Request) -> Response:
        """Take a contribution, and answer when its round is complete."""
        site = request.path_params["site"]
        try:
            if site not in self.aggregator.plan.sites:
                raise ProtocolError(404, "no such site in this run")
            self._heard.set()
            body = await self._read(request)
            answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(site, []).append(answer)
            try:
                self.carry_out(self._receive(site, body))
                said = await answer
                if self.aggregator.is_last_word(said):
                    self.discount(site)
                return Response(said, media_type=CONTENT_TYPE)
            finally:
                waiting = self._waiting[site]
                waiting.remove(answer)
                if not waiting:
                    del self._waiting[site]
        except ProtocolError as error:
            return JSONResponse({"error": str(error)}, status_code=error.status)
        except ClientDisconnect:
            return Response(status_code=400)

    def _receive(self, site: str, body: bytes) -> list[Effect]:
        """Give a contribution to the aggregator; a ledger that cannot be written ends the run, for now."""
        try:
            return self.aggregator.receive(site, body)
        except UserError as error:
            self.error = error
            return self.aggregator.fail("aggregator", str(error))

    async def _read(self, request: Request) -> bytes:
        """Read a body, counting its bytes as they come.

        Raises:
            ProtocolError: 413 beyond the plan's limit.
        """
        declared = request.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > self._limit:
            raise ProtocolError(413, f"the body has {declared} bytes, expected at most {self._limit}")
        chunks, size = [], 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > self._limit:
                raise ProtocolError(413, f"the body has more than {self._limit} bytes")
            chunks.append(chunk)
        return b"".join(chunks)

    def carry_out(self, effects: list[Effect]) -> None:
        """Answer those who wait, and start the work of a round that is ready."""
        for effect in effects:
            if isinstance(effect, Answer):
                for site in effect.sites:
                    for answer in self._waiting.get(site, ()):
                        if not answer.done():
                            answer.set_result(effect.body)
                if self.aggregator.ended:
                    self.ended.set()
            else:
                task = asyncio.create_task(self._aggregate(effect))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _aggregate(self, ready: Ready) -> None:
        began = perf_counter()
        try:
            update = self.aggregator.aggregate(ready)
            seconds = perf_counter() - began
            self.carry_out(self.aggregator.complete(ready, update))
            await asyncio.sleep(0)  # the answers leave before the aggregator applies the update itself
            self.aggregator.follow(ready, update, seconds)
        except RunFailedError as error:
            self.carry_out(self.aggregator.fail(error.site, error.reason))
        except Exception as error:
            self.error = error
            self.carry_out(self.aggregator.fail("aggregator", one_line(error)))

    def discount(self, *sites: str) -> None:
        """Take note that some sites know the end of the run, or never will."""
        self._untold -= set(sites)
        if not self._untold:
            self._told.set()

    async def tell_all(self, seconds: float) -> None:
        """Wait until every site has been answered with the end of the run, or none has been heard of for so long.

        Some may still be computing, or go through the whole run again after a crash.
        """
        while not self._told.is_set():
            self._heard.clear()
            waits = [asyncio.ensure_future(event.wait()) for event in (self._told, self._heard)]
            done, rest = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for wait in rest:
                wait.cancel()
            if not done:
                return

    async def close(self) -> None:
        """Let the work in hand end, and write down how the run ended."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self.aggregator.close()
