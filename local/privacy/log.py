"""The disclosure log: a site's secret, and the partition of its patients behind all that has left it, over all runs.

Both are in one file, so that neither is lost without the other. Patients are named there by keyed hashes.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from rankdad.common.errors import UserError, visible
from rankdad.common.files import make_folder
from rankdad.common.privacy.parts import Secret, refine

FILE = "disclosures.sqlite"
VERSION = 1
TABLES = """
CREATE TABLE site (name TEXT NOT NULL, secret BLOB NOT NULL);
CREATE TABLE patients (name TEXT PRIMARY KEY, part INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    run TEXT NOT NULL UNIQUE,
    spec TEXT NOT NULL,
    began TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
);
CREATE TABLE used (
    run INTEGER NOT NULL REFERENCES runs (number),
    patient TEXT NOT NULL REFERENCES patients (name),
    part INTEGER NOT NULL,
    PRIMARY KEY (run, patient)
) WITHOUT ROWID;
"""


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
            spec: the digest of its spec.
            sets: of every patient whom the run would use, by name, which set they are in.
            strata: of every patient, a stratum's number.
            fewest: patients of a part.

        Raises:
            UserError: the log cannot be read or written, or is another site's.
        """
        with self._connected() as (log, secret):
            hashed = {secret.name(patient): patient for patient in sets}
            row = None if run is None else log.execute("SELECT number FROM runs WHERE run = ?", [run]).fetchone()
            if row is not None:
                began = dict(log.execute("SELECT patient, part FROM used WHERE run = ?", row))
                return {patient: began[name] for name, patient in hashed.items() if name in began}
            known: dict[str, int] = dict(log.execute("SELECT name, part FROM patients"))
            found, used = refine(
                known,
                {name: sets[patient] for name, patient in hashed.items()},
                {name: strata[patient] for name, patient in hashed.items()},
                fewest,
                secret,
            )
            if run is not None:
                log.executemany("INSERT OR REPLACE INTO patients VALUES (?, ?)", sorted(found.items()))
                number = log.execute("INSERT INTO runs (run, spec) VALUES (?, ?)", [run, spec]).lastrowid
                log.executemany("INSERT INTO used VALUES (?, ?, ?)", [(number, name, found[name]) for name in used])
            return {patient: found[name] for name, patient in hashed.items() if name in used}

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
