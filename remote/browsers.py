"""Protection against requests that other websites send through a browser."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from starlette.requests import Request

from rankdad.common.errors import ProtocolError, visible

HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]*)(?::[0-9]{1,5})?", re.ASCII)


def check_host(request: Request, names: Collection[str]) -> None:
    """Check the Host header of a server without tokens, against DNS rebinding.

    Args:
        request: the request.
        names: permitted names, beside addresses and localhost.

    Raises:
        ProtocolError: 421 for another name; 400 for a malformed header, or several.
    """
    hosts = request.headers.getlist("host")
    found = HOST.fullmatch(",".join(hosts))
    if found is None:
        raise ProtocolError(400, "host: expected one name or address", code="request-malformed", field="host")
    name = found[1].strip("[]").lower().rstrip(".")
    known = name in ("", "localhost", *names) or _address(name) is not None
    # A name without a dot, as in a compose file, is local: a page can take one only if it controls the network's names,
    # and there it reaches this server anyway, unless that listens on a loopback address alone.
    if not known and ("." in name or is_loopback(request)):
        raise ProtocolError(
            421,
            f"host: got {visible(name)}, expected the address or a known name of this server, which has no tokens",
            code="host-unknown",
            field="host",
        )


@lru_cache(64)  # every request asks for the same few
def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def is_loopback(request: Request) -> bool:
    """Return whether a request was received on a loopback address."""
    server = (request.scope.get("server") or ("",))[0]
    address = _address(server)
    return address is not None and address.is_loopback


async def check_origin(request: Request) -> None:
    """Refuse changes that a page of another site requests through a browser.

    Raises:
        ProtocolError: 403.
    """
    if request.method != "POST":
        return
    fetched, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    elsewhere = origin is not None and origin.partition("://")[2] != request.headers.get("host")
    if fetched is not None:  # over TLS or on one machine; proxies keep it
        elsewhere = fetched not in ("same-origin", "none")
    if elsewhere:
        raise ProtocolError(403, "the request comes from a page of another site", code="other-page")
