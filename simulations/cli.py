"""Commands of the simulator: `rankdad init`, `rankdad simulate`, `rankdad split`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankdad.command import ColumnsOption, DeviceOption, LogJson, Quiet, Verbose, is_launched, list_of, refuse_options
from rankdad.common.errors import UserError, visible
from rankdad.common.files import write_whole
from rankdad.common.logs import MAX_LINE, LogOptions, set_up
from rankdad.simulations.cli_checks import check, verify
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
    from rankdad.common.spec import RunSpec
    from rankdad.simulations.spec import SimulationFile, SimulationSpec

MAX_SITES = 10  # whose logs are looked at
WARNED = " WARNING "  # in a line of a log
EVENED = "(min_level)"  # what a policy evens out is usual, and the run's own warnings have it


def mount(app: typer.Typer) -> None:
    """Add this folder's commands."""
    app.command()(simulate)
    app.command()(split)
    app.command()(check)
    app.command()(verify)
    app.command()(init)


def simulate(
    file: Annotated[Path | None, typer.Argument(metavar="FILE.json", help="Spec of a run and its simulation.")] = None,
    sites: SitesOption = None,
    regions: RegionsOption = None,
    output: Annotated[Path | None, typer.Option(help="Directory of the run; by default runs/NAME-TIME.")] = None,
    data: DataOption = None,
    set_: SetOption = None,
    allow_factory: AllowOption = None,
    weights: WeightsOption = None,
    lockstep: Annotated[bool, typer.Option("--lockstep", help="Run all sites in one process, in turn.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print only the summary, as JSON.")] = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Resume the interrupted run in this directory.")
    ] = None,
    ledger: Annotated[bool, typer.Option("--ledger", help="Record every round, so that --resume works.")] = False,
    device: DeviceOption = None,
    pooled: Annotated[
        bool, typer.Option("--pooled", help="Train on the pooled data of all sites, for comparison.")
    ] = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    log_json: LogJson = False,
) -> None:
    """Train one model across simulated sites, one process per site on this machine, or on the ranks of torchrun."""
    logs = LogOptions.of(verbose=verbose, quiet=quiet, as_json=log_json)
    set_up(logs)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads would not survive the fork
    from rankdad.simulations.resolving import with_columns
    from rankdad.simulations.spec import read_simulation

    factories = tuple(allow_factory or ())
    reading = partial(read_simulation, sites=sites, regions=regions, data=data, weights=weights, device=device)
    place = partial(_new_directory, output)
    if is_launched():
        from rankdad.simulations.cluster import simulate as over_ranks

        alone = {"--resume": resume, "--ledger": ledger, "--pooled": pooled}
        read_here = partial(_for_ranks, reading, file, set_ or [], [option for option, given in alone.items() if given])
        outcome = over_ranks(file, read_here, place, factories, json_output=json_, quiet=quiet)
        if outcome is not None:  # at rank 0
            _show(*outcome, json_=json_)
        return
    if resume is not None:
        given: dict[str, object] = {
            "FILE.json": file,
            "--output": output,
            "--sites": sites,
            "--regions": regions,
            "--data": data,
        }
        given |= {"--set": set_, "--lockstep": lockstep, "--device": device, "--pooled": pooled}
        refuse_options(
            {**given, "--weights": weights}, "--resume goes on with a run as it was: leave one of the two out"
        )
        read, directory = _cut_short(resume), resume
    elif file is None:
        raise UserError("FILE.json is missing: a run and its simulation, or --resume DIR", code="file-needed")
    else:
        if lockstep or pooled:
            one = "--lockstep" if lockstep else "--pooled"
            refuse_options(
                {"--ledger": ledger}, f"a run with {one} cannot go on after it was cut short: leave one of the two out"
            )
        if pooled:
            refuse_options(
                {"--lockstep": lockstep, "--regions": regions},
                "--pooled trains one site alone, which has all data: leave one of the two out",
            )
        read = with_columns(reading(file, set_ or []))
        directory = place(read.run)
    if sites is not None and file is not None and not json_:
        before = len(read_simulation(file, set_ or [], data=data).run.federation.sites)
        typer.echo(_changed_batch(read.run, before))
    if lockstep or pooled:
        from rankdad.simulations.lockstep import simulate as in_lockstep

        summary = in_lockstep(read, directory, factories, json_output=json_, pooled=pooled, quiet=quiet)
    else:
        from rankdad.remote.persistence import LedgerOptions
        from rankdad.simulations.simulator import simulate as run

        summary = run(
            read,
            directory,
            allow_factories=factories,
            json_output=json_,
            ledger=LedgerOptions() if ledger or resume is not None or _needs_ledger(read.run) else None,
            resume=resume is not None,
            logs=logs,
        )
    _show(read.run, directory, summary, json_=json_)


def _show(run: RunSpec, directory: Path, summary: dict[str, Any], *, json_: bool) -> None:
    """Print a run's result."""
    from rankdad.remote.report.result_lines import show_result

    if json_:
        typer.echo(json.dumps(summary, indent=2))
    else:
        show_result(summary, directory, run)
        for line in _warned(directory, run.federation.sites):
            typer.echo(line)


def _warned(directory: Path, sites: Sequence[str]) -> Iterator[str]:
    """Yield the first warning that is in the log of each site's process: it is not sent to the aggregator."""
    logs = {site: directory / "sites" / site / "log.txt" for site in sites[:MAX_SITES]}
    for site, log in ((site, log) for site, log in logs.items() if log.is_file()):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        own = [line.split(WARNED, 1)[1] for line in lines if WARNED in line and EVENED not in line]
        if found := list(dict.fromkeys(line.partition(": ")[2] for line in own)):
            more = f" ({len(found) - 1} more in {log})" * (len(found) > 1)
            yield visible(f"note:    {site}: {found[0]}{more}", MAX_LINE)


def _new_directory(output: Path | None, run: RunSpec) -> Path:
    return output or Path("runs") / f"{run.name}-{datetime.now():%Y%m%d-%H%M%S}"


def _for_ranks(
    reading: Callable[[Path, list[str]], SimulationFile], file: Path | None, assignments: list[str], options: list[str]
) -> SimulationFile:
    """Read a simulation that runs over torchrun's processes.

    Raises:
        UserError: it cannot be read, or is one that cannot.
    """
    if file is None:
        raise UserError("FILE.json is missing: a run and its simulation", code="file-needed")
    if options:
        raise UserError(
            f"{options[0]}: torchrun's ranks train in lockstep, which has none: leave one of the two out",
            code="options-exclude",
        )
    return reading(file, assignments)


def _needs_ledger(spec: RunSpec) -> bool:
    """Tell whether sites may be late: they catch up from the ledger."""
    return spec.federation.required_sites < len(spec.federation.sites)


def _cut_short(directory: Path) -> SimulationFile:
    """Return the simulation that a directory holds, if it can go on."""
    from rankdad.common.documents import load_json, validate
    from rankdad.remote.run_reader import FILE
    from rankdad.simulations.simulator import SIMULATION
    from rankdad.simulations.spec import SimulationFile

    for name in (SIMULATION, FILE):
        if not (directory / name).exists():
            raise UserError(
                f"{directory}: holds no run that could go on: no {name}; was it made with --ledger?", code="no-run"
            )
    summary = directory / "summary.json"  # which a disk that is full may have kept out
    if summary.exists() and load_json(summary)["status"] == "completed":
        raise UserError(f"{directory}: its run is complete", code="run-complete")
    return validate(SimulationFile, load_json(directory / SIMULATION), file=directory / SIMULATION)


def split(
    file: FileArgument,
    output: Annotated[Path, typer.Option(help="Folder for the sites' files.")],
    aggregator: Annotated[str, typer.Option(help="Address of the aggregator.")] = "http://127.0.0.1:8765",
    sites: SitesOption = None,
    data: DataOption = None,
    set_: SetOption = None,
) -> None:
    """Write the data and the SITE.json of each site, to start the aggregator and the sites by hand."""
    from rankdad.common.policy import FILE
    from rankdad.simulations.site_folders import write_sites
    from rankdad.simulations.spec import read_simulation

    read = read_simulation(file, set_ or [], sites=sites, data=data)
    taken = [path for name in read.run.federation.sites if (path := output / f"{name}.json").exists()]
    if taken:
        raise UserError(
            f"{taken[0]}: already there; choose another --output or remove it", code="already-there", field="--output"
        )
    notes = _as_simulated(read.simulation)
    for name, config in write_sites(read, output, aggregator).items():
        places = {"data": os.path.relpath(config.data, output), "output": name, "policy": f"{name}/{FILE}"}
        places |= {"privacy": f"{name}/privacy"}
        document = config.model_dump(mode="json", exclude_defaults=True) | places
        path = output / f"{name}.json"
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        if notes:
            (output / name / "README.txt").write_text("\n\n".join(notes) + "\n", encoding="utf-8")
        typer.echo(str(path))
    for note in notes:
        typer.echo(f"note: {note}")
    if read.run.federation.regions:
        typer.echo("note: every SITE.json names this aggregator; change it to the region's for the sites of a region")


def _as_simulated(simulation: SimulationSpec) -> list[str]:
    """Return notes on a simulation's settings that a hospital with real data should not take over."""
    from rankdad.common.policy import FILE

    notes = list[str]()
    if others := simulation.policy.others():
        lines = ", ".join(f"{line} {json.dumps(own)} ({json.dumps(usual)})" for line, (own, usual) in others.items())
        notes.append(f"{FILE} is the simulation's policy and differs from the default (in brackets): {lines}")
    if not simulation.policy.keyed_folds:
        notes.append("the secret in privacy is derived from the simulation's file: that file reveals the parts")
    return [*notes, "for data of real patients, create kits with `rankdad provision`"] if notes else []


def init(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A table, or a folder with one table or one folder per hospital.")
    ],
    label: Annotated[list[str], typer.Option(help="Name of the column to predict.")],
    output: Annotated[Path, typer.Option(metavar="RUN.json", help="File to write.")],
    positive: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="Rule for the positive class of a numeric label, such as '> 0'."),
    ] = None,
    columns: ColumnsOption = None,
    categorical: Annotated[
        str | None, typer.Option(metavar="A,B", help="Columns whose whole numbers are codes, not amounts.")
    ] = None,
    exclude: Annotated[str | None, typer.Option(metavar="A,B", help="Columns to leave out.")] = None,
    decimal: Annotated[
        str | None, typer.Option(metavar="MARK", help="Decimal mark, '.' or ',', for tables where it is ambiguous.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace RUN.json if it is there.")] = False,
) -> None:
    """Write a first spec for existing tables, and list the guesses in it."""
    from rankdad.common.documents import validate
    from rankdad.common.spec.written import Written
    from rankdad.simulations.first_spec import first_spec, written

    if len(label) > 1:
        text = f"is given {len(label)} times, expected one column: of several, write data.label as a list by hand"
        raise UserError(f"--label: {text}, with the task multi-label", code="option-repeated", field="--label")
    if output.exists() and not force:
        text = "is there already; --force replaces it, or choose another --output"
        raise UserError(f"--output: {output} {text}", code="output-exists", field="--output")
    known = {"columns": list_of(columns), "decimal": decimal}
    document = first_spec(
        data,
        label[0],
        positive,
        categorical=list_of(categorical),
        exclude=list_of(exclude),
        written=validate(Written, known),
    )
    write_whole(output, written(document), field="--output")
    for note in document["notes"]:
        typer.echo(f"note: {visible(note, 500)}")
    typer.echo(f"{output} is written; read it, then run: rankdad simulate {output}")


def _changed_batch(spec: RunSpec, before: int) -> str:
    """Say what another number of sites does to the global batch and the learning rate."""
    from rankdad.common.run.optimizer import lr_scale

    training, sites = spec.training, len(spec.federation.sites)
    rates = [training.optimizer.lr * lr_scale(training, count) for count in (before, sites)]
    change = f"{rates[1]:g} instead of {rates[0]:g}" if rates[1] != rates[0] else f"still {rates[1]:g}"
    return (
        f"{sites} sites instead of {before}: a global batch of {sites * training.step_size} samples instead of "
        f"{before * training.step_size}; learning rate {change} (training.lr_scaling: {training.lr_scaling})"
    )
