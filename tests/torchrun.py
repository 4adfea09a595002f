"""Commands as torchrun starts them: each a rank, in a process that is forked warm."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tests.ports import free_port
from tests.warm import Warm


def start_ranks(commands: Sequence[Sequence[object]], folders: Sequence[Path]) -> list[Warm]:
    """Start the ranks of one torchrun.

    Args:
        commands: words of each rank's, after `rankdad`.
        folders: in which each works.
    """
    torchrun = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(commands))}
    torchrun |= {"TORCHELASTIC_RUN_ID": "test", "GLOO_SOCKET_IFNAME": "lo"}
    return [
        Warm(*words, environment={**os.environ, **torchrun, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}, folder=folder)
        for rank, (words, folder) in enumerate(zip(commands, folders, strict=True))
    ]
