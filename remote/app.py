"""The aggregator's HTTP routes: long polling, in which a request waits for its round for a limited time.

POST /rounds/{site}          a contribution; 200 with the round's update, or 202 after a while: ask again with
GET  /rounds/{site}/{round}  200 with the update, 202 as above, or 204: this site's contribution is missing
POST /rounds/{site}/done     the site needs nothing more of an ended run: 200 with its Receipt, or 204
POST /snapshots/{site}       200 with the run's latest state for a site that lost its own, or 204 without one
GET  /run                    the spec, and values that a site compares before it reads data
GET  /status                 the run's progress, and the sites it waits for

They are also below /runs/{run}, where a service has several runs.

Checks in order: authentication (401, 403), the site's name (422, 404), the run (409), the body's time (408) and size
(413), and its contents (422, 409, 410). An internal error is logged and answered by 500, and sites retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict
from functools import partial
from time import perf_counter
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rankdad.common.errors import ProtocolError
from rankdad.common.logs import log_names
from rankdad.common.protocol.message_sizes import body_limit
from rankdad.common.protocol.retention import Receipt
from rankdad.page.serving import HEADERS
from rankdad.remote.auth import Identity
from rankdad.remote.connections import ConnectionRegistry, read_body
from rankdad.remote.run_answer import RunAnswer
from rankdad.remote.run_session import RunSession
from rankdad.remote.web import HttpConnection

CONTENT_TYPE = "application/msgpack"
AGAIN = {"queue-locked": "1", "disk-full": "10"}  # seconds after which a request is worth another try
RUN_HEADER, PROCESS_HEADER, COMPUTED_HEADER = "x-rankdad-run", "x-rankdad-process", "x-rankdad-computed"
MAX_PROCESS = 32  # characters of a process's name that count


class Refused(BaseModel):
    """Body of every refusal: a message, its code, and the field."""

    error: str
    code: str
    field: str


SCHEMAS = "#/components/schemas/"  # in OpenAPI documents
_SAID: dict[str, Any] = {"content": {"application/json": {"schema": {"$ref": f"{SCHEMAS}{Refused.__name__}"}}}}
REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": _SAID | {"description": "Refused"},
    "5XX": _SAID | {"description": "An internal error; the server's log has details"},
}


class Refusal(JSONResponse):
    """An error response, after which the connection is closed.

    Args:
        error: message and HTTP status.
        unread: seconds for which the rest of the request's body is discarded; 0 if it has been read.
        more: further fields of the body.
    """

    def __init__(self, error: ProtocolError, unread: float, **more: object) -> None:
        refusal = Refused(error=str(error), code=error.code, field=error.field).model_dump()
        later = {"retry-after": AGAIN[error.code]} if error.code in AGAIN else {}
        super().__init__(refusal | more, error.status, {"connection": "close"} | later | HEADERS)
        self._unread = unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer at once, then discard the rest of the request."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": self._unread > 0})
        if self._unread:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._unread):
                    while (await receive()).get("more_body"):
                        pass
            await send({"type": "http.response.body", "body": b""})


def add_routes(app: FastAPI) -> None:
    """Add the routes of runs."""
    for router in (_steps, _of_a_run):
        app.include_router(router, tags=["run"], responses=REFUSALS)
        named = [Depends(run_named)]
        app.include_router(router, prefix="/runs/{run}", tags=["run"], responses=REFUSALS, dependencies=named)


class Routes:
    """Routes of one run.

    Args:
        host: the run's session.
        identity: authentication of callers.
        registry: all connections.
        run: the run's name in addresses, if there are several.
    """

    def __init__(self, host: RunSession, identity: Identity, registry: ConnectionRegistry, run: str = "") -> None:
        self.host, self.aggregator, self.name, self.timeouts = host, host.aggregator, run, registry.timeouts
        self.limit = body_limit(host.aggregator.plan, up=True, region=bool(host.aggregator.node.regions))
        self._identity, self._registry = identity, registry
        self._addresses: dict[str, str] = {}  # from which each site last came

    def admit(self, request: Request) -> None:
        """Authenticate the caller and identify its connection.

        Raises:
            ProtocolError: see `Identity.check`.
        """
        connection: HttpConnection = request.scope["state"]["connection"]
        authorization = request.headers.get("authorization", "")
        site = self._identity.check(
            request.path_params.get("site"), authorization, connection.names(request.headers.raw)
        )
        if site is None:
            return
        self._registry.identify(connection, site, self.name)
        if self._addresses.get(site) != connection.address:
            self._addresses[site] = connection.address
            what = "identified" if self._identity.required else "connected"
            self.host.audit.note(what, address=connection.address, site=site)
        self.host.note_request(site)


async def run_named(run: str) -> None:
    """Declare the path parameter for OpenAPI; `find` reads it."""


async def _admitted(request: Request) -> AsyncIterator[Routes]:
    """Yield the run of a request after authentication; convert other errors to internal errors."""
    routes: Routes = await request.app.state.find(request)
    request.scope["state"]["audit"] = routes.host.audit
    with log_names(run=routes.name or None, site=routes.aggregator.node.name):
        try:
            routes.admit(request)
            yield routes
        except (ProtocolError, ClientDisconnect):
            raise
        except Exception as error:
            raise routes.host.note_fault(error) from error


Admitted = Annotated[Routes, Depends(_admitted)]


async def _of_its_run(
    routes: Admitted,
    site: str,
    x_rankdad_run: Annotated[str | None, Header()] = None,
    x_rankdad_process: Annotated[str | None, Header()] = None,
) -> Routes:
    """Return the run if the request names it and comes from the site's only process."""
    if x_rankdad_run != routes.aggregator.run_id:
        problem = "names no run" if x_rankdad_run is None else "is for another run"
        raise ProtocolError(
            409,
            f"{RUN_HEADER}: the request {problem}; ask for /run first",
            code="request-malformed",
            field=RUN_HEADER,
        )
    routes.host.check_process(site, _process(x_rankdad_process))
    return routes


OfItsRun = Annotated[Routes, Depends(_of_its_run)]


class StepRoute(APIRoute):
    """A route for each step. It calls its dependencies directly, which saves 0.2 ms."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the request handler."""
        endpoint, admitted = self.endpoint, contextlib.asynccontextmanager(_admitted)
        names = [name for name in self.param_convertors if name != "run"]

        async def answer(request: Request) -> Response:
            async with admitted(request) as routes:
                site, headers = request.path_params["site"], request.headers
                await _of_its_run(routes, site, headers.get(RUN_HEADER), headers.get(PROCESS_HEADER))
                response: Response = await endpoint(
                    routes=routes, request=request, **{name: request.path_params[name] for name in names}
                )
                return response

        return answer


_steps = APIRouter(route_class=StepRoute)
_of_a_run = APIRouter()
_BYTES: dict[str, Any] = {"content": {CONTENT_TYPE: {}}}
_UPDATE: dict[int | str, dict[str, Any]] = {
    200: _BYTES | {"description": "The round's update"},
    202: {"description": "The round is not complete: ask again"},
}


@_steps.post("/rounds/{site}", response_class=Response, responses=_UPDATE, openapi_extra={"requestBody": _BYTES})
async def contribute(site: str, routes: OfItsRun, request: Request) -> Response:
    """Take a contribution."""
    body = await read_body(request, routes.limit, routes.timeouts)
    connection, process = request.scope["state"]["connection"], _process(request.headers.get(PROCESS_HEADER))
    return _update(await routes.host.contribute(site, body, connection, _computed(request), process))


@_steps.get(
    "/rounds/{site}/{round}",
    response_class=Response,
    responses=_UPDATE | {204: {"description": "This site's contribution is missing: send it"}},
)
async def ask(site: str, round: str, routes: OfItsRun, request: Request) -> Response:
    """Return a round's update."""
    if not re.fullmatch("[0-9]{1,18}", round):
        raise ProtocolError(422, "the round is not a whole number", code="round-malformed")
    update, waits = await routes.host.ask(site, int(round), request.scope["state"]["connection"])
    return _update(update) if waits or update is not None else Response(status_code=204)


@_of_a_run.post(
    "/rounds/{site}/done",
    response_model=Receipt,
    responses={204: {"description": "The aggregator reports no deletion"}},
)
async def done(site: str, routes: OfItsRun, request: Request) -> Receipt | Response:
    """Record that a site needs nothing more of an ended run."""
    await read_body(request, 0, routes.timeouts)
    routes.host.mark_acknowledged(site)
    retention = routes.aggregator.retention
    return Response(status_code=204) if retention is None else retention.receipt(site)


@_of_a_run.post(
    "/snapshots/{site}",
    response_class=Response,
    responses={200: _BYTES | {"description": "The run's state"}, 204: {"description": "There is none"}},
)
async def snapshot(site: str, routes: OfItsRun, request: Request) -> Response:
    """Return the run's latest state to a site that lost its own."""
    await read_body(request, 0, routes.timeouts)
    state = await routes.host.call(partial(routes.aggregator.snapshot, site))
    if state is None:
        return Response(status_code=204)
    address = request.scope["state"]["connection"].address
    routes.host.audit.note("snapshot given", address=address, site=site, bytes=len(state))
    return Response(state, media_type=CONTENT_TYPE)


@_of_a_run.get("/run")
async def describe(routes: Admitted) -> RunAnswer:
    """Return the run's spec and identity."""
    return RunAnswer.of(routes.aggregator)


class StatusAnswer(BaseModel):
    """The run's progress, and the sites it waits for."""

    name: str
    round: int
    waiting_for: tuple[str, ...]
    status: str
    epoch: int
    step: int
    steps: int
    problems: dict[str, str]
    waiting_seconds: float


@_of_a_run.get("/status")
async def standing(routes: Admitted) -> StatusAnswer:
    """Return the run's progress."""
    status = asdict(routes.aggregator.status)
    waiting = perf_counter() - status["round_began"]
    return StatusAnswer(**status, name=routes.aggregator.spec.name, waiting_seconds=waiting)


def _process(name: str | None) -> str:
    return (name or "")[:MAX_PROCESS]


def _computed(request: Request) -> float | None:
    """Return the seconds that a site reports to have computed for a step so far; None without a report."""
    number = request.headers.get(COMPUTED_HEADER, "")
    return float(number) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", number) else None


def _update(update: bytes | None) -> Response:
    if update is None:
        return JSONResponse({"status": "not yet"}, 202)
    return Response(update, media_type=CONTENT_TYPE)
