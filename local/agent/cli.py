"""Commands that decide about runs at a site: `rankdad approve` and `rankdad refuse`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankdad.common.errors import FAILED, UserError, visible

if TYPE_CHECKING:
    from rankdad.local.agent.state import Considered, RunFolder

MAX_LINE, MAX_ALL = 4000, 10_000_000  # characters of a line, and of a line with --all
Run = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run, from the site's log.")]
SiteFile = Annotated[Path, typer.Argument(metavar="SITE.json", help="Configuration of the site.")]


def approve(
    run: Run,
    file: SiteFile,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without asking.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="List every file and column that the run reads.")] = False,
) -> None:
    """Approve a run for this site, after showing what it reads and what it would send."""
    from rankdad.local.agent.state import Decision, user_name

    folder, considered = _open(run, file)
    if considered.refusal:
        raise UserError(f"{run}: cannot be approved: {considered.refusal}", code="cannot-be-approved")
    decision = folder.decision()
    if decision is not None:
        reason = f": {decision.reason}" if decision.reason else ""
        raise UserError(f"{run}: was already {decision.decision} by {decision.by}{reason}", code="decided-already")
    for line in considered.words:
        typer.echo(visible(line, MAX_LINE))
    if all_:
        from rankdad.common.documents import validate
        from rankdad.common.spec import RunSpec
        from rankdad.local.agent.words import what_is_read

        for line in what_is_read(validate(RunSpec, considered.offer.spec), most=None):
            typer.echo(visible(line, MAX_ALL))
    if not yes and not typer.confirm("Let this site take part?"):
        typer.echo(f"no decision: {run} waits until it is approved or refused")
        raise typer.Exit(FAILED)
    folder.decide(Decision(id=considered.offer.id, decision="accepted", by=user_name()))
    typer.echo(f"{run} is approved; it starts when all sites have joined")


def refuse(
    run: Run,
    file: SiteFile,
    reason: Annotated[str, typer.Option(help="Reason to send to the owner.")] = "refused by the site",
) -> None:
    """Refuse a run for this site; a run that is already training ends for all sites."""
    from rankdad.local.agent.state import Decision, user_name

    folder, considered = _open(run, file)
    decision = folder.decision()
    if folder.finished or (decision is not None and decision.decision == "refused"):
        raise UserError(f"{run}: has already ended for this site", code="run-over")
    folder.decide(Decision(id=considered.offer.id, decision="refused", by=user_name(), reason=reason[:500]))
    typer.echo(f"{run} is refused; its owner receives this reason: {visible(reason)}")


def _open(run: str, file: Path) -> tuple[RunFolder, Considered]:
    import re

    from rankdad.local.agent.state import RunFolder, runs_folder
    from rankdad.local.config import SiteConfig

    config = SiteConfig.read(file)
    folder = RunFolder(config, run)
    considered = folder.considered() if re.fullmatch(r"[a-z0-9_-]+", run) else None
    if considered is None:
        known = sorted(path.name for path in runs_folder(config).glob("*/") if (path / "offer.json").exists())
        listed = f"expected one of {', '.join(known[-20:])}" if known else "none was offered yet"
        raise UserError(f"{visible(run, 63)}: was not offered to {config.name}, {listed}", code="not-offered")
    return folder, considered
