"""A run's file, `run.sqlite`: what sites have sent, the answers of rounds, and the rows of its tables.

A round is one transaction. A crash, or a power failure, leaves all of it or nothing. Every row has a digest of its own,
and an update says how many rows of other tables there are with it: none is missing unnoticed.

    facts          the format, the plan's digest, the run's number, the columns of tables; how the run has ended
    contributions  what sites have sent, in the order in which it came, and resets; until a later checkpoint
    updates        the answer of each round
    cells          rows of steps.csv, metrics.csv and spectra.csv, by round
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from rankdad.common.errors import UserError, visible
from rankdad.common.files import make_folder, sync_path
from rankdad.remote.records import DamageError, Entry, Record, digest_of

FILE, ROWS = "run.sqlite", "rows.sqlite"  # in a run's directory: the latter where rows alone are kept
BESIDE = ("", "-wal", "-shm", ".lock")  # behind the name of what belongs to a file
TABLE_NAMES = ("steps", "metrics", "spectra")
FORMAT = "1"
PAGE = 4096  # bytes
JOURNAL_PAGES = 1000  # that SQLite lets come together beside the file, before it puts them in
OF_THE_DISK = {  # and of other processes; all other errors are the file's own
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM),
}
BROKEN = (sqlite3.Error, OverflowError, UnicodeDecodeError)  # the last: of what a message cites of a damaged file
LEFT = "it is left as it is: put back a copy that is whole"
TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL, digest BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE contributions (round INTEGER NOT NULL, number INTEGER NOT NULL, entry INTEGER NOT NULL,
    site INTEGER NOT NULL, digest BLOB NOT NULL, body BLOB NOT NULL, PRIMARY KEY (round, number)) WITHOUT ROWID;
CREATE TABLE updates (round INTEGER PRIMARY KEY, sent INTEGER NOT NULL, rows TEXT NOT NULL, digest BLOB NOT NULL,
    body BLOB NOT NULL);
CREATE TABLE cells (name TEXT NOT NULL, number INTEGER NOT NULL, round INTEGER NOT NULL, digest BLOB NOT NULL,
    row TEXT NOT NULL, PRIMARY KEY (name, number)) WITHOUT ROWID;
"""
ENDED, RETENTION, ROUNDS = "end", "retention", "rounds"  # facts of a run that is over, the last: how many it had


class RunReader:
    """A run's file, open to read; its run may go on meanwhile.

    Args:
        path: of the file.
        plan_sha256: digest of the run's plan; None takes any.

    Attributes:
        run_id: of the run, 16 hexadecimal digits.

    Raises:
        UserError: it is missing, or that of another plan or format.
        DamageError: it cannot be read.
    """

    def __init__(self, path: Path, plan_sha256: str | None = None) -> None:
        if not path.is_file():
            raise UserError(f"{path}: is missing: nothing is kept of a run", code="no-ledger", file=path)
        self.path = path
        self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        self._check_beginning(plan_sha256)

    def _check_beginning(self, plan_sha256: str | None) -> None:
        try:
            format_, plan = self.fact("format"), self.fact("plan")
            self.run_id = self.fact("run") or ""
            if not (format_ and plan and self.run_id):
                raise DamageError(self.path, f"is no run's file, or damaged; {LEFT}")
        except BaseException:
            self.close()
            raise
        problem = ""
        if format_ != FORMAT:
            code = "ledger-of-earlier-version"
            problem = f"has format {format_}, this rankdad writes {FORMAT}: finish the run with the one that began it"
        elif plan_sha256 not in (None, plan):
            code = "ledger-of-another-run"
            problem = "is of another run, or of another version: go on with that, or elsewhere"
        if problem:
            self.close()
            raise UserError(f"{self.path}: {problem}", code=code, file=self.path)

    def fact(self, name: str) -> str | None:
        """Return what is known by a name.

        Raises:
            DamageError: it is damaged.
        """
        for value, digest in self._rows("SELECT value, digest FROM facts WHERE name = ?", name):
            if digest != digest_of(name, value):
                raise DamageError(self.path, f"{name} is damaged; {LEFT}")
            return str(value)
        return None

    @property
    def oldest(self) -> int:
        """The first round whose update is kept."""
        return self._number("SELECT min(round) FROM updates", 0)

    @property
    def oldest_contribution(self) -> int:
        """The first round whose contributions are kept."""
        return int(self.fact("contributions from") or 0)

    @property
    def end(self) -> int:
        """The first round that has no update yet."""
        return self._number("SELECT max(round) + 1 FROM updates", 0)

    def update(self, round_: int) -> bytes | None:
        """Return the update of a completed round; None if it is not kept.

        Raises:
            DamageError: it is damaged.
        """
        record, _ = self._update(round_)
        if record is None:
            return None
        if record.damage is not None:
            raise record.damage
        return record.body

    def _update(self, round_: int) -> tuple[Record | None, int | None]:
        """Return a round's update, if it is there, and how many records were before it, if that is known."""
        damage = self._damaged("the update", round_)
        try:
            found = [*self._rows("SELECT sent, rows, digest, body FROM updates WHERE round = ?", round_)]
        except DamageError:
            return Record(Entry.UPDATE, round_, damage=damage), None
        if not found:
            return None, None
        ((sent, rows, digest, body),) = found
        if digest != digest_of(round_, sent, rows, body):
            return Record(Entry.UPDATE, round_, body=body, damage=damage), None
        return Record(Entry.UPDATE, round_, body=body), sent

    def records(self, since: int = 0) -> Iterator[Record]:
        """Yield what is kept of the rounds from `since` on: of each the contributions and resets, then the update.

        Raises:
            DamageError: records are missing.
        """
        last = self._number("SELECT max(round) FROM contributions", -1)
        whole_from = self.oldest_contribution if self.fact(RETENTION) is None else self.end
        for round_ in range(since, max(self.end, last + 1)):
            update, sent = self._update(round_)
            if update is None and self.oldest <= round_ < max(self.end, last):
                raise self.lacks(Entry.UPDATE, round_)
            count = 0
            for record in self._contributions(round_):
                count += 1
                yield record
            if sent is not None and sent != count and round_ >= whole_from:
                raise self.lacks(Entry.CONTRIBUTION, round_)
            if update is not None:
                yield update

    def _contributions(self, round_: int) -> Iterator[Record]:
        ask = "SELECT number, entry, site, digest, body FROM contributions WHERE round = ? ORDER BY number"
        for number, entry, site, digest, body in self._rows(ask, round_, of_round=round_):
            damage = self._damaged(f"contribution {number}", round_)
            try:
                whole = digest == digest_of(round_, number, entry, site, body)
                yield Record(Entry(entry), round_, site, body, None if whole else damage)
            except ValueError:
                raise damage from None

    def updates(self, since: int = 0) -> Iterator[Record]:
        """Yield the updates of the rounds from `since` on.

        Raises:
            UserError: they are not kept from there on.
            DamageError: the next one is damaged or missing.
        """
        if since < self.oldest:
            raise UserError(f"{self.path}: keeps no round before {self.oldest}", code="round-gone")
        for round_ in range(since, self.end):
            record, _ = self._update(round_)
            if record is None:
                raise self.lacks(Entry.UPDATE, round_)
            if record.damage is not None:
                raise record.damage
            yield record

    def check_end(self, round_: int) -> None:
        """Check that the update of every round before this one is there, and all of a run that is over.

        Raises:
            DamageError: one is not.
        """
        if self.end < max(round_, int(self.fact(ROUNDS) or 0)):
            raise self.lacks(Entry.UPDATE, self.end)

    def lacks(self, entry: Entry, round_: int) -> DamageError:
        """Return the error that a record of a round is not there."""
        what = "the update" if entry is Entry.UPDATE else "a contribution"
        return DamageError(self.path, f"{what} of round {round_} is missing: put back a copy that is whole", round_)

    def _damaged(self, what: str, round_: int) -> DamageError:
        said = f"{what} of round {round_} is damaged: check the disk, and put back a copy of the file"
        return DamageError(self.path, said, round_)

    def columns(self, name: str) -> list[str]:
        """Return the columns of a table; none of one that the run has not."""
        found = self.fact(f"columns of {name}")
        if found is None and self._rows_of_all().get(name):
            raise DamageError(self.path, f"the columns of {name} are missing; {LEFT}")
        return [] if found is None else list(json.loads(found))

    def table(self, name: str, before: int | None = None) -> Iterator[list[Any]]:
        """Yield the rows of a table: steps, metrics or spectra.

        Args:
            name: of the table.
            before: the first round whose rows are left out.

        Raises:
            DamageError: one is damaged.
        """
        ask, count = "SELECT number, round, digest, row FROM cells WHERE name = ? ORDER BY number", 0
        for number, round_, digest, row in self._rows(ask, name):
            if digest != digest_of(name, number, round_, row) or number != count:
                raise self._damaged(f"row {count} of {name}", round_)
            if before is not None and round_ >= before:
                return
            yield json.loads(row)
            count += 1
        if before is None and count < self._rows_of_all().get(name, 0):
            raise DamageError(self.path, f"row {count} of {name} is missing: put back a copy that is whole")

    def _rows_of_all(self) -> dict[str, int]:
        """Return how many rows each table has, as the last update says."""
        for (rows,) in self._rows("SELECT rows FROM updates ORDER BY round DESC LIMIT 1"):
            with suppress(ValueError, TypeError):  # it is damaged, which its digest says
                return dict(json.loads(rows))
        return {}

    def count(self, name: str) -> int:
        """Return how many rows a table has."""
        return self._number("SELECT max(number) + 1 FROM cells WHERE name = ?", 0, name)

    def sent(self) -> dict[int, tuple[int, int]]:
        """Return how many contributions there are of each site, by its place, and of how many bytes."""
        ask = "SELECT site, count(*), sum(length(body)) FROM contributions WHERE entry != ? GROUP BY site"
        return {site: (count, size) for site, count, size in self._rows(ask, Entry.RESET)}

    def faults(self) -> Iterator[str]:
        """Yield all that is damaged or missing, a sentence each."""
        try:
            for (said,) in self._rows("PRAGMA integrity_check(20)"):
                if said != "ok":
                    yield f"{self.path}: {said}"
        except DamageError as error:
            yield str(error)
            return
        for number in range(self.oldest, self.end):
            record, _ = self._update(number)
            fault = self.lacks(Entry.UPDATE, number) if record is None else record.damage
            if fault is not None:
                yield str(fault)
        parts: list[Callable[[], Iterator[Any]]] = [lambda: self.records(self.oldest_contribution)]
        parts += [lambda name=name: self.table(name) for name in TABLE_NAMES]  # type: ignore[misc]
        for part in parts:
            try:
                yield from (str(one.damage) for one in part() if isinstance(one, Record) and one.damage is not None)
            except DamageError as error:
                yield str(error)

    def _rows(self, ask: str, *values: object, of_round: int | None = None) -> Iterator[tuple[Any, ...]]:
        try:
            with closing(self._db.execute(ask, values)) as found:
                yield from found
        except BROKEN as error:
            failed = self._failed(error, "read")
            if of_round is not None and isinstance(failed, DamageError):
                failed = self._damaged("a contribution", of_round)
            raise failed from None

    def _number(self, ask: str, otherwise: int, *values: object) -> int:
        ((found,),) = self._rows(ask, *values)
        return otherwise if found is None else int(found)

    def _failed(self, error: Exception, what: str) -> UserError:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in OF_THE_DISK:
            return UserError(f"{self.path}: cannot be {what}: {error}", code=f"cannot-{what}", file=self.path)
        return DamageError(self.path, f"is damaged ({error}); {LEFT}")

    def close(self) -> None:
        """Close the file."""
        self._db.close()


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
        make_folder(path.parent)
        self._take_lock()
        try:
            if not path.exists():
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))  # gradients, or with dad the data themselves
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._prepare(plan_sha256 or "", run_id, sync=sync)
            self._check_beginning(plan_sha256)
            self._check_structure()
            self._version = self._number("PRAGMA data_version", 0)
        except OSError as error:
            self.close()
            raise UserError(f"{path}: cannot be opened: {error.strerror}", code="cannot-read", file=path) from None
        except BaseException:
            self.close()
            raise

    def _prepare(self, plan_sha256: str, run_id: str, *, sync: bool) -> None:
        """Set up the connection, and make the tables of a new file."""
        try:
            is_new = not self._number("SELECT count(*) FROM sqlite_master", 0)  # or a crash has left it without tables
            if is_new:
                self._db.executescript(f"PRAGMA page_size = {PAGE}; PRAGMA auto_vacuum = INCREMENTAL; VACUUM")
            mode = "FULL" if sync else "OFF"
            self._db.executescript(
                f"PRAGMA journal_mode = WAL; PRAGMA synchronous = {mode}; PRAGMA secure_delete = ON; "
                f"PRAGMA busy_timeout = 5000; PRAGMA wal_autocheckpoint = {JOURNAL_PAGES}; "
                "PRAGMA journal_size_limit = 0; PRAGMA cell_size_check = ON"
            )
            if is_new:
                with self._writing():
                    for statement in TABLES.split(";\n"):
                        self._db.execute(statement)
                    for name, value in (("format", FORMAT), ("plan", plan_sha256), ("run", run_id)):
                        self._set(name, value)
                if sync:
                    sync_path(self.path.parent)
        except BROKEN as error:
            raise self._failed(error, "read") from None

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
                ask = "SELECT max(number) + 1 FROM contributions WHERE round = ?"
                number = self._number(ask, 0, record.round)
                if record.entry is Entry.UPDATE:
                    self._put_update(record.round, number, json.dumps(counts), record.body)
                    continue
                sent = (record.round, number, int(record.entry), record.site)
                values = (*sent, digest_of(*sent, record.body), record.body)
                self._db.execute("INSERT INTO contributions VALUES (?, ?, ?, ?, ?, ?)", values)
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
            self._db.execute("DELETE FROM contributions WHERE round < ?", (before,))
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
        """Give free pages back, so that no deleted byte stays in the file or beside it."""
        try:
            self._db.executescript("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")
        except BROKEN as error:
            raise self._failed(error, "written") from None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BROKEN as error:
            with suppress(*BROKEN):
                self._db.execute("ROLLBACK")
            failed = self._failed(error, "written")
            code = "cannot-write" if failed.code == "cannot-written" else failed.code
            raise UserError(f"{failed}; the run can go on from here", code=code, file=self.path) from None

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


def reading(directory: Path) -> AbstractContextManager[RunReader]:
    """Return the file of a run's directory, open to read within a `with`.

    Raises:
        UserError: there is none, or it is of another format.
    """
    path = directory / ROWS
    return closing(RunReader(path if path.exists() else directory / FILE))
