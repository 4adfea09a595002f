"""The command `rankdad`: mounts each folder's sub-commands, and turns errors into a sentence and an exit status."""

from __future__ import annotations

import sys

import typer

import local.cli
import remote.cli
import simulations.cli
from common.errors import RankdadError

app = typer.Typer(
    help="Federated training of PyTorch models by low-rank factors of the gradient (rank-dAD).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for folder in (simulations.cli, remote.cli, local.cli):
    folder.mount(app)


def main(command: typer.Typer = app) -> None:
    """Run a command line; a user's mistake ends in one sentence, exit status 2."""
    try:
        command()
    except RankdadError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
