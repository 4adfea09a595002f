"""Commands of a site: `rankdad site`, `rankdad predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AllowFactory = Annotated[
    list[str] | None,
    typer.Option("--allow-factory", help="Permit a model factory 'package.module:function' whose code you have read."),
]


def mount(app: typer.Typer) -> None:
    """Add this folder's commands."""
    app.command()(site)
    app.command()(predict)


def site(
    file: Annotated[Path, typer.Argument(metavar="SITE.json", help="The site's own file.")],
    patience: Annotated[
        float | None, typer.Option(help="Seconds to try an aggregator that does not answer.", min=0.1)
    ] = None,
) -> None:
    """Take part in a run as one site, next to the data."""
    from local.config import SiteConfig

    config = SiteConfig.read(file)
    if patience is not None:
        config = config.model_copy(update={"patience": patience})
    from local.leaving import Leaving
    from local.site import run_site

    with Leaving() as leaving:
        run_site(config, leaving)


def predict(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run's or a site's directory.")],
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="Data as the run reads them, a file or its folder; labels may be missing."),
    ],
    output: Annotated[Path | None, typer.Option(help="CSV file to write; standard output without it.")] = None,
    final: Annotated[bool, typer.Option("--final", help="Use the last weights instead of the best.")] = False,
    allow_factory: AllowFactory = None,
) -> None:
    """Predict classes and probabilities of new samples with a trained model."""
    from local.prediction import predict_file

    predict_file(directory, data, output, "final" if final else "best", allow_factory or ())
