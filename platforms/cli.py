"""Commands for other people's platforms: `rankdad coinstac`, `rankdad schema`, `rankdad job`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rankdad.command import refuse_options

job = typer.Typer(help="Make a job for an engine that hospitals run already.", no_args_is_help=True)


def mount(app: typer.Typer) -> None:
    """Add this folder's commands."""
    app.command()(coinstac)
    app.command()(schema)
    app.add_typer(job, name="job")


def coinstac(
    host: Annotated[str, typer.Option(help="Address to listen on; in the image all of the container's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535, envvar="COINSTAC_PORT")] = 8881,
    mounts: Annotated[Path, typer.Option(help="Folder of the platform's mounts, input and output.")] = Path("/"),
    allow_factory: Annotated[
        list[str] | None,
        typer.Option("--allow-factory", help="Permit a model factory 'package.module:function' that the image holds."),
    ] = None,
) -> None:
    """Serve the COINSTAC platform: what a container of the image does by itself."""
    from rankdad.platforms.coinstac.service import run

    run(host, port, mounts, tuple(allow_factory or ()))


def schema(
    coinstac: Annotated[bool, typer.Option("--coinstac", help="The description that is uploaded to COINSTAC.")] = False,
    folder: Annotated[bool, typer.Option(help="Of that: members choose a folder in place of files.")] = False,
    image: Annotated[str | None, typer.Option(help="Of that: name of the image, without a tag.")] = None,
    repository: Annotated[str, typer.Option(help="Of that: address of the source code.")] = "",
) -> None:
    """Print the JSON schema of a run's specification, or the description for COINSTAC."""
    from rankdad.common.spec import RunSpec
    from rankdad.platforms.coinstac.compspec import IMAGE, compspec

    if not coinstac:
        given = {"--folder": folder, "--image": image, "--repository": repository or None}
        refuse_options(given, "is of the description for COINSTAC: give --coinstac, too")
    document = compspec(image or IMAGE, repository, folder=folder) if coinstac else RunSpec.model_json_schema()
    typer.echo(json.dumps(document, indent=2))


@job.command("nvflare")
def job_nvflare(
    file: Annotated[Path, typer.Argument(metavar="RUN.json", help="A run's spec, alone or under the key 'run'.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="JOB", help="Folder of the job.")],
    bring_code: Annotated[
        bool, typer.Option("--bring-code", help="For nodes whose class_allow_list does not name rankdad.")
    ] = False,
) -> None:
    """Make a job of NVFlare's; submitted again, the same run goes on."""
    from rankdad.common.spec import RunSpec
    from rankdad.platforms.nvflare.job import PACKAGE, write_job

    spec = RunSpec.read(file)
    number = write_job(spec, output, brings_code=bring_code)
    sites = ", ".join(spec.federation.sites)
    typer.echo(f"{output}: the job of the run {number}, for the clients {sites}")
    if not bring_code:
        typer.echo(f"every node's local/resources.json has to name {PACKAGE} in its class_allow_list")


@job.command("flower")
def job_flower(
    file: Annotated[Path, typer.Argument(metavar="RUN.json", help="A run's spec, alone or under the key 'run'.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="JOB", help="Folder of the job.")],
) -> None:
    """Make a job of Flower's; submitted again, the same run goes on."""
    from rankdad.common.spec import RunSpec
    from rankdad.platforms.flower.job import write_job

    spec = RunSpec.read(file)
    number = write_job(spec, output)
    typer.echo(f"{output}: the job of the run {number}, for the nodes {', '.join(spec.federation.sites)}")
