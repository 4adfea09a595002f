"""Commands `rankdad bench …`."""

from __future__ import annotations

import typer

bench = typer.Typer(help="Measure.", no_args_is_help=True, rich_markup_mode=None)
