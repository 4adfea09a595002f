"""The command `rankdad`, with the commands of all packages."""

from __future__ import annotations

from rankdad.command import new_app, run
from rankdad.local.cli import mount as mount_local
from rankdad.platforms.cli import mount as mount_platforms
from rankdad.remote.cli import mount as mount_remote
from rankdad.simulations.cli import mount as mount_simulations

SUMMARY = "Federated training of PyTorch models by low-rank factors of the gradient (rank-dAD)."
app = new_app(SUMMARY, several=("simulate", "site"))
for mount in (mount_simulations, mount_remote, mount_local, mount_platforms):
    mount(app)


def main() -> None:
    """Run the command line."""
    run(app)


if __name__ == "__main__":
    main()
