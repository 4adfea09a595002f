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
        help="Listen on a Unix socket, not on --host: for a proxy on this machine, whose X-Client-Certificate and "
        "X-Real-IP are believed.",
    ),
]
ExposedOption = Annotated[
    bool,
    typer.Option(
        "--exposed",
        help="Accept that other machines reach this process without a proxy: strangers share its time and its "
        "connections, without a limit for each address. Without this option a warning says so.",
    ),
]
