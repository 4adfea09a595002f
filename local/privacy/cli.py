"""What a hospital's people ask of the log of what has left it: `disclosures`, `purge`, `privacy export|import`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankdad.common.errors import FAILED, UserError, counted, visible
from rankdad.common.files import cannot_write

if TYPE_CHECKING:
    from rankdad.local.config import SiteConfig
    from rankdad.local.privacy.log import DisclosureLog
    from rankdad.local.privacy.run_log import Disclosed

SiteFile = Annotated[Path, typer.Argument(metavar="SITE.json", help="The site's own file.")]
PASSPHRASE = "RANKDAD_PASSPHRASE"  # in the environment, where nobody can be asked
FIGURES = {  # by what the log calls them, see `local.privacy.dealing`
    "gradients": "a gradient of every step, its loss and norm",
    "local-steps": "the difference of weights that each round of local steps makes, its loss and norm",
    "sums": "sums over training samples, for labels and for what the run standardises, imputes or harmonises",
    "table-1": "Table 1: of each column counts, mean and spread, or rows by level",
    "products": "sums of products of all columns and slopes of a linear model, if all policies allowed these",
    "coefficients": "coefficients of a linear model of this site's rows, if it was solved exactly and the policy did "
    "not keep them (site_coefficients)",
    "metrics": "losses, counts and smooth curves of scores behind the metrics of validation and test sets",
    "references": "the same of models to compare with",
}
privacy = typer.Typer(help="Move a site's secret, log and policy to another machine.", no_args_is_help=True)


def disclosures(
    file: SiteFile,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page for the data protection officer.")
    ] = None,
) -> None:
    """Show what has left: every run, of how many patients its smallest set was, which share of one's cells it told."""
    config, log = _opened(file)
    found = log.runs()
    if report is not None:
        from rankdad.local.agent.state import owners_of
        from rankdad.local.describing import render

        owners = owners_of(config)
        rows = [_row(one) | {"owner": owners.get(one.run, one.owner)} for one in found]
        text = render("disclosures.html", site=config.name, runs=rows, told=_told(config, log))
        try:
            report.write_text(text, encoding="utf-8")
        except OSError as error:
            raise cannot_write(report, error, "--report") from None
        typer.echo(f"the page is in {report}")
        return
    if not found:
        typer.echo(f"nothing has left {config.name} in parts")
        return
    from rich.table import Table

    from rankdad.common.terminal import console_here

    table = Table("run", "began", "with", "patients", "parts", "smallest part", "told")
    for one in map(_row, found):
        cells = (
            f"{one['name']} ({one['run']})",
            one["began"],
            ", ".join(one["sites"]),
            one["patients"],
            one["parts"],
            one["fewest"],
            f"{one['told']:.0%}",
        )
        table.add_row(*(visible(str(cell)) for cell in cells))
    console_here().print(table)
    typer.echo(_told(config, log))


def purge(
    file: SiteFile,
    patients: Annotated[
        list[str], typer.Argument(metavar="PATIENT", help="As the tables call them, in the column that groups rows.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    absent: Annotated[bool, typer.Option("--absent", help="Also those whom no run has used yet.")] = False,
) -> None:
    """Use withdrawn patients in no run any more, and list those that hold sums of them already."""
    from rankdad.common.spec.table_schema import composed

    config, log = _opened(file)
    patients = list(dict.fromkeys(composed(patient.strip()) for patient in patients))  # as tables' names are read
    unknown = {} if absent else log.unknown(patients)
    if unknown:
        alike = " (one is known by another spelling, such as of case, blanks, hyphens or zeros)"
        raise UserError(
            "no run has used "
            + "; nor ".join(f"{visible(name)}{alike * known}" for name, known in unknown.items())
            + ": "
            "write names as the tables do, or give --absent for patients whom no run is to use later",
            code="patient-unknown",
            field="PATIENT",
        )
    for patient in patients:
        held = log.runs(patient)
        named = visible(", ".join(f"{_row(one)['name']} ({one.run}, {one.began[:10]})" for one in held), 10_000)
        known = f"sums of them are in {named}: these cannot be taken back" if held else "no run holds sums of them"
        typer.echo(f"{visible(patient)}: {known}")
    if not yes and not typer.confirm(f"Use {counted(len(patients), 'patient')} no more?"):
        typer.echo("nothing is changed")
        raise typer.Exit(FAILED)
    log.withdraw(patients)
    typer.echo(
        f"{config.name} uses them no more, nor the others of their parts until enough newcomers join these: with and "
        "without would tell of them. A run that goes on at this moment has them until it is stopped"
    )


@privacy.command("export")
def export_log(
    file: SiteFile, output: Annotated[Path, typer.Argument(metavar="FILE", help="The encrypted file to write.")]
) -> None:
    """Write a site's secret, log and policy into one encrypted file."""
    from rankdad.common.policy import Policy
    from rankdad.local.privacy.archive import sealed

    config, log = _opened(file)
    content = sealed(config.name, log.contents(), Policy.read(config.policy), _passphrase(again=True))
    try:
        with open(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:  # noqa: PTH123
            written.write(content)
    except OSError as error:
        raise cannot_write(output, error, "FILE") from None
    typer.echo(f"{output} holds the log of {config.name}; stop the site here before another machine goes on with it")


@privacy.command("import")
def import_log(
    file: SiteFile, source: Annotated[Path, typer.Argument(metavar="FILE", help="What `export` has written.")]
) -> None:
    """Put a site's secret, log and policy in place on this machine."""
    from rankdad.common.files import write_whole
    from rankdad.common.policy import FILE, Policy
    from rankdad.local.config import SiteConfig
    from rankdad.local.privacy.archive import opened
    from rankdad.local.privacy.log_file import restore

    config = SiteConfig.read(file)
    log, policy = opened(source, config.name, _passphrase())
    path = file.resolve().parent / FILE if config.policy is None else Path(config.policy)
    if path.exists() and Policy.read(str(path)) != policy:
        raise UserError(
            f"{path}: is there already, and another policy than the one in {source}: move it away if that is meant",
            code="policy-there-already",
            field="policy",
            file=path,
        )
    restore(Path(config.privacy), config.name, log, source, [Path(config.output)])
    write_whole(path, policy.text())
    typer.echo(f"{config.privacy} holds the log of {config.name}, and {path} its policy")
    if config.policy is None:
        typer.echo(f'name that in {file}: "policy": "{FILE}"')


def _told(config: SiteConfig, log: DisclosureLog) -> str:
    """Return what all runs together have told, and what more may be."""
    from statistics import median

    from rankdad.common.policy import Policy
    from rankdad.common.privacy.repeated import most_told

    shares, most = log.shares(), most_told(Policy.read(config.policy).rows_per_rank)
    bound = f"the policy allows {most:.0%} (rows_per_rank)" if most < 1 else "the policy sets no bound (rows_per_rank)"
    return (
        f"all runs together have told at most {max(shares, default=0.0):.0%} of the cells of one of "
        f"{counted(len(shares), 'patient')}, and {median(shares or [0.0]):.0%} or less of half of them; {bound}"
    )


def _opened(file: Path) -> tuple[SiteConfig, DisclosureLog]:
    """Return a site's file and its log.

    Raises:
        UserError: there is no log: nothing is made by looking.
    """
    from rankdad.local.config import SiteConfig
    from rankdad.local.privacy.log import DisclosureLog

    config = SiteConfig.read(file)
    folder = Path(config.privacy)
    log = DisclosureLog(folder, config.name, results=[Path(config.output)])
    if not log.exists():
        raise UserError(
            f"{folder}: holds no log of what has left {config.name}: it is made by the first run, where "
            'the policy has "keyed_folds": false',
            code="no-log",
            field="privacy",
            file=folder,
        )
    return config, log


def _row(one: Disclosed) -> dict[str, Any]:
    """Return what is shown of a run."""
    import json

    from rankdad.local.agent.words import READ_AS

    known = {"name": "a run", "task": "", "method": "", "columns": [], "outcome": [], "sites": []}
    told = known | json.loads(one.purpose)  # older versions have noted less
    read = [(READ_AS.get(field, field), names) for field, names in told.get("read", {}).items()]
    figures = [FIGURES.get(kind, kind) for kind in told.get("figures", ())]
    counts = {"patients": sum(one.parts), "parts": len(one.parts), "fewest": min(one.parts, default=0)}
    noted = {"run": one.run, "began": one.began, "asked": one.fewest, "told": one.told, "named_by": one.named_by}
    return {**told, **counts, **noted, "read": read or [("inputs", told["columns"])], "figures": figures}


def _passphrase(*, again: bool = False) -> str:
    """Return the passphrase of the environment, or of whoever sits here.

    Raises:
        UserError: it is too short.
    """
    found = os.environ.get(PASSPHRASE) or typer.prompt("Passphrase", hide_input=True, confirmation_prompt=again)
    if len(found) < 12:
        raise UserError(
            f"{PASSPHRASE}: a passphrase has twelve characters at least", code="passphrase-short", field=PASSPHRASE
        )
    return str(found)
