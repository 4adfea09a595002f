"""Commands of the aggregator: `rankdad aggregator`, `export`, `report`, `compare`, `provision` and `forget`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankdad.command import DeviceOption, LogJson, Quiet, Verbose, refuse_options
from rankdad.common.errors import FAILED, UserError, counted, visible
from rankdad.common.files import cannot_write
from rankdad.common.logs import LogOptions, set_up
from rankdad.remote import options
from rankdad.remote.records import Retention
from rankdad.remote.service.cli import serve


def mount(app: typer.Typer) -> None:
    """Add this folder's commands."""
    app.command()(aggregator)
    app.command()(export)
    app.command()(tables)
    app.command("check-run")(check_run)
    app.command()(report)
    app.command()(compare)
    app.command()(provision)
    app.command()(forget)
    app.command()(serve)


def aggregator(
    file: Annotated[Path, typer.Argument(metavar="RUN.json", help="Spec of the run, alone or under the key 'run'.")],
    output: Annotated[Path, typer.Option(help="Directory of the run.")],
    host: options.Host = "127.0.0.1",
    port: options.Port = 8765,
    behind: options.Socket = None,
    exposed: options.Exposed = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=JSON", help="Replace a value of the file.")
    ] = None,
    allow_factory: options.Factories = None,
    weights: options.Weights = None,
    retention: options.Kept = Retention.ALL,
    tokens: options.Tokens = None,
    viewers: Annotated[
        Path | None,
        typer.Option(help="File with the hashed tokens of the live page's viewers; by default one token in DIR."),
    ] = None,
    tls_cert: options.Certificate = None,
    tls_key: options.Key = None,
    client_ca: options.Authority = None,
    allow_plain_http: options.Plain = False,
    allow_anyone: options.Anyone = False,
    upstream: Annotated[
        str | None,
        typer.Option(metavar="URL|SITE.json", help="For a region: address or SITE.json of the aggregator above it."),
    ] = None,
    region: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the region to aggregate.")] = None,
    device: DeviceOption = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    log_json: LogJson = False,
) -> None:
    """Run the aggregator of one run, until the run has ended."""
    from rankdad.common.documents import load_json
    from rankdad.common.spec import RunSpec
    from rankdad.common.spec.tree import TOP

    set_up(LogOptions.of(verbose=verbose, quiet=quiet, as_json=log_json))
    spec = RunSpec.read(file, set_ or [])
    from rankdad.common.terminal import console_here
    from rankdad.page.viewers import VIEWER_TOKEN
    from rankdad.remote.beginning import Options
    from rankdad.remote.config import Access
    from rankdad.remote.persistence import LedgerOptions
    from rankdad.remote.process import run_aggregator
    from rankdad.remote.report.result_lines import show_result
    from rankdad.remote.run_directory import own_directory
    from rankdad.remote.run_reader import FILE
    from rankdad.remote.server import opened
    from rankdad.remote.upstream import above, check_not_here

    access = Access(
        host, tls_cert, tls_key, client_ca, tokens, allow_plain_http, allow_anyone, viewers, behind, exposed=exposed
    )
    config = None
    if upstream is not None:
        config = above(upstream, region, spec.federation, output, allow_plain_http=allow_plain_http)
    elif region is not None:
        raise UserError(
            "--region: --upstream is missing: the address of the aggregator above",
            code="upstream-missing",
            field="--upstream",
        )
    access.check(spec.federation.nodes[config.name if config else TOP].children)
    of_run = Options(allow_factory or (), weights, LedgerOptions(retention), device or "cpu")
    begins, owner = not (output / FILE).exists(), config.name if config else TOP
    with own_directory(output, owner, new=begins), opened(access, port) as (listening, url):
        if config is not None and behind is None:
            check_not_here(config.aggregator, listening.getsockname()[1])
        typer.echo(f"listening on {url}; the run's directory is {output}")
        lookers, where = access.viewers_in(output), viewers or output / VIEWER_TOKEN
        page = f"{url}/page/" if behind is None else "/page/ at the proxy's address"
        typer.echo(f"the live page: {page}, with a token from {where}")
        console = console_here(quiet=quiet)
        run_aggregator(spec, output, listening, console, of_run, access, upstream=config, viewers=lookers)
    show_result(load_json(output / "summary.json"), output, spec)


def export(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Directory of a run; with --onnx or --torch, any MODEL of `predict`."),
    ],
    output: Annotated[Path, typer.Option(help="Folder for the model.")],
    step: Annotated[
        int | None, typer.Option(help="Step to rebuild from the ledger; by default the last one.", min=1)
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write the trained model and its preparation as model.onnx.")
    ] = False,
    torch: Annotated[
        bool, typer.Option("--torch", help="Write the trained model and its preparation as model.pt2 (torch.export).")
    ] = False,
    final: Annotated[bool, typer.Option("--final", help="Use the last weights instead of the best.")] = False,
    allow_factory: options.Factories = None,
    weights: options.Weights = None,
) -> None:
    """Rebuild the model of any step from the ledger, or export a trained model for other programs."""
    source, of_ledger = directory, step is not None or not (onnx or torch)
    if not of_ledger:
        refuse_options({"--weights": weights}, "is of the ledger's model: give --step, or leave it out")
    else:
        refuse_options({"--final": final}, "is of --onnx and --torch without --step: the ledger has every step's model")
        from rankdad.remote.export import export as run

        state = run(directory, step, output, allow_factory or (), weights)
        digest = state.replica.digest()[:16]
        typer.echo(f"the model after step {state.steps} is in {output / 'model'}, sha256 {digest}…")
        source = output
    if onnx or torch:
        from rankdad.common.run.saved import saved_model
        from rankdad.common.run.standalone import ONNX, TORCH, save_onnx, save_torch

        model = saved_model(source, "final" if final else "best", allow_factory or ())
        for wanted, save, ending in ((onnx, save_onnx, ONNX), (torch, save_torch, TORCH)):
            if wanted:
                save(model, output / f"model{ending}")
                typer.echo(f"{output / f'model{ending}'}: {model.source}, and what prepares its inputs")


def tables(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a run; it may still be running.")],
    output: Annotated[Path | None, typer.Option(help="Folder for the tables; by default DIR.")] = None,
) -> None:
    """Write the current tables of a run: steps.csv, metrics.csv, spectra.csv."""
    from rankdad.common.files import make_folder
    from rankdad.remote.run_reader import reading
    from rankdad.remote.tables import write_tables

    with reading(directory) as file:
        for path in write_tables(file, make_folder(output or directory)):
            typer.echo(f"made {path}")


def check_run(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a run; it may still be running.")],
) -> None:
    """Check the files that a run resumes from, and list damaged and missing ones."""
    from rankdad.remote.check_run import faults_of

    faults, seen = faults_of(directory)
    for fault in faults:
        typer.echo(fault, err=True)
    if faults:
        raise UserError(f"{directory}: {counted(len(faults), 'fault')}", code="run-damaged", file=directory)
    typer.echo(f"{directory}: nothing is damaged or missing: {seen}")


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a run.")],
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="File to write; by default DIR/report.html.")
    ] = None,
) -> None:
    """Write the report of a run as an HTML page."""
    from rankdad.remote.report.run_report import NO_PLOTS, plotter
    from rankdad.remote.report.run_report import report as run

    page, path = run(directory), output or directory / "report.html"
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise cannot_write(path, error) from None
    if plotter() is None:
        typer.echo(f"the report has no figures: {NO_PLOTS}", err=True)
    typer.echo(f"made {path}")


def compare(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR DIR …", help="Directories of the runs.")],
    html: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Also write an HTML page.")] = None,
) -> None:
    """Compare the results of several runs."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from rankdad.remote.report.compare import LEGEND, page
    from rankdad.remote.report.compare import compare as run

    found, runs = run(directories)
    shown = Table(box=box.SIMPLE_HEAD)
    for name in found.head:
        shown.add_column(Text(visible(name)), justify="right" if name else "left", overflow="fold")
    for row in found.rows:
        shown.add_row(*(Text(visible(cell)) for cell in row))
    Console().print(shown)
    typer.echo(LEGEND)
    if html is not None:
        try:
            html.write_text(page(found, runs), encoding="utf-8")
        except OSError as error:
            raise cannot_write(html, error, "--html") from None
        typer.echo(f"made {html}")


def provision(
    file: Annotated[
        Path, typer.Argument(metavar="CONSORTIUM.json", help="Consortium: name, aggregator's address, members.")
    ],
    output: Annotated[Path, typer.Option(help="Folder for the start kits.")],
    add: Annotated[str | None, typer.Option(metavar="NAME", help="Create only the kit of this new member.")] = None,
    renew: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Replace only this member's certificate and token."),
    ] = None,
) -> None:
    """Create certificates, tokens and a start kit for each site, owner and viewer."""
    from rankdad.common.documents import load_json, validate
    from rankdad.remote.consortium import Consortium
    from rankdad.remote.provision import Kits

    kits = Kits(validate(Consortium, load_json(file), file=file), output)
    for path in kits.make() if add is None and renew is None else kits.change(add, renew):
        typer.echo(f"made {path}")
    if add is not None:
        typer.echo(f"restart the service with the files in {output / 'aggregator'}, so that it knows {add}")
    typer.echo(f"send each member its folder over a secure channel, and keep {output / 'ca'} secret")


def forget(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a run or of a service.")],
    site: Annotated[str | None, typer.Argument(metavar="SITE", help="Site that leaves; by default all.")] = None,
    log: Annotated[
        bool,
        typer.Option("--log", help="Instead let the site begin a new disclosure log, because it lost the old one."),
    ] = False,
) -> None:
    """Delete a site's contributions to ended runs, and list what cannot be deleted."""
    if log:
        from rankdad.remote.known_logs import KnownLogs

        if site is None:
            raise UserError("--log: applies to one site: name it", code="option-unused", field="--log")
        KnownLogs(directory).forget(site)
        typer.echo(f"{site} may begin a new log here; it no longer counts earlier disclosures, so inform the site")
        return
    from rankdad.remote.retention import forget_all

    found = forget_all(directory, site)
    for run, outcome in found.items():
        if isinstance(outcome, UserError):
            typer.echo(f"{run}: nothing was deleted: {visible(str(outcome))}", err=True)
            continue
        known, anew = outcome
        names = known.sites if site is None else {site: known.receipt(site)}
        count, size = sum(one.contributions for one in names.values()), sum(one.bytes for one in names.values())
        text = f"{count:,} contributions of {site or 'all sites'}"
        typer.echo(f"{run}: {text} {'are' if anew else 'were already'} deleted, {size:,} bytes, {known.time}")
    typer.echo(
        "not deleted: the model and the updates, computed from sums that include these contributions; summary.json, "
        "the tables and the report, with figures by site; copies in backups and at other members"
    )
    if any(isinstance(outcome, UserError) for outcome in found.values()):
        raise typer.Exit(FAILED)
