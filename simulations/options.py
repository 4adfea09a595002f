"""Options that several of the simulator's commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FileArgument = Annotated[Path, typer.Argument(metavar="FILE.json", help="A run and its simulation.")]
SitesOption = Annotated[int | None, typer.Option(min=1, max=1000, help="Number of sites, in place of the file's.")]
RegionsOption = Annotated[
    int | None, typer.Option(min=1, max=500, help="Number of regions to deal the sites out to, in place of the file's.")
]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=JSON", help="Replace a value of the file.")]
DataOption = Annotated[Path | None, typer.Option(help="The source's data file, in place of the file's own path.")]
WeightsOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the pretrained weights that the run's spec names.")
]
AllowOption = Annotated[
    list[str] | None, typer.Option("--allow-factory", help="Permit a model factory 'package.module:function'.")
]
