"""The ledger: one append-only file of everything that a run has decided, written before anybody is answered.

A file begins with a mark, the plan's digest and the run's own number, which tells it from another run of the same plan.
Each record is a head with a checksum and a body of raw bytes as they were on the wire: a contribution of a site, or the
update of a round. A crash can cut the last record short; nobody was answered then, and it is dropped when the file is
opened again.

    head   size of the body, uint32 · checksum (CRC-32) of kind, site, round and body, uint32 · kind, uint8 ·
           site's place in the plan, uint16 · round, uint64
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path

from common.errors import UserError

MARK = b"rankdad ledger 1\n"
_HEAD, _CHECKED = struct.Struct("<IIBHQ"), struct.Struct("<BHQ")
NOBODY = 0xFFFF  # the place of the aggregator


def _beginning(mark: bytes, run_id: str) -> bytes:
    start = mark + run_id.encode()
    return start + f" {zlib.crc32(start):08x}\n".encode()


class Durability(StrEnum):
    """What a run goes on after: the death of a process, or also a power failure, at the price of a sync each record."""

    PROCESS = "process"
    POWER = "power"


class Entry(IntEnum):
    """What a record holds."""

    CONTRIBUTION = 1
    UPDATE = 2


@dataclass(frozen=True)
class Record:
    """One record.

    Args:
        entry: what it holds.
        round: its number.
        site: place in the plan of the site that sent it; NOBODY for an update.
        body: a message's bytes.
    """

    entry: Entry
    round: int
    site: int
    body: bytes


class Ledger:
    """A run's ledger, open to append.

    Args:
        path: made if it is missing; a torn last record is cut off.
        plan_sha256: digest of the run's plan.
        run_id: of this run, 16 hexadecimal digits; that of a file that is there already stands.
        sync: whether a record is on the disk, not only with the operating system, before `append` returns: what a
            power failure needs, and a crash of the process does not.

    Raises:
        UserError: the file is no ledger, or that of another plan.
    """

    def __init__(self, path: Path, plan_sha256: str, run_id: str = "0" * 16, *, sync: bool = False) -> None:
        self.path = path
        self._sync = sync
        self._updates: dict[int, tuple[int, int]] = {}  # round → place and size of its update's body
        mark = MARK + plan_sha256.encode() + b"\n"
        start = _beginning(mark, run_id)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        found = os.pread(self._file, len(start), 0)
        if not mark.startswith(found[: len(mark)]):
            raise self._refusal("is the ledger of another run, plan or version")
        self._end = len(start)
        if len(found) < len(start):
            os.truncate(self._file, 0)
            self._write(start, 0)
            found = start
        self.run_id = found[len(mark) :][:16].decode(errors="replace")
        if found != _beginning(mark, self.run_id):
            raise self._refusal("has a damaged beginning")
        self._start = len(start)
        for place, record in _scan(self._file, self._start):
            self._end = place + _HEAD.size + len(record.body)
            self._note(record, place)
        os.truncate(self._file, self._end)

    def append(self, record: Record) -> None:
        """Write a record at the end.

        Raises:
            UserError: the disk is full or broken; what was written before stays readable.
        """
        checked = _CHECKED.pack(record.entry, record.site, record.round)
        checksum = zlib.crc32(record.body, zlib.crc32(checked))
        head = _HEAD.pack(len(record.body), checksum, record.entry, record.site, record.round)
        try:
            self._write(head + record.body, self._end)
            if self._sync:
                os.fdatasync(self._file)
        except OSError as error:
            os.truncate(self._file, self._end)
            raise UserError(f"{self.path}: cannot be written: {error.strerror}; the run can go on from here") from None
        self._note(record, self._end)
        self._end += len(head) + len(record.body)

    def update(self, round_: int) -> bytes | None:
        """Return the update of a completed round; None if it is not there."""
        if round_ not in self._updates:
            return None
        place, size = self._updates[round_]
        return os.pread(self._file, size, place)

    def records(self) -> Iterator[Record]:
        """Yield all records in their order."""
        return (record for _, record in _scan(self._file, self._start))

    def _refusal(self, what: str) -> UserError:
        os.close(self._file)
        return UserError(f"{self.path}: {what}; it is left as it is")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _note(self, record: Record, place: int) -> None:
        if record.entry is Entry.UPDATE:
            self._updates[record.round] = place + _HEAD.size, len(record.body)

    def _write(self, data: bytes, place: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file, view, place)
            view, place = view[written:], place + written


def read_ledger(path: Path, plan_sha256: str) -> Iterator[Record]:
    """Yield a ledger's whole records without changing it, so that its run may go on meanwhile.

    Raises:
        UserError: it is missing, unreadable, or that of another plan.
    """
    mark = MARK + plan_sha256.encode() + b"\n"
    try:
        with path.open("rb") as file:
            found = file.read(len(_beginning(mark, "0" * 16)))
            if found != _beginning(mark, found[len(mark) :][:16].decode(errors="replace")):
                raise UserError(f"{path}: is no ledger of this run, plan and version")
            for _, record in _scan(file.fileno(), len(found)):
                yield record
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _scan(file: int, place: int) -> Iterator[tuple[int, Record]]:
    """Yield whole records with their places, up to the first that is torn."""
    end = os.fstat(file).st_size
    while place + _HEAD.size <= end:
        size, checksum, entry, site, round_ = _HEAD.unpack(os.pread(file, _HEAD.size, place))
        if place + _HEAD.size + size > end or entry not in Entry.__members__.values():
            return
        body = os.pread(file, size, place + _HEAD.size)
        if zlib.crc32(body, zlib.crc32(_CHECKED.pack(entry, site, round_))) != checksum:
            return
        yield place, Record(Entry(entry), round_, site, body)
        place += _HEAD.size + size
