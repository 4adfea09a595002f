"""Reading a run's file, `run.sqlite`: contributions, updates, and rows of tables.

A round is one transaction, complete or absent after a crash or power failure. Every row has a digest that includes
the run's identity, and an update counts the rows of the other tables, so that a missing or foreign row is noticed.

    facts          format, wire, digest of the plan, identity, columns of tables, record of the end
    contributions  contributions and resets in order of arrival, until a later checkpoint
    updates        the update of each round
    cells          rows of steps.csv, metrics.csv and spectra.csv, by round
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import Any

from rankdad.common.documents import parse_json
from rankdad.common.errors import UserError
from rankdad.common.protocol.versions import WIRE
from rankdad.remote.journal import check_log
from rankdad.remote.records import LEFT, OLDEST, OLDEST_SENT, DamageError, Entry, Record, digest_of

FILE, ROWS = "run.sqlite", "rows.sqlite"  # in a run's directory; the latter has only rows
SPEC = "run.json"  # exists once the file has its tables
TABLE_NAMES = ("steps", "metrics", "spectra")
FORMAT, EARLIER = "2", "1"  # digests of the earlier one do not include the run's identity
TABLES = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL, digest BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE contributions (place INTEGER PRIMARY KEY, entry INTEGER NOT NULL, site INTEGER NOT NULL, "
    "digest BLOB NOT NULL, body BLOB NOT NULL)",
    "CREATE TABLE updates (round INTEGER PRIMARY KEY, sent INTEGER NOT NULL, rows TEXT NOT NULL, digest BLOB NOT NULL, "
    "body BLOB NOT NULL)",
    "CREATE TABLE cells (name TEXT NOT NULL, number INTEGER NOT NULL, round INTEGER NOT NULL, digest BLOB NOT NULL, "
    "row TEXT NOT NULL, PRIMARY KEY (name, number)) WITHOUT ROWID",
)
PLACES = 1 << 20  # contributions in a round; a single integer key is faster for large rows
MAX_ROUNDS = 1 << 20  # to look for one by one
DISK_ERRORS = {  # and those of other processes; all others mean damage
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM),
}
BROKEN = (sqlite3.Error, OverflowError, UnicodeDecodeError)  # the last from messages about damaged text
ENDED, RETENTION, ROUNDS = "end", "retention", "rounds"  # facts of an ended run


def places_of(round_: int) -> tuple[int, int]:
    """Return the first place of a round's contributions, and that of the next round."""
    return round_ * PLACES, (round_ + 1) * PLACES


class RunReader:
    """A snapshot of a run's file; its run may be active.

    Args:
        path: the file.
        plan_sha256: digest of the run's plan; None accepts any.

    Attributes:
        run_id: the run's identity, 16 hexadecimal digits.

    Raises:
        UserError: it is missing, or has another plan or format.
        DamageError: it cannot be read.
    """

    _own: tuple[str, ...] = ()  # in all digests but those of the facts that are read first

    def __init__(self, path: Path, plan_sha256: str | None = None) -> None:
        self.path = path
        try:
            if not path.is_file():
                raise UserError(f"{path}: is missing", code="no-ledger", file=path)
            self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
            self._db.execute("BEGIN")  # snapshot
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}", code="cannot-read", file=path) from None
        except BROKEN as error:
            raise self._failed(error) from None
        self._check_beginning(plan_sha256)

    def _check_beginning(self, plan_sha256: str | None) -> None:
        try:
            made = {sql for (sql,) in self._rows("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
            if made and made != {*TABLES}:  # views and triggers would run foreign code
                raise DamageError(self.path, f"is damaged (it has other tables than a run's file); {LEFT}")
            format_, self.run_id = self.fact("format"), self.fact("run") or ""
            self._own = () if format_ == EARLIER else (self.run_id,)
            plan = self.fact("plan") if format_ in (FORMAT, EARLIER) else "?"  # others may have other digests
            if not (format_ and plan and self.run_id):
                raise DamageError(self.path, f"is not a run's file, or damaged; {LEFT}")
        except BaseException:
            self.close()
            raise
        problem = ""
        if format_ not in (FORMAT, EARLIER):
            code = "ledger-of-earlier-version"
            problem = f"has format {format_}, this rankdad writes {FORMAT}: finish the run with its own version"
        elif plan_sha256 and (wire := self._whole_number("wire")) != WIRE:
            code = "ledger-of-earlier-version"
            problem = f"is of wire {wire}, this rankdad has wire {WIRE}: finish the run with its own version"
        elif plan_sha256 not in (None, plan):
            code = "ledger-of-another-run"
            problem = "belongs to another run or version: choose another directory"
        if problem:
            self.close()
            raise UserError(f"{self.path}: {problem}", code=code, file=self.path)

    def fact(self, name: str) -> str | None:
        """Return a fact's value; None if it does not exist.

        Raises:
            DamageError: it is damaged.
        """
        for value, digest in self._rows("SELECT value, digest FROM facts WHERE name = ?", name):
            if digest != self._digest_of_fact(name, value):
                raise DamageError(self.path, f"{name} is damaged; {LEFT}")
            return str(value)
        return None

    def _digest_of(self, *parts: str | int | bytes) -> bytes:
        return digest_of(*self._own, *parts)

    def _digest_of_fact(self, name: str, value: str) -> bytes:
        return digest_of(name, value) if name in ("format", "run") else self._digest_of(name, value)

    @property
    def oldest(self) -> int:
        """The first stored update's round."""
        return self._number("SELECT min(round) FROM updates", 0)

    @property
    def oldest_contribution(self) -> int:
        """The first round with stored contributions."""
        return self._whole_number(OLDEST_SENT)

    def _whole_number(self, fact: str) -> int:
        found = self._parsed(self.fact(fact) or "0", fact)
        if not isinstance(found, int):
            raise DamageError(self.path, f"{fact} is damaged; {LEFT}")
        return found

    def _parsed(self, text: str, what: str) -> Any:
        """Parse JSON that has a valid digest but may be foreign."""
        try:
            return parse_json(text)
        except ValueError as error:
            raise DamageError(self.path, f"{what} is damaged ({error}); {LEFT}") from None

    @property
    def end(self) -> int:
        """The first round without an update."""
        return self._number("SELECT max(round) + 1 FROM updates", 0)

    def update(self, round_: int) -> bytes | None:
        """Return the update of a completed round; None if it is not stored.

        Raises:
            DamageError: it is damaged.
        """
        if not 0 <= round_ < 1 << 63:  # the number may come from an unauthenticated caller
            return None
        record, _ = self._update(round_)
        if record is None:
            return None
        if record.damage is not None:
            raise record.damage
        return record.body

    def _update(self, round_: int) -> tuple[Record | None, int | None]:
        """Return a round's update and the number of records before it, where known."""
        damage = self._damaged("the update", round_)
        try:
            found = [*self._rows("SELECT sent, rows, digest, body FROM updates WHERE round = ?", round_)]
        except DamageError:
            return Record(Entry.UPDATE, round_, damage=damage), None
        if not found:
            return None, None
        ((sent, rows, digest, body),) = found
        if digest != self._digest_of(round_, sent, rows, body):
            return Record(Entry.UPDATE, round_, body=body, damage=damage), None
        return Record(Entry.UPDATE, round_, body=body), sent

    def records(self, since: int = 0) -> Iterator[Record]:
        """Yield the records of rounds from `since` on: contributions and resets of each, then the update.

        Raises:
            DamageError: records are missing.
        """
        whole_from = self.oldest_contribution if self.fact(RETENTION) is None else self.end
        rounds = "SELECT round FROM updates UNION SELECT place >> ? FROM contributions ORDER BY 1"
        oldest, due = self.oldest, max(since, self.oldest)
        there = [round_ for round_ in self._rounds(rounds, PLACES.bit_length() - 1) if round_ >= since]
        for round_ in there:
            update, sent = self._update(round_)
            if round_ > due or (update is None and oldest <= round_ < there[-1]):
                raise self.lacks(Entry.UPDATE, min(due, round_))
            due = max(due, round_ + 1)
            count = 0
            for record in self._contributions(round_):
                count += 1
                yield record
            if sent is not None and sent != count and round_ >= whole_from:
                raise self.lacks(Entry.CONTRIBUTION, round_)
            if update is not None:
                yield update

    def _contributions(self, round_: int) -> Iterator[Record]:
        ask = "SELECT place, entry, site, digest, body FROM contributions WHERE place >= ? AND place < ? ORDER BY place"
        unreadable = self._damaged("a contribution", round_)
        for place, entry, site, digest, body in self._rows(ask, *places_of(round_), damage=lambda: unreadable):
            damage = self._damaged(f"contribution {place % PLACES}", round_)
            try:
                whole = digest == self._digest_of(place, entry, site, body)
                yield Record(Entry(entry), round_, site, body, None if whole else damage)
            except ValueError:
                raise damage from None

    def updates(self, since: int = 0) -> Iterator[Record]:
        """Yield the updates of rounds from `since` on.

        Raises:
            UserError: earlier ones are deleted.
            DamageError: the next one is damaged or missing.
        """
        if since < self.oldest:
            raise UserError(f"{self.path}: has no round before {self.oldest}", code="round-gone")
        for round_ in range(since, self.end):
            record, _ = self._update(round_)
            if record is None:
                raise self.lacks(Entry.UPDATE, round_)
            if record.damage is not None:
                raise record.damage
            yield record
        check_log(self.path)

    def check_end(self, round_: int) -> None:
        """Check that the updates of all rounds before this one exist, and of all rounds of an ended run.

        Raises:
            DamageError: one is missing.
        """
        if self.end < max(round_, self._whole_number(ROUNDS)):
            raise self.lacks(Entry.UPDATE, self.end)

    def lacks(self, entry: Entry, round_: int) -> DamageError:
        """Return the error for a missing record."""
        what = "the update" if entry is Entry.UPDATE else "a contribution"
        return DamageError(self.path, f"{what} of round {round_} is missing: restore an undamaged copy", round_)

    def _damaged(self, what: str, round_: int) -> DamageError:
        problem = f"{what} of round {round_} is damaged: check the disk, and restore a copy of the file"
        return DamageError(self.path, problem, round_)

    def columns(self, name: str) -> list[str]:
        """Return the columns of a table; empty if the run has none."""
        found = self.fact(f"columns of {name}")
        if found is None and self._rows_of_all().get(name):
            raise DamageError(self.path, f"the columns of {name} are missing; {LEFT}")
        columns = [] if found is None else self._parsed(found, f"columns of {name}")
        if not isinstance(columns, list) or not all(isinstance(column, str) for column in columns):
            raise DamageError(self.path, f"columns of {name} are damaged; {LEFT}")
        return columns

    def table(self, name: str, before: int | None = None) -> Iterator[list[Any]]:
        """Yield the rows of a table: steps, metrics or spectra.

        Args:
            name: the table's.
            before: first round to omit.

        Raises:
            DamageError: one is damaged.
        """
        ask, count = "SELECT number, round, digest, row FROM cells WHERE name = ? ORDER BY number", 0

        def unreadable() -> DamageError:
            return DamageError(self.path, f"row {count} of {name} is damaged; {LEFT}")

        for number, round_, digest, row in self._rows(ask, name, damage=unreadable):
            if digest != self._digest_of(name, number, round_, row) or number != count:
                raise self._damaged(f"row {count} of {name}", round_)
            if before is not None and round_ >= before:
                return
            cells = self._parsed(row, f"row {count} of {name}")
            if not isinstance(cells, list) or any(isinstance(cell, list | dict) for cell in cells):
                raise self._damaged(f"row {count} of {name}", round_)
            yield cells
            count += 1
        known = self._rows_of_all()
        if before is None and count < known.get(name, 0):
            raise DamageError(self.path, f"row {count} of {name} is missing: restore an undamaged copy")
        is_known = bool(known) or (self.path.name == FILE and not self.end)
        if before is None and is_known and count > known.get(name, 0):  # written together
            raise self.lacks(Entry.UPDATE, self.end)

    def _rows_of_all(self) -> dict[str, int]:
        """Return the number of rows by table, from the last update."""
        for (rows,) in self._rows("SELECT rows FROM updates ORDER BY round DESC LIMIT 1"):
            with suppress(ValueError):  # its digest reports the damage
                found = parse_json(rows) if isinstance(rows, str) else None
                if isinstance(found, dict) and all(isinstance(count, int) for count in found.values()):
                    return found
        return {}

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return self._number("SELECT max(number) + 1 FROM cells WHERE name = ?", 0, name)

    def sent(self) -> dict[int, tuple[int, int]]:
        """Return number and bytes of contributions by the site's place."""
        ask = "SELECT site, count(*), sum(length(body)) FROM contributions WHERE entry != ? GROUP BY site"
        return {site: (count, size) for site, count, size in self._rows(ask, Entry.RESET)}

    def faults(self) -> Iterator[str]:
        """Yield a sentence for everything damaged or missing."""
        try:
            check_log(self.path)
            for (text,) in self._rows("PRAGMA integrity_check(20)"):
                if text != "ok":
                    yield f"{self.path}: {text}"
        except DamageError as error:
            yield str(error)
        yield from dict.fromkeys(map(str, self.damaged_rows()))

    def damaged_rows(self) -> Iterator[DamageError]:
        """Yield an error for every damaged or missing row that can be told from the others."""
        parts: list[Callable[[], Iterator[Any]]] = [
            self._all_updates,
            lambda: self.records(self.oldest_contribution),
            lambda: (self.fact(name) for (name,) in self._rows("SELECT name FROM facts")),
        ]
        parts += [lambda name=name: self.table(name) for name in TABLE_NAMES]  # type: ignore[misc]
        for part in parts:
            try:
                yield from (one.damage for one in part() if isinstance(one, Record) and one.damage is not None)
            except DamageError as error:
                yield error

    def _all_updates(self) -> Iterator[Record]:
        """Yield all updates, and a damaged one in place of each that is missing."""
        number = self._whole_number(OLDEST) if self._own else self.oldest
        for there in self._rounds("SELECT round FROM updates ORDER BY round"):
            if there != number:
                yield Record(Entry.UPDATE, number, damage=self.lacks(Entry.UPDATE, number))
            record, _ = self._update(there)
            if record is not None:
                yield record
            number = there + 1
        self.check_end(number)

    def _rounds(self, ask: str, *values: object) -> Sequence[int]:
        """Return the rounds of a query; all that there may be if a page of it cannot be read."""
        try:
            return [round_ for (round_,) in self._rows(ask, *values)]
        except DamageError:
            return range(self.oldest, min(self.end, self.oldest + MAX_ROUNDS))

    def _rows(
        self, ask: str, *values: object, damage: Callable[[], DamageError] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        try:
            with closing(self._db.execute(ask, values)) as found:
                yield from found
        except BROKEN as error:
            failed = self._failed(error)
            raise (damage() if damage is not None and isinstance(failed, DamageError) else failed) from None

    def _number(self, ask: str, otherwise: int, *values: object) -> int:
        ((found,),) = self._rows(ask, *values)
        return otherwise if found is None else int(found)

    def _failed(self, error: Exception, code: str = "cannot-read") -> UserError:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in DISK_ERRORS:
            done = "read" if code == "cannot-read" else "written"
            return UserError(f"{self.path}: cannot be {done}: {error}", code=code, file=self.path)
        return DamageError(self.path, f"is damaged ({error}); {LEFT}")

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def reading(directory: Path) -> AbstractContextManager[RunReader]:
    """Open the file of a run's directory for reading, as a context manager.

    Raises:
        UserError: it is missing, or has another format.
    """
    path = directory / ROWS
    return closing(RunReader(path if path.exists() else directory / FILE))
