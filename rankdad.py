"""The command `rankdad`: mounts each folder's sub-commands."""

from __future__ import annotations

from rankdad_shadows import refuse_shadows

refuse_shadows()

import local.cli  # noqa: E402
import platforms.cli  # noqa: E402
import remote.cli  # noqa: E402
import simulations.cli  # noqa: E402
from common.command import new_app, run  # noqa: E402

app = new_app("Federated training of PyTorch models by low-rank factors of the gradient (rank-dAD).")
for folder in (simulations.cli, remote.cli, local.cli, platforms.cli):
    folder.mount(app)


def main() -> None:
    """Run the command line."""
    run(app)


if __name__ == "__main__":
    main()
