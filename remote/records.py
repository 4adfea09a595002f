"""The format of a journal: its beginning, and numbered records whose head and body have checksums of their own.

A damaged body is known by its head; behind a damaged head nothing is looked for. The beginning holds the format, the
plan's digest and the run's own number, which tells it from another run of the same plan.

    head   size of the body, uint64 · its CRC-32, uint32 · kind, uint8 · site's place in the plan, uint16 ·
           round, uint64 · the record's number in the file, uint64 · CRC-32 of the head so far, uint32
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from rankdad.common.errors import UserError

FORMAT = 3
NOBODY = 0xFFFF  # the place of the aggregator

_NAME = b"rankdad ledger "
_HEAD, _CHECKSUM = struct.Struct("<QIBHQQ"), struct.Struct("<I")
_LEFT = "the file is left as it is: put back a copy that is whole"
RUN_PLACE = len(_NAME) + len(str(FORMAT)) + 1 + 64 + 1  # where the run's number stands
BEGINNING_BYTES = RUN_PLACE + 16 + 1 + 8 + 1
HEAD_BYTES = _HEAD.size + _CHECKSUM.size


class Entry(IntEnum):
    """What a record holds."""

    CONTRIBUTION = 1
    UPDATE = 2
    RESET = 3
    LATE = 4


@dataclass(frozen=True)
class Record:
    """One record.

    Args:
        entry: a site's contribution; a round's update; that a site has lost its state in this round, and goes on
            without residuals; or a contribution to an earlier step, which joins the first step to close from here on.
        round: its number; of what is late, the one in which it came.
        site: place in the plan of the site that it is about; NOBODY for an update.
        body: a message's bytes; empty for a reset.
        damage: that the body does not have its checksum; it is then empty.
    """

    entry: Entry
    round: int
    site: int
    body: bytes
    damage: DamageError | None = None


class DamageError(UserError):
    """A record cannot be read, or is not there.

    Args:
        path: of the file.
        number: of the record, from 0.
        place: where in the file, in bytes.
        problem: what is wrong.
        round_: of the record, if it is known.
    """

    def __init__(self, path: Path, number: int, place: int, problem: str, round_: int | None = None) -> None:
        of_round = "" if round_ is None else f" (round {round_})"
        self.named = f"{path.name}: record {number}{of_round} at byte {place} {problem}"
        super().__init__(f"{path.parent}/{self.named}", code="record-damaged", file=path, row=number)


class Head(NamedTuple):
    """A record's head, as it stands in the file."""

    size: int
    checksum: int
    entry: int
    site: int
    round: int
    number: int


def packed(record: Record, number: int) -> bytes:
    """Return a record's head and body."""
    checksum = zlib.crc32(record.body)
    head = _HEAD.pack(len(record.body), checksum, record.entry, record.site, record.round, number)
    return head + _CHECKSUM.pack(zlib.crc32(head)) + record.body


def read_heads(file: int, path: Path, first: int | None) -> Iterator[tuple[int, Head]]:
    """Yield the heads of all records with their places, up to one that a crash has cut short.

    Raises:
        DamageError: see `read_head`.
    """
    place, number, end = BEGINNING_BYTES, 0, os.fstat(file).st_size
    while place + HEAD_BYTES <= end:
        try:
            head = read_head(file, path, place, number, first)
        except DamageError:
            if _is_blank(file, place, HEAD_BYTES) and _is_blank(file, place, end - place):
                return  # power has failed before anything of it was on the disk
            raise
        if place + HEAD_BYTES + head.size > end:
            return
        yield place, head
        place, number = place + HEAD_BYTES + head.size, number + 1


def read_head(file: int, path: Path, place: int, number: int, first: int | None) -> Head:
    """Return the head at a place.

    Args:
        file: open to read.
        path: of the file.
        place: in the file, in bytes.
        number: of the record that stands there.
        first: round of the file's first record, if every record is of the next round; None if it is not.

    Raises:
        DamageError: it is damaged, or that of another record or round.
    """
    data = _read(file, HEAD_BYTES, place)
    if data[_HEAD.size :] != _CHECKSUM.pack(zlib.crc32(data[: _HEAD.size])):
        raise DamageError(path, number, place, f"has a damaged head, and what follows cannot be found; {_LEFT}")
    head = Head(*_HEAD.unpack_from(data))
    if head.number != number:
        raise DamageError(path, number, place, f"is missing, record {head.number} stands there; {_LEFT}")
    if first is not None and head.round != first + number:
        raise DamageError(path, number, place, f"is of round {head.round}, expected {first + number}; {_LEFT}")
    return head


def read_record(file: int, path: Path, place: int, head: Head) -> Record:
    """Return a record, with its body if that has its checksum."""
    body = _read(file, head.size, place + HEAD_BYTES)
    whole = (len(body), zlib.crc32(body)) == (head.size, head.checksum)
    damage = None if whole else damaged(path, place, head)
    return Record(Entry(head.entry), head.round, head.site, b"" if damage else body, damage)


def _read(file: int, size: int, place: int) -> bytes:
    try:
        return os.pread(file, size, place)
    except OSError:  # a disk that cannot read what it holds
        return b""


def _is_blank(file: int, place: int, size: int) -> bool:
    data = _read(file, size, place)
    return len(data) == size and not data.strip(b"\0")


def damaged(path: Path, place: int, head: Head) -> DamageError:
    """Return the error that a record's body does not have its checksum."""
    return DamageError(
        path, head.number, place, "is damaged: check the disk, and put back a copy of the file", head.round
    )


def missing(path: Path, number: int, place: int, round_: int) -> DamageError:
    """Return the error that the record of a round, which should be the file's last, is not there."""
    return DamageError(path, number, place, "is missing, the file ends there: put back a copy that is whole", round_)


def beginning(plan_sha256: str, run_id: str) -> bytes:
    """Return how the journal of a run begins."""
    start = _NAME + f"{FORMAT}\n{plan_sha256}\n{run_id}".encode()
    return start + f" {zlib.crc32(start):08x}\n".encode()


def check_beginning(path: Path, stored: bytes, plan_sha256: str) -> str:
    """Return the run's number in a journal's beginning.

    Raises:
        UserError: it is damaged, or that of another format or plan.
    """
    start, _, checksum = stored.rpartition(b" ")
    if not start.startswith(_NAME) or checksum != f"{zlib.crc32(start):08x}\n".encode():
        raise UserError(
            f"{path}: is no ledger, or its beginning (byte 0 to {BEGINNING_BYTES}) is damaged; {_LEFT}",
            code="ledger-damaged",
        )
    format_, _, rest = start.removeprefix(_NAME).decode().partition("\n")
    if format_ != str(FORMAT):
        raise UserError(
            f"{path}: is a ledger of version {format_}, this rankdad writes version {FORMAT}: finish the run with the "
            "rankdad that began it",
            code="ledger-of-earlier-version",
        )
    plan, _, run_id = rest.partition("\n")
    if plan != plan_sha256:
        raise UserError(
            f"{path}: is the ledger of another run, or of another version: go on with that, or elsewhere",
            code="ledger-of-another-run",
        )
    return run_id
