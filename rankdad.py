"""The command `rankdad`: mounts each folder's sub-commands."""

from __future__ import annotations

import local.cli
import platforms.cli
import remote.cli
import simulations.cli
from common.command import new_app, run

app = new_app("Federated training of PyTorch models by low-rank factors of the gradient (rank-dAD).")
for folder in (simulations.cli, remote.cli, local.cli, platforms.cli):
    folder.mount(app)


def main() -> None:
    """Run the command line."""
    run(app)


if __name__ == "__main__":
    main()
