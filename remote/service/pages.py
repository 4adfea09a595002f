"""The pages of a service: one about all runs, and one about each of them.

GET  /                        leads to the first
GET  /runs/…                  about all runs; the addresses below are those of `page.serving`
GET  /runs/{run}/…            about one, while it goes on and when it is over
GET  /runs/{run}/report.html  of a run that is over: made when it is first asked for
POST /runs/submit?id=…        a spec, as its file has it, from the page of an owner

A cookie opens what is read. What changes something needs a header beside it that no other site's page can send.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import sys
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from rankdad.common import __version__
from rankdad.common.documents import parse_json, problems
from rankdad.common.errors import ProtocolError, UserError, one_line, visible
from rankdad.common.protocol.service import MAX_RUN_BYTES, OPEN, Submission
from rankdad.common.spec import RunSpec
from rankdad.page.history import History
from rankdad.page.serving import ADDRESSES, HEADERS, Page
from rankdad.page.stream import Stream
from rankdad.page.viewers import own_token
from rankdad.remote.app import Endpoint, Work, read_body
from rankdad.remote.auth import hashed
from rankdad.remote.live import Live, guard_of
from rankdad.remote.past import past
from rankdad.remote.service.board import Board
from rankdad.remote.service.logs import LOGS, LastLines
from rankdad.remote.service.queue import Entry
from rankdad.remote.service.service import RUNS, Service

FOLDER = "/runs"
OWN_TOKEN = "owner-token"  # of a service's directory, where nobody has to say who he is: opens the pages
PAGE_HEADER = "x-rankdad-page"
MAX_PROBLEMS = 100  # of a spec that are named
MAX_PAST = 4  # pages of runs that are over which are kept
REPORT, REPORT_SECONDS = "report.html", 600.0
REPORT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"


class Pages:
    """The pages of a service.

    Args:
        service: of which they tell.

    Raises:
        UserError: the file of the token that opens them cannot be read or written.
    """

    def __init__(self, service: Service) -> None:
        self._service, self._everybody = service, Counter[str]()
        self._own = ""
        if not service.identity.required:
            self._own = hashed(own_token(service.directory / OWN_TOKEN))
        asks = "An owner's or a viewer's token" if service.identity.required else "The service's token"
        allowed = lambda request, token: self._name(request, token) is not None  # noqa: E731
        self._guard = guard_of(service.registry, allowed, f"{FOLDER}/", asks)
        stream = Stream(Board(service).document, History((), (), ()), everybody=self._everybody)
        self._board = Page(
            service.consortium.name, stream, self._guard, template="service.html", values=self._values_of
        )
        self._past = OrderedDict[str, Page]()
        self._reading, self._reporting = asyncio.Lock(), asyncio.Lock()

    def close(self) -> None:
        """End the stream of the page about all runs; those of runs end with these."""
        self._board.close()

    def endpoints(self, person: Callable[[Request], str]) -> list[Endpoint]:
        """Return verb, path and what answers.

        Args:
            person: returns the name of an owner who changes something, and raises `ProtocolError` for others.
        """
        found: list[Endpoint] = [
            ("GET", "/", self._lead),
            ("POST", f"{FOLDER}/submit", partial(self._submit, person)),
            ("GET", f"{FOLDER}/{{run}}/{REPORT}", self._report),
        ]
        for verb, path, work in ADDRESSES:
            if path:
                found.append((verb, FOLDER + path, partial(self._board.answer, work)))
                found.append((verb, f"{FOLDER}/{{run}}{path}", self._of_a_run(work)))
        return found

    def bearer(self, request: Request) -> str:
        """Return the header `authorization` that a request's cookie stands for, if the page's own script sends it."""
        token = self._guard.token(request)
        return f"Bearer {token}" if token and request.headers.get(PAGE_HEADER) == "1" else ""

    def _name(self, request: Request, token: str) -> str | None:
        """Return which owner or viewer a token is of: "" where nobody has to say, None if it is of no one."""
        if self._own:
            return "" if secrets.compare_digest(hashed(token), self._own) else None
        consortium, names = self._service.consortium, request.scope["state"]["connection"].names
        try:
            name = self._service.identity.check(None, f"Bearer {token}", names)
        except ProtocolError:
            return None
        return name if name in (*consortium.owners, *consortium.viewers) else None

    def _values_of(self, request: Request) -> dict[str, object]:
        name = self._name(request, self._guard.token(request))
        return {"owner": name if name == "" or name in self._service.consortium.owners else None}

    async def _lead(self, request: Request) -> Response:
        return RedirectResponse(f"{FOLDER.removeprefix('/')}/", 307)

    def _of_a_run(self, work: Callable[[Page, Request], Awaitable[Response]]) -> Work:
        """Return what answers at an address of a run: strangers learn nothing of it, not even whether it is there."""

        async def endpoint(request: Request) -> Response:
            page: Page | None = self._board
            if work in (Page.page, Page.state, Page.events) and self._guard.admits(request):
                page = await self._page(self._service.queue.entry(request.path_params["run"]))
            if page is not None:
                return await page.answer(work, request)
            if work is Page.page:
                return RedirectResponse("../", 303)
            said = {"error": "the run has not begun, or is being taken up", "code": "run-waits", "field": ""}
            return JSONResponse(said, 503)

        return endpoint

    async def _page(self, entry: Entry) -> Page | None:
        """Return the page about a run; None if it is not open, and not over either.

        Raises:
            ProtocolError: its directory cannot be read.
        """
        running = self._service.running.get(entry.run)
        if running is not None:
            host = running.served
            if host is not None and running.page is None:
                live = Live(host, self._lines(entry))
                running.page = self._page_of(entry, live.document, host.aggregator.recorder.history)
            return running.page
        if entry.state in OPEN or entry.started is None or not self._directory(entry).exists():
            return None
        async with self._reading:
            if entry.run not in self._past:
                told = partial(past, self._directory(entry), entry.state.value, entry.reason, self._lines(entry)())
                try:
                    document, history = await asyncio.to_thread(told)
                except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                    raise ProtocolError(
                        500, f"{entry.run}: cannot be read: {one_line(error)}", code="run-damaged"
                    ) from None
                page = self._page_of(entry, lambda: document, history)
                page.close()  # nothing will change
                self._past[entry.run] = page
            self._past.move_to_end(entry.run)
            while len(self._past) > MAX_PAST:
                self._past.popitem(last=False)
            return self._past[entry.run]

    def _page_of(self, entry: Entry, document: Callable[[], dict[str, Any]], history: History) -> Page:
        stream = Stream(document, history, everybody=self._everybody)
        return Page(entry.run, stream, self._guard, values=lambda _: {"back": "../"})

    def _lines(self, entry: Entry) -> LastLines:
        return LastLines(self._service.directory / LOGS, entry.run)

    def _directory(self, entry: Entry) -> Path:
        return self._service.directory / RUNS / entry.run

    async def _submit(self, person: Callable[[Request], str], request: Request) -> Response:
        """Take a spec as a person has it; a refusal names all of its mistakes."""
        owner, id_ = person(request), request.query_params.get("id", "")
        body = await read_body(request, MAX_RUN_BYTES, self._service.registry.timeouts)
        if not re.fullmatch("[0-9a-f]{16}", id_):
            raise ProtocolError(422, "id: expected 16 hexadecimal digits", code="id-malformed", field="id")
        try:
            entry = await self._service.submit(partial(_read, id_, body), owner)
        except _WrongSpecError as error:
            said = {"error": error.told[0], "errors": error.told, "code": "spec-invalid", "field": error.field}
            return JSONResponse(said, 422)
        return Response(self._service.described(entry).model_dump_json(), media_type="application/json")

    async def _report(self, request: Request) -> Response:
        """Give the report, which another process makes: drawing would hold up the runs that train."""
        if nothing := self._guard.nothing(request):
            return nothing
        entry = self._service.queue.entry(request.path_params["run"])
        directory = self._service.over(entry)
        path = directory / REPORT
        async with self._reporting:
            if not path.exists():
                if entry.run in self._service.running:
                    raise ProtocolError(
                        409,
                        f"{entry.run}: its last files are being written; ask again in a minute",
                        code="not-yet-written",
                    )
                await _make_report(directory, path)
        self._service.audit.note(
            "report read", site=self._name(request, self._guard.token(request)) or "", run=entry.run
        )
        page = await asyncio.to_thread(path.read_bytes)
        return HTMLResponse(page, headers=HEADERS | {"content-security-policy": REPORT_POLICY})


class _WrongSpecError(Exception):
    """A spec has mistakes, here all in words."""

    def __init__(self, told: list[str], field: str) -> None:
        self.told, self.field = told, field
        super().__init__(told[0])


def _read(id_: str, body: bytes) -> Submission:
    """Return a spec as what is submitted.

    Raises:
        ProtocolError: it is not JSON.
        _WrongSpecError: it is no spec.
    """
    try:
        document = parse_json(body)
    except json.JSONDecodeError as error:
        raise ProtocolError(
            422, f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}", code="not-json"
        ) from None
    except ValueError as error:
        raise ProtocolError(422, f"the text {error}", code="not-json") from None
    under = ""
    if isinstance(document, dict) and "run" in document:
        document, under = document["run"], "run."
    try:
        wrong = problems(RunSpec, document, MAX_PROBLEMS)
    except UserError as error:
        raise ProtocolError(422, str(error), code=error.code, field=error.field) from None
    if wrong:
        raise _WrongSpecError(
            [visible(f"{under}{field}: {problem}" if field else f"the spec: {problem}") for field, problem in wrong],
            under + wrong[0][0],
        )
    return Submission.model_construct(id=id_, version=__version__, spec=document)


async def _make_report(directory: Path, path: Path) -> None:
    """Make a run's report.

    Raises:
        ProtocolError: it cannot be made.
    """
    made = path.with_suffix(".tmp")
    words = [sys.executable, "-P", "-m", "rankdad", "report", str(directory), "--output", str(made)]
    nothing, said = asyncio.subprocess.DEVNULL, b""
    process = await asyncio.create_subprocess_exec(
        *words, stdin=nothing, stdout=nothing, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(REPORT_SECONDS):
            _, said = await process.communicate()
    except TimeoutError:
        raise ProtocolError(
            500, f"the report cannot be made within {REPORT_SECONDS:.0f} s", code="report-too-slow"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        *_, last = said.decode(errors="replace").strip().splitlines() or [f"exit {process.returncode}"]
        raise ProtocolError(500, f"the report cannot be made: {last}", code="report-failed")
    made.replace(path)
