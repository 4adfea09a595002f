"""`python -m benchmarks paper`: the paper's figures and tables, made again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from rankdad.common.errors import UserError

WHAT = "figure-2, figure-3, figure-4, figure-5, figure-6, table-3, or all"


def paper(
    parts: Annotated[list[str], typer.Argument(metavar="FIGURE|TABLE|all...", help=WHAT)],
    quick: Annotated[bool, typer.Option("--quick", help="As --setting quick: 15 minutes on two cores.")] = False,
    setting: Annotated[str, typer.Option(help="How much is trained: quick, middle or full.")] = "middle",
    folds: Annotated[
        int | None, typer.Option(min=1, max=5, help="How many folds are trained now, in place of the setting's.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of results; runs/paper-SETTING without it.")] = None,
    data: Annotated[Path, typer.Option(help="Folder of the data sets' files.")] = Path("../shared/data"),
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Trainings at a time; as many as processors without it.")
    ] = None,
) -> None:
    """Measure the paper's claims again: tables, figures and a page of results; resumes where it stopped."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # of each training: as many as processors run at a time
        os.environ.setdefault(name, "1")
    from rich.console import Console

    from benchmarks.paper.parts import PARTS
    from benchmarks.paper.pipeline import make
    from benchmarks.paper.settings import SETTINGS

    if quick and setting not in ("middle", "quick"):
        raise UserError(
            f"--quick: is the setting quick, but --setting {setting} is asked for; leave one of them out",
            code="options-exclude",
            field="--quick",
        )
    name = "quick" if quick else setting
    if name not in SETTINGS:
        raise UserError(
            f"--setting: got {name!r}, expected {', '.join(SETTINGS)}", code="setting-unknown", field="--setting"
        )
    wrong = [part for part in parts if part not in (*PARTS, "all")]
    if wrong:
        raise UserError(f"got {wrong[0]!r}, expected {WHAT}", code="part-unknown")
    chosen = [part for part in PARTS if part in parts or "all" in parts]
    folder = output or Path("runs") / f"paper-{name}"
    try:
        make(chosen, SETTINGS[name], folder, data, jobs or os.cpu_count() or 1, Console(highlight=False), folds)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; what is done is kept in {folder}, and the same command goes on", err=True)
        raise typer.Exit(130) from None
