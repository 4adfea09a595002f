"""nginx with the settings of compose.yaml, on a port of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

NGINX = Path(__file__).parents[2] / "docker" / "nginx"


def started_by(
    folder: Path,
    port: int,
    kit: Path,
    socket: Path,
    changes: Mapping[str, str] | None = None,
) -> list[str]:
    """Write the settings with this machine's paths, and return what starts nginx.

    Args:
        folder: of what nginx writes.
        port: at which it listens.
        kit: with the aggregator's certificate and the authority's.
        socket: of the aggregator.
        changes: of the settings, each of which is there.
    """
    here = {"listen 8765": f"listen 127.0.0.1:{port}", "/kit/": f"{kit}/", "/socket/rankdad": str(socket)}
    server = replaced((NGINX / "rankdad.conf").read_text(), here | dict(changes or {}))
    (folder / "rankdad.conf").write_text(server)
    main = replaced((NGINX / "nginx.conf").read_text(), {"/tmp/": f"{folder}/", "/etc/nginx/": f"{folder}/"})
    user = "" if os.geteuid() else "user root;\n"  # else root's workers are another user, who may not open the socket
    (folder / "nginx.conf").write_text(user + main)
    return ["nginx", "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]


def replaced(text: str, changes: Mapping[str, str]) -> str:
    """Return a text with changes, each of which is in it."""
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text
