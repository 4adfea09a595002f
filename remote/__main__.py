"""`python -m remote`: the aggregator's command alone."""

import typer

from rankdad import main
from remote.cli import mount

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
mount(app)
main(app)
