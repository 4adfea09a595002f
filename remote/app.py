"""The aggregator's HTTP routes. A request is held until its round is complete, but not for long: nobody polls.

POST /rounds/{site}          a contribution; 200 and the round's update, or 202 when that takes long: ask again with
GET  /rounds/{site}/{round}  200 and the update, 202 as above, or 204: nothing of this site is in, so send it
POST /rounds/{site}/done     the site has all that it needs of a run that has ended: 200 and its Receipt, or 204
POST /snapshots/{site}       200 and the run's newest state for a site that has lost its own, or 204: there is none
GET  /run                    the spec, and what a site compares before it reads any data
GET  /status                 where the run stands and whom it waits for

The same stand below /runs/{run}, where a service has several; an aggregator of one run answers to both.

Refused are, in this order: callers who do not prove who they are (401, 403), names that are no site's (422, 404),
rounds of another run (409), bodies that are too slow (408) or too large (413), and contents (422, 409, 410). An error
of the aggregator's own is a 500: it is logged, and sites try again.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from functools import partial
from time import perf_counter

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rankdad.common import __version__
from rankdad.common.errors import ProtocolError
from rankdad.common.logs import log_names
from rankdad.common.protocol.message_sizes import body_limit
from rankdad.remote.audit import Audit
from rankdad.remote.auth import Identity
from rankdad.remote.connections import ConnectionRegistry, Timeouts
from rankdad.remote.host import Host
from rankdad.remote.web import HttpConnection

CONTENT_TYPE = "application/msgpack"
RUN_HEADER, COMPUTED_HEADER = "x-rankdad-run", "x-rankdad-computed"

Work = Callable[[Request], Awaitable[Response]]
Endpoint = tuple[str, str, Work]  # verb, path, what answers


class Refusal(JSONResponse):
    """An error in one line, after which the connection is closed.

    Args:
        status: of HTTP.
        error: what was wrong.
        unread: seconds in which the rest of the request's body is thrown away; 0 where nothing of it is left.
    """

    def __init__(self, error: ProtocolError, unread: float) -> None:
        said = {"error": str(error), "code": error.code, "field": error.field}
        super().__init__(said, error.status, {"connection": "close"})
        self._unread = unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer at once, then throw away what still comes of the request."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": self._unread > 0})
        if self._unread:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._unread):
                    while (await receive()).get("more_body"):
                        pass
            await send({"type": "http.response.body", "body": b""})


class _Api(FastAPI):
    """An application whose endpoints answer all their errors themselves: nothing else is wrapped around them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if self.middleware_stack is None:
            self.middleware_stack = ExceptionMiddleware(self.router, handlers=self.exception_handlers)
        scope["app"] = self
        await self.middleware_stack(scope, receive, send)


def application(
    find: Callable[[Request], Awaitable[Routes]], registry: ConnectionRegistry, others: Iterable[Endpoint] = ()
) -> FastAPI:
    """Return the application.

    Args:
        find: returns the routes of the run that a request is about.
        registry: of all connections.
        others: what can be asked beside that.
    """
    app = _Api(title="rankdad aggregator", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.router.redirect_slashes = False

    def of_a_run(work: Callable[[Routes, Request], Awaitable[Response]]) -> Work:
        async def endpoint(request: Request) -> Response:
            try:
                routes = await find(request)
            except ProtocolError as error:
                return refuse(registry, registry.audit, request, error)
            return await routes.answer(work, request)

        return endpoint

    # Plain routes: parsing of parameters and bodies by declared types would cost a tenth of a millisecond a step.
    for place in ("", "/runs/{run}"):
        for verb, path, work in ROUTES:
            app.add_route(f"{place}{path}", of_a_run(work), methods=[verb])
    for verb, path, endpoint in others:
        app.add_route(path, endpoint, methods=[verb])

    async def nowhere(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        said = f"{request.method} is not known at this path"
        return refuse(registry, registry.audit, request, ProtocolError(error.status_code, said, code="path-unknown"))

    app.add_exception_handler(HTTPException, nowhere)
    return app


def refuse(registry: ConnectionRegistry, audit: Audit, request: Request, error: ProtocolError) -> Refusal:
    """Return a refusal, and take note of it."""
    address = request.client.host if request.client else ""
    audit.refused(address, str(request.path_params.get("site", ""))[:63], error.status, str(error))
    return Refusal(error, 0 if "read" in request.scope["state"] else registry.timeouts.refused)


class Routes:
    """What can be asked of one run.

    Args:
        host: of the run.
        identity: how callers prove who they are.
        registry: of all connections.
        run: what the run is called in addresses, where there are several.
    """

    def __init__(self, host: Host, identity: Identity, registry: ConnectionRegistry, run: str = "") -> None:
        self._host, self._identity, self._registry, self._run_name = host, identity, registry, run
        self._aggregator = host.aggregator
        self._limit = body_limit(host.aggregator.plan, up=True, region=bool(host.aggregator.node.regions))
        self._addresses: dict[str, str] = {}  # from which each site last came

    def app(self) -> FastAPI:
        """Return an application of this run alone."""
        return application(self._only, self._registry)

    async def _only(self, request: Request) -> Routes:
        if request.path_params.get("run") not in (None, self._aggregator.run_id):
            raise ProtocolError(404, "no such run here: this aggregator has one, see /run", code="run-unknown")
        return self

    async def answer(self, work: Callable[[Routes, Request], Awaitable[Response]], request: Request) -> Response:
        """Answer a request; errors are refusals."""
        with log_names(run=self._run_name or None, site=self._aggregator.node.name):
            try:
                return await work(self, request)
            except ProtocolError as error:
                return self._refuse(request, error)
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:
                return self._refuse(request, self._host.note_fault(error))

    def _refuse(self, request: Request, error: ProtocolError) -> Response:
        return refuse(self._registry, self._host.audit, request, error)

    async def run(self, request: Request) -> Response:
        """Say what the run is."""
        self._admit(request)
        plan = self._aggregator.plan
        spec = self._aggregator.spec.model_dump(mode="json")
        document = {
            "version": plan.version,
            "aggregator": self._aggregator.node.name,
            "run": spec,
            "plan_sha256": plan.sha256(),
            "id": self._aggregator.run_id,
            "resumes": self._aggregator.persistence.keeps,
            "round": self._aggregator.status.round,
            "oldest": self._aggregator.status.oldest,
        }
        return JSONResponse(document)

    async def status(self, request: Request) -> Response:
        """Say where the run stands."""
        self._admit(request)
        status = asdict(self._aggregator.status)
        for internal in ("without", "oldest"):
            del status[internal]
        waiting = perf_counter() - status.pop("round_began")
        return JSONResponse({"name": self._aggregator.spec.name, **status, "waiting_seconds": waiting})

    async def contribute(self, request: Request) -> Response:
        """Take a contribution."""
        site, connection = self._admit(request)
        self._check_run(request)
        body = await read_body(request, self._limit, self._registry.timeouts)
        return _update(await self._host.contribute(site, body, connection, _computed(request)))

    async def ask(self, request: Request) -> Response:
        """Answer with a round's update."""
        site, connection = self._admit(request)
        self._check_run(request)
        update, waits = await self._host.ask(site, _round(request), connection)
        return _update(update) if waits or update is not None else Response(status_code=204)

    async def done(self, request: Request) -> Response:
        """Take note that a site needs no more."""
        site, _ = self._admit(request)
        self._check_run(request)
        await read_body(request, 0, self._registry.timeouts)
        self._host.discount(site)
        retention = self._aggregator.retention
        return Response(status_code=204) if retention is None else JSONResponse(retention.receipt(site).model_dump())

    async def snapshot(self, request: Request) -> Response:
        """Give a site the run's state."""
        site, connection = self._admit(request)
        self._check_run(request)
        await read_body(request, 0, self._registry.timeouts)
        snapshot = await self._host.call(partial(self._aggregator.snapshot, site))
        if snapshot is None:
            return Response(status_code=204)
        self._host.audit.note("snapshot given", address=connection.address, site=site, bytes=len(snapshot))
        return Response(snapshot, media_type=CONTENT_TYPE)

    def _admit(self, request: Request) -> tuple[str, HttpConnection]:
        """Return who asks, and on which connection.

        Raises:
            ProtocolError: see `Identity.check`.
        """
        connection: HttpConnection = request.scope["state"]["connection"]
        authorization = request.headers.get("authorization", "")
        site = self._identity.check(request.path_params.get("site"), authorization, connection.names)
        if site is None:
            return "", connection
        self._registry.identify(connection, site, self._run_name)
        if self._addresses.get(site) != connection.address:
            self._addresses[site] = connection.address
            what = "identified" if self._identity.required else "connected"
            self._host.audit.note(what, address=connection.address, site=site)
        self._host.meet(site)
        return site, connection

    def _check_run(self, request: Request) -> None:
        header = request.headers.get(RUN_HEADER)
        if header != self._aggregator.run_id:
            problem = "names no run" if header is None else "is of another run than this one"
            raise ProtocolError(
                409,
                f"{RUN_HEADER}: the request {problem}; ask for /run first",
                code="request-malformed",
                field=RUN_HEADER,
            )


ROUTES: tuple[tuple[str, str, Callable[[Routes, Request], Awaitable[Response]]], ...] = (
    ("POST", "/rounds/{site}", Routes.contribute),
    ("GET", "/rounds/{site}/{round}", Routes.ask),
    ("POST", "/rounds/{site}/done", Routes.done),
    ("POST", "/snapshots/{site}", Routes.snapshot),
    ("GET", "/run", Routes.run),
    ("GET", "/status", Routes.status),
)


async def read_body(request: Request, limit: int, timeouts: Timeouts) -> bytes:
    """Read a body, counting its bytes and its time as they come.

    Raises:
        ProtocolError: 413 for a body beyond the limit, 408 for one that is too slow.
    """
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise ProtocolError(413, f"the body has {declared[:20]} bytes, expected at most {limit}", code="body-too-large")
    chunks, size, more, began = [], 0, True, asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(began + timeouts.body) as deadline:
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunk, more = message.get("body", b""), message.get("more_body", False)
                size += len(chunk)
                if size > limit:
                    raise ProtocolError(413, f"the body has more than {limit} bytes", code="body-too-large")
                chunks.append(chunk)
                if more:
                    deadline.reschedule(began + timeouts.body + size / timeouts.bytes_per_second)
    except TimeoutError:
        raise ProtocolError(
            408, f"the body came slower than {timeouts.bytes_per_second} bytes per second", code="body-too-slow"
        ) from None
    request.scope["state"]["read"] = True
    return b"".join(chunks)


def _round(request: Request) -> int:
    number = request.path_params["round"]
    if not re.fullmatch("[0-9]{1,18}", number):
        raise ProtocolError(422, "the round is not a whole number", code="round-malformed")
    return int(number)


def _computed(request: Request) -> float | None:
    """Return for how many seconds a site says it has computed for a step so far; None if it does not say."""
    number = request.headers.get(COMPUTED_HEADER, "")
    return float(number) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", number) else None


def _update(update: bytes | None) -> Response:
    if update is None:
        return JSONResponse({"status": "not yet"}, 202)
    return Response(update, media_type=CONTENT_TYPE)
