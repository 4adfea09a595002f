"""The command `rankdad serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankdad.command import DeviceOption, LogJson, Quiet, Verbose
from rankdad.common.logs import LogOptions, set_up
from rankdad.remote import options
from rankdad.remote.records import Retention


def serve(
    file: Annotated[Path, typer.Argument(metavar="CONSORTIUM.json", help="Consortium: its sites and owners.")],
    output: Annotated[Path, typer.Option(help="Directory of the service: its queue and its runs.")],
    host: options.Host = "127.0.0.1",
    port: options.Port = 8765,
    behind: options.Socket = None,
    exposed: options.Exposed = False,
    allow_factory: options.Factories = None,
    weights: options.Weights = None,
    retention: options.Kept = Retention.ALL,
    tokens: options.Tokens = None,
    tls_cert: options.Certificate = None,
    tls_key: options.Key = None,
    client_ca: options.Authority = None,
    allow_plain_http: options.Plain = False,
    allow_anyone: options.Anyone = False,
    device: DeviceOption = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    log_json: LogJson = False,
) -> None:
    """Run a service: a queue of runs that owners submit, for sites started with --stay."""
    set_up(LogOptions.of(verbose=verbose, quiet=quiet, as_json=log_json))
    from rankdad.common.documents import load_json, validate
    from rankdad.remote.beginning import Options
    from rankdad.remote.config import Access
    from rankdad.remote.consortium import Consortium

    consortium = validate(Consortium, load_json(file), file=file)
    from rankdad.remote.persistence import LedgerOptions
    from rankdad.remote.server import opened
    from rankdad.remote.service.pages import FOLDER, OWN_TOKEN
    from rankdad.remote.service.process import serve_consortium

    access = Access(
        host, tls_cert, tls_key, client_ca, tokens, allow_plain_http, allow_anyone, behind=behind, exposed=exposed
    )
    access.check(consortium.members)
    for_runs = Options(tuple(allow_factory or ()), weights, LedgerOptions(retention), device or "cpu")
    with opened(access, port) as (listening, url):
        typer.echo(f"listening on {url}; the service's directory is {output}")
        whose = (
            f"opened by the token in {output / OWN_TOKEN}"
            if not access.identity(()).required
            else "for owners and viewers"
        )
        page = consortium.aggregator.rstrip("/") if behind is not None or host in ("0.0.0.0", "::") else url
        typer.echo(f"the page of all runs: {page}{FOLDER}/, {whose}")
        serve_consortium(consortium, output, listening, access, for_runs)
