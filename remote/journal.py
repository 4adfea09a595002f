"""A journal: one append-only file of records, cut short at most by a crash.

A crash can cut the last record short; nobody was answered then. Nothing but that is ever cut off when the file is
opened again, and what was there of it is kept beside it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path

from rankdad.common.errors import UserError
from rankdad.common.files import sync_path
from rankdad.remote.records import (
    BEGINNING_BYTES,
    HEAD_BYTES,
    RUN_PLACE,
    DamageError,
    Head,
    Record,
    beginning,
    check_beginning,
    damaged,
    missing,
    packed,
    read_head,
    read_heads,
    read_record,
)

TORN = ".torn"  # behind the name of the file that keeps what a crash has left of a record
_log = logging.getLogger(__name__)


class Journal:
    """A file of records, open to append and to read.

    Args:
        path: made if it is missing; a torn last record is cut off and kept beside it.
        plan_sha256: digest of the run's plan.
        run_id: of this run, 16 hexadecimal digits; that of a file that is there already stands.
        first: round of the first record, if every record is of the next round; None if it is not.
        sync: whether a record is on the disk, not only with the operating system, before `append` returns.

    Raises:
        UserError: the file is no journal, or that of another plan or format.
        DamageError: a head is damaged, or a record is missing.
    """

    def __init__(
        self, path: Path, plan_sha256: str, run_id: str, *, first: int | None = None, sync: bool = False
    ) -> None:
        self.path, self._first, self._sync = path, first, sync
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # gradients, or with dad the data themselves
        except OSError as error:
            raise UserError(f"{path}: cannot be opened: {error.strerror}", code="cannot-read") from None
        try:
            self._lock()
            self.run_id = self._begin(plan_sha256, run_id)
            self._places = array("Q")
            self.end = BEGINNING_BYTES
            for place, head in read_heads(self._file, path, first):
                self._places.append(place)
                self.end = place + HEAD_BYTES + head.size
                record = read_record(self._file, path, place, head)
                if record.damage is not None:
                    _log.warning("%s", record.damage)
            self._put_torn_record_aside()
        except OSError as error:
            self.close()
            raise UserError(f"{path}: cannot be read or written: {error.strerror}", code="cannot-read") from None
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._places)

    def _begin(self, plan_sha256: str, run_id: str) -> str:
        """Write the file's beginning, or check the one that is there; return the run's number."""
        start, stored = beginning(plan_sha256, run_id), os.pread(self._file, BEGINNING_BYTES, 0)
        torn = len(stored) < BEGINNING_BYTES and start[:RUN_PLACE].startswith(stored[:RUN_PLACE])
        if not torn:
            return check_beginning(self.path, stored, plan_sha256)
        self._write(start, 0)
        if self._sync:
            os.fsync(self._file)
            sync_path(self.path.parent)
        return run_id

    def _put_torn_record_aside(self) -> None:
        """Cut off what a crash has left of a last record, and keep it in another file."""
        torn = os.pread(self._file, os.fstat(self._file).st_size - self.end, self.end)
        if not torn:
            return
        with self._beside().open("ab") as kept:
            kept.write(torn)
        self._beside().chmod(0o600)
        os.truncate(self._file, self.end)
        what = f"was cut short by a crash, and is kept in {self._beside().name}"
        _log.warning("%s", DamageError(self.path, len(self), self.end, what))

    def _head(self, number: int) -> Head:
        return read_head(self._file, self.path, self._places[number], number, self._first)

    def _beside(self) -> Path:
        return self.path.with_name(self.path.name + TORN)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise UserError(
                f"{self.path}: is written by another process: does this run's aggregator run already?", code="locked"
            ) from None

    def unlock(self) -> None:
        """Let other processes write until `relock`."""
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def relock(self) -> bool:
        """Write again; return whether the file is open, and as it was left.

        Raises:
            UserError: another process writes.
        """
        if self._file < 0:
            return False
        self._lock()
        return os.fstat(self._file).st_size == self.end

    def append(self, record: Record) -> None:
        """Write a record at the end.

        Raises:
            UserError: the disk is full or broken; what was written before stays readable.
        """
        place, data = self.end, packed(record, len(self))
        try:
            self._write(data, place)
            if self._sync:
                os.fdatasync(self._file)
        except OSError as error:
            os.truncate(self._file, place)
            raise UserError(
                f"{self.path}: cannot be written: {error.strerror}; the run can go on from here", code="cannot-write"
            ) from None
        self.end = place + len(data)
        self._places.append(place)

    def at(self, number: int) -> Record:
        """Return a record.

        Raises:
            DamageError: its head is damaged.
        """
        place = self._places[number]
        return read_record(self._file, self.path, place, self._head(number))

    def records(self) -> Iterator[Record]:
        """Yield all records in their order."""
        return (self.at(number) for number in range(len(self)))

    def mend(self, number: int, body: bytes) -> None:
        """Write a damaged body again.

        Raises:
            DamageError: this is not what was there.
        """
        place, head = self._places[number], self._head(number)
        if (len(body), zlib.crc32(body)) != (head.size, head.checksum):
            raise damaged(self.path, place, head)
        self._write(body, place + HEAD_BYTES)

    def lacks(self, round_: int) -> DamageError:
        """Return the error that the record of a round, which should be the next, is not there."""
        return missing(self.path, len(self), self.end, round_)

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def remove(self) -> None:
        """Close the file and remove it, with what was put aside of it."""
        self.close()
        for path in (self.path, self._beside()):
            path.unlink(missing_ok=True)

    def _write(self, data: bytes, place: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file, view, place)
            view, place = view[written:], place + written


def read_journal(path: Path, plan_sha256: str, first: int | None = None) -> Iterator[Record]:
    """Yield a journal's records without changing it, so that its run may go on meanwhile.

    Args:
        path: of the file.
        plan_sha256: digest of the run's plan.
        first: see `Journal`.

    Raises:
        UserError: it is missing, unreadable, or that of another plan or format.
        DamageError: a head is damaged, or a record is missing.
    """
    try:
        with path.open("rb") as file:
            check_beginning(path, file.read(BEGINNING_BYTES), plan_sha256)
            for place, head in read_heads(file.fileno(), path, first):
                yield read_record(file.fileno(), path, place, head)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}", code="cannot-read") from None
