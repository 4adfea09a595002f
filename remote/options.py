"""Options that `rankdad aggregator` and `rankdad serve` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankdad.remote.records import Retention

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)]
Socket = Annotated[
    Path | None,
    typer.Option(
        "--socket",
        metavar="PATH",
        help="Listen on a Unix socket instead of --host, for a proxy on this machine; its headers "
        "X-Client-Certificate and X-Real-IP are trusted.",
    ),
]
Exposed = Annotated[
    bool,
    typer.Option(
        "--exposed",
        help="Accept connections from other machines without a proxy. Nothing limits slow and long headers, what "
        "follows a refused request, and connections per address.",
    ),
]
Factories = Annotated[
    list[str] | None, typer.Option("--allow-factory", help="Allow the model factory 'package.module:function'.")
]
Weights = Annotated[Path | None, typer.Option(help="Folder with the pretrained weights that a spec names.")]
Kept = Annotated[Retention, typer.Option(help="Updates to keep: 'all', or the 'tail' since the last checkpoints.")]
Tokens = Annotated[Path | None, typer.Option(help="File with the hashed tokens of the members.")]
Certificate = Annotated[Path | None, typer.Option(help="Certificate of the aggregator, PEM.")]
Key = Annotated[Path | None, typer.Option(help="Private key of the certificate, PEM.")]
Authority = Annotated[
    Path | None, typer.Option("--client-ca", help="Require client certificates signed by this authority.")
]
Plain = Annotated[bool, typer.Option("--allow-plain-http", help="Allow other machines to connect without TLS.")]
Anyone = Annotated[
    bool, typer.Option("--allow-anyone", help="Allow other machines to take part without authentication.")
]
