"""The disclosure log: a site's secret, and the partition of its patients behind all that has left it, over all runs.

Both are in one file, so that neither is lost without the other. Patients are named there by keyed hashes.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rankdad.common.errors import UserError, visible
from rankdad.common.files import make_folder
from rankdad.common.privacy.parts import Secret, refine

FILE = "disclosures.sqlite"
VERSION = 1
TABLES = """
CREATE TABLE site (name TEXT NOT NULL, secret BLOB NOT NULL);
CREATE TABLE patients (name TEXT PRIMARY KEY, part INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE withdrawn (name TEXT PRIMARY KEY, since TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')));
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    run TEXT NOT NULL UNIQUE,
    spec TEXT NOT NULL,
    fewest INTEGER NOT NULL,
    began TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
);
CREATE TABLE used (
    run INTEGER NOT NULL REFERENCES runs (number),
    patient TEXT NOT NULL REFERENCES patients (name),
    part INTEGER NOT NULL,
    PRIMARY KEY (run, patient)
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Disclosed:
    """A run that a site has taken part in.

    Args:
        run: its identity.
        spec: it, as JSON.
        began: when, in UTC.
        parts: patients of each part that it used.
        fewest: what the policy asked for then.
    """

    run: str
    spec: str
    began: str
    parts: tuple[int, ...]
    fewest: int


class DisclosureLog:
    """A site's log.

    Args:
        folder: where it lies, made if it is missing.
        site: whose it is.
        secret: that a new log begins with; a random one without it.
    """

    def __init__(self, folder: Path, site: str, secret: Secret | None = None) -> None:
        self._path, self._site, self._first = make_folder(folder, private=True) / FILE, site, secret

    @property
    def secret(self) -> Secret:
        """Return the site's secret.

        Raises:
            UserError: the log cannot be read or written, or is another site's.
        """
        with self._connected() as (_, secret):
            return secret

    def parts(
        self, run: str | None, spec: str, sets: Mapping[str, int], strata: Mapping[str, int], fewest: int
    ) -> dict[str, int]:
        """Return the part of every patient whom a run may use, and note that it does.

        A run that goes on has the parts that it began with, whatever other runs have divided since.

        Args:
            run: the run's identity; None only looks what it would use, and notes nothing.
            spec: the run, as JSON.
            sets: of every patient whom the run would use, by name, which set they are in.
            strata: of every patient, a stratum's number.
            fewest: patients of a part.

        Raises:
            UserError: the log cannot be read or written, or is another site's; or the run has begun with a patient who
                has been withdrawn since.
        """
        with self._connected() as (log, secret):
            hashed = {secret.name(patient): patient for patient in sets}
            withdrawn = {name for (name,) in log.execute("SELECT name FROM withdrawn")}
            row = None if run is None else log.execute("SELECT number FROM runs WHERE run = ?", [run]).fetchone()
            if row is not None:
                began = dict(log.execute("SELECT patient, part FROM used WHERE run = ?", row))
                if withdrawn & began.keys():
                    problem = f"a patient of the run {run} has been withdrawn since it began: it cannot go on here"
                    raise self._error(f"{problem}; submit it anew", "patient-withdrawn")
                return {patient: began[name] for name, patient in hashed.items() if name in began}
            found, used = refine(
                dict(log.execute("SELECT name, part FROM patients")),
                withdrawn,
                {name: sets[patient] for name, patient in hashed.items()},
                {name: strata[patient] for name, patient in hashed.items()},
                fewest,
                secret,
            )
            if run is not None:
                log.executemany("INSERT OR REPLACE INTO patients VALUES (?, ?)", sorted(found.items()))
                began_run = log.execute("INSERT INTO runs (run, spec, fewest) VALUES (?, ?, ?)", [run, spec, fewest])
                rows = [(began_run.lastrowid, name, found[name]) for name in sorted(used)]
                log.executemany("INSERT INTO used VALUES (?, ?, ?)", rows)
            return {patient: found[name] for name, patient in hashed.items() if name in used}

    def runs(self, patient: str | None = None) -> tuple[Disclosed, ...]:
        """Return all runs, or those that hold sums of a patient, in their order.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, secret):
            numbers = "SELECT number FROM runs"
            if patient is not None:
                numbers = "SELECT run FROM used WHERE patient = ?"
            found = log.execute(
                f"SELECT number, run, spec, began, fewest FROM runs WHERE number IN ({numbers}) ORDER BY number",
                [] if patient is None else [secret.name(patient)],
            ).fetchall()
            sizes = "SELECT count(*) FROM used WHERE run = ? GROUP BY part ORDER BY part"
            return tuple(
                Disclosed(run, spec, began, tuple(size for (size,) in log.execute(sizes, [number])), fewest)
                for number, run, spec, began, fewest in found
            )

    def withdraw(self, patients: Sequence[str]) -> None:
        """See that patients are used no more, in any run that begins or goes on from now.

        Raises:
            UserError: the log cannot be written, or is another site's.
        """
        with self._connected() as (log, secret):
            names = [[secret.name(patient)] for patient in patients]
            log.executemany("INSERT OR IGNORE INTO withdrawn (name) VALUES (?)", names)

    def contents(self) -> bytes:
        """Return the whole log, secret included, as a file holds it.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, _):
            return log.serialize()

    @contextmanager
    def _connected(self) -> Iterator[tuple[sqlite3.Connection, Secret]]:
        """Yield the log and its secret in one transaction: of two runs that begin at once, one waits for the other."""
        try:
            self._path.touch(0o600)
            with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as log:
                log.execute("PRAGMA synchronous = FULL")
                log.execute("BEGIN IMMEDIATE")
                try:
                    yield log, self._opened(log)
                except BaseException:
                    log.execute("ROLLBACK")
                    raise
                log.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise self._error(
                f"cannot be used ({error}): put the log of what has left this site back from a backup; without it "
                "nothing leaves",
                "log-unusable",
            ) from None

    def _opened(self, log: sqlite3.Connection) -> Secret:
        """Make the tables of a new log, or check those of an older one; return its secret."""
        (version,) = log.execute("PRAGMA user_version").fetchone()
        if version == 0 and not log.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            for statement in filter(str.strip, TABLES.split(";")):
                log.execute(statement)
            log.execute(f"PRAGMA user_version = {VERSION}")
            secret = secrets.token_bytes(32) if self._first is None else self._first.value
            log.execute("INSERT INTO site VALUES (?, ?)", [self._site, secret])
        elif version != VERSION:
            raise self._error(
                f"is of version {version}, expected {VERSION}: use the rankdad that wrote it", "log-version"
            )
        ((site, secret),) = log.execute("SELECT name, secret FROM site").fetchall()
        if site != self._site:
            raise self._error(
                f"is the log of {visible(str(site), 63)}, and this is {self._site}: every site has a folder of its own",
                "log-of-another-site",
            )
        return Secret(bytes(secret))

    def _error(self, problem: str, code: str) -> UserError:
        return UserError(f"{self._path}: {problem}", code=code, field="privacy", file=self._path)


def restore(folder: Path, site: str, content: bytes) -> None:
    """Put a site's log, as `DisclosureLog.contents` returned it, into a folder.

    Raises:
        UserError: a log is there already, it cannot be written, or is another site's.
    """
    path = make_folder(folder, private=True) / FILE
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:  # noqa: PTH123
            written.write(content)
            written.flush()
            os.fsync(written.fileno())
    except FileExistsError:
        problem = "is there already: one log is never put in place of another; move it away if that is meant"
        raise UserError(f"{path}: {problem}", code="log-there-already", field="privacy", file=path) from None
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written: {error.strerror}", code="cannot-write", field="privacy", file=path
        ) from None
    DisclosureLog(folder, site).secret  # noqa: B018
