"""Commands for other people's platforms: `rankdad coinstac`, `rankdad schema`."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def mount(app: typer.Typer) -> None:
    """Add this folder's commands."""
    app.command()(coinstac)
    app.command()(schema)


def coinstac(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535, envvar="COINSTAC_PORT")] = 8881,
    allow_factory: Annotated[
        list[str] | None,
        typer.Option("--allow-factory", help="Permit a model factory 'package.module:function' that the image holds."),
    ] = None,
) -> None:
    """Serve the COINSTAC platform: what a container of the image does by itself."""
    from platforms.coinstac.service import run

    run(host, port, tuple(allow_factory or ()))


def schema(
    coinstac: Annotated[bool, typer.Option("--coinstac", help="The description that is uploaded to COINSTAC.")] = False,
    image: Annotated[str | None, typer.Option(help="Name of the image in that description.")] = None,
    repository: Annotated[str, typer.Option(help="Address of the source code in that description.")] = "",
) -> None:
    """Print the JSON schema of a run's specification, or the description for COINSTAC."""
    from common.spec import RunSpec
    from platforms.coinstac.compspec import IMAGE, compspec

    document = compspec(image or IMAGE, repository) if coinstac else RunSpec.model_json_schema()
    typer.echo(json.dumps(document, indent=2))
