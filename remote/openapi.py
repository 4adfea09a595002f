"""The OpenAPI document of a server's routes, and a page of it without external scripts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Literal

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from rankdad.page.serving import PageRoute, rendered
from rankdad.remote.app import SCHEMAS, Refused

_VERBS = ("get", "post")


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """Document a body that is read after authentication; FastAPI's own bodies are read before it."""
    schema = {"$ref": f"{SCHEMAS}{model.__name__}"}
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}


def documented(reader: Callable[[Request], Awaitable[None]], bodies: Collection[type[BaseModel]]) -> APIRouter:
    """Create the routes of the document and of its page.

    Args:
        reader: dependency that admits readers.
        bodies: models named by `takes`.
    """
    router = APIRouter(route_class=PageRoute, dependencies=[Depends(reader)], tags=["page"])

    def document(request: Request) -> dict[str, Any]:
        found: dict[str, Any] = request.app.openapi()
        models: list[tuple[Any, Literal["validation"]]] = [(model, "validation") for model in (*bodies, Refused)]
        _, named = models_json_schema(models, ref_template=SCHEMAS + "{model}")
        found["components"]["schemas"].update(named["$defs"])
        return found

    @router.get("/openapi.json")
    async def openapi(request: Request) -> dict[str, Any]:
        """Return the OpenAPI document of all routes."""
        return document(request)

    @router.get("/docs", response_class=HTMLResponse)
    async def docs(request: Request) -> Response:
        """Return a page of all routes with their bodies and responses."""
        found = document(request)
        routes = [
            (verb.upper(), path, operation, _said(operation))
            for path, item in found["paths"].items()
            for verb, operation in item.items()
            if verb in _VERBS
        ]
        schemas = sorted(found["components"]["schemas"].items())
        return HTMLResponse(rendered("docs.html", title=found["info"]["title"], routes=routes, schemas=schemas))

    return router


def _said(operation: dict[str, Any]) -> dict[str, str]:
    """Return the content of a request's body, and of each status."""
    answers = {status: _held(answer) for status, answer in operation["responses"].items()}
    return {"body": _held(operation.get("requestBody", {})), **answers}


def _held(content: dict[str, Any]) -> str:
    """Return the schema's name, or the media type."""
    for kind, held in content.get("content", {}).items():
        return str(held.get("schema", {}).get("$ref", kind)).removeprefix(SCHEMAS)
    return ""
