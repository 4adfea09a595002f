"""Options, logging and exit of every command."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from typing import Annotated

import typer

from rankdad.common import __version__
from rankdad.common.errors import RankdadError, UserError
from rankdad.common.files import naming_the_disk
from rankdad.common.logs import LogOptions, end_with, set_up

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also log every round.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Log only warnings and errors.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")]

DeviceOption = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="Device to compute on: cpu (the default), cuda, cuda:N or auto.")
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(metavar="A,B,C", help="Column names, in order, for tables without a header row."),
]


def list_of(names: str | None) -> tuple[str, ...]:
    """Split an option's comma-separated names."""
    return tuple(name.strip() for name in (names or "").split(",") if name.strip())


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"rankdad {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


def new_app(summary: str, several: Collection[str] = ()) -> typer.Typer:
    """Create an application without commands.

    Args:
        summary: first line of its help.
        several: commands that torchrun may start as several processes.
    """
    app = typer.Typer(
        help=summary,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def begin(context: typer.Context, _version: Version = False) -> None:
        if is_launched() and context.invoked_subcommand not in several:
            name = context.invoked_subcommand
            raise UserError(
                f"{name}: runs as one process on one machine: start it without torchrun", code="one-process-only"
            )

    app.callback()(begin)
    return app


def refuse_options(given: Mapping[str, object], why: str) -> None:
    """Refuse options that would have no effect.

    Args:
        given: values by option; None, False or [] for an option that was not given.
        why: the reason and the remedy, for the error message.

    Raises:
        UserError: one of them was given.
    """
    for option, value in given.items():
        if value is not None and value is not False and value != []:
            raise UserError(f"{option}: {why}", code="option-unused", field=option)


def is_launched() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ  # torch.distributed.is_torchelastic_launched, without importing torch


def run(app: typer.Typer) -> None:
    """Run a command line; a user's mistake ends it with one sentence and exit status 2."""
    set_up(LogOptions())
    try:
        with naming_the_disk():
            app()
    except RankdadError as error:
        end_with(error)
        sys.exit(error.exit_code)
