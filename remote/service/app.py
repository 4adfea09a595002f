"""The service's HTTP routes, beside those of each run below /runs/{run} and of every server (`remote.application`).

POST /agents/{site}                   an agent's Poll: 200 with its Offers, once they have changed
GET  /agents/{site}/runs/{run}        200 with the Offer and its spec
POST /agents/{site}/runs/{run}        an agent's Reply: 204
GET  /agents/{site}/runs/{run}/receipt 200 with the Receipt for its contributions to an ended run
GET  /agents/{site}/asks/{ask}        200 with the Question and its spec
POST /agents/{site}/asks/{ask}        an agent's Stance: 204
POST /asks                            an owner's Submission as a question to the sites: 200 with their answers
GET  /asks/{ask}                      the answers so far, for its owner
POST /runs                            an owner's Submission: 200 with its Described
GET  /runs, /runs/{run}               the runs, for owners and viewers
POST /runs/{run}/cancel               for its owner
GET  /runs/{run}/log?after=BYTES      its log from a byte on
GET  /runs/{run}/results              an archive of its directory, for its owner

Pages for people: `remote.service.pages`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from rankdad.common.documents import parse_json, validate
from rankdad.common.errors import ProtocolError, UserError
from rankdad.common.protocol.retention import Receipt
from rankdad.common.protocol.service import (
    MAX_RUN_BYTES,
    Asked,
    Described,
    FromVersion,
    Listing,
    Offer,
    Offers,
    Poll,
    Question,
    Reply,
    Stance,
    Submission,
    Writer,
)
from rankdad.common.protocol.versions import check_versions
from rankdad.remote.application import PERSON, application, connection_of, person, refuse, runs_of, who
from rankdad.remote.connections import read_body
from rankdad.remote.open_run import Seen
from rankdad.remote.openapi import takes
from rankdad.remote.service.archive import archive
from rankdad.remote.service.board import MAX_SHOWN
from rankdad.remote.service.logs import LOGS, read_log
from rankdad.remote.service.pages import ServicePages, WrongSpecError, submission_of
from rankdad.remote.service.service import Service

MAX_SMALL_BODY = 1 << 14
M = TypeVar("M", bound=BaseModel)


def service_app(service: Service) -> FastAPI:
    """Create the application of a service."""
    app = application(service, ServicePages(service), [_router], BODIES)
    app.add_exception_handler(WrongSpecError, _wrong_spec)
    return app


async def _wrong_spec(request: Request, error: Exception) -> Response:
    assert isinstance(error, WrongSpecError)
    return await refuse(request, error, errors=error.problems)


async def _owner(request: Request) -> str:
    return person(request, request.app.state.runs.consortium.owners)


async def _site(site: str, request: Request) -> str:
    runs = request.app.state.runs
    who(request, runs.identity, runs.consortium.sites)
    runs.registry.identify(connection_of(request), site)
    return site


class OtherVersionError(ProtocolError):
    """A body comes from an incompatible version."""

    def __init__(self, error: UserError, version: str) -> None:
        super().__init__(409, str(error), code=error.code, field=error.field)
        self.version = version


def _check_writer(writer: Writer, who: str) -> None:
    try:
        check_versions(who, writer.model_dump(), "the service")
    except UserError as error:
        raise OtherVersionError(error, writer.version) from None


async def _poll(site: Site, service: TheService, request: Request) -> Poll:
    body = await read_body(request, MAX_SMALL_BODY, request.app.state.registry.timeouts)
    try:
        return _read(Poll, body, f"{site}'s agent")
    except OtherVersionError as error:
        service.agents[site] = Seen(time.time(), error.version, fits=False)
        raise


def _body(model: type[M]) -> Callable[[Request], Awaitable[M]]:
    async def read(request: Request) -> M:
        return _read(model, await read_body(request, MAX_SMALL_BODY, request.app.state.registry.timeouts))

    return read


async def _run_body(request: Request) -> bytes:
    return await read_body(request, MAX_RUN_BYTES, request.app.state.registry.timeouts)


# Authentication precedes the reading of a body: dependencies are resolved in the order of the parameters.
TheService = Annotated[Service, Depends(runs_of)]
Site = Annotated[str, Depends(_site)]
Owner = Annotated[str, Depends(_owner)]
PollBody = Annotated[Poll, Depends(_poll)]
ReplyBody = Annotated[Reply, Depends(_body(Reply))]
StanceBody = Annotated[Stance, Depends(_body(Stance))]
RunBody = Annotated[bytes, Depends(_run_body)]
BODIES = (Poll, Reply, Stance, Submission)
_router = APIRouter(tags=["service"])


@_router.post("/agents/{site}", openapi_extra=takes(Poll))
async def poll(site: Site, service: TheService, poll: PollBody, request: Request) -> Offers:
    """Return a site's offers and questions once they differ from those it knows."""
    connection = connection_of(request)
    if poll.known:  # `rankdad check` asks only once and does not stay
        service.agents[site] = Seen(time.time(), poll.version, fits=True)
    loop = asyncio.get_running_loop()
    end = loop.time() + service.registry.timeouts.hold
    while True:
        offers, left = service.offers(site), end - loop.time()
        if offers.digest != poll.known or left <= 0 or service.over.is_set():
            if poll.known:
                service.agents[site] = Seen(time.time(), poll.version, fits=True)
            return offers
        connection.waiting = loop.create_future()
        try:
            await service.change(connection.waiting, left)
        finally:
            connection.waiting = None


@_router.get("/agents/{site}/runs/{run}")
async def offer(site: Site, run: str, service: TheService) -> Offer:
    """Return a run with its spec to a site."""
    return service.offer(run, site)


@_router.post("/agents/{site}/runs/{run}", status_code=204, openapi_extra=takes(Reply))
async def reply(site: Site, run: str, service: TheService, said: ReplyBody) -> None:
    """Take a site's answer about a run."""
    await service.reply(run, site, said)


@_router.get("/agents/{site}/runs/{run}/receipt")
async def receipt(site: Site, run: str, service: TheService) -> Receipt:
    """Return a site's receipt for an ended run."""
    return service.receipt(run, site)


@_router.get("/agents/{site}/asks/{ask}")
async def question(site: Site, ask: str, service: TheService) -> Question:
    """Return a question with its spec to a site."""
    return service.questions.question(ask, site)


@_router.post("/agents/{site}/asks/{ask}", status_code=204, openapi_extra=takes(Stance))
async def answer(site: Site, ask: str, service: TheService, stance: StanceBody) -> None:
    """Take a site's answer to a question."""
    await service.queue.write(service.questions.answer, ask, site, stance)


@_router.post("/asks", openapi_extra=takes(Submission))
async def ask_sites(owner: Owner, service: TheService, body: RunBody) -> Asked:
    """Ask sites whether they would take part in a run."""
    return await service.ask(partial(_read, Submission, body), owner)


@_router.get("/asks/{ask}")
async def asked(ask: str, owner: Owner, service: TheService) -> Asked:
    """Return the sites' answers so far."""
    return service.questions.asked(ask, owner)


@_router.post("/runs", openapi_extra=takes(Submission))
async def submit(owner: Owner, service: TheService, body: RunBody) -> Described:
    """Add a run to the queue."""
    return service.described(await service.submit(partial(_read, Submission, body), owner))


@_router.post("/runs/submit")
async def submit_spec(owner: Owner, service: TheService, body: RunBody, id: str = "") -> Described:
    """Add a run from the text of a spec on the owner's page; a refusal names all mistakes."""
    if not re.fullmatch("[0-9a-f]{16}", id):
        raise ProtocolError(422, "id: expected 16 hexadecimal digits", code="id-malformed", field="id")
    return service.described(await service.submit(partial(submission_of, id, body), owner))


@_router.get("/runs", dependencies=[PERSON])
async def runs(service: TheService) -> Listing:
    """List runs."""
    return Listing(runs=tuple(service.described(entry) for entry in service.queue.newest(MAX_SHOWN)))


@_router.get("/runs/{run}", dependencies=[PERSON])
async def describe(run: str, service: TheService) -> Described:
    """Return a run."""
    return service.described(service.queue.entry(run))


@_router.post("/runs/{run}/cancel")
async def cancel(run: str, owner: Owner, service: TheService) -> Described:
    """Cancel a run."""
    return service.described(await service.cancel(run, owner))


@_router.get("/runs/{run}/log", response_class=PlainTextResponse, dependencies=[PERSON])
async def log(run: str, service: TheService, after: str = "0") -> Response:
    """Return a run's log from a byte on."""
    name = service.queue.entry(run).run
    if not (after.isdecimal() and len(after) < 16):
        raise ProtocolError(422, "after: is not a number of bytes", code="number-malformed", field="after")
    return Response(read_log(service.directory / LOGS, name, int(after)), media_type="text/plain")


@_router.get("/runs/{run}/results", response_class=StreamingResponse)
async def results(run: str, owner: Owner, service: TheService) -> Response:
    """Return an archive of a run's directory."""
    return StreamingResponse(archive(service.results(run, owner)), media_type="application/x-tar")


def _read(model: type[M], body: bytes, who: str = "the sender") -> M:
    try:
        document = parse_json(body)
        if issubclass(model, FromVersion):  # first, as other versions may differ in the rest
            _check_writer(validate(Writer, document), who)
        return validate(model, document)
    except (ValueError, UserError) as error:
        raise ProtocolError(422, f"the body: {error}", code="body-malformed") from None
