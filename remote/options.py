"""Options that `rankdad aggregator` and `rankdad serve` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SocketOption = Annotated[
    Path | None,
    typer.Option(
        "--socket",
        metavar="PATH",
        help="Listen on a Unix socket instead of --host, for a proxy on this machine; its headers "
        "X-Client-Certificate and X-Real-IP are trusted.",
    ),
]
ExposedOption = Annotated[
    bool,
    typer.Option(
        "--exposed",
        help="Accept connections from other machines without a proxy, and silence the warning about it. There is no "
        "limit on connections per address.",
    ),
]
