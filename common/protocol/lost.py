"""What stands where a call would, once an engine has lost a node's process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Lost:
    """An engine has lost a node's process.

    Args:
        reason: in words that others may hear.
    """

    reason: str
