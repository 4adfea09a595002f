"""What `remote/web.py` takes from a module of uvicorn that is not documented: said here where a version changes it."""

from __future__ import annotations

import importlib
import inspect
from importlib.metadata import version

MODULE = "uvicorn.protocols.http.httptools_impl"
TAKEN = {  # of each class or the module: what `HttpConnection` overrides, calls or reads
    "": {"HttpToolsProtocol", "RequestResponseCycle"},
    "HttpToolsProtocol": {
        *("connection_made", "connection_lost", "on_headers_complete"),
        *("app_state", "client", "cycle", "headers", "scope", "transport"),
    },
    "RequestResponseCycle": {"response_complete"},
}


def test_uvicorn_still_has_what_a_connection_is_built_on() -> None:
    module = importlib.import_module(MODULE)
    for name, taken in TAKEN.items():
        owner = getattr(module, name) if name else module
        found = set(dir(owner))
        if inspect.isclass(owner):  # attributes are named where they are first used
            found |= {word for _, method in inspect.getmembers(owner, inspect.isfunction) for word in names_in(method)}
        lacking = sorted(taken - found)
        assert not lacking, (
            f"uvicorn {version('uvicorn')}: {MODULE} has no {name} {', '.join(lacking)}: "
            "remote/web.py, class HttpConnection, has to be written for this version"
        )


def names_in(method: object) -> tuple[str, ...]:
    names: tuple[str, ...] = method.__code__.co_names  # type: ignore[attr-defined]
    return names
