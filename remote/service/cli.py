"""The command `rankdad serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankdad.command import DeviceOption, LogJson, Quiet, Verbose
from rankdad.common.logs import LogOptions, set_up
from rankdad.remote.options import ExposedOption, SocketOption
from rankdad.remote.records import Retention


def serve(
    file: Annotated[Path, typer.Argument(metavar="CONSORTIUM.json", help="Consortium: its sites and owners.")],
    output: Annotated[Path, typer.Option(help="Directory of the service: its queue and its runs.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8765,
    behind: SocketOption = None,
    exposed: ExposedOption = False,
    allow_factory: Annotated[
        list[str] | None, typer.Option("--allow-factory", help="Allow the model factory 'package.module:function'.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Folder with the pretrained weights that specs name.")] = None,
    retention: Annotated[
        Retention, typer.Option(help="Updates to keep: 'all', or the 'tail' since the last checkpoints.")
    ] = Retention.ALL,
    tokens: Annotated[Path | None, typer.Option(help="File with the hashed tokens of all members.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate of the service, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate, PEM.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option("--client-ca", help="Require client certificates signed by this authority.")
    ] = None,
    allow_plain_http: Annotated[
        bool, typer.Option("--allow-plain-http", help="Allow other machines to connect without TLS.")
    ] = False,
    allow_anyone: Annotated[
        bool, typer.Option("--allow-anyone", help="Allow other machines to take part without authentication.")
    ] = False,
    device: DeviceOption = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    log_json: LogJson = False,
) -> None:
    """Run a service: a queue of runs that owners submit, for sites started with --stay."""
    set_up(LogOptions.of(verbose=verbose, quiet=quiet, as_json=log_json))
    from rankdad.common.documents import load_json, validate
    from rankdad.remote.config import Access
    from rankdad.remote.consortium import Consortium

    consortium = validate(Consortium, load_json(file), file=file)
    from rankdad.remote.persistence import LedgerOptions
    from rankdad.remote.server import opened
    from rankdad.remote.service.pages import FOLDER, OWN_TOKEN
    from rankdad.remote.service.process import serve_consortium
    from rankdad.remote.service.running import Options

    access = Access(
        host, tls_cert, tls_key, client_ca, tokens, allow_plain_http, allow_anyone, behind=behind, exposed=exposed
    )
    access.check(consortium.members)
    options = Options(tuple(allow_factory or ()), weights, LedgerOptions(retention), device or "cpu")
    with opened(access, port) as (listening, url):
        typer.echo(f"listening on {url}; the service's directory is {output}")
        whose = f"with the token in {output / OWN_TOKEN}" if not access.identity(()).required else "owners and viewers"
        page = consortium.aggregator.rstrip("/") if behind is not None or host in ("0.0.0.0", "::") else url
        typer.echo(f"the page of all runs: {page}{FOLDER}/, for {whose}")
        serve_consortium(consortium, output, listening, access, options)
