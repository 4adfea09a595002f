"""Commands of the simulator: `rankdad simulate`, `rankdad split`, `rankdad bench`."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulations.bench.cli import bench

if TYPE_CHECKING:
    from simulations.spec import SimulationFile

FileArgument = Annotated[Path, typer.Argument(metavar="FILE.json", help="A run and its simulation.")]
SitesOption = Annotated[int | None, typer.Option(min=1, max=1000, help="Number of sites, in place of the file's.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=JSON", help="Replace a value of the file.")]
DataOption = Annotated[Path | None, typer.Option(help="The source's data file, in place of the file's own path.")]
AllowOption = Annotated[
    list[str] | None, typer.Option("--allow-factory", help="Permit a model factory 'package.module:function'.")
]


def mount(app: typer.Typer) -> None:
    """Add this folder's commands."""
    app.command()(simulate)
    app.command()(split)
    app.command()(check)
    app.command()(verify)
    app.add_typer(bench, name="bench")


def simulate(
    file: FileArgument,
    sites: SitesOption = None,
    output: Annotated[Path | None, typer.Option(help="The run's directory; runs/NAME-TIME without it.")] = None,
    data: DataOption = None,
    set_: SetOption = None,
    allow_factory: AllowOption = None,
    lockstep: Annotated[bool, typer.Option("--lockstep", help="All in one process, one after the other.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
) -> None:
    """Train one model across sites on this machine, each a process of its own."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads would not survive the fork
    from simulations.spec import read_simulation

    read = read_simulation(file, set_ or [], sites=sites, data=data)
    directory = output or Path("runs") / f"{read.run.name}-{datetime.now():%Y%m%d-%H%M%S}"
    if sites is not None and not json_:
        batch = read.run.training.batch_size
        typer.echo(f"{sites} sites of {batch} samples: the global batch is {sites * batch}")
    if lockstep:
        summary = _lockstep(read, directory, tuple(allow_factory or ()))
    else:
        from simulations.simulator import simulate as run

        summary = run(read, directory, allow_factories=tuple(allow_factory or ()), json_output=json_)
    if json_:
        typer.echo(json.dumps(summary, indent=2))
    else:
        _show(summary, directory)


def split(
    file: FileArgument,
    output: Annotated[Path, typer.Option(help="Folder for the sites' parts.")],
    aggregator: Annotated[str, typer.Option(help="The aggregator's address.")] = "http://127.0.0.1:8765",
    sites: SitesOption = None,
    data: DataOption = None,
    set_: SetOption = None,
) -> None:
    """Write each site's data and its SITE.json, to start aggregator and sites by hand."""
    from simulations.spec import read_simulation, write_sites

    read = read_simulation(file, set_ or [], sites=sites, data=data)
    for name, config in write_sites(read, output, aggregator).items():
        document = config.model_dump(mode="json", exclude_defaults=True) | {"data": f"{name}/data", "output": name}
        path = output / f"{name}.json"
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        typer.echo(str(path))


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE.json", help="A run, a simulation, or a site's file.")],
    sites: SitesOption = None,
    data: DataOption = None,
    set_: SetOption = None,
    allow_factory: AllowOption = None,
) -> None:
    """Validate a file, and print what would be sent; for a site's file, reach its aggregator."""
    from rich.console import Console

    from common.plan import make_plan
    from common.replica import Replica
    from common.spec import RunSpec, load_json, replace, validate
    from simulations.checking import show_plan
    from simulations.spec import read_simulation

    console = Console()
    document = replace(load_json(file), set_ or [])
    if isinstance(document, dict) and "aggregator" in document:
        from local.config import SiteConfig
        from local.site import check_site

        check_site(SiteConfig.read(file))
        return
    if isinstance(document, dict) and "simulation" in document:
        spec = read_simulation(file, set_ or [], sites=sites, data=data).run
    else:
        spec = validate(RunSpec, document, file=file)
    show_plan(spec, make_plan(spec, Replica(spec, allow_factory or ()).model), console)


def verify(
    file: FileArgument,
    sites: SitesOption = None,
    data: DataOption = None,
    set_: SetOption = None,
    allow_factory: AllowOption = None,
) -> None:
    """Compare each method's gradient of a batch per site with autograd's of the pooled batch; fail if it is inexact."""
    import tempfile

    import torch
    from rich.console import Console

    from local.data import read_site
    from simulations.checking import show_verification
    from simulations.checking import verify as run
    from simulations.spec import read_simulation, write_sites

    read = read_simulation(file, set_ or [], sites=sites, data=data)
    torch.set_num_threads(read.run.training.threads)
    with tempfile.TemporaryDirectory() as folder:
        configs = write_sites(read, Path(folder), "http://127.0.0.1:0")
        batches = {n: read_site(read.run, Path(c.data), i).train for i, (n, c) in enumerate(configs.items())}
    if not show_verification(read.run, run(read.run, batches, allow_factory or ()), Console()):
        raise typer.Exit(1)


def _lockstep(read: SimulationFile, directory: Path, allow_factories: tuple[str, ...]) -> dict[str, Any]:
    import torch

    from local.data import read_site
    from remote.recorder import new_directory
    from simulations.lockstep import run
    from simulations.spec import write_sites

    torch.set_num_threads(read.run.training.threads)
    new_directory(directory)
    configs = write_sites(read, directory / "sites", "http://127.0.0.1:0")
    data = {name: read_site(read.run, Path(c.data), i) for i, (name, c) in enumerate(configs.items())}
    run(read.run, data, directory, allowed_factories=allow_factories, device=read.simulation.device)
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    return summary


def _show(summary: dict[str, Any], directory: Path) -> None:
    """Print a run's result in a few lines."""
    from remote.view import size

    test = summary["metrics"]["test"] or {}
    equal = len(set(summary["weights_sha256"].values())) == 1
    typer.echo(
        f"\n{summary['method']}, {len(summary['sites'])} sites, {summary['steps']} steps, {summary['epochs']} epochs, "
        f"best epoch {summary['best_epoch'] + 1}, {summary['seconds']:.1f} s"
    )
    if test.get("auc") is not None:
        typer.echo(
            f"test:    AUC {test['auc']:.5f} (± {test['auc_error']:.0e} from binning), "
            f"accuracy {test['accuracy']:.4f}, loss {test['loss']:.4f}, {test['samples']} samples"
        )
    up, down = summary["bytes_up_per_site_step"], summary["bytes_down_per_site_step"]
    ratio = summary["times_fewer_bytes_than_dense"] or 0.0
    typer.echo(
        f"traffic: {size(up)} up, {size(down)} down per site and step, {ratio:.1f} times fewer than full gradients"
    )
    digest = next(iter(summary["weights_sha256"].values()), "")
    typer.echo(f"weights: {'equal at all sites' if equal else 'DIFFERENT between sites'}, sha256 {digest[:16]}…")
    typer.echo(f"output:  {directory} (rankdad predict {directory} DATA.npz)")
