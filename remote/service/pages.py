"""The pages of a service: one about all runs, and one about each of them.

GET  /                        redirects to /runs/
GET  /runs/…                  all runs; the addresses below are those of `page.serving`
GET  /runs/{run}/…            one run, active or ended
GET  /runs/{run}/report.html  report of an ended run, created at the first request
POST /runs/submit?id=…        text of a spec from an owner's page

A cookie suffices for reading. Changes also need a header that pages of other sites cannot send.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections import OrderedDict
from functools import partial
from pathlib import Path

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from rankdad.common.documents import parse_json, problems
from rankdad.common.errors import ProtocolError, UserError, one_line, visible
from rankdad.common.protocol.service import OPEN, Submission
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.common.spec import RunSpec
from rankdad.page.history import History
from rankdad.page.serving import HEADERS, Page, PageRoute, page_router
from rankdad.page.stream import Stream
from rankdad.page.viewers import own_token
from rankdad.remote.app import run_named
from rankdad.remote.auth import hashed
from rankdad.remote.live import Pages
from rankdad.remote.page_document import past_page
from rankdad.remote.service.board import Board
from rankdad.remote.service.queue import Entry
from rankdad.remote.service.service import RUNS, Service

FOLDER = "/runs"
OWN_TOKEN = "owner-token"  # in the directory of a service without authentication: opens the pages
MAX_PROBLEMS = 100  # named mistakes of a spec
MAX_PAST = 4  # cached pages of ended runs
REPORT, REPORT_SECONDS = "report.html", 600.0
REPORT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"


class ServicePages(Pages):
    """The pages of a service.

    Args:
        service: the service.

    Raises:
        UserError: the token's file cannot be read or written.
    """

    def __init__(self, service: Service) -> None:
        self._service, self._own = service, ""
        if not service.identity.required:
            self._own = hashed(own_token(service.directory / OWN_TOKEN))
        super().__init__(service, "The service's token" if self._own else "An owner's or a viewer's token")
        stream = Stream(Board(service).document, History((), (), ()), everybody=self._everybody)
        self._board = Page(
            service.consortium.name, stream, self._guard, template="service.html", values=self._values_of
        )
        self._past = OrderedDict[str, Page]()
        self._reading, self._reporting = asyncio.Lock(), asyncio.Lock()

    def close(self) -> None:
        """Close the streams of the page about all runs."""
        self._board.close()

    def routers(self) -> tuple[APIRouter, ...]:
        """Create the pages' routers."""
        router = APIRouter(tags=["page"], route_class=PageRoute)
        router.get("/", response_class=RedirectResponse, status_code=307)(self._lead)
        guarded = [Depends(self._guard.check)]
        router.get(f"{FOLDER}/{{run}}/{REPORT}", response_class=HTMLResponse, dependencies=guarded)(self._report)

        async def board(request: Request) -> Page:  # noqa: ARG001
            return self._board

        async def of_a_run(request: Request) -> Page | None:
            return await self._page(self._service.queue.entry(request.path_params["run"]))

        of_runs = APIRouter(dependencies=[Depends(run_named)])
        of_runs.include_router(page_router(f"{FOLDER}/{{run}}", self._guard, of_a_run))
        return router, page_router(FOLDER, self._guard, board), of_runs

    def values(self, request: Request) -> dict[str, object]:
        """Return a link to the page about all runs."""
        return {"back": "../"}

    def name(self, request: Request, token: str) -> str | None:
        """Return a token's owner or viewer: "" without authentication, None if it is unknown."""
        if self._own:
            return "" if secrets.compare_digest(hashed(token), self._own) else None
        return super().name(request, token)

    def _values_of(self, request: Request) -> dict[str, object]:
        name = self.name(request, self._guard.token(request))
        return {"owner": name if name == "" or name in self._service.consortium.owners else None}

    async def _lead(self) -> Response:
        """Redirect to the page about all runs."""
        return RedirectResponse(f"{FOLDER.removeprefix('/')}/", 307)

    async def _page(self, entry: Entry) -> Page | None:
        """Return the page about a run; None for a run that is neither open nor ended.

        Raises:
            ProtocolError: its directory cannot be read.
        """
        if entry.run in self._service.running:
            return self.page_of(entry.run, entry.run)
        if entry.state in OPEN or entry.started is None or not self._directory(entry).exists():
            return None
        async with self._reading:
            if entry.run not in self._past:
                load = partial(
                    past_page, self._directory(entry), entry.state.value, entry.reason, self._service.lines(entry.run)()
                )
                try:
                    document, history = await asyncio.to_thread(load)
                except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                    raise ProtocolError(
                        500, f"{entry.run}: cannot be read: {one_line(error)}", code="run-damaged"
                    ) from None
                page = self.make(entry.run, lambda: document, history)
                page.close()  # without further changes
                self._past[entry.run] = page
            self._past.move_to_end(entry.run)
            while len(self._past) > MAX_PAST:
                self._past.popitem(last=False)
            return self._past[entry.run]

    def _directory(self, entry: Entry) -> Path:
        return self._service.directory / RUNS / entry.run

    async def _report(self, run: str, request: Request) -> Response:
        """Return the report, which a separate process renders to keep the service responsive."""
        entry = self._service.queue.entry(run)
        directory = self._service.ended_directory(entry)
        path = directory / REPORT
        async with self._reporting:
            if not path.exists():
                if entry.run in self._service.running:
                    raise ProtocolError(
                        409,
                        f"{entry.run}: its last files are being written; try again in a minute",
                        code="not-yet-written",
                    )
                await _make_report(directory, path)
        self._service.audit.note(
            "report read", site=self.name(request, self._guard.token(request)) or "", run=entry.run
        )
        page = await asyncio.to_thread(path.read_bytes)
        return HTMLResponse(page, headers=HEADERS | {"content-security-policy": REPORT_POLICY})


class WrongSpecError(ProtocolError):
    """A spec has mistakes.

    Args:
        problems: all mistakes, a sentence each.
        field: field of the first.
    """

    def __init__(self, problems: list[str], field: str) -> None:
        super().__init__(422, problems[0], code="spec-invalid", field=field)
        self.problems = problems


def submission_of(id_: str, body: bytes) -> Submission:
    """Parse the text of a spec as a submission.

    Raises:
        ProtocolError: it is not JSON, or not a valid spec.
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
        raise WrongSpecError(
            [visible(f"{under}{field}: {problem}" if field else f"the spec: {problem}") for field, problem in wrong],
            under + wrong[0][0],
        )
    return Submission.model_construct(id=id_, **OUR_VERSION, spec=document)


async def _make_report(directory: Path, path: Path) -> None:
    """Render a run's report in a separate process.

    Raises:
        ProtocolError: it failed or took too long.
    """
    made = path.with_suffix(".tmp")
    command = [sys.executable, "-P", "-m", "rankdad", "report", str(directory), "--output", str(made)]
    nothing, output = asyncio.subprocess.DEVNULL, b""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=nothing, stdout=nothing, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(REPORT_SECONDS):
            _, output = await process.communicate()
    except TimeoutError:
        raise ProtocolError(
            500, f"the report cannot be made within {REPORT_SECONDS:.0f} s", code="report-too-slow"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        *_, last = output.decode(errors="replace").strip().splitlines() or [f"exit {process.returncode}"]
        raise ProtocolError(500, f"the report cannot be made: {last}", code="report-failed")
    made.replace(path)
