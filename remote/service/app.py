"""The service's HTTP routes, beside those of each run below /runs/{run} (`remote.app`).

POST /agents/{site}                   an agent's Poll: 200 and its Offers, once these are not what it knows
GET  /agents/{site}/runs/{run}        200 and the Offer, with the spec
POST /agents/{site}/runs/{run}        an agent's Reply: 204
GET  /agents/{site}/runs/{run}/receipt 200 and the Receipt for what it has sent to a run that is over
GET  /agents/{site}/asks/{ask}        200 and the Question, with the spec
POST /agents/{site}/asks/{ask}        an agent's Stance: 204
POST /asks                            an owner's Submission, of which sites are only asked: 200 and what they answer
GET  /asks/{ask}                      what they have answered by now, to whoever asked
POST /runs                            an owner's Submission: 200 and what became of it
GET  /runs, /runs/{run}               what is known of the runs, to owners and viewers
POST /runs/{run}/cancel               its owner cancels it
GET  /runs/{run}/log?after=BYTES      what its log holds from there on
GET  /runs/{run}/results              to its owner, an archive of its directory
GET  /metrics                         figures for Prometheus, to owners and viewers
GET  /healthz, /readyz                to anyone: whether the process answers; whether it can take a run

Pages for people: `remote.service.pages`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from rankdad.common import __version__
from rankdad.common.documents import parse_json, validate
from rankdad.common.errors import ProtocolError, UserError, visible
from rankdad.common.logs import log_names
from rankdad.common.protocol.service import MAX_RUN_BYTES, Listing, Poll, Reply, Stance, Submission
from rankdad.remote.app import Endpoint, Routes, Work, application, read_body, refuse
from rankdad.remote.service.archive import archive
from rankdad.remote.service.board import MAX_SHOWN
from rankdad.remote.service.logs import LOGS, read_log
from rankdad.remote.service.metrics import figures
from rankdad.remote.service.pages import Pages
from rankdad.remote.service.queue import QueueError
from rankdad.remote.service.service import Seen, Service
from rankdad.remote.web import HttpConnection

_log = logging.getLogger(__name__)
MAX_SMALL_BODY = 1 << 14
_ADDRESS = re.compile(r"[0-9.]+|.*:.*")
M = TypeVar("M", bound=BaseModel)


class ServiceRoutes:
    """What can be asked of a service.

    Args:
        service: that answers.
        now: seconds since 1970.

    Attributes:
        pages: for people.
    """

    def __init__(self, service: Service, now: Callable[[], float]) -> None:
        self._service, self._now = service, now
        self.pages = Pages(service)

    def app(self) -> FastAPI:
        """Return the application."""
        named: tuple[Endpoint, ...] = (
            *self.pages.endpoints(partial(self._person, owner=True)),
            ("POST", "/agents/{site}", self._poll),
            ("GET", "/agents/{site}/runs/{run}", self._offer),
            ("POST", "/agents/{site}/runs/{run}", self._reply),
            ("GET", "/agents/{site}/runs/{run}/receipt", self._receipt),
            ("GET", "/agents/{site}/asks/{ask}", self._question),
            ("POST", "/agents/{site}/asks/{ask}", self._answer),
            ("POST", "/asks", self._ask),
            ("GET", "/asks/{ask}", self._asked),
            ("POST", "/runs", self._submit),
            ("GET", "/runs", self._list),
            ("GET", "/runs/{run}", self._describe),
            ("POST", "/runs/{run}/cancel", self._cancel),
            ("GET", "/runs/{run}/log", self._read_log),
            ("GET", "/runs/{run}/results", self._results),
            ("GET", "/metrics", self._metrics),
            ("GET", "/healthz", self._healthz),
            ("GET", "/readyz", self._readyz),
        )
        others = [(verb, path, self._guarded(work)) for verb, path, work in named]
        return application(self._find, self._service.registry, others)

    def _guarded(self, work: Work) -> Work:
        async def endpoint(request: Request) -> Response:
            try:
                self._check_host(request)
                if request.method == "POST" and _from_elsewhere(request):
                    raise ProtocolError(403, "a page of another site asks for that", code="other-page")
                with log_names(run=str(request.path_params.get("run", ""))):
                    return await work(request)
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:  # said without the run's name: strangers write nothing into its log
                return refuse(self._service.registry, self._service.audit, request, _refusal(error))

        return endpoint

    async def _find(self, request: Request) -> Routes:
        self._check_host(request)
        run = request.path_params.get("run")
        running = self._service.running.get(run or "")
        if running is None or running.served is None:
            self._who(request, self._service.consortium.sites)  # a stranger learns nothing, and takes nothing up again
        if run is None:
            raise ProtocolError(
                404, "is a service of several runs: start the site with --stay", code="service-of-several-runs"
            )
        try:
            return await self._service.routes(run)
        except Exception as error:
            raise _refusal(error) from None

    def _check_host(self, request: Request) -> None:
        """Check by which name a service without tokens is asked: a page may have made one of its own lead here.

        Raises:
            ProtocolError: 421, for a name that a stranger can have: neither an address nor the consortium's own.
        """
        if self._service.identity.required:
            return
        host = (request.url.hostname or "").rstrip(".")
        if "." in host and not _ADDRESS.fullmatch(host) and host not in self._service.consortium.hosts:
            raise ProtocolError(
                421,
                "host: a service without tokens is asked by its address, or by a name in its consortium's "
                f"`addresses`; got {visible(host)}",
                code="host-unknown",
                field="host",
            )

    def _who(self, request: Request, names: Collection[str]) -> str:
        """Return who asks, if that is one of these; "" where nobody has to say.

        Raises:
            ProtocolError: 401 or 403.
        """
        connection, identity = _connection(request), self._service.identity
        authorization = request.headers.get("authorization", "") or self.pages.bearer(request)
        who = identity.check(request.path_params.get("site"), authorization, connection.names)
        if who is not None and who not in names:
            raise ProtocolError(403, f"{who} may not do that: it is for {self._kind(names)}", code="not-permitted")
        return who or ""

    def _kind(self, names: Collection[str]) -> str:
        consortium = self._service.consortium
        known = ((consortium.sites, "sites"), (consortium.owners, "owners"))
        return next((kind for those, kind in known if those == names), "owners and viewers")

    def _person(self, request: Request, *, owner: bool = False) -> str:
        consortium = self._service.consortium
        who = self._who(request, consortium.owners if owner else (*consortium.owners, *consortium.viewers))
        if who and "authorization" in request.headers:  # a browser's connections are its viewer's
            self._service.registry.identify(_connection(request), who)
        return who

    async def _body(self, request: Request, model: type[M]) -> M:
        return _read(model, await read_body(request, MAX_SMALL_BODY, self._service.registry.timeouts))

    async def _poll(self, request: Request) -> Response:
        site = self._site(request)
        poll, connection = await self._body(request, Poll), _connection(request)
        if poll.known or poll.version != __version__:  # whoever asks but once, as `rankdad check` does, does not stay
            self._service.agents[site] = Seen(self._now(), poll.version)
        if poll.version != __version__:
            raise ProtocolError(
                409,
                f"{site}'s agent is rankdad {poll.version}, the service {__version__}: install the same",
                code="version-differs",
                field="version",
            )
        loop = asyncio.get_running_loop()
        end = loop.time() + self._service.registry.timeouts.hold
        while True:
            offers, left = self._service.offers(site), end - loop.time()
            if offers.digest != poll.known or left <= 0 or self._service.leaving:
                if poll.known:
                    self._service.agents[site] = Seen(self._now(), poll.version)
                return _json(offers)
            connection.waiting = loop.create_future()
            try:
                await self._service.change(connection.waiting, left)
            finally:
                connection.waiting = None

    def _site(self, request: Request) -> str:
        self._who(request, self._service.consortium.sites)
        site = str(request.path_params["site"])
        self._service.registry.identify(_connection(request), site)
        return site

    async def _offer(self, request: Request) -> Response:
        return _json(self._service.offer(request.path_params["run"], self._site(request)))

    async def _receipt(self, request: Request) -> Response:
        return _json(self._service.receipt(request.path_params["run"], self._site(request)))

    async def _reply(self, request: Request) -> Response:
        site = self._site(request)
        await self._service.reply(request.path_params["run"], site, await self._body(request, Reply))
        return Response(status_code=204)

    async def _submit(self, request: Request) -> Response:
        owner = self._person(request, owner=True)
        body = await read_body(request, MAX_RUN_BYTES, self._service.registry.timeouts)
        return _json(self._service.described(await self._service.submit(partial(_read, Submission, body), owner)))

    async def _question(self, request: Request) -> Response:
        site = self._site(request)
        return _json(self._service.questions.question(request.path_params["ask"], site))

    async def _answer(self, request: Request) -> Response:
        site, stance = self._site(request), await self._body(request, Stance)
        await self._service.queue.write(self._service.questions.answer, request.path_params["ask"], site, stance)
        return Response(status_code=204)

    async def _ask(self, request: Request) -> Response:
        owner = self._person(request, owner=True)
        body = await read_body(request, MAX_RUN_BYTES, self._service.registry.timeouts)
        return _json(await self._service.ask(partial(_read, Submission, body), owner))

    async def _asked(self, request: Request) -> Response:
        owner = self._person(request, owner=True)
        return _json(self._service.questions.asked(request.path_params["ask"], owner))

    async def _list(self, request: Request) -> Response:
        self._person(request)
        entries = self._service.queue.newest(MAX_SHOWN)
        return _json(Listing(runs=tuple(self._service.described(entry) for entry in entries)))

    async def _describe(self, request: Request) -> Response:
        self._person(request)
        return _json(self._service.described(self._service.queue.entry(request.path_params["run"])))

    async def _cancel(self, request: Request) -> Response:
        entry = await self._service.cancel(request.path_params["run"], self._person(request, owner=True))
        return _json(self._service.described(entry))

    async def _read_log(self, request: Request) -> Response:
        self._person(request)
        run, after = self._service.queue.entry(request.path_params["run"]).run, request.query_params.get("after", "0")
        if not (after.isdecimal() and len(after) < 16):
            raise ProtocolError(422, "after: is not a number of bytes", code="number-malformed", field="after")
        return Response(read_log(self._service.directory / LOGS, run, int(after)), media_type="text/plain")

    async def _results(self, request: Request) -> Response:
        directory = self._service.results(request.path_params["run"], self._person(request, owner=True))
        return StreamingResponse(archive(directory), media_type="application/x-tar")

    async def _metrics(self, request: Request) -> Response:
        self._person(request)
        return Response(figures(self._service, self._now()), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        if self._service.leaving:
            return PlainTextResponse("the service stops\n", 503)
        try:
            await self._service.queue.write(self._service.queue.check)
        except QueueError:
            return PlainTextResponse("the queue cannot be written: its log says more\n", 503)
        return PlainTextResponse("ok\n")


def _read(model: type[M], body: bytes) -> M:
    try:
        return validate(model, parse_json(body))
    except (ValueError, UserError) as error:
        raise ProtocolError(422, f"the body: {error}", code="body-malformed") from None


def _refusal(error: Exception) -> ProtocolError:
    """Return what a request is answered with where an error has ended it; the service's own errors are logged."""
    if isinstance(error, ProtocolError):
        return error
    if isinstance(error, QueueError):
        return ProtocolError(507, str(error), code="disk-full")
    _log.error("an error of the service's own", exc_info=error)
    return ProtocolError(
        500, f"an error of the service's own ({type(error).__name__}): its log says more", code="service-failed"
    )


def _connection(request: Request) -> HttpConnection:
    connection: HttpConnection = request.scope["state"]["connection"]
    return connection


def _from_elsewhere(request: Request) -> bool:
    """Tell whether a browser asks because a page of another site has made it."""
    fetched, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if fetched is not None:  # through TLS, and on one machine; no proxy changes that
        return fetched not in ("same-origin", "none")
    return origin is not None and origin.partition("://")[2] != request.headers.get("host")


def _json(document: BaseModel) -> Response:
    return Response(document.model_dump_json(), media_type="application/json")
