"""The marker for a node process that an engine has lost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Lost:
    """An engine has lost a node's process.

    Args:
        reason: public.
    """

    reason: str
