"""What a service says of its routes, and to whom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rankdad.local.drivers.http_library import httpx
from rankdad.page import serving as page
from rankdad.remote import app as run
from rankdad.remote import application
from rankdad.remote.service import app, pages
from rankdad.remote.service.service import Service
from tests.remote.test_service import as_, asking, with_service

REFUSED = {"schema": {"$ref": "#/components/schemas/Refused"}}


def told() -> set[tuple[str, str]]:
    """Return verb and path of all that the modules' docstrings tell."""
    found = set()
    for module in (run, application, app):
        for verb, first, other in re.findall(
            r"^(GET|POST) +(/[^ ?,]*)[^ ,]*(?:, (/[^ ]+))?", module.__doc__ or "", re.M
        ):
            found |= {(verb, path) for path in (first, other) if path}
    found |= {(verb, f"/runs/{{run}}{path}") for verb, path in told_of(run.__doc__ or "")}
    return found | {("GET", f"{pages.FOLDER}/{name}") for name in (*page.STATIC, "state", "events")}


def told_of(text: str) -> set[tuple[str, str]]:
    return set(re.findall(r"^(GET|POST) +(/[^ ?,]*)", text, re.M))


def refs(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set[str]()
        return own.union(*(refs(inner) for inner in value.values()))
    return set[str]().union(*(refs(inner) for inner in value)) if isinstance(value, list) else set()


@pytest.mark.slow
def test_an_owner_reads_of_every_route_and_its_refusals_and_nobody_else(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        async with asking(service) as client:
            for path in ("/openapi.json", "/docs"):
                for headers, status in (({}, 401), (as_("nobody"), 401), (as_("alpha"), 403), (as_("vera"), 403)):
                    refused = await client.get(path, headers=headers)
                    assert (refused.status_code, set(refused.json())) == (status, {"error", "code", "field"})
            document = (await client.get("/openapi.json", headers=as_("anna"))).json()
            shown = await client.get("/docs", headers=as_("anna"))
        known = {(verb.upper(), path) for path, item in document["paths"].items() for verb in item}
        assert len(told()) > 35
        assert told() <= known
        for item in document["paths"].values():
            for operation in item.values():
                assert all(
                    operation["responses"][kind]["content"]["application/json"] == REFUSED for kind in ("4XX", "5XX")
                )
        schemas = document["components"]["schemas"]
        assert {name.removeprefix("#/components/schemas/") for name in refs(document)} <= set(schemas)
        assert {"Submission", "Stance", "Described", "Offer", "Receipt", "RunAnswer"} <= set(schemas)
        assert all(f"{verb} {path}" in shown.text for verb, path in known)
        assert "<script" not in shown.text
        assert "script-src 'self'" in shown.headers["content-security-policy"]

    with_service(test, tmp_path)


@pytest.mark.slow
def test_a_session_opens_it_and_a_cookie_of_no_session_does_not(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        async with asking(service) as client:
            for name, status in (("anna", 200), ("vera", 403)):
                client.cookies.clear()
                entered = await client.post("/runs/", content=f"token={name}")
                assert entered.status_code == 303
                assert (await client.get("/docs")).status_code == status
                assert (await client.get("/runs")).status_code == 401, "that asks for the page's own script"
            client.cookies = httpx.Cookies({"rankdad-None": "?"})
            assert (await client.get("/docs")).status_code == 401

    with_service(test, tmp_path)
