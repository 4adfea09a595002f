"""Options shared by the simulator's commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FileArgument = Annotated[Path, typer.Argument(metavar="FILE.json", help="Spec of a run and its simulation.")]
SitesOption = Annotated[int | None, typer.Option(min=1, max=1000, help="Number of sites; overrides the file.")]
RegionsOption = Annotated[
    int | None, typer.Option(min=1, max=500, help="Number of regions to group the sites into; overrides the file.")
]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=JSON", help="Replace a value of the file.")]
DataOption = Annotated[Path | None, typer.Option(help="Data file of the simulation; overrides the file.")]
WeightsOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder with the pretrained weights that the spec names.")
]
AllowOption = Annotated[
    list[str] | None, typer.Option("--allow-factory", help="Allow the model factory 'package.module:function'.")
]
