"""Seeds of all random numbers, derived from the run's seed and their place in the run."""

from __future__ import annotations

import hashlib


def derive(*parts: int | str) -> int:
    """Return a seed in [0, 2**63) derived from all parts, in order."""
    digest = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
