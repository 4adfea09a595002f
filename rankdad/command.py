"""How every command line of the project runs, logs and ends."""

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

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log every round, too.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Log nothing but warnings and errors.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line.")]

DeviceOption = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="Where to compute: cpu, as without it, cuda:N, cuda or auto.")
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(metavar="A,B,C", help="Names of the tables' columns, in order, where no first row has them."),
]


def list_of(names: str | None) -> tuple[str, ...]:
    """Return the names in an option, which commas separate."""
    return tuple(name.strip() for name in (names or "").split(",") if name.strip())


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"rankdad {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version, and end.")
]


def new_app(summary: str, several: Collection[str] = ()) -> typer.Typer:
    """Return an application without commands.

    Args:
        summary: of the application.
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
    """Refuse options that would do nothing.

    Args:
        given: what each was given, by its name; None, False and [] where it was not.
        why: it would do nothing, and what to do.

    Raises:
        UserError: one of them was given.
    """
    for option, value in given.items():
        if value is not None and value is not False and value != []:
            raise UserError(f"{option}: {why}", code="option-unused", field=option)


def is_launched() -> bool:
    """Tell whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ  # torch.distributed.is_torchelastic_launched, without importing torch


def run(app: typer.Typer) -> None:
    """Run a command line; a user's mistake ends in one sentence, exit status 2."""
    set_up(LogOptions())
    try:
        with naming_the_disk():
            app()
    except RankdadError as error:
        end_with(error)
        sys.exit(error.exit_code)
