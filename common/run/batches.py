"""How many samples a batch has."""

from __future__ import annotations

import math


def batch_sizes(samples: int, largest: int) -> list[int]:
    """Return the sizes of an epoch's batches: as few as possible, and equal to within one sample."""
    return parts(samples, math.ceil(samples / largest))


def parts(samples: int, count: int) -> list[int]:
    """Return the sizes of so many parts, as equal as can be, the larger ones first."""
    return [samples // count + (batch < samples % count) for batch in range(count)]
