"""Whether a network fits into this machine, found out before it is made: a process that is killed says nothing."""

from __future__ import annotations

from pathlib import Path

import torch

from common.errors import SpecError
from common.models import build_network
from common.networks import Factory
from common.spec import RunSpec

COPIES = 6  # of all weights: weights, gradient, two moments, the best so far, and what is sent or written
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
FREE = Path("/proc/meminfo")


def check_memory(spec: RunSpec) -> None:
    """Check that one of our networks can be trained here.

    Raises:
        SpecError: it needs more memory than there is; names both.
    """
    if isinstance(spec.model, Factory):
        return  # code of a user's may not run without real numbers
    with torch.device("meta"):
        weights = sum(parameter.numel() for parameter in build_network(spec).parameters())
    needed, there = COPIES * weights * getattr(torch, spec.training.dtype).itemsize, available()
    if there is not None and needed > there:
        raise SpecError(
            spec.model.sized_by,
            f"the network has {weights:,} weights and takes about {needed / 2**30:.1f} GiB of memory to be trained, "
            f"but there are {there / 2**30:.1f} GiB: choose a smaller one, or give the container more",
        )


def available() -> int | None:
    """Return how many bytes there are: the container's limit, or what the machine has free if that is less.

    None if neither can be told.
    """
    found = [int(text) for path in LIMITS if (text := _read(path)).isdecimal()]
    free = [int(line.split()[1]) * 1024 for line in _read(FREE).splitlines() if line.startswith("MemAvailable:")]
    return min(found + free, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
