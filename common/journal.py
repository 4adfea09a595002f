"""A journal: one append-only file of checksummed records, whole up to where a crash has cut it short.

A file begins with a mark, the plan's digest and the run's own number, which tells it from another run of the same plan.
Each record is a head with a checksum and a body of raw bytes. A crash can cut the last record short; nobody was
answered then, and it is dropped when the file is opened again.

    head   size of the body, uint32 · checksum (CRC-32) of kind, site, round and body, uint32 · kind, uint8 ·
           site's place in the plan, uint16 · round, uint64
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from common.errors import UserError

MARK = b"rankdad ledger 2\n"
_HEAD, _CHECKED = struct.Struct("<IIBHQ"), struct.Struct("<BHQ")
HEAD_BYTES = _HEAD.size
NOBODY = 0xFFFF  # the place of the aggregator


class Entry(IntEnum):
    """What a record holds."""

    CONTRIBUTION = 1
    UPDATE = 2
    RESET = 3


@dataclass(frozen=True)
class Record:
    """One record.

    Args:
        entry: a site's contribution; a round's update; or that a site has lost its state in this round, and goes on
            without residuals.
        round: its number.
        site: place in the plan of the site that it is about; NOBODY for an update.
        body: a message's bytes; empty for a reset.
    """

    entry: Entry
    round: int
    site: int
    body: bytes


class Journal:
    """A file of records, open to append and to read.

    Args:
        path: made if it is missing; a torn last record is cut off.
        plan_sha256: digest of the run's plan.
        run_id: of this run, 16 hexadecimal digits; that of a file that is there already stands.
        sync: whether a record is on the disk, not only with the operating system, before `append` returns.

    Raises:
        UserError: the file is no journal, or that of another plan.
    """

    def __init__(self, path: Path, plan_sha256: str, run_id: str, *, sync: bool = False) -> None:
        self.path = path
        self._sync = sync
        mark = _mark(plan_sha256)
        start = _beginning(mark, run_id)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # gradients, or with dad the data themselves
        except OSError as error:
            raise UserError(f"{path}: cannot be opened: {error.strerror}") from None
        self._lock()
        found = os.pread(self._file, len(start), 0)
        if not mark.startswith(found[: len(mark)]):
            raise self._refusal("is the ledger of another run, plan or version")
        self.end = len(start)
        if len(found) < len(start):
            os.truncate(self._file, 0)
            self._write(start, 0)
            found = start
            if sync:
                os.fsync(self._file)
                sync_path(path.parent)
        self.run_id = found[len(mark) :][:16].decode(errors="replace")
        if found != _beginning(mark, self.run_id):
            raise self._refusal("has a damaged beginning")
        self.start = len(start)
        for place, record in scan(self._file, self.start):
            self.end = place + HEAD_BYTES + len(record.body)
        if self._goes_on_after(self.end):
            raise self._refusal(f"is damaged at byte {self.end}, with whole records behind it (is the disk failing?)")
        os.truncate(self._file, self.end)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise self._refusal("is written by another process: does this run's aggregator run already?") from None

    def leave(self) -> None:
        """Let other processes write until `back`."""
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def back(self) -> bool:
        """Write again; return whether the file is open, and as it was left.

        Raises:
            UserError: another process writes.
        """
        if self._file < 0:
            return False
        self._lock()
        return os.fstat(self._file).st_size == self.end

    def _goes_on_after(self, place: int) -> bool:
        """Tell whether whole records follow one that is not whole: then it is damaged, not cut short."""
        head = os.pread(self._file, HEAD_BYTES, place)
        if len(head) < HEAD_BYTES:
            return False
        size = _HEAD.unpack(head)[0]
        return next(scan(self._file, place + HEAD_BYTES + size), None) is not None

    def append(self, record: Record) -> int:
        """Write a record at the end, and return its place.

        Raises:
            UserError: the disk is full or broken; what was written before stays readable.
        """
        place, data = self.end, _packed(record)
        try:
            self._write(data, place)
            if self._sync:
                os.fdatasync(self._file)
        except OSError as error:
            os.truncate(self._file, place)
            raise UserError(f"{self.path}: cannot be written: {error.strerror}; the run can go on from here") from None
        self.end = place + len(data)
        return place

    def at(self, place: int) -> Record:
        """Return the record at a place.

        Raises:
            UserError: the file has been damaged there.
        """
        for _, record in scan(self._file, place):
            return record
        raise UserError(f"{self.path}: is damaged at byte {place}: a record's checksum is wrong; is the disk failing?")

    def records(self) -> Iterator[tuple[int, Record]]:
        """Yield all records in their order, with their places."""
        return scan(self._file, self.start)

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _refusal(self, what: str) -> UserError:
        self.close()
        return UserError(f"{self.path}: {what}; it is left as it is")

    def _write(self, data: bytes, place: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file, view, place)
            view, place = view[written:], place + written


def sync_path(path: Path) -> None:
    """Put a file, or a folder's list of files, on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def read_journal(path: Path, plan_sha256: str) -> Iterator[Record]:
    """Yield a journal's whole records without changing it, so that its run may go on meanwhile.

    Raises:
        UserError: it is missing, unreadable, or that of another plan.
    """
    mark = _mark(plan_sha256)
    try:
        with path.open("rb") as file:
            found = file.read(len(_beginning(mark, "0" * 16)))
            if found != _beginning(mark, found[len(mark) :][:16].decode(errors="replace")):
                raise UserError(f"{path}: is no ledger of this run, plan and version")
            for _, record in scan(file.fileno(), len(found)):
                yield record
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def scan(file: int, place: int) -> Iterator[tuple[int, Record]]:
    """Yield whole records from a place on, with their places, up to the first that is torn."""
    end = os.fstat(file).st_size
    while place + HEAD_BYTES <= end:
        size, checksum, entry, site, round_ = _HEAD.unpack(os.pread(file, HEAD_BYTES, place))
        if place + HEAD_BYTES + size > end or entry not in Entry.__members__.values():
            return
        body = os.pread(file, size, place + HEAD_BYTES)
        if zlib.crc32(body, zlib.crc32(_CHECKED.pack(entry, site, round_))) != checksum:
            return
        yield place, Record(Entry(entry), round_, site, body)
        place += HEAD_BYTES + size


def _packed(record: Record) -> bytes:
    checked = _CHECKED.pack(record.entry, record.site, record.round)
    checksum = zlib.crc32(record.body, zlib.crc32(checked))
    return _HEAD.pack(len(record.body), checksum, record.entry, record.site, record.round) + record.body


def _mark(plan_sha256: str) -> bytes:
    return MARK + plan_sha256.encode() + b"\n"


def _beginning(mark: bytes, run_id: str) -> bytes:
    start = mark + run_id.encode()
    return start + f" {zlib.crc32(start):08x}\n".encode()
