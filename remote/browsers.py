"""What keeps pages of others from asking through a browser that can reach a server of ours."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from starlette.requests import Request

from rankdad.common.errors import ProtocolError, visible

HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]*)(?::[0-9]{1,5})?", re.ASCII)


def check_host(request: Request, names: Collection[str]) -> None:
    """Check by which name a server without tokens is asked: a page may have made one of its own lead here.

    Args:
        request: to the server.
        names: by which it may be asked, beside addresses and names without a dot.

    Raises:
        ProtocolError: 421, for a name that a stranger can have; 400, for what is no name, or several.
    """
    hosts = request.headers.getlist("host")
    found = HOST.fullmatch(",".join(hosts))
    if found is None:
        raise ProtocolError(400, "host: expected one name or address", code="request-malformed", field="host")
    name = found[1].strip("[]").lower().rstrip(".")
    if "." in name and _address(name) is None and name not in names:
        raise ProtocolError(
            421,
            f"host: a server without tokens is asked by its address, or by a name of its own; got {visible(name)}",
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
    """Tell whether a request has come to an address of this machine alone."""
    server = (request.scope.get("server") or ("",))[0]
    address = _address(server)
    return address is not None and address.is_loopback


async def check_origin(request: Request) -> None:
    """Check that nothing is changed because a page of another site has made a browser ask.

    Raises:
        ProtocolError: 403.
    """
    if request.method != "POST":
        return
    fetched, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    elsewhere = origin is not None and origin.partition("://")[2] != request.headers.get("host")
    if fetched is not None:  # through TLS, and on one machine; no proxy changes that
        elsewhere = fetched not in ("same-origin", "none")
    if elsewhere:
        raise ProtocolError(403, "a page of another site asks for that", code="other-page")
