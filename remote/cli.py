"""Command of the aggregator: `rankdad aggregator`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def mount(app: typer.Typer) -> None:
    """Add this folder's command."""
    app.command()(aggregator)


def aggregator(
    file: Annotated[Path, typer.Argument(metavar="RUN.json", help="The run's spec, alone or under the key 'run'.")],
    output: Annotated[Path, typer.Option(help="The run's directory.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8765,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=JSON", help="Replace a value of the file.")
    ] = None,
    allow_factory: Annotated[
        list[str] | None, typer.Option("--allow-factory", help="Permit a model factory 'package.module:function'.")
    ] = None,
) -> None:
    """Collect, reduce and broadcast what the sites send, until the run has ended."""
    from common.documents import load_json, replace, validate
    from common.spec import RunSpec

    document = replace(load_json(file), set_ or [])
    if isinstance(document, dict) and "run" in document:
        spec = validate(RunSpec, document["run"], file=file, under="run")
    else:
        spec = validate(RunSpec, document, file=file)
    from rich.console import Console

    from remote.process import run_aggregator
    from remote.recorder import new_directory
    from remote.server import listen
    from remote.view import show_result

    new_directory(output)
    listening = listen(host, port)
    address, bound = listening.getsockname()[:2]
    typer.echo(f"listening on http://{address}:{bound}; the run's directory is {output}")
    run_aggregator(spec, output, listening, Console(), allow_factory or ())
    show_result(load_json(output / "summary.json"), output)
