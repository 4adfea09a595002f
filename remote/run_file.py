"""A run's file as it is written: what was taken of a round is one transaction; see `remote.run_reader`."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rankdad.common.errors import UserError, visible
from rankdad.common.files import AGAIN, make_folder, sync_path
from rankdad.common.protocol.versions import WIRE
from rankdad.remote.records import DamageError, Entry, Record, digest_of
from rankdad.remote.run_reader import BROKEN, FORMAT, LEFT, ROUNDS, SPEC, TABLE_NAMES, TABLES, RunReader, places_of

BESIDE = ("", "-wal", "-shm", ".lock")  # behind the name of what belongs to a file
PAGE = 16384  # bytes: bodies are large, and half as many writes take two thirds of the time
CACHE = (
    256  # KiB of pages in memory: with as many as SQLite takes by itself they came to lie scattered, 1 KB more a step
)
JOURNAL_PAGES = 500  # that SQLite lets come together beside the file, before it puts them in
PATIENCE = 30  # seconds for which others may hold the file's lock, or read what is to be deleted


class RunFile(RunReader):
    """A run's file, open to write; one process at a time.

    Args:
        path: made if it is missing.
        plan_sha256: digest of the run's plan; None takes that of the file.
        run_id: of this run, 16 hexadecimal digits; that of a file that is there already stands.
        keeps: whether contributions and updates are kept; else rows alone.
        sync: whether a round is on the disk, not only with the operating system, before anybody is answered: what a
            power failure needs, and a crash of the process does not.

    Raises:
        UserError: another process writes, or the file is that of another plan or format.
        DamageError: it cannot be read.
    """

    def __init__(
        self,
        path: Path,
        plan_sha256: str | None = None,
        run_id: str = "0" * 16,
        *,
        keeps: bool = True,
        sync: bool = True,
    ) -> None:
        self.path, self.keeps = path, keeps
        self._waiting: list[Record] = []  # for the end of their round
        self._cells: list[tuple[str, int, str]] = []  # likewise: table, round, row
        self._round: int | None = None  # whose update waits
        self._lock = -1
        self._journal = 0  # number of the file in which the newest rounds are
        make_folder(path.parent)
        try:
            self._take_lock()
            if not path.exists():
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))  # gradients, or with dad the data themselves
            self._inode = _inode(path)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000}")
            is_new = not self._number("SELECT count(*) FROM sqlite_master", 0)  # or a crash has left it without tables
            if not is_new:
                self._check_beginning(plan_sha256)  # before anything is written
            self._prepare(plan_sha256 or "", run_id, is_new=is_new, sync=sync)
            self._check_beginning(plan_sha256)
            self._check_structure()
            self._version = self._number("PRAGMA data_version", 0)
        except OSError as error:
            self.close()
            raise UserError(f"{path}: cannot be opened: {error.strerror}", code="cannot-read", file=path) from None
        except BROKEN as error:
            self.close()
            raise self._failed(error) from None
        except BaseException:
            self.close()
            raise

    def _prepare(self, plan_sha256: str, run_id: str, *, is_new: bool, sync: bool) -> None:
        """Set up the connection, and make the tables of a new file."""
        try:
            if is_new and self.keeps and self.path.with_name(SPEC).exists():  # which is written after the tables
                raise DamageError(self.path, f"has lost all rounds of its run; {LEFT}")
            if is_new:
                self._db.executescript(f"PRAGMA page_size = {PAGE}; PRAGMA auto_vacuum = INCREMENTAL; VACUUM")
            mode = "FULL" if sync else "OFF"
            self._db.executescript(
                f"PRAGMA journal_mode = WAL; PRAGMA synchronous = {mode}; PRAGMA secure_delete = FAST; "
                f"PRAGMA wal_autocheckpoint = {JOURNAL_PAGES}; PRAGMA cell_size_check = ON; "
                f"PRAGMA cache_size = -{CACHE}"
            )
            if is_new:
                with self._writing():
                    for statement in TABLES:
                        self._db.execute(statement)
                    facts = {"format": FORMAT, "wire": str(WIRE), "plan": plan_sha256, "run": run_id}
                    for name, value in facts.items():
                        self._set(name, value)
                if sync:
                    sync_path(self.path.parent)
        except BROKEN as error:
            raise self._failed(error) from None

    def _check_structure(self) -> None:
        """Check that nothing but bodies of contributions and updates is damaged: what is written would make it worse.

        Raises:
            DamageError: something else is.
        """
        for (said,) in self._rows("PRAGMA quick_check(1)"):
            if said != "ok":
                raise DamageError(self.path, f"is damaged ({visible(str(said))}); {LEFT}")
        for name in TABLE_NAMES:
            for _ in self.table(name):
                pass

    def _take_lock(self) -> None:
        if self._lock < 0:
            self._lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = -1
            raise UserError(
                f"{self.path}: is written by another process: does this run's aggregator run already?", code="locked"
            ) from None

    def unlock(self) -> None:
        """Let other processes write until `relock`."""
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def relock(self) -> bool:
        """Write again; return whether the file is open, and as it was left.

        Raises:
            UserError: another process writes.
        """
        if self._lock < 0:
            return False
        self._take_lock()
        return self._number("PRAGMA data_version", 0) == self._version

    def append(self, record: Record) -> None:
        """Take a record; `commit` writes it."""
        if record.entry is Entry.UPDATE:
            self._round = record.round
        if self.keeps:
            self._waiting.append(record)

    def begin_table(self, name: str, columns: Sequence[str]) -> None:
        """Name the columns of a table; those of one that is there already stand."""
        if not self.columns(name):
            self.set(f"columns of {name}", json.dumps(columns))

    def row(self, name: str, row: Sequence[object]) -> None:
        """Take a row of a table; one of a round that was committed before stands as it is."""
        if self._round is not None:
            self._cells.append((name, self._round, json.dumps(row)))

    def commit(self) -> None:
        """Write all records and rows that were taken since the last time, in one transaction.

        Raises:
            UserError: the disk is full or broken; what was written before stays, and these are tried again next time.
        """
        if not self._waiting and not self._cells:
            self._round = None
            return
        with self._writing():
            counts = {name: self.count(name) for name in TABLE_NAMES}
            for name, round_, row in self._cells:
                own = (name, counts[name], round_)
                self._db.execute("INSERT INTO cells VALUES (?, ?, ?, ?, ?)", (*own, digest_of(*own, row), row))
                counts[name] += 1
            for record in self._waiting:
                begin, end = places_of(record.round)
                ask = "SELECT max(place) + 1 FROM contributions WHERE place >= ? AND place < ?"
                place = self._number(ask, begin, begin, end)
                if record.entry is Entry.UPDATE:
                    self._put_update(record.round, place - begin, json.dumps(counts), record.body)
                    continue
                sent = (place, int(record.entry), record.site)
                values = (*sent, digest_of(*sent, record.body), record.body)
                self._db.execute("INSERT INTO contributions VALUES (?, ?, ?, ?, ?)", values)
        self._waiting, self._cells, self._round = [], [], None

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed."""
        return self._lock >= 0

    def commit_sent(self) -> None:
        """Write what sites have sent to the present round; its update is not, where it could not be followed."""
        if self.is_open:
            self._waiting = [record for record in self._waiting if record.entry is not Entry.UPDATE]
            self._cells = []
            self.commit()

    def _put_update(self, round_: int, sent: int, rows: str, body: bytes) -> None:
        values = (round_, sent, rows, digest_of(round_, sent, rows, body), body)
        self._db.execute("REPLACE INTO updates VALUES (?, ?, ?, ?, ?)", values)

    def set(self, name: str, value: str) -> None:
        """Write down a fact."""
        with self._writing():
            self._set(name, value)

    def _set(self, name: str, value: str) -> None:
        self._db.execute("REPLACE INTO facts VALUES (?, ?, ?)", (name, value, digest_of(name, value)))

    def mend(self, round_: int, body: bytes) -> None:
        """Write a damaged update again.

        Raises:
            DamageError: it was another one.
        """
        for sent, rows, digest in self._rows("SELECT sent, rows, digest FROM updates WHERE round = ?", round_):
            if digest == digest_of(round_, sent, rows, body):
                with self._writing():
                    self._put_update(round_, sent, rows, body)
                return
        raise self._damaged("the update", round_)

    def retire(self, before: int, *, updates: bool) -> None:
        """Delete what no process will need again: the aggregator goes back to no round before this.

        Args:
            before: the first round whose contributions stay.
            updates: whether updates go, too, of the rounds before that of the last time.
        """
        last = self.oldest_contribution
        with self._writing():
            self._db.execute("DELETE FROM contributions WHERE place < ?", places_of(before)[:1])
            self._set("contributions from", str(before))
            if updates:  # a site may go on from a checkpoint that is older than these here
                self._db.execute("DELETE FROM updates WHERE round < ?", (last,))

    def delete(self, facts: dict[str, str], site: int | None = None, *, all_sites: bool = False) -> None:
        """Write down how a run has ended, and delete contributions, in one transaction; shorten the file by them.

        Args:
            facts: to write down.
            site: whose contributions go.
            all_sites: whether everybody's go.
        """
        with self._writing():
            for name, value in (facts | {ROUNDS: str(self.end)}).items():
                self._set(name, value)
            if all_sites:
                self._db.execute("DELETE FROM contributions")
            elif site is not None:
                self._db.execute("DELETE FROM contributions WHERE site = ?", (site,))
        self._shorten()

    def _shorten(self) -> None:
        """Give free pages back, so that no deleted byte stays in the file or beside it.

        Raises:
            UserError: another process reads what is deleted, for longer than it is waited for.
        """
        try:
            self._db.executescript("PRAGMA incremental_vacuum")
        except BROKEN as error:
            raise self._failed(error, "cannot-write") from None
        if any(is_busy for is_busy, *_ in self._rows("PRAGMA wal_checkpoint(TRUNCATE)")):
            raise UserError(
                f"{self.path}: is being read, so that what sites have sent is deleted, but still in the file: end the "
                f"process that reads it, then `rankdad forget {self.path.parent}`",
                code="file-is-read",
                file=self.path,
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._check_place()
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            with suppress(*BROKEN):
                self._db.execute("ROLLBACK")
            if not isinstance(error, BROKEN):
                raise
            failed = self._failed(error, "cannot-write")
            said = f"{failed}; the run can go on from here: {AGAIN}"
            raise UserError(said, code=failed.code, file=self.path) from None

    def _check_place(self) -> None:
        """Check that what is written is the file of that name: nobody would find it under no name.

        Raises:
            UserError: somebody has removed or replaced it.
        """
        journal = _inode(self.path.with_name(f"{self.path.name}-wal"))
        self._journal = self._journal or journal
        if _inode(self.path) != self._inode or journal != self._journal:
            raise UserError(
                f"{self.path}: was removed or replaced while its run went on: put it back, and go on with the run",
                code="file-replaced",
                file=self.path,
            )

    def close(self) -> None:
        """Close the file, and let go of it."""
        db = getattr(self, "_db", None)
        if db is not None and self.is_open:
            with suppress(*BROKEN):  # somebody reads, or it is damaged
                db.executescript("PRAGMA busy_timeout = 0; PRAGMA journal_mode = DELETE")  # one file, to read anywhere
        if db is not None:
            db.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _inode(path: Path) -> int:
    """Return a file's number; 0 where there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def row_bytes(body: int) -> int:
    """Return the most bytes that a row with a body of so many takes in the file: a page is half full at least."""
    return min(2 * body + 256, body + body // 500 + 3 * PAGE)


def names_of(file: str) -> list[str]:
    """Return the names of all that belongs to a file."""
    return [file + beside for beside in BESIDE]


def remove(path: Path) -> None:
    """Remove a run's file, which is closed, and what belongs to it."""
    for name in names_of(path.name):
        path.with_name(name).unlink(missing_ok=True)
