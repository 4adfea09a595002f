"""`python -m simulations`: the simulator's commands alone."""

import typer

from simulations.cli import mount
from rankdad import main

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
mount(app)
main(app)
