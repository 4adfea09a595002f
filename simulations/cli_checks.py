"""Commands that look at a run before it begins, and train nothing: `rankdad check`, `rankdad verify`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from rankdad.command import DeviceOption, refuse_options
from rankdad.common.errors import FAILED, UserError, counted
from rankdad.simulations.options import (
    AllowOption,
    DataOption,
    FileArgument,
    RegionsOption,
    SetOption,
    SitesOption,
    WeightsOption,
)

if TYPE_CHECKING:
    from rich.console import Console

    from rankdad.local.config import SiteConfig
    from rankdad.local.drivers.http import RefusedError

CHECK_PATIENCE = 5.0  # seconds in which an aggregator that is there answers


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE.json", help="Spec of a run or a simulation, or a SITE.json.")],
    sites: SitesOption = None,
    regions: RegionsOption = None,
    data: DataOption = None,
    set_: SetOption = None,
    allow_factory: AllowOption = None,
    weights: WeightsOption = None,
    offline: Annotated[
        Path | None,
        typer.Option(metavar="RUN.json", help="With a SITE.json: check against this run without an aggregator."),
    ] = None,
) -> None:
    """Check a run, a simulation or a site before it starts, and print what would be sent; nothing is trained."""
    from rankdad.common.documents import load_json, replace

    document = replace(load_json(file), set_ or [])
    typer.echo(f"checking {file} …", err=True)  # at once: what the rest needs is imported in ten seconds
    from rankdad.common.spec import RunSpec
    from rankdad.simulations.checking import check_policy, show_contribution, show_needs, show_plan

    document = load_json(file)
    given = {"--sites": sites, "--regions": regions, "--data": data}
    if isinstance(document, dict) and ("aggregator" in document or isinstance(document.get("data"), str)):
        from rankdad.local.config import SiteConfig
        from rankdad.local.drivers.http import NOT_FOUND, RefusedError
        from rankdad.local.taking_part import check_site

        refuse_options(
            {**given, "--set": set_, "--allow-factory": allow_factory, "--weights": weights},
            f"is for a run or a simulation, and {file} is a site's own file: write it there",
        )
        config = SiteConfig.read(file)
        if offline is not None:
            run = RunSpec.read(offline)
            lines = partial(show_needs, console=_wide_console())
            show_contribution(config.name, *check_site(config, run, lines), _wide_console())
            return
        config = config.model_copy(update={"patience": min(config.patience, CHECK_PATIENCE)})
        try:
            check_site(config, show=partial(show_needs, console=_wide_console()))
        except RefusedError as error:
            if error.status != NOT_FOUND:
                raise
            _check_agent(config, error)
        return
    if offline is not None:
        raise UserError(
            f"--offline: {file} is no site's file: name, aggregator, data, output",
            code="option-unused",
            field="--offline",
        )
    from rankdad.common.memory import check_memory
    from rankdad.common.policy import EVERYTHING
    from rankdad.common.protocol.plan import make_plan
    from rankdad.common.run.replica import Replica
    from rankdad.simulations.resolving import with_columns
    from rankdad.simulations.site_folders import identifier_warnings, partitioned_data
    from rankdad.simulations.spec import read_simulation

    document = replace(document, set_ or [])
    if isinstance(document, dict) and "simulation" in document:
        read = with_columns(read_simulation(file, set_ or [], sites=sites, regions=regions, data=data))
        spec, policy = read.run, read.simulation.policy
        with TemporaryDirectory() as folder:
            partitioned = partitioned_data(read, Path(folder))
        sites_data = list(partitioned.values())
        for told in identifier_warnings(spec, partitioned):
            typer.echo(f"warning: {told}")
    else:
        refuse_options(given, f"is for a simulation, which partitions data, and {file} is a run alone: leave it out")
        spec, policy, sites_data = RunSpec.read(file, set_ or []), EVERYTHING, []
    check_memory(spec)
    plan = make_plan(spec, Replica(spec, allow_factory or (), weights=weights).model)
    show_plan(spec, plan, _wide_console(), check_policy(policy, spec, plan, sites_data))


def _check_agent(config: SiteConfig, refusal: RefusedError) -> None:
    """Say that a service knows the site; raise the refusal if no service is there."""
    from rankdad.local.drivers.http import NOT_FOUND, RefusedError
    from rankdad.local.drivers.service import ServiceClient

    try:
        with ServiceClient(config) as service:
            runs = len(service.offers("").runs)
    except RefusedError as error:
        raise (refusal if error.status == NOT_FOUND else error) from None
    found = f"the service at {config.aggregator} knows this site, and has {counted(runs, 'run')} for it"
    typer.echo(f"{config.name}: {found}; start the site with --stay, or check its data with --offline RUN.json")


def verify(
    file: FileArgument,
    sites: SitesOption = None,
    regions: RegionsOption = None,
    data: DataOption = None,
    set_: SetOption = None,
    allow_factory: AllowOption = None,
    weights: WeightsOption = None,
    device: DeviceOption = None,
) -> None:
    """Compare the gradient of each method with autograd's on the pooled batch; fail if an exact method differs."""
    import torch

    from rankdad.simulations.pooling import first_rows
    from rankdad.simulations.resolving import with_columns
    from rankdad.simulations.site_folders import partitioned_data
    from rankdad.simulations.spec import read_simulation
    from rankdad.simulations.verifying import show_verification
    from rankdad.simulations.verifying import verify as run

    read = with_columns(read_simulation(file, set_ or [], sites=sites, regions=regions, data=data, device=device))
    torch.set_num_threads(read.run.training.threads)
    with TemporaryDirectory() as folder:
        rows = first_rows(read.run, partitioned_data(read, Path(folder)))
    verifications, misfits = run(read.run, rows, allow_factory or (), weights, read.simulation.here()[0])
    right = show_verification(read.run, verifications, _wide_console())
    for sentence in misfits:
        typer.echo(sentence)
    if not right:
        raise typer.Exit(FAILED)


def _wide_console() -> Console:
    """Return a console wide enough for tables when the output is not a terminal."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=120)
