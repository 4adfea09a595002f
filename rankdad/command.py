"""How every command line of the project runs, logs and ends."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rankdad.common.errors import RankdadError, visible
from rankdad.common.logs import LogOptions, end_with, set_up

MAX_ERROR = 4000  # characters of an error, which may quote what others have written

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log every round, too.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Log nothing but warnings and errors.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line.")]


def new_app(summary: str) -> typer.Typer:
    """Return an application without commands."""
    app = typer.Typer(help=summary, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(lambda: None)  # else an application of one command would hide the command's name
    return app


def run(app: typer.Typer) -> None:
    """Run a command line; a user's mistake ends in one sentence, exit status 2."""
    set_up(LogOptions())
    try:
        app()
    except RankdadError as error:
        end_with(visible(str(error), MAX_ERROR))
        sys.exit(error.exit_code)
