"""The page's routes. They are relative, so that the page can be mounted anywhere.

GET  …/            the page, or a form for the viewer's token
POST …/            the form: begins a session with an HttpOnly cookie, which is not the token
POST …/leave       ends the session
GET  …/state       the whole document as JSON
GET  …/events      the whole document, then changes, as server-sent events
GET  …/page.css, …/shared.js, …/page.js, …/charts.js, …/service.js, …/plotly.js

A token may also come as `authorization: Bearer`. The page loads nothing from other hosts and sends nothing to them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response, StreamingResponse

from rankdad.common.errors import ProtocolError, RankdadError
from rankdad.page.sessions import Sessions
from rankdad.page.stream import Stream

FOLDER = Path(__file__).parent
SCRIPTS = ("shared.js", "page.js", "charts.js", "service.js")
STATIC = {"page.css": "text/css", **dict.fromkeys(SCRIPTS, "text/javascript")}
NO_CHARTS = "Curves need Plotly, which is not installed here: pip install 'rankdad[page]'"
MAX_FORM, FORM_SECONDS = 1000, 10.0  # bytes of the form's body, and seconds to receive it
# Plotly sets inline styles; scripts come only from this server.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
_log = logging.getLogger(__name__)


class PageRoute(APIRoute):
    """A route with the page's security headers; its errors are logged and do not affect the run."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the request handler."""
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                response = await handler(request)
            except (ClientDisconnect, TimeoutError):
                response = Response(status_code=408)
            except RankdadError:
                raise
            except Exception as error:
                _log.exception("the page cannot be shown; the run continues")
                message = "an internal error of the page: see the log"
                raise ProtocolError(500, message, code="page-failed") from error
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return answer


class Guard:
    """The page's authentication.

    Args:
        allowed: returns whether a token opens the page.
        admitted: called for each admitted request.
        refused: called for each refused form.
        asks: title of the form.
    """

    ASKS = "A viewer's token"

    def __init__(
        self,
        allowed: Callable[[Request, str], bool],
        admitted: Callable[[Request], None] = lambda request: None,
        refused: Callable[[Request, int, str], None] = lambda request, status, reason: None,
        asks: str = ASKS,
    ) -> None:
        self.allowed, self._refused, self._asks = allowed, refused, asks
        self._sessions, self._admitted = Sessions(), admitted

    def token(self, request: Request) -> str:
        """Return a request's token; "" without one."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        return token if kind.lower() == "bearer" else self._sessions.token(request.cookies.get(_cookie(request), ""))

    def admits(self, request: Request) -> bool:
        """Return whether a request is authenticated."""
        if not self.allowed(request, self.token(request)):
            return False
        self._admitted(request)
        return True

    async def check(self, request: Request) -> None:
        """Check that a request is authenticated.

        Raises:
            ProtocolError: 401 if it is not.
        """
        if not self.admits(request):
            raise ProtocolError(401, "the page: no valid token; open the page to enter one", code="token-missing")

    def form(self, *, wrong: bool = False) -> Response:
        """Return the form for a token."""
        return HTMLResponse(rendered("form.html", wrong=wrong, asks=self._asks), 401)

    async def enter(self, request: Request) -> Response:
        """Take a token from the form and begin a session."""
        token = await _token_of(request)
        if not self.allowed(request, token):
            self._refused(request, 401, "the page: the token does not open it")
            return self.form(wrong=True)
        response = RedirectResponse("./", 303)
        before = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
        safe = "https" in (request.url.scheme, before)
        cookie = self._sessions.open(token)
        response.set_cookie(_cookie(request), cookie, path="/", httponly=True, samesite="strict", secure=safe)
        return response

    async def leave(self, request: Request) -> Response:
        """End the session."""
        self._sessions.close(request.cookies.get(_cookie(request), ""))
        response = RedirectResponse("./", 303)
        response.delete_cookie(_cookie(request), path="/")
        return response


class Page:
    """The page of one run or of a service.

    Args:
        title: its title.
        stream: its document and changes.
        guard: its authentication.
        template: its template.
        values: returns further template variables for a request.
    """

    def __init__(
        self,
        title: str,
        stream: Stream,
        guard: Guard,
        template: str = "page.html",
        values: Callable[[Request], Mapping[str, object]] = lambda request: {},
    ) -> None:
        self.stream, self.guard = stream, guard
        self._title, self._template, self._values = title, template, values

    def close(self) -> None:
        """Send the last changes and end all streams."""
        self.stream.close()

    def show(self, request: Request) -> Response:
        """Render the page."""
        values = {"title": self._title, "charts": _plotly() is not None, "no_charts": NO_CHARTS}
        return HTMLResponse(rendered(self._template, **values, **self._values(request)))

    def event_stream(self, request: Request) -> Response:
        """Return the whole document, then changes, as a stream.

        Raises:
            ProtocolError: the viewer has too many streams.
        """
        if self.stream.is_full(self.guard.token(request)):
            raise ProtocolError(503, "too many pages are open with this token", code="too-many-pages")
        headers = {"x-accel-buffering": "no"}  # disables buffering in nginx
        return StreamingResponse(self._events(request), media_type="text/event-stream", headers=headers)

    async def _events(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the stream's events while the token is valid."""
        async with aclosing(self.stream.events(self.guard.token(request))) as events:
            async for event in events:
                if not self.guard.admits(request):
                    return
                yield event


def page_router(folder: str, guard: Guard, find: Callable[[Request], Awaitable[Page | None]]) -> APIRouter:
    """Create the routes of pages below a folder.

    Args:
        folder: path of a page.
        guard: the pages' authentication.
        find: returns an authenticated request's page; None if it cannot be shown yet.
    """
    router = APIRouter(prefix=folder, route_class=PageRoute, tags=["page"])
    guarded = [Depends(guard.check)]

    async def open_page(request: Request) -> Page:
        await guard.check(request)
        page = await find(request)
        if page is None:
            raise ProtocolError(503, "the run has not begun, or is being opened", code="run-waits")
        return page

    @router.get("/", response_class=HTMLResponse)
    async def page(request: Request) -> Response:
        """Show the page, or the form for a token."""
        if not guard.admits(request):
            return guard.form()
        found = await find(request)
        return RedirectResponse("../", 303) if found is None else found.show(request)

    @router.get("/state")
    async def state(page: Page = Depends(open_page)) -> Response:  # noqa: B008
        """Return the whole document as JSON."""
        return Response(page.stream.whole(), media_type="application/json")

    @router.get("/events", response_class=StreamingResponse)
    async def events(request: Request, page: Page = Depends(open_page)) -> Response:  # noqa: B008
        """Return the whole document, then changes, as server-sent events."""
        return page.event_stream(request)

    @router.get("/plotly.js", response_class=FileResponse, dependencies=guarded)
    async def plotly() -> Response:
        """Return Plotly's script."""
        path = _plotly()
        if path is None:
            raise ProtocolError(404, NO_CHARTS, code="package-missing")
        kept = {"cache-control": "private, max-age=86400"}
        return FileResponse(path, media_type="text/javascript", headers=kept)

    async def file(request: Request) -> Response:
        """Return a static file; the form's style sheet needs no token."""
        name = request.url.path.rpartition("/")[2]
        return Response((FOLDER / "static" / name).read_bytes(), media_type=STATIC[name])

    for name in STATIC:
        router.get(f"/{name}", response_class=Response, dependencies=guarded if name in SCRIPTS else [])(file)
    router.post("/", response_class=RedirectResponse, status_code=303)(guard.enter)
    router.post("/leave", response_class=RedirectResponse, status_code=303)(guard.leave)
    return router


async def _token_of(request: Request) -> str:
    """Read the token of a form; "" without one."""
    data = b""
    async with asyncio.timeout(FORM_SECONDS):
        async for chunk in request.stream():
            data += chunk
            if len(data) > MAX_FORM:
                return ""
    return parse_qs(data.decode("ascii", "replace")).get("token", [""])[0].strip()


def _cookie(request: Request) -> str:
    """Return the cookie's name, which includes the port: browsers share cookies between ports."""
    server = request.scope.get("server") or ("", 0)
    return f"rankdad-{server[1] or 0}"


def _plotly() -> Path | None:
    """Find the script of the package Plotly without importing it; None if it is not installed."""
    found = find_spec("plotly")
    folders = found.submodule_search_locations if found else None
    path = Path(folders[0]) / "package_data" / "plotly.min.js" if folders else None
    return path if path is not None and path.exists() else None


def rendered(name: str, **values: object) -> str:
    """Render a template of this package."""
    return _environment().get_template(name).render(values)  # type: ignore[attr-defined, no-any-return]


@cache
def _environment() -> object:
    from jinja2 import Environment, PackageLoader

    return Environment(loader=PackageLoader("rankdad.page"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
