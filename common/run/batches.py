"""How many samples a batch has, and how many batches a step."""

from __future__ import annotations

import math
from typing import Literal


def batch_sizes(samples: int, largest: int) -> list[int]:
    """Return the sizes of an epoch's batches: as few as possible, and equal to within one sample."""
    return parts(samples, math.ceil(samples / largest))


def parts(samples: int, count: int) -> list[int]:
    """Return the sizes of so many parts, as equal as can be, the larger ones first."""
    return [samples // count + (batch < samples % count) for batch in range(count)]


def batches_per_step(batches: int, local_steps: int | Literal["epoch"] | None) -> list[int]:
    """Return how many of an epoch's batches each of its steps has: one, or as many as are trained on locally.

    Args:
        batches: of the epoch, at the site that has most.
        local_steps: as the method has it.
    """
    most = batches if local_steps == "epoch" else local_steps or 1
    return parts(batches, math.ceil(batches / most))
