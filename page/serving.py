"""The page's addresses, below one folder: they are relative, so that it can lie anywhere.

GET  …/            the page; without a viewer's token the form that asks for one
POST …/            the form's answer begins a session: its cookie, which scripts do not see, is no token
POST …/leave       ends the session
GET  …/state       everything as JSON
GET  …/events      everything, then what changes, as server-sent events
GET  …/page.css, …/telling.js, …/page.js, …/charts.js, …/service.js, …/plotly.js

A token may also come as `authorization: Bearer`. Nothing on the page comes from another host, or is sent to one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse

from rankdad.page.sessions import Sessions
from rankdad.page.stream import Stream

FOLDER = Path(__file__).parent
SCRIPTS = ("telling.js", "page.js", "charts.js", "service.js")
STATIC = {"page.css": "text/css", **dict.fromkeys(SCRIPTS, "text/javascript")}
NO_CHARTS = "Curves need Plotly, which is not installed here: pip install 'rankdad[page]'"
MAX_FORM, FORM_SECONDS = 1000, 10.0  # bytes of the form's answer, and how long it may take to come
# Plotly writes into `style`; scripts are files of this server alone.
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


class Guard:
    """Lets those see a page who have a token for it.

    Args:
        allowed: tells whether the token of a request opens the page.
        admitted: called for every request of somebody whom it lets in.
        refused: told of a request of somebody else, with status and reason.
        path: for which the cookie is; the page's own without it.
        asks: for what the form asks.
    """

    ASKS = "A viewer's token"

    def __init__(
        self,
        allowed: Callable[[Request, str], bool],
        admitted: Callable[[Request], None] = lambda request: None,
        refused: Callable[[Request, int, str], None] = lambda request, status, reason: None,
        path: str = "",
        asks: str = ASKS,
    ) -> None:
        self.allowed, self.refused, self.path, self.asks = allowed, refused, path, asks
        self.sessions = Sessions()
        self._admitted = admitted

    def token(self, request: Request) -> str:
        """Return the token that comes with a request; "" without one."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        return token if kind.lower() == "bearer" else self.sessions.token(request.cookies.get(_cookie(request), ""))

    def admits(self, request: Request) -> bool:
        """Tell whether a request comes from somebody who may see the page."""
        if not self.allowed(request, self.token(request)):
            return False
        self._admitted(request)
        return True

    def nothing(self, request: Request) -> Response | None:
        """Return the answer to who may not see the page; None to who may."""
        if self.admits(request):
            return None
        self.refused(request, 401, "the page: no token for it")
        return JSONResponse({"error": "no token for this page: see the page itself"}, 401)


class Page:
    """The page about one run, or about a service.

    Args:
        title: of the page.
        stream: what it shows.
        guard: of those who may see it.
        closing: called when the page is closed.
        template: of the page.
        values: returns what the template takes beside the title, for whoever asks.
    """

    def __init__(
        self,
        title: str,
        stream: Stream,
        guard: Guard,
        closing: Callable[[], None] = lambda: None,
        template: str = "page.html",
        values: Callable[[Request], Mapping[str, object]] = lambda request: {},
    ) -> None:
        self.stream, self.guard, self._closing = stream, guard, closing
        self._title, self._template, self._values = title, template, values

    def close(self) -> None:
        """Tell viewers the last of it, and end their streams."""
        self.stream.close()
        self._closing()

    def routes(self, folder: str = "/page") -> list[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        """Return verb, path and what answers, of every address below a folder."""

        def guarded(work: Callable[[Page, Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
            async def endpoint(request: Request) -> Response:
                return await self.answer(work, request)

            return endpoint

        return [(verb, folder + path, guarded(work)) for verb, path, work in ADDRESSES]

    async def answer(self, work: Callable[[Page, Request], Awaitable[Response]], request: Request) -> Response:
        """Answer a request: what goes wrong here is logged, and nothing of the run's."""
        try:
            response = await work(self, request)
        except (ClientDisconnect, TimeoutError):
            response = Response(status_code=408)
        except Exception:
            _log.exception("the page cannot be shown; the run goes on")
            response = JSONResponse({"error": "an error of the page's own: the log says more"}, 500)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    async def folder(self, request: Request) -> Response:
        """Lead to the page."""
        return RedirectResponse(f"{request.url.path.rpartition('/')[2]}/", 307)

    async def page(self, request: Request) -> Response:
        """Show the page, or ask for a token."""
        if not self.guard.admits(request):
            return self._form(wrong=False)
        values = {"title": self._title, "charts": _plotly() is not None, "no_charts": NO_CHARTS}
        return HTMLResponse(_rendered(self._template, **values, **self._values(request)))

    async def enter(self, request: Request) -> Response:
        """Take a token from the form."""
        token = await _token_of(request)
        if not self.guard.allowed(request, token):
            self.guard.refused(request, 401, "the page: the token does not open it")
            return self._form(wrong=True)
        response = RedirectResponse("./", 303)
        path = self.guard.path or request.url.path
        before = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip()  # by the proxy nearest to it
        safe = "https" in (request.url.scheme, before)
        cookie = self.guard.sessions.open(token)
        response.set_cookie(_cookie(request), cookie, path=path, httponly=True, samesite="strict", secure=safe)
        return response

    async def leave(self, request: Request) -> Response:
        """End the session."""
        self.guard.sessions.close(request.cookies.get(_cookie(request), ""))
        response = RedirectResponse("./", 303)
        response.delete_cookie(_cookie(request), path=self.guard.path or request.url.path.removesuffix("leave"))
        return response

    async def state(self, request: Request) -> Response:
        """Tell everything."""
        return self.guard.nothing(request) or Response(self.stream.whole(), media_type="application/json")

    async def events(self, request: Request) -> Response:
        """Tell everything, then what changes."""
        if nothing := self.guard.nothing(request):
            return nothing
        if self.stream.is_full(self.guard.token(request)):
            return JSONResponse({"error": "too many pages are open by this token"}, 503)
        headers = {"x-accel-buffering": "no"}  # which nginx would hold back
        return StreamingResponse(self._told(request), media_type="text/event-stream", headers=headers)

    async def file(self, request: Request) -> Response:
        """Give one of the page's files; the form needs its looks before anybody has shown a token."""
        name = request.url.path.rpartition("/")[2]
        if name != "page.css" and (nothing := self.guard.nothing(request)):
            return nothing
        if name == "plotly.js":
            path = _plotly()
            if path is None:
                return JSONResponse({"error": NO_CHARTS}, 404)
            kept = {"cache-control": "private, max-age=86400"}
            return FileResponse(path, media_type="text/javascript", headers=kept)
        return Response((FOLDER / "static" / name).read_bytes(), media_type=STATIC[name])

    async def _told(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the stream's events for as long as the token is good."""
        async with aclosing(self.stream.events(self.guard.token(request))) as events:
            async for event in events:
                if not self.guard.admits(request):
                    return
                yield event

    def _form(self, *, wrong: bool) -> Response:
        return HTMLResponse(_rendered("form.html", wrong=wrong, asks=self.guard.asks), 401)


ADDRESSES: tuple[tuple[str, str, Callable[[Page, Request], Awaitable[Response]]], ...] = (
    ("GET", "", Page.folder),
    ("GET", "/", Page.page),
    ("POST", "/", Page.enter),
    ("POST", "/leave", Page.leave),
    ("GET", "/state", Page.state),
    ("GET", "/events", Page.events),
    *(("GET", f"/{name}", Page.file) for name in (*STATIC, "plotly.js")),
)


async def _token_of(request: Request) -> str:
    """Return the token in a form's answer; "" if it has none."""
    data = b""
    async with asyncio.timeout(FORM_SECONDS):
        async for chunk in request.stream():
            data += chunk
            if len(data) > MAX_FORM:
                return ""
    return parse_qs(data.decode("ascii", "replace")).get("token", [""])[0].strip()


def _cookie(request: Request) -> str:
    """Return the cookie's name: a browser does not tell ports apart."""
    server = request.scope.get("server") or ("", 0)
    return f"rankdad-{server[1]}"


def _plotly() -> Path | None:
    """Return where the package Plotly keeps its script, without importing it; None if it is not installed."""
    found = find_spec("plotly")
    folders = found.submodule_search_locations if found else None
    path = Path(folders[0]) / "package_data" / "plotly.min.js" if folders else None
    return path if path is not None and path.exists() else None


def _rendered(name: str, **values: object) -> str:
    return _environment().get_template(name).render(values)  # type: ignore[attr-defined, no-any-return]


@cache  # of this package's templates
def _environment() -> object:
    from jinja2 import Environment, PackageLoader

    return Environment(loader=PackageLoader("rankdad.page"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
