"""A run's file, `run.sqlite`, as it is read: what sites have sent, the answers of rounds, and the rows of its tables.

A round is one transaction. A crash, or a power failure, leaves all of it or nothing. Every row has a digest of its own,
and an update says how many rows of other tables there are with it: none is missing unnoticed.

    facts          the format, the wire, the plan's digest, the run's number, the columns of tables; how it has ended
    contributions  what sites have sent, in the order in which it came, and resets; until a later checkpoint
    updates        the answer of each round
    cells          rows of steps.csv, metrics.csv and spectra.csv, by round
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import Any

from rankdad.common.documents import parse_json
from rankdad.common.errors import UserError
from rankdad.common.protocol.versions import WIRE
from rankdad.remote.records import DamageError, Entry, Record, digest_of

FILE, ROWS = "run.sqlite", "rows.sqlite"  # in a run's directory: the latter where rows alone are kept
SPEC = "run.json"  # beside it, once it has its tables
TABLE_NAMES = ("steps", "metrics", "spectra")
FORMAT = "1"
TABLES = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL, digest BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE contributions (place INTEGER PRIMARY KEY, entry INTEGER NOT NULL, site INTEGER NOT NULL, "
    "digest BLOB NOT NULL, body BLOB NOT NULL)",
    "CREATE TABLE updates (round INTEGER PRIMARY KEY, sent INTEGER NOT NULL, rows TEXT NOT NULL, digest BLOB NOT NULL, "
    "body BLOB NOT NULL)",
    "CREATE TABLE cells (name TEXT NOT NULL, number INTEGER NOT NULL, round INTEGER NOT NULL, digest BLOB NOT NULL, "
    "row TEXT NOT NULL, PRIMARY KEY (name, number)) WITHOUT ROWID",
)
PLACES = 1 << 20  # of a round's contributions: large rows want a number alone as their key
OF_THE_DISK = {  # and of other processes; all other errors are the file's own
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM),
}
BROKEN = (sqlite3.Error, OverflowError, UnicodeDecodeError)  # the last: of what a message cites of a damaged file
LEFT = "it is left as it is: put back a copy that is whole"
ENDED, RETENTION, ROUNDS = "end", "retention", "rounds"  # facts of a run that is over, the last: how many it had


def places_of(round_: int) -> tuple[int, int]:
    """Return the first place of a round's contributions, and that of the next: a row's number is both."""
    return round_ * PLACES, (round_ + 1) * PLACES


class RunReader:
    """A run's file as it was when it was opened to read; its run may go on meanwhile.

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
        self.path = path
        try:
            if not path.is_file():
                raise UserError(f"{path}: is missing: nothing is kept to go on from", code="no-ledger", file=path)
            self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
            self._db.execute("BEGIN")  # all is read as it is now
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}", code="cannot-read", file=path) from None
        except BROKEN as error:
            raise self._failed(error) from None
        self._check_beginning(plan_sha256)

    def _check_beginning(self, plan_sha256: str | None) -> None:
        try:
            made = {sql for (sql,) in self._rows("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
            if made and made != {*TABLES}:  # views and triggers would be somebody's code
                raise DamageError(self.path, f"is damaged (it has other tables than a run's file); {LEFT}")
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
            problem = f"has format {format_}, this rankdad writes {FORMAT}: finish the run with its own version"
        elif plan_sha256 and (wire := self._whole_number("wire")) != WIRE:
            code = "ledger-of-earlier-version"
            problem = f"is of wire {wire}, this rankdad has wire {WIRE}: finish the run with its own version"
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
        return self._whole_number("contributions from")

    def _whole_number(self, fact: str) -> int:
        found = self._parsed(self.fact(fact) or "0", fact)
        if not isinstance(found, int):
            raise DamageError(self.path, f"{fact} is damaged; {LEFT}")
        return found

    def _parsed(self, text: str, what: str) -> Any:
        """Return what a JSON text holds that is not damaged, but may be anybody's."""
        try:
            return parse_json(text)
        except ValueError as error:
            raise DamageError(self.path, f"{what} is damaged ({error}); {LEFT}") from None

    @property
    def end(self) -> int:
        """The first round that has no update yet."""
        return self._number("SELECT max(round) + 1 FROM updates", 0)

    def update(self, round_: int) -> bytes | None:
        """Return the update of a completed round; None if it is not kept.

        Raises:
            DamageError: it is damaged.
        """
        if not 0 <= round_ < 1 << 63:  # who asks may be anybody
            return None
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
        whole_from = self.oldest_contribution if self.fact(RETENTION) is None else self.end
        rounds = "SELECT round FROM updates UNION SELECT place >> ? FROM contributions ORDER BY 1"
        oldest, due = self.oldest, max(since, self.oldest)
        there = [round_ for (round_,) in self._rows(rounds, PLACES.bit_length() - 1) if round_ >= since]
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
        for place, entry, site, digest, body in self._rows(ask, *places_of(round_), of_round=round_):
            damage = self._damaged(f"contribution {place % PLACES}", round_)
            try:
                whole = digest == digest_of(place, entry, site, body)
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
        if self.end < max(round_, self._whole_number(ROUNDS)):
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
        columns = [] if found is None else self._parsed(found, f"columns of {name}")
        if not isinstance(columns, list) or not all(isinstance(column, str) for column in columns):
            raise DamageError(self.path, f"columns of {name} are damaged; {LEFT}")
        return columns

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
            cells = self._parsed(row, f"row {count} of {name}")
            if not isinstance(cells, list) or any(isinstance(cell, list | dict) for cell in cells):
                raise self._damaged(f"row {count} of {name}", round_)
            yield cells
            count += 1
        if before is None and count < self._rows_of_all().get(name, 0):
            raise DamageError(self.path, f"row {count} of {name} is missing: put back a copy that is whole")

    def _rows_of_all(self) -> dict[str, int]:
        """Return how many rows each table has, as the last update says."""
        for (rows,) in self._rows("SELECT rows FROM updates ORDER BY round DESC LIMIT 1"):
            with suppress(ValueError):  # it is damaged, which its digest says
                found = parse_json(rows) if isinstance(rows, str) else None
                if isinstance(found, dict) and all(isinstance(count, int) for count in found.values()):
                    return found
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
        number = self.oldest
        for (there,) in self._rows("SELECT round FROM updates ORDER BY round"):
            if there != number:
                yield str(self.lacks(Entry.UPDATE, number))
            record, _ = self._update(there)
            if record is not None and record.damage is not None:
                yield str(record.damage)
            number = there + 1
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
            failed = self._failed(error)
            if of_round is not None and isinstance(failed, DamageError):
                failed = self._damaged("a contribution", of_round)
            raise failed from None

    def _number(self, ask: str, otherwise: int, *values: object) -> int:
        ((found,),) = self._rows(ask, *values)
        return otherwise if found is None else int(found)

    def _failed(self, error: Exception, code: str = "cannot-read") -> UserError:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in OF_THE_DISK:
            done = "read" if code == "cannot-read" else "written"
            return UserError(f"{self.path}: cannot be {done}: {error}", code=code, file=self.path)
        return DamageError(self.path, f"is damaged ({error}); {LEFT}")

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def reading(directory: Path) -> AbstractContextManager[RunReader]:
    """Return the file of a run's directory, open to read within a `with`.

    Raises:
        UserError: there is none, or it is of another format.
    """
    path = directory / ROWS
    return closing(RunReader(path if path.exists() else directory / FILE))
