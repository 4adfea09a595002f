"""Commands of the aggregator: `rankdad aggregator`, `export`, `report`, `compare`, `provision` and `forget`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rankdad.command import DeviceOption, LogJson, Quiet, Verbose, refuse_options
from rankdad.common.errors import FAILED, UserError, counted, visible
from rankdad.common.files import cannot_write
from rankdad.common.logs import LogOptions, set_up
from rankdad.remote.options import ExposedOption, SocketOption
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
    file: Annotated[Path, typer.Argument(metavar="RUN.json", help="The run's spec, alone or under the key 'run'.")],
    output: Annotated[Path, typer.Option(help="The run's directory.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8765,
    behind: SocketOption = None,
    exposed: ExposedOption = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=JSON", help="Replace a value of the file.")
    ] = None,
    allow_factory: Annotated[
        list[str] | None, typer.Option("--allow-factory", help="Permit a model factory 'package.module:function'.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Folder of pretrained weights that the spec names.")] = None,
    retention: Annotated[
        Retention, typer.Option(help="Of the run's file: 'all' updates, or the 'tail' since the last checkpoints.")
    ] = Retention.ALL,
    tokens: Annotated[Path | None, typer.Option(help="File of the sites' hashed tokens.")] = None,
    viewers: Annotated[
        Path | None,
        typer.Option(help="File of the hashed tokens of who may see the live page; without it DIR has one token."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="The aggregator's certificate, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option("--client-ca", help="Ask sites for a certificate made by this authority.")
    ] = None,
    allow_plain_http: Annotated[
        bool, typer.Option("--allow-plain-http", help="Let others than this machine connect without TLS.")
    ] = False,
    allow_anyone: Annotated[
        bool,
        typer.Option("--allow-anyone", help="Let others take part without proof of who they are."),
    ] = False,
    upstream: Annotated[
        str | None,
        typer.Option(metavar="URL|SITE.json", help="Of a region: the aggregator above it, or the file that names it."),
    ] = None,
    region: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which region of the run this is the aggregator of.")
    ] = None,
    device: DeviceOption = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    log_json: LogJson = False,
) -> None:
    """Collect, reduce and broadcast what the sites send, until the run has ended."""
    from rankdad.common.documents import load_json
    from rankdad.common.spec import RunSpec
    from rankdad.common.spec.tree import TOP

    set_up(LogOptions.of(verbose=verbose, quiet=quiet, as_json=log_json))
    spec = RunSpec.read(file, set_ or [])
    from rankdad.common.terminal import console_here
    from rankdad.page.viewers import VIEWER_TOKEN
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
    kept = LedgerOptions(retention)
    run = partial(run_aggregator, ledger=kept, access=access, weights=weights, upstream=config, device=device or "cpu")
    begins, owner = not (output / FILE).exists(), config.name if config else TOP
    with own_directory(output, owner, new=begins), opened(access, port) as (listening, url):
        if config is not None and behind is None:
            check_not_here(config.aggregator, listening.getsockname()[1])
        typer.echo(f"listening on {url}; the run's directory is {output}")
        lookers, where = access.viewers_in(output), viewers or output / VIEWER_TOKEN
        page = f"{url}/page/" if behind is None else "/page/ at the proxy's address"
        typer.echo(f"the live page: {page}, for those with a token of {where}")
        run = partial(run, viewers=lookers)
        run(spec, output, listening, console_here(quiet=quiet), allow_factory or ())
    show_result(load_json(output / "summary.json"), output, spec)


def export(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run's directory; with --onnx or --torch what `predict` takes, too.")
    ],
    output: Annotated[Path, typer.Option(help="Folder for the model.")],
    step: Annotated[
        int | None, typer.Option(help="Which step's model, from the ledger; the last one's without it.", min=1)
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write model.onnx, with the preparation inside, of the finished model.")
    ] = False,
    torch: Annotated[
        bool, typer.Option("--torch", help="Write model.pt2, likewise, for torch.export.load: no code of ours in it.")
    ] = False,
    final: Annotated[bool, typer.Option("--final", help="Of the last weights instead of the best.")] = False,
    allow_factory: Annotated[
        list[str] | None, typer.Option("--allow-factory", help="Permit a model factory 'package.module:function'.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Folder of pretrained weights that the spec names.")] = None,
) -> None:
    """Rebuild the model of any step from a run's ledger, or write a trained model as one file for other programs."""
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
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory; the run may go on.")],
    output: Annotated[Path | None, typer.Option(help="Folder for the tables; DIR without it.")] = None,
) -> None:
    """Write a run's tables as they stand: steps.csv, metrics.csv, spectra.csv."""
    from rankdad.common.files import make_folder
    from rankdad.remote.run_reader import reading
    from rankdad.remote.tables import write_tables

    with reading(directory) as file:
        for path in write_tables(file, make_folder(output or directory)):
            typer.echo(f"made {path}")


def check_run(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory; the run may go on.")],
) -> None:
    """Read all that a run goes on from, and list what is damaged or missing."""
    from rankdad.remote.check_run import faults_of

    faults, seen = faults_of(directory)
    for fault in faults:
        typer.echo(fault, err=True)
    if faults:
        raise UserError(f"{directory}: {counted(len(faults), 'fault')}", code="run-damaged", file=directory)
    typer.echo(f"{directory}: nothing is damaged or missing: {seen}")


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory.")],
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="The page; DIR/report.html without it.")
    ] = None,
) -> None:
    """Make a page about a run, to keep and to print."""
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
    directories: Annotated[list[Path], typer.Argument(metavar="DIR DIR …", help="The runs' directories.")],
    html: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Make a page of it, too.")] = None,
) -> None:
    """Show runs side by side."""
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
    file: Annotated[Path, typer.Argument(metavar="CONSORTIUM.json", help="Name, aggregator's address and sites.")],
    output: Annotated[Path, typer.Option(help="Folder for the start kits.")],
    add: Annotated[str | None, typer.Option(metavar="NAME", help="Only make the kit of a new member.")] = None,
    renew: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only replace a member's certificate and token."),
    ] = None,
) -> None:
    """Make certificates, tokens and a start kit for each site, owner and viewer."""
    from rankdad.common.documents import load_json, validate
    from rankdad.remote.consortium import Consortium
    from rankdad.remote.provision import Kits

    kits = Kits(validate(Consortium, load_json(file), file=file), output)
    for path in kits.make() if add is None and renew is None else kits.change(add, renew):
        typer.echo(f"made {path}")
    if add is not None:
        typer.echo(f"a service knows {add} once it is started again with what is in {output / 'aggregator'} now")
    typer.echo(f"give every member its folder over a safe channel, and keep {output / 'ca'} to yourself")


def forget(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory, or a service's.")],
    site: Annotated[str | None, typer.Argument(metavar="SITE", help="Who leaves; all without it.")] = None,
    log: Annotated[
        bool, typer.Option("--log", help="Forget how far its log had come instead: its newest copy is lost for good.")
    ] = False,
) -> None:
    """Delete what a site has sent to runs that are over, and say what of it stays in them."""
    if log:
        from rankdad.remote.known_logs import KnownLogs

        if site is None:
            raise UserError("--log: is of one site: name it", code="option-unused", field="--log")
        KnownLogs(directory).forget(site)
        typer.echo(f"{site} may begin a new log here: what left before and what leaves then add up, so tell its people")
        return
    from rankdad.remote.retention import forget_all

    found = forget_all(directory, site)
    for run, outcome in found.items():
        if isinstance(outcome, UserError):
            typer.echo(f"{run}: nothing is deleted: {visible(str(outcome))}", err=True)
            continue
        names = outcome.sites if site is None else {site: outcome.receipt(site)}
        count, size = sum(one.contributions for one in names.values()), sum(one.bytes for one in names.values())
        whose = site or "all sites"
        typer.echo(f"{run}: {count:,} contributions of {whose} are deleted, {size:,} bytes, {outcome.time}")
    typer.echo(
        "what stays: the model and every update, which were made from sums with these contributions in them; "
        "summary.json, the tables and the report, with figures by site; what backups and other members have"
    )
    if any(isinstance(outcome, UserError) for outcome in found.values()):
        raise typer.Exit(FAILED)
