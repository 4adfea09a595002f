"""Records of a run's file, their digests, and errors about damage."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path

from rankdad.common.errors import UserError

NOBODY = 0xFFFF  # place of the aggregator
LEFT = "it was not changed: restore an undamaged copy"
OLDEST, OLDEST_SENT = "updates from", "contributions from"  # facts: the first rounds whose rows are not deleted


class Entry(IntEnum):
    """The kind of a record."""

    CONTRIBUTION = 1
    UPDATE = 2
    RESET = 3
    LATE = 4


class Retention(StrEnum):
    """Updates to keep: all, for the model after any step, or those since the last two checkpoints."""

    ALL = "all"
    TAIL = "tail"


@dataclass(frozen=True)
class Record:
    """One record.

    Args:
        entry: a contribution, an update, a site's reset (it lost its state and continues without residuals), or a late
            contribution, which joins the next step to close.
        round: the round; for a late contribution, the round of its arrival.
        site: place of the site in the plan; NOBODY for an update.
        body: the message's bytes; empty for a reset.
        damage: set if the body does not match its digest.
    """

    entry: Entry
    round: int
    site: int = NOBODY
    body: bytes = b""
    damage: DamageError | None = None


class DamageError(UserError):
    """A run's file is damaged or incomplete.

    Args:
        path: the file.
        problem: the message.
        round_: the damaged round, if known.
    """

    def __init__(self, path: Path, problem: str, round_: int | None = None) -> None:
        self.named = f"{path.name}: {problem}"  # without the folder, for sites
        super().__init__(f"{path.parent}/{self.named}", code="record-damaged", file=path, row=round_)


def digest_of(*parts: str | int | bytes) -> bytes:
    """Return a digest of a row's parts, 16 bytes."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(type(part).__name__[:1].encode() + len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()[:16]
