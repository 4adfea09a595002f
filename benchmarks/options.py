"""Options and arguments that several commands of `python -m benchmarks` have."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

SPECS = Path(__file__).parent.parent / "simulations" / "specs"
ARCHIVE_SPECS = Path(__file__).parent / "specs"  # of published data sets
FileArgument = Annotated[Path, typer.Argument(metavar="FILE.json", help="A run and its simulation.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=JSON", help="Replace a value of the file.")]
DataOption = Annotated[Path | None, typer.Option(help="The source's data file, in place of the file's own path.")]
SeedsOption = Annotated[str, typer.Option(help="Seeds of the runs.")]
AgainstOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Instead: steps over those of another tree, in turns.")
]
TurnsOption = Annotated[int, typer.Option(help="Of each tree, with --against.", min=3)]


def listed(option: str, text: str, known: Collection[str]) -> list[str]:
    """Return the names that an option lists."""
    chosen = text.split(",")
    if wrong := [name for name in chosen if name not in known]:
        raise typer.BadParameter(f"got {wrong[0]!r}, expected {', '.join(known)}", param_hint=option)
    return chosen


def whole_numbers(option: str, text: str) -> list[int]:
    """Return the whole numbers that an option lists."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"got {text!r}, expected whole numbers such as 2,4,8", param_hint=option) from None
