"""The command `rankdad`: mounts each folder's sub-commands."""

from __future__ import annotations

import sys

from rankdad_shadows import refuse_shadows

refuse_shadows()

import typer  # noqa: E402

import local.cli  # noqa: E402
import platforms.cli  # noqa: E402
import remote.cli  # noqa: E402
import simulations.cli  # noqa: E402
from common.errors import RankdadError, visible  # noqa: E402

MAX_ERROR = 4000  # characters of an error, which may quote what others have written
SUMMARY = "Federated training of PyTorch models by low-rank factors of the gradient (rank-dAD)."

app = typer.Typer(help=SUMMARY, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
for folder in (simulations.cli, remote.cli, local.cli, platforms.cli):
    folder.mount(app)


def run(app: typer.Typer) -> None:
    """Run a command line; a user's mistake ends in one sentence, exit status 2."""
    try:
        app()
    except RankdadError as error:
        print(f"error: {visible(str(error), MAX_ERROR)}", file=sys.stderr)
        sys.exit(error.exit_code)


def main() -> None:
    """Run the command line."""
    run(app)


if __name__ == "__main__":
    main()
