"""How every command line of the project runs and ends."""

from __future__ import annotations

import sys

import typer

from rankdad.common.errors import RankdadError, visible

MAX_ERROR = 4000  # characters of an error, which may quote what others have written


def new_app(summary: str) -> typer.Typer:
    """Return an application without commands."""
    app = typer.Typer(help=summary, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(lambda: None)  # else an application of one command would hide the command's name
    return app


def run(app: typer.Typer) -> None:
    """Run a command line; a user's mistake ends in one sentence, exit status 2."""
    try:
        app()
    except RankdadError as error:
        print(f"error: {visible(str(error), MAX_ERROR)}", file=sys.stderr)
        sys.exit(error.exit_code)
