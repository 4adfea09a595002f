"""`python -m simulations`: the simulator's commands alone."""

import typer

from rankdad import main
from simulations.cli import mount

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
mount(app)
main(app)
