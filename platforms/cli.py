"""Commands for other platforms: `rankdad coinstac`, `rankdad schema`, `rankdad job`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rankdad.command import refuse_options

SettingsOption = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        metavar="FOLDER",
        help="Also write all nodes' settings, to try the job on this machine.",
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="With --settings: a folder or a table for each site; without it, the data of the simulation of RUN.json.",
    ),
]
job = typer.Typer(help="Create a job for another federated engine.", no_args_is_help=True)


def mount(app: typer.Typer) -> None:
    """Add this folder's commands."""
    app.command()(coinstac)
    app.command()(schema)
    app.add_typer(job, name="job")


def coinstac(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 in the image.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535, envvar="COINSTAC_PORT")] = 8881,
    mounts: Annotated[Path, typer.Option(help="Folder with the platform's mounts, input and output.")] = Path("/"),
    allow_factory: Annotated[
        list[str] | None,
        typer.Option("--allow-factory", help="Allow the model factory 'package.module:function' of the image."),
    ] = None,
) -> None:
    """Serve the COINSTAC platform; the default command of the COINSTAC image."""
    from rankdad.platforms.coinstac.service import run

    run(host, port, mounts, tuple(allow_factory or ()))


def schema(
    coinstac: Annotated[
        bool, typer.Option("--coinstac", help="Print the computation spec for COINSTAC instead.")
    ] = False,
    folder: Annotated[bool, typer.Option(help="With --coinstac: members choose a folder, not files.")] = False,
    image: Annotated[str | None, typer.Option(help="With --coinstac: name of the image, without a tag.")] = None,
    repository: Annotated[str, typer.Option(help="With --coinstac: address of the source code.")] = "",
) -> None:
    """Print the JSON schema of a run's spec, or the computation spec for COINSTAC."""
    from rankdad.common.spec import RunSpec
    from rankdad.platforms.coinstac.compspec import IMAGE, compspec

    if not coinstac:
        given = {"--folder": folder, "--image": image, "--repository": repository or None}
        refuse_options(given, "needs --coinstac: add it")
    document = compspec(image or IMAGE, repository, folder=folder) if coinstac else RunSpec.model_json_schema()
    typer.echo(json.dumps(document, indent=2))


@job.command("nvflare")
def job_nvflare(
    file: Annotated[Path, typer.Argument(metavar="RUN.json", help="Spec of the run, alone or under the key 'run'.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="JOB", help="Folder of the job.")],
    bring_code: Annotated[
        bool, typer.Option("--bring-code", help="Include code, for nodes whose class_allow_list lacks rankdad.")
    ] = False,
    settings: SettingsOption = None,
    data: DataOption = None,
) -> None:
    """Create a job for NVIDIA FLARE; a job that is submitted again resumes its run."""
    from rankdad.common.spec import RunSpec
    from rankdad.platforms.nvflare.job import PACKAGE, write_job

    spec = RunSpec.read(file)
    _write_settings(settings, data, file, "nvflare", spec.federation.sites)
    number = write_job(spec, output, brings_code=bring_code)
    sites = ", ".join(spec.federation.sites)
    typer.echo(f"{output}: the job of the run {number}, for the clients {sites}")
    if not bring_code:
        typer.echo(f"every node's local/resources.json has to name {PACKAGE} in its class_allow_list")


@job.command("flower")
def job_flower(
    file: Annotated[Path, typer.Argument(metavar="RUN.json", help="A run's spec, alone or under the key 'run'.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="JOB", help="Folder of the job.")],
    settings: SettingsOption = None,
    data: DataOption = None,
) -> None:
    """Create a job for Flower; a job that is submitted again resumes its run."""
    from rankdad.common.spec import RunSpec
    from rankdad.platforms.flower.job import write_job

    spec = RunSpec.read(file)
    _write_settings(settings, data, file, "flower", spec.federation.sites, registered=False)
    number = write_job(spec, output)
    typer.echo(f"{output}: the job of the run {number}, for the nodes {', '.join(spec.federation.sites)}")


def _write_settings(
    folder: Path | None, data: Path | None, file: Path, engine: str, sites: Sequence[str], **server: object
) -> None:
    """Write all nodes' settings for a trial into a folder, if one is given.

    Raises:
        UserError: the data of a site is missing, or the folder cannot be written.
    """
    from rankdad.platforms.jobs import settings_for_trial, write_files

    if folder is None:
        refuse_options({"--data": data}, "needs --settings: add it")
        return
    write_files(folder, settings_for_trial(file.parent, data, engine, sites, **server), "--settings")
    typer.echo(f"{folder}: settings of all nodes, which read them with RANKDAD_{engine.upper()}={folder.resolve()}")
