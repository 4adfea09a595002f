"""The application of a server: routes of its runs (`remote.app`), pages for people (`remote.live`), and of itself.

GET  /docs, /openapi.json             documentation of all routes, for owners
GET  /metrics                         figures for Prometheus, for owners and viewers
GET  /healthz, /readyz                for anyone: whether the process answers; whether its runs can go on

The viewers of an aggregator of one run are its owners.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Collection, Iterable
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from rankdad.common import __version__
from rankdad.common.errors import ProtocolError, RankdadError
from rankdad.common.logs import log_names
from rankdad.remote.app import REFUSALS, Refusal, Routes, add_routes
from rankdad.remote.auth import Identity
from rankdad.remote.browsers import check_host, check_origin, is_loopback
from rankdad.remote.connections import ConnectionRegistry
from rankdad.remote.live import Pages
from rankdad.remote.metrics import figures
from rankdad.remote.open_run import Runs
from rankdad.remote.openapi import documented
from rankdad.remote.web import HttpConnection

_log = logging.getLogger(__name__)


def application(
    runs: Runs, pages: Pages, others: Iterable[APIRouter] = (), bodies: Collection[type[BaseModel]] = ()
) -> FastAPI:
    """Create the application, which converts errors to responses.

    Args:
        runs: the server's runs.
        pages: pages for people.
        others: further routers.
        bodies: models of their bodies, for the documentation.
    """
    app = FastAPI(
        title="rankdad aggregator",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        exception_handlers={ProtocolError: refuse, HTTPException: _nowhere, ClientDisconnect: _gone},
    )
    app.state.find, app.state.registry = _find, runs.registry
    app.state.runs, app.state.pages = runs, pages
    add_routes(app)
    guarded = [Depends(_in_log), Depends(_check_host), Depends(check_origin)]
    for router in (*pages.routers(), *others, _router, documented(_documents_reader, bodies)):
        app.include_router(router, responses=REFUSALS, dependencies=guarded)
    return app


async def refuse(request: Request, error: Exception, **more: object) -> Response:
    """Answer with a refusal and record it in the audit log."""
    assert isinstance(error, ProtocolError)
    registry: ConnectionRegistry = request.app.state.registry
    state, address = request.scope["state"], request.client.host if request.client else ""
    site = str(request.path_params.get("site", ""))[:63]
    state.get("audit", registry.audit).refused(address, site, error.status, str(error))
    return Refusal(error, 0 if "read" in state else registry.timeouts.refused, **more)


async def _nowhere(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} is not known at this path"
    return await refuse(request, ProtocolError(error.status_code, message, code="path-unknown"))


async def _gone(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return Response(status_code=400)


async def _find(request: Request) -> Routes:
    """Return the routes of a request's run."""
    await _check_host(request)
    await check_origin(request)
    runs: Runs = request.app.state.runs
    run = request.path_params.get("run", runs.only)
    found = runs.running.get(run)
    if found is not None and found.served is not None:
        return found.served
    who(request, runs.identity, runs.consortium.sites)  # strangers learn nothing and resume nothing
    try:
        return await runs.routes(run)
    except ProtocolError:
        raise
    except Exception as error:
        raise _refusal(error) from error


def _refusal(error: Exception) -> ProtocolError:
    """Convert an error to a response; log internal errors."""
    if isinstance(error, RankdadError) and error.code == "queue-locked":
        return ProtocolError(503, "the queue is locked by another process: try again", code=error.code)
    if isinstance(error, RankdadError) and error.code == "cannot-write":
        return ProtocolError(507, str(error), code="disk-full")
    _log.error("internal error", exc_info=error)
    return ProtocolError(
        500, f"an internal error of the service ({type(error).__name__}): see its log", code="service-failed"
    )


async def _in_log(request: Request) -> AsyncIterator[None]:
    """Name the run in log records, except for refusals: strangers do not appear in a run's log."""
    try:
        with log_names(run=request.path_params.get("run")):
            yield
    except (ProtocolError, ClientDisconnect):
        raise
    except Exception as error:
        raise _refusal(error) from error


async def _check_host(request: Request) -> None:
    """Reject requests that other pages send through a browser, by a name that is not this server's."""
    runs: Runs = request.app.state.runs
    if not runs.identity.required and (runs.consortium.aggregator or is_loopback(request)):  # its names are known
        check_host(request, runs.consortium.hosts)


def who(request: Request, identity: Identity, names: Collection[str], session: str | None = None) -> str:
    """Authenticate the caller as one of these names; "" without authentication.

    Args:
        request: the request.
        identity: authentication of callers.
        names: those who may call.
        session: an `authorization` header instead of a missing one; by default that of the page's script.

    Raises:
        ProtocolError: 401 or 403.
    """
    session = request.app.state.pages.bearer(request) if session is None else session
    authorization = request.headers.get("authorization", "") or session
    certified = connection_of(request).names(request.headers.raw)
    caller = identity.check(request.path_params.get("site"), authorization, certified)
    if caller is not None and caller not in names:
        members = request.app.state.runs.consortium
        known = ((members.sites, "sites"), (members.owners, "owners"))
        kind = next((kind for those, kind in known if those == names), "owners and viewers")
        raise ProtocolError(403, f"{caller} may not do that: it is reserved for {kind}", code="not-permitted")
    return caller or ""


def person(request: Request, names: Collection[str]) -> str:
    """Authenticate an owner or viewer, and assign the connection to him."""
    caller = who(request, request.app.state.runs.people, names)
    if caller and "authorization" in request.headers:  # a browser's connections belong to its viewer
        request.app.state.registry.identify(connection_of(request), caller)
    return caller


async def _owner_or_viewer(request: Request) -> str:
    consortium = request.app.state.runs.consortium
    return person(request, (*consortium.owners, *consortium.viewers))


async def _documents_reader(request: Request) -> None:
    runs: Runs = request.app.state.runs
    who(request, runs.people, runs.consortium.owners, request.app.state.pages.shown(request))


def connection_of(request: Request) -> HttpConnection:
    """Return a request's connection."""
    connection: HttpConnection = request.scope["state"]["connection"]
    return connection


async def runs_of(request: Request) -> Runs:
    """Return the server's runs."""
    return request.app.state.runs  # type: ignore[no-any-return]


PERSON = Depends(_owner_or_viewer)
_Runs = Annotated[Runs, Depends(runs_of)]
_router = APIRouter(tags=["server"])


@_router.get("/metrics", response_class=PlainTextResponse, dependencies=[PERSON])
async def metrics(runs: _Runs) -> Response:
    """Return figures for Prometheus."""
    return Response(figures(runs, time.time()), media_type="text/plain; version=0.0.4; charset=utf-8")


@_router.head("/healthz", include_in_schema=False)
@_router.get("/healthz", response_class=PlainTextResponse)
async def healthz() -> str:
    """Return 200 while the process answers."""
    return "ok\n"


@_router.head("/readyz", include_in_schema=False)
@_router.get("/readyz", response_class=PlainTextResponse)
async def readyz(runs: _Runs) -> Response:
    """Return 200 if runs can go on, and a service accepts more; else 503."""
    problem = await runs.unready()
    return PlainTextResponse(f"{problem}\n" if problem else "ok\n", 503 if problem else 200)
