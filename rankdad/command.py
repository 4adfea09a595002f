"""How every command line of the project runs, logs and ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import Annotated

import typer

from rankdad.common.errors import RankdadError, UserError
from rankdad.common.logs import LogOptions, end_with, set_up

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log every round, too.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Log nothing but warnings and errors.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line.")]

DeviceOption = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="Where to compute: cpu, as without it, cuda:N, cuda or auto.")
]


def new_app(summary: str, several: Collection[str] = ()) -> typer.Typer:
    """Return an application without commands.

    Args:
        summary: of the application.
        several: commands that torchrun may start as several processes.
    """
    app = typer.Typer(help=summary, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)

    def begin(context: typer.Context) -> None:
        if is_launched() and context.invoked_subcommand not in several:
            name = context.invoked_subcommand
            raise UserError(
                f"{name}: runs as one process on one machine: start it without torchrun", code="one-process-only"
            )

    app.callback()(begin)
    return app


def is_launched() -> bool:
    """Tell whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ  # torch.distributed.is_torchelastic_launched, without importing torch


def run(app: typer.Typer) -> None:
    """Run a command line; a user's mistake ends in one sentence, exit status 2."""
    set_up(LogOptions())
    try:
        app()
    except RankdadError as error:
        end_with(error)
        sys.exit(error.exit_code)
