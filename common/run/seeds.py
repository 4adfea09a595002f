"""Seeds: everything random follows from the run's seed and from where it happens."""

from __future__ import annotations

import hashlib


def derive(*parts: int | str) -> int:
    """Return a seed in [0, 2**63) that depends on all parts and on their order."""
    digest = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
