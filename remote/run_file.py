"""Writing a run's file, one transaction for each round; see `remote.run_reader`."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rankdad.common.errors import UserError, visible
from rankdad.common.files import AGAIN, make_folder, sync_path
from rankdad.common.protocol.versions import WIRE
from rankdad.remote.journal import PAGE, check_log
from rankdad.remote.records import LEFT, OLDEST, OLDEST_SENT, DamageError, Entry, Record
from rankdad.remote.run_reader import BROKEN, FORMAT, ROUNDS, SPEC, TABLE_NAMES, TABLES, RunReader, places_of

COPY = ".copy"  # of a file with damage outside of its rows
BESIDE = ("", "-wal", "-shm", ".lock", COPY)  # suffixes of the files of a database
CACHE = 256  # KiB of pages in memory: SQLite's default scattered them and cost 1 KB more a step
JOURNAL_PAGES = 500  # pages in the write-ahead log before SQLite moves them into the file
WITHOUT_ROWS = re.compile(r"in database main|free space corruption|ptr ?map|[Ff]reelist|never used")  # of quick_check
PATIENCE = 30  # seconds to wait for other processes' locks and readers
_log = logging.getLogger(__name__)


class RunFile(RunReader):
    """A run's file, open for writing by one process at a time.

    Args:
        path: the file; created if missing.
        plan_sha256: digest of the run's plan; None accepts the file's.
        run_id: identity of a new run, 16 hexadecimal digits.
        keeps: whether to store contributions and updates, or only rows.
        sync: whether to fsync each round before answering: protects against power failures, not only crashes.

    Raises:
        UserError: another process is writing, or the file has another plan or format.
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
        self._waiting: list[Record] = []  # for the next commit
        self._cells: list[tuple[str, int, str]] = []  # for the next commit: table, round, row
        self._round: int | None = None  # round of the pending update
        self._lock = -1
        self._journal = 0  # inode of the write-ahead log
        make_folder(path.parent)
        try:
            self._take_lock()
            path.with_name(f"{path.name}{COPY}").unlink(missing_ok=True)  # cut short, and it may contain gradients
            if not path.exists():
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))  # it may contain gradients, or data
            check_log(path)
            self._connect()
            is_new = not self._number("SELECT count(*) FROM sqlite_master", 0)  # or without tables after a crash
            if not is_new:
                self._check_beginning(plan_sha256)  # before writing
                if not self._is_whole():
                    self._rewrite()
            self._prepare(plan_sha256 or "", run_id, is_new=is_new, sync=sync)
            self._check_beginning(plan_sha256)
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
        """Set up the connection, and create the tables of a new file."""
        try:
            if is_new and self.keeps and self.path.with_name(SPEC).exists():  # written after the tables
                raise DamageError(self.path, f"has lost all rounds of its run; {LEFT}")
            if is_new:
                self._db.executescript(f"PRAGMA page_size = {PAGE}; PRAGMA auto_vacuum = INCREMENTAL; VACUUM")
            mode = "FULL" if sync else "OFF"
            self._db.executescript(
                "PRAGMA wal_checkpoint; "  # what a crash has cut short must not stand behind the next rounds
                f"PRAGMA journal_mode = WAL; PRAGMA synchronous = {mode}; PRAGMA secure_delete = FAST; "
                f"PRAGMA wal_autocheckpoint = {JOURNAL_PAGES}; PRAGMA cache_size = -{CACHE}"
            )
            if is_new:
                with self._writing():
                    for statement in TABLES:
                        self._db.execute(statement)
                    self._own = (run_id,)
                    facts = {"format": FORMAT, "wire": str(WIRE), "plan": plan_sha256, "run": run_id}
                    for name, value in facts.items():
                        self._set(name, value)
                if sync:
                    sync_path(self.path.parent)
        except BROKEN as error:
            raise self._failed(error) from None

    def _connect(self) -> None:
        self._inode = _inode(self.path)
        self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._db.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000}")
        self._db.execute("PRAGMA cell_size_check = ON")

    def _is_whole(self) -> bool:
        """Check everything but the bodies of contributions and updates, before writing makes damage worse.

        Returns:
            Whether all pages are consistent; if not, all rows are there.

        Raises:
            DamageError: a row is damaged or missing; names its round, if one can be told.
        """
        try:
            found = [line for (text,) in self._rows("PRAGMA quick_check") for line in str(text).splitlines()]
        except DamageError as error:
            found = [str(error)]
        if found == ["ok"]:
            for name in TABLE_NAMES:
                for _ in self.table(name):
                    pass
            return True
        damaged = [*self.damaged_rows()]
        if damaged:
            raise next((one for one in damaged if one.row is not None), damaged[0])
        if not all(map(WITHOUT_ROWS.search, found)):
            raise DamageError(self.path, f"is damaged ({visible(found[-1])}); {LEFT}")
        _log.warning("%s: is damaged outside of its rows (%s): these go into a new file", self.path, visible(found[-1]))
        return False

    def _rewrite(self) -> None:
        """Replace the file by a copy with the same rows.

        Raises:
            UserError: another process keeps reading it, or the disk is full.
        """
        copy = self.path.with_name(f"{self.path.name}{COPY}")
        os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            self._db.execute("VACUUM INTO ?", (str(copy),))
            # Or SQLite would add the old journal to the new file.
            if any(is_busy for is_busy, *_ in self._rows("PRAGMA wal_checkpoint(TRUNCATE)")):
                problem = f"{self.path}: another process is reading it: end that"
                raise UserError(problem, code="file-is-read", file=self.path)
        except BROKEN as error:
            copy.unlink()
            raise self._failed(error, "cannot-write") from None
        except UserError:
            copy.unlink()
            raise
        self._db.close()
        sync_path(copy)
        copy.replace(self.path)
        sync_path(self.path.parent)
        self._connect()

    def _take_lock(self) -> None:
        if self._lock < 0:
            self._lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = -1
            raise UserError(
                f"{self.path}: is in use by another process: is this run's aggregator already running?", code="locked"
            ) from None

    def unlock(self) -> None:
        """Let other processes write until `relock`."""
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def relock(self) -> bool:
        """Lock again; return whether the file is open and unchanged.

        Raises:
            UserError: another process is writing.
        """
        if self._lock < 0:
            return False
        self._take_lock()
        return self._number("PRAGMA data_version", 0) == self._version

    def append(self, record: Record) -> None:
        """Add a record for the next `commit`."""
        if record.entry is Entry.UPDATE:
            self._round = record.round
        if self.keeps:
            self._waiting.append(record)

    def begin_table(self, name: str, columns: Sequence[str]) -> None:
        """Set the columns of a new table."""
        if not self.columns(name):
            self.set(f"columns of {name}", json.dumps(columns))

    def row(self, name: str, row: Sequence[object]) -> None:
        """Add a row of a table for the next `commit`; ignored for rounds that were committed before."""
        if self._round is not None:
            self._cells.append((name, self._round, json.dumps(row)))

    def commit(self) -> None:
        """Write all pending records and rows in one transaction.

        Raises:
            UserError: the disk is full or broken; the records stay pending.
        """
        if not self._waiting and not self._cells:
            self._round = None
            return
        with self._writing():
            counts = {name: self.count(name) for name in TABLE_NAMES}
            for name, round_, row in self._cells:
                own = (name, counts[name], round_)
                self._db.execute("INSERT INTO cells VALUES (?, ?, ?, ?, ?)", (*own, self._digest_of(*own, row), row))
                counts[name] += 1
            for record in self._waiting:
                begin, end = places_of(record.round)
                ask = "SELECT max(place) + 1 FROM contributions WHERE place >= ? AND place < ?"
                place = self._number(ask, begin, begin, end)
                if record.entry is Entry.UPDATE:
                    self._put_update(record.round, place - begin, json.dumps(counts), record.body)
                    continue
                sent = (place, int(record.entry), record.site)
                values = (*sent, self._digest_of(*sent, record.body), record.body)
                self._db.execute("INSERT INTO contributions VALUES (?, ?, ?, ?, ?)", values)
        self._waiting, self._cells, self._round = [], [], None

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._lock >= 0

    def commit_sent(self) -> None:
        """Write pending contributions without the pending update, which could not be applied."""
        if self.is_open:
            self._waiting = [record for record in self._waiting if record.entry is not Entry.UPDATE]
            self._cells = []
            self.commit()

    def _put_update(self, round_: int, sent: int, rows: str, body: bytes) -> None:
        values = (round_, sent, rows, self._digest_of(round_, sent, rows, body), body)
        self._db.execute("REPLACE INTO updates VALUES (?, ?, ?, ?, ?)", values)

    def set(self, name: str, value: str) -> None:
        """Write a fact."""
        with self._writing():
            self._set(name, value)

    def _set(self, name: str, value: str) -> None:
        self._db.execute("REPLACE INTO facts VALUES (?, ?, ?)", (name, value, self._digest_of_fact(name, value)))

    def mend(self, round_: int, body: bytes) -> None:
        """Repair a damaged update.

        Raises:
            DamageError: the digest does not match.
        """
        for sent, rows, digest in self._rows("SELECT sent, rows, digest FROM updates WHERE round = ?", round_):
            if digest == self._digest_of(round_, sent, rows, body):
                with self._writing():
                    self._put_update(round_, sent, rows, body)
                return
        raise self._damaged("the update", round_)

    def retire(self, before: int, *, updates: bool) -> None:
        """Delete records of rounds to which the aggregator never returns.

        Args:
            before: first round whose contributions remain.
            updates: whether to delete updates, too, before the previous call's round.
        """
        last = self.oldest_contribution
        with self._writing():
            self._db.execute("DELETE FROM contributions WHERE place < ?", places_of(before)[:1])
            self._set(OLDEST_SENT, str(before))
            if updates:  # a site's checkpoint may be older than the aggregator's
                self._set(OLDEST, str(last))
                self._db.execute("DELETE FROM updates WHERE round < ?", (last,))

    def delete(self, facts: dict[str, str], site: int | None = None, *, all_sites: bool = False) -> None:
        """Write facts and delete contributions in one transaction, then shorten the file.

        Args:
            facts: facts to write.
            site: place of the site whose contributions to delete.
            all_sites: whether to delete all contributions.
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
        """Release free pages, so that no deleted byte remains in the file or its log.

        Raises:
            UserError: another process keeps reading the deleted rows.
        """
        try:
            self._db.executescript("PRAGMA incremental_vacuum")
        except BROKEN as error:
            raise self._failed(error, "cannot-write") from None
        if any(is_busy for is_busy, *_ in self._rows("PRAGMA wal_checkpoint(TRUNCATE)")):
            raise UserError(
                f"{self.path}: another process is reading, so deleted contributions are still in the file: end that "
                f"process, then `rankdad forget {self.path.parent}`",
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
            text = f"{failed}; the run can resume from here: {AGAIN}"
            raise UserError(text, code=failed.code, file=self.path) from None

    def _check_place(self) -> None:
        """Check that the path still names the open file.

        Raises:
            UserError: the file was removed or replaced.
        """
        journal = _inode(self.path.with_name(f"{self.path.name}-wal"))
        self._journal = self._journal or journal
        if _inode(self.path) != self._inode or journal != self._journal:
            raise UserError(
                f"{self.path}: was removed or replaced during the run: put it back, and resume the run",
                code="file-replaced",
                file=self.path,
            )

    def close(self) -> None:
        """Close and unlock the file."""
        db = getattr(self, "_db", None)
        if db is not None and self.is_open:
            with suppress(*BROKEN):  # another reader, or damage
                db.executescript("PRAGMA busy_timeout = 0; PRAGMA journal_mode = DELETE")  # leaves a single file
        if db is not None:
            db.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _inode(path: Path) -> int:
    """Return a file's inode; 0 if it does not exist."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def row_bytes(body: int) -> int:
    """Return the most bytes in the file for a row with a body of so many: pages are at least half full."""
    return min(2 * body + 256, body + body // 500 + 3 * PAGE)


def names_of(file: str) -> list[str]:
    """Return the names of a database's files."""
    return [file + beside for beside in BESIDE]


def remove(path: Path) -> None:
    """Remove a closed run's file and its companions."""
    for name in names_of(path.name):
        path.with_name(name).unlink(missing_ok=True)
