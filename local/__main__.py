"""`python -m local`: a site's commands alone."""

import typer

from local.cli import mount
from rankdad import main

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
mount(app)
main(app)
