"""Commands about a site's disclosure log: `disclosures`, `purge`, `privacy export` and `privacy import`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankdad.common.errors import FAILED, UserError, counted, visible
from rankdad.common.files import cannot_write, give_to_owner

if TYPE_CHECKING:
    from rankdad.local.config import SiteConfig
    from rankdad.local.privacy.log import DisclosureLog
    from rankdad.local.privacy.run_log import Disclosed

SiteFile = Annotated[Path, typer.Argument(metavar="SITE.json", help="Configuration of the site.")]
PASSPHRASE = "RANKDAD_PASSPHRASE"  # environment variable
FIGURES = {  # by their names in the log, see `local.privacy.assigning`
    "gradients": "a gradient, its loss and norm, in every step",
    "local-steps": "a change of weights, its loss and norm, in every round of local steps",
    "sums": "sums over training samples, to weight labels and to standardise, impute or harmonise inputs",
    "table-1": "Table 1: counts, mean and spread of each column, or rows by level",
    "products": "sums of products of all columns and slopes of a linear model",
    "coefficients": "coefficients of a linear model of this site's rows",
    "metrics": "losses, counts and smoothed curves of scores, for the metrics of validation and test sets; a count of "
    "right or wrong predictions may be of one patient",
    "references": "the same for the reference models",
}
BEFORE = ("sums", "table-1")  # in messages of the kind "sums"
EXACT = "exact"
SENT_AS = {"gradients": "step", "local-steps": "step", "products": "products", "coefficients": "coefficients"}
WIDE = 1000  # characters of a line in a file or pipe
privacy = typer.Typer(
    help="Back up a site's secret, disclosure log and policy, or move them to another machine.", no_args_is_help=True
)


def disclosures(
    file: SiteFile,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page for the data protection officer.")
    ] = None,
) -> None:
    """List the runs that received data from this site, with the size of the smallest set and the share disclosed."""
    config, log = _opened(file)
    found = log.runs()
    if report is not None:
        from rankdad.local.describing import render

        text = render("disclosures.html", site=config.name, runs=_rows(found, config), told=_total(config, log))
        try:
            report.write_text(text, encoding="utf-8")
            give_to_owner(report)
        except OSError as error:
            raise cannot_write(report, error, "--report") from None
        typer.echo(f"wrote {report}")
        return
    if not found:
        typer.echo(f"nothing has left {config.name} yet")
        return
    from rich.table import Table

    from rankdad.common.terminal import console_here

    table = Table()
    for name in ("run", "began", "with", "patients", "parts", "smallest part", "cells disclosed (at most)"):
        table.add_column(name, overflow="fold")  # nothing is cut
    for one in _rows(found, config):
        cells = (
            f"{one['name']} ({one['run']})",
            one["began"],
            ", ".join(one["sites"]),
            one["patients"],
            one["parts"],
            one["fewest"],
            one["told"],
        )
        table.add_row(*(visible(str(cell)) for cell in cells))
    console = console_here()
    if not console.is_terminal:
        console.width = WIDE
    console.print(table)
    typer.echo(_total(config, log))


def purge(
    file: SiteFile,
    patients: Annotated[
        list[str], typer.Argument(metavar="PATIENT", help="Identifiers, as in the column that groups rows.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Withdraw without asking.")] = False,
    absent: Annotated[bool, typer.Option("--absent", help="Also patients that no run has used yet.")] = False,
) -> None:
    """Exclude withdrawn patients from future runs, and list the runs that already used them."""
    from rankdad.common.spec.table_schema import composed

    config, log = _opened(file)
    patients = list(dict.fromkeys(composed(patient.strip()) for patient in patients))  # as tables' names are read
    unknown = {} if absent else log.unknown(patients)
    if unknown:
        alike = " (a similar name is known: check case, spaces, hyphens and zeros)"
        raise UserError(
            "no run has used "
            + "; nor ".join(f"{visible(name)}{alike * known}" for name, known in unknown.items())
            + ": "
            "write names as in the tables, or add --absent to exclude them from later runs",
            code="patient-unknown",
            field="PATIENT",
        )
    for patient in patients:
        held = log.runs(patient)
        shown = ", ".join(f"{one['name']} ({one['run']}, {one['began'][:10]})" for one in _rows(held, config))
        named = visible(shown, 10_000)
        known = f"included in sums of {named}, which cannot be withdrawn" if held else "not included in any run"
        typer.echo(f"{visible(patient)}: {known}")
    if not yes and not typer.confirm(f"Exclude {counted(len(patients), 'patient')} from all future runs?"):
        typer.echo("nothing was changed")
        raise typer.Exit(FAILED)
    log.withdraw(patients)
    typer.echo(
        f"{config.name} no longer uses them. The other patients of their parts wait until enough new patients join, "
        "because the difference would reveal the withdrawn ones. A run in progress keeps them until it is stopped"
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
        give_to_owner(output)
    except OSError as error:
        raise cannot_write(output, error, "FILE") from None
    typer.echo(f"{output} holds the log of {config.name}; stop the site here before another machine uses it")


@privacy.command("import")
def import_log(
    file: SiteFile, source: Annotated[Path, typer.Argument(metavar="FILE", help="File written by `export`.")]
) -> None:
    """Restore a site's secret, log and policy from an encrypted file."""
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
            f"{path}: already exists and differs from the policy in {source}: move it away to replace it",
            code="policy-there-already",
            field="policy",
            file=path,
        )

    def keep_policy() -> None:
        if not path.exists():
            write_whole(path, policy.text(), field="policy")

    restore(Path(config.privacy), config.name, log, source, [Path(config.output)], keep_policy)
    typer.echo(f"{config.privacy} holds the log of {config.name}, and {path} its policy")
    if config.policy is None:
        typer.echo(f'add to {file}: "policy": "{FILE}"')


def _total(config: SiteConfig, log: DisclosureLog) -> str:
    """Describe what all runs together have disclosed, and the limit."""
    from statistics import median

    from rankdad.common.policy import Policy
    from rankdad.common.privacy.repeated import most_disclosed

    shares, most = log.shares(), most_disclosed(Policy.read(config.policy).rows_per_rank)
    bound = f"the policy allows {most:.0%} (rows_per_rank)" if most < 1 else "the policy sets no limit (rows_per_rank)"
    return (
        f"of {counted(len(shares), 'patient')}, all runs together have disclosed at most "
        f"{_percent(max(shares, default=0.0))} of a patient's cells by counted numbers, median "
        f"{_percent(median(shares or [0.0]))}; {bound}"
    )


def _opened(file: Path) -> tuple[SiteConfig, DisclosureLog]:
    """Open a site's configuration and its log.

    Raises:
        UserError: there is no log.
    """
    from rankdad.local.config import SiteConfig
    from rankdad.local.privacy.log import DisclosureLog

    config = SiteConfig.read(file)
    folder = Path(config.privacy)
    log = DisclosureLog(folder, config.name, results=[Path(config.output)])
    if not log.exists():
        raise UserError(
            f"{folder}: holds no disclosure log of {config.name}: the first run creates it, if the policy has "
            '"keyed_folds": false',
            code="no-log",
            field="privacy",
            file=folder,
        )
    return config, log


def _rows(runs: Iterable[Disclosed], config: SiteConfig) -> Iterator[dict[str, Any]]:
    """Yield the values to show of each run."""
    from rankdad.local.agent.state import offered_to
    from rankdad.local.agent.words import READ_AS
    from rankdad.local.sent import sent

    known: dict[str, Any] = {
        "name": "a run",
        "task": "",
        "method": "",
        "columns": [],
        "outcome": [],
        "sites": [],
        "warnings": None,
    }
    offered = offered_to(config)
    for one in runs:
        purpose = known | one.purpose  # older versions wrote fewer keys
        name, owner = offered.get(one.run, ("", one.owner))
        traffic = sent(Path(config.output), one.run)
        kinds = purpose.get("figures", ())
        if traffic:
            kinds = [kind for kind in kinds if SENT_AS.get(kind, "evaluation") in traffic or kind in BEFORE]
            solved = "products" in traffic and "step" not in traffic
            method = purpose["method"]
            purpose["method"] = EXACT if solved and method.startswith(EXACT) else method.removeprefix(f"{EXACT} or ")
        read = [(READ_AS.get(field, field), names) for field, names in purpose.get("read", {}).items()]
        yield {
            **purpose,
            "name": name or purpose["name"],
            "owner": owner,
            "patients": sum(one.parts),
            "parts": len(one.parts),
            "fewest": min(one.parts, default=0),
            "run": one.run,
            "began": one.began,
            "asked": one.fewest,
            "told": _percent(one.told),
            "named_by": one.named_by,
            "read": read or [("inputs", purpose["columns"])],
            "figures": [FIGURES.get(kind, kind) for kind in kinds],
            "traffic": [
                f"{what}: {counted(own.messages, 'message')}, {own.bytes:,} bytes" for what, own in traffic.items()
            ],
        }


def _percent(share: float) -> str:
    """Return a share, rounded up."""
    return f"{math.ceil(round(100 * share, 6))}%"


def _passphrase(*, again: bool = False) -> str:
    """Return the passphrase from the environment, or prompt for it.

    Raises:
        UserError: it is too short.
    """
    given = os.environ.get(PASSPHRASE)
    found = given or typer.prompt("Passphrase", hide_input=True, confirmation_prompt=again)
    if len(found) < 12:
        field = PASSPHRASE if given else "passphrase"
        raise UserError(f"{field}: needs at least twelve characters", code="passphrase-short", field=field)
    return str(found)
