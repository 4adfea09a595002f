"""Commands of a site: `rankdad site`, `policy`, `predict`, `resolve`, `describe`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from rankdad.command import ColumnsOption, LogJson, Quiet, Verbose, is_launched, list_of, refuse_options
from rankdad.common.errors import PARTLY, UserError
from rankdad.common.files import cannot_write, keep_private, write_whole
from rankdad.common.logs import LogOptions, set_up
from rankdad.local.agent.cli import approve, refuse
from rankdad.local.owner import ask, cancel, fetch, logs, runs, submit
from rankdad.local.privacy.cli import disclosures, privacy, purge

AllowFactory = Annotated[
    list[str] | None,
    typer.Option("--allow-factory", help="Allow the model factory 'package.module:function'; read its code first."),
]
SiteFile = Annotated[Path, typer.Argument(metavar="SITE.json", help="Configuration of the site.")]

policy = typer.Typer(help="Create the policy that limits what studies may do with a site's data.", no_args_is_help=True)


def mount(app: typer.Typer) -> None:
    """Add this folder's commands."""
    app.command()(site)
    app.command()(approve)
    app.command()(refuse)
    for command in (ask, submit, runs, logs, cancel, fetch):
        app.command()(command)
    app.command()(disclosures)
    app.command()(purge)
    app.add_typer(privacy, name="privacy")
    app.add_typer(policy, name="policy")
    app.command()(predict)
    app.command()(resolve)
    app.command()(describe)


def site(
    file: SiteFile,
    patience: Annotated[
        float | None, typer.Option(help="Seconds to retry an aggregator that does not answer.", min=0.1)
    ] = None,
    stay: Annotated[
        bool,
        typer.Option("--stay", help="Keep running, and take part in each run of a service that the policy allows."),
    ] = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    log_json: LogJson = False,
    task: Annotated[tuple[str, str, str] | None, typer.Option(hidden=True)] = None,
) -> None:
    """Take part in a run as a site, next to its data; under torchrun, the ranks share each batch."""
    from rankdad.local.config import SiteConfig

    options = LogOptions.of(verbose=verbose, quiet=quiet, as_json=log_json)
    set_up(options)
    keep_private()
    if task is not None:  # of an agent
        from rankdad.local.agent.tasks import perform

        perform(*task, logs=options)
        return

    def read() -> SiteConfig:
        config = SiteConfig.read(file)
        return config if patience is None else config.model_copy(update={"patience": patience})

    if is_launched():
        refuse_options({"--stay": stay}, "runs as one process: start it without torchrun")
    if stay:
        from rankdad.local.agent.agent import Agent

        Agent(read(), options, file).run()
        return
    if os.environ.get("WORLD_SIZE", "1") != "1" and is_launched():
        from rankdad.local.ranks.running import run_rank

        run_rank(read)
        return
    config = read()
    from rankdad.local.drivers.running import run_site
    from rankdad.local.shutdown_signals import ShutdownSignals

    with ShutdownSignals() as signals:
        run_site(config, signals)


@policy.command("init")
def policy_init(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A table of the site, or a folder of tables.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write.")] = Path(
        "policy.json"
    ),
) -> None:
    """Propose a policy for a site's tables, and explain it; nothing is sent."""
    from rankdad.common.errors import visible
    from rankdad.local.proposed_policy import propose

    if output.exists():
        raise UserError(
            f"{output}: already there; choose another --output or remove it", code="output-exists", field="--output"
        )
    proposed, explained = propose(data)
    write_whole(output, proposed.text(), field="--output")
    for line in explained:
        typer.echo(visible(line, 10_000))
    typer.echo(f'{output} is written. Read it, change it as needed, and add to SITE.json: "policy": "{output.name}"')


def predict(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="Directory of a run or a site, a checkpoint, weights, or a .pt2 file."),
    ],
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="File or folder, in the format of the run's data; labels may be missing."),
    ],
    output: Annotated[Path | None, typer.Option(help="CSV file to write; by default standard output.")] = None,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="NAME", help="Column to copy next to the predictions.")
    ] = None,
    final: Annotated[bool, typer.Option("--final", help="Use the last weights instead of the best.")] = False,
    allow_factory: AllowFactory = None,
    workers: Annotated[int, typer.Option(help="Processes that load images ahead.", min=0, max=256)] = 0,
    cache_mib: Annotated[
        int | None, typer.Option(help="MiB of memory for loaded images (`loading.cache_mib`).", min=0)
    ] = None,
) -> None:
    """Predict new samples with a trained model; exit status 3 if some rows cannot be used."""
    from rankdad.common.loading import Loading
    from rankdad.local.prediction import predict_file

    loading = Loading(workers=workers, cache_mib=cache_mib)
    if predict_file(model, data, output, "final" if final else "best", allow_factory or (), keep or (), loading):
        raise typer.Exit(PARTLY)


def resolve(
    file: Annotated[Path, typer.Argument(metavar="RUN.json", help="Spec of the run, alone or under the key 'run'.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Data folder of a site; all sites have its columns.")],
    output: Annotated[Path, typer.Option(help="File to write.")],
) -> None:
    """Replace the patterns in a run's features by the matching columns of a site's tables."""
    import json

    from rankdad.common.data.columns import resolved
    from rankdad.common.documents import load_json, validate
    from rankdad.common.spec import RunSpec
    from rankdad.common.spec.data import TableData

    document = load_json(file)
    under = "run" if isinstance(document, dict) and "run" in document else None
    spec = validate(RunSpec, document["run"] if under else document, file=file, under=under or "")
    found = "no pattern to replace"
    if isinstance(spec.data, TableData) and spec.data.patterns:
        schema = resolved(spec.data, data)
        (document["run"] if under else document)["data"] = schema.model_dump(mode="json", exclude_defaults=True)
        validate(RunSpec, document["run"] if under else document, file=file, under=under or "")
        found = f"{len(schema.features)} features"
    try:
        output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise cannot_write(output, error, "--output") from None
    typer.echo(f"{found}; the run is in {output}")


def describe(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A table, a folder of tables, or a folder with one folder per site.")
    ],
    schema: Annotated[
        Path | None, typer.Option(metavar="RUN.json", help="Spec of a run; also check whether the tables fit it.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="PATH", help="Write an HTML page to this file instead.")] = None,
    columns: ColumnsOption = None,
) -> None:
    """Describe tables column by column, and point out likely mistakes; nothing is trained."""
    import json

    from rich.console import Console

    from rankdad.common.spec import RunSpec
    from rankdad.local.describing import describe as run
    from rankdad.local.describing import page, show

    if columns is not None and schema is not None:
        text = "--schema already names the columns, in data.columns: leave one of the two out"
        raise UserError(f"--columns: {text}", code="options-exclude-each-other", field="--columns")
    profile = run(data, None if schema is None else RunSpec.read(schema), list_of(columns))
    if html is not None:
        try:
            html.write_text(page(profile), encoding="utf-8")
        except OSError as error:
            raise cannot_write(html, error, "--html") from None
    if json_:
        typer.echo(json.dumps(profile.document(), indent=2))
    elif html is None:
        console = Console()
        show(profile, console if console.is_terminal else Console(width=160))
