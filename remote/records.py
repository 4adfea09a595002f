"""Records of a run's file, their digests, and what is said of one that is damaged."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path

from rankdad.common.errors import UserError

NOBODY = 0xFFFF  # the place of the aggregator


class Entry(IntEnum):
    """What a record holds."""

    CONTRIBUTION = 1
    UPDATE = 2
    RESET = 3
    LATE = 4


class Retention(StrEnum):
    """What is kept: every update, for the model of any step, or the last two checkpoints and what came after."""

    ALL = "all"
    TAIL = "tail"


@dataclass(frozen=True)
class Record:
    """One record.

    Args:
        entry: a site's contribution; a round's update; that a site has lost its state in this round, and goes on
            without residuals; or a contribution to an earlier step, which joins the first step to close from here on.
        round: its number; of what is late, the one in which it came.
        site: place in the plan of the site that it is about; NOBODY for an update.
        body: a message's bytes; empty for a reset.
        damage: that the body does not have its digest.
    """

    entry: Entry
    round: int
    site: int = NOBODY
    body: bytes = b""
    damage: DamageError | None = None


class DamageError(UserError):
    """Something in a run's file cannot be read, or is not there.

    Args:
        path: of the file.
        problem: what is wrong.
        round_: in which it is wrong, if that is known.
    """

    def __init__(self, path: Path, problem: str, round_: int | None = None) -> None:
        self.named = f"{path.name}: {problem}"  # for others, who hear of no folder
        super().__init__(f"{path.parent}/{self.named}", code="record-damaged", file=path, row=round_)


def digest_of(*parts: str | int | bytes) -> bytes:
    """Return a digest of all parts of a row, 16 bytes."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(type(part).__name__[:1].encode() + len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()[:16]
