"""The disclosure log: a site's secret, and the partition of its patients behind all that has left it, over all runs.

Both are in one file, so that neither is lost without the other. Patients are named there by keyed hashes.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rankdad.common.errors import PolicyError, UserError, visible
from rankdad.common.files import make_folder
from rankdad.common.privacy.parts import Secret, refine
from rankdad.common.privacy.versions import Version, changed, with_version
from rankdad.local.privacy.patients import Patients

FILE = "disclosures.sqlite"
VERSION = 2
TABLES = """
CREATE TABLE site (name TEXT NOT NULL, secret BLOB NOT NULL, named_by TEXT);
CREATE TABLE patients (name TEXT PRIMARY KEY, part INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE withdrawn (name TEXT PRIMARY KEY, since TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')));
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    run TEXT NOT NULL UNIQUE,
    purpose TEXT NOT NULL,
    fewest INTEGER NOT NULL,
    data BLOB NOT NULL,
    began TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
);
CREATE TABLE used (
    run INTEGER NOT NULL REFERENCES runs (number),
    patient TEXT NOT NULL REFERENCES patients (name),
    part INTEGER NOT NULL,
    PRIMARY KEY (run, patient)
) WITHOUT ROWID;
CREATE TABLE versions (
    about TEXT NOT NULL,
    number INTEGER NOT NULL,
    digests BLOB NOT NULL,
    PRIMARY KEY (about, number)
) WITHOUT ROWID;
"""
ASKED = """
CREATE TABLE IF NOT EXISTS asked (
    run TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
) WITHOUT ROWID
"""  # which an older log has not


@dataclass(frozen=True)
class Disclosed:
    """A run that a site has taken part in.

    Args:
        run: its identity.
        purpose: what it was for, as JSON.
        began: when, in UTC.
        parts: patients of each part that it used.
        fewest: what the policy asked for then.
    """

    run: str
    purpose: str
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
        self,
        run: str | None,
        purpose: str,
        named_by: str,
        patients: Patients,
        fewest: int,
        level: int = 1,
        *,
        expected: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """Return the part of every patient whom a run may use.

        A run that goes on has the parts that it began with, whatever other runs have divided since. Where a column says
        something else of some patients than in a run before, they are a set of their own: else the two runs' sums would
        differ by what they alone have.

        Args:
            run: the run's identity; None where there is none yet.
            purpose: what the run is and is for, as JSON: the same whenever it goes on.
            named_by: what names patients, such as a column: one patient by two names would be two.
            patients: whom the run would use.
            fewest: of a part.
            level: of a class.
            expected: what is returned if no other run has begun since: then it is noted that the run has begun.

        Raises:
            UserError: the log cannot be read or written, is another site's, or names patients by something else; or
                the run that goes on is not the one that began here, with the same patients.
        """
        with self._connected() as (log, secret):
            ((known_by,),) = log.execute("SELECT named_by FROM site").fetchall()
            if known_by not in (None, named_by):
                raise self._error(
                    f"names patients by {known_by}, and this run by {visible(named_by, 200)}: the same patient would "
                    f"be two. Name {known_by} in the run's data.group or data.key",
                    "patients-named-otherwise",
                )
            names = {patient: secret.name(patient) for patient in patients.sets}
            hashed, own = {name: patient for patient, name in names.items()}, patients.named(names)
            withdrawn = {name for (name,) in log.execute("SELECT name FROM withdrawn")}
            row = log.execute("SELECT number, purpose, data FROM runs WHERE run = ?", [run]).fetchone()
            if row is not None:
                began: dict[str, int] = dict(log.execute("SELECT patient, part FROM used WHERE run = ?", row[:1]))
                self._check_goes_on(str(run), row[1] == purpose, began, own, withdrawn, row[2])
                return {hashed[name]: part for name, part in began.items()}
            known = {about: _versions(log, about) for about in own.columns}
            sets = {name: (bits, changed(known.values(), name, own.values[name])) for name, bits in own.sets.items()}
            parts = dict(log.execute("SELECT name, part FROM patients"))
            found, used = refine(parts, withdrawn, sets, own.strata, fewest, secret, own.classes, level)
            may = {hashed[name]: found[name] for name in used}
            if run is not None and may == expected:
                log.execute("UPDATE site SET named_by = ?", [named_by])
                log.executemany("INSERT OR REPLACE INTO patients VALUES (?, ?)", sorted(found.items()))
                begun = log.execute(
                    "INSERT INTO runs (run, purpose, fewest, data) VALUES (?, ?, ?, ?)",
                    [run, purpose, fewest, _digest(own, used)],
                )
                rows = [(begun.lastrowid, name, found[name]) for name in sorted(used)]
                log.executemany("INSERT INTO used VALUES (?, ?, ?)", rows)
                for place, (about, versions) in enumerate(known.items()):
                    for number, digests in with_version(versions, {name: own.values[name][place] for name in used}):
                        packed = b"".join(bytes.fromhex(name) + digests[name] for name in sorted(digests))
                        log.execute("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", [about, number, packed])
            return may

    def _check_goes_on(
        self,
        run: str,
        same: bool,
        began: Mapping[str, int],
        patients: Patients,
        withdrawn: Collection[str],
        data: bytes,
    ) -> None:
        """Check that a run by the name of one that began here is that one: an aggregator may call any run so."""
        if not same:
            problem = f"another run began here as {run}: its parts are not those of this one"
            raise self._error(f"{problem}; submit it anew", "run-differs")
        if not began.keys().isdisjoint(withdrawn):
            problem = f"a patient of the run {run} has been withdrawn since it began: it cannot go on here"
            raise self._error(f"{problem}; submit it anew", "patient-withdrawn")
        if not began.keys() <= patients.sets.keys() or _digest(patients, began) != data:
            problem = f"the patients of the run {run} are not those with whom it began here, or their data are not"
            raise self._error(f"{problem}: put the data back, or submit it anew", "data-changed")

    def count(self, run: str, owner: str, per_day: int | None, most: int | None) -> None:
        """Count a run that an owner asks for, whatever becomes of it; one that goes on counts once.

        Args:
            run: its identity.
            owner: who asks, or where that is unknown the aggregator.
            per_day: most runs of an owner within 24 hours; None is no limit.
            most: of an owner in all; None is no limit.

        Raises:
            PolicyError: there would be more; the run is not counted.
            UserError: the log cannot be read or written, or is another site's.
        """
        with self._connected() as (log, _):
            log.execute(ASKED)
            known = "SELECT count(*), coalesce(sum(at > strftime('%Y-%m-%dT%H:%M:%SZ', 'now', '-1 day')), 0) FROM asked"
            if log.execute("SELECT 1 FROM asked WHERE run = ?", [run]).fetchone() is not None:
                return
            ((in_all, today),) = log.execute(f"{known} WHERE owner = ?", [owner]).fetchall()
            for field, limit, count in (("runs_per_day", per_day, today), ("runs", most, in_all)):
                if limit is not None and count >= limit:
                    said = f"this site's policy allows {limit} of one owner, refused ones included"
                    raise PolicyError(field, said, code="too-many-runs")
            log.execute("INSERT INTO asked (run, owner) VALUES (?, ?)", [run, owner])

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
                f"SELECT number, run, purpose, began, fewest FROM runs WHERE number IN ({numbers}) ORDER BY number",
                [] if patient is None else [secret.name(patient)],
            ).fetchall()
            sizes = "SELECT count(*) FROM used WHERE run = ? GROUP BY part ORDER BY part"
            return tuple(
                Disclosed(run, purpose, began, tuple(size for (size,) in log.execute(sizes, [number])), fewest)
                for number, run, purpose, began, fewest in found
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
            log.execute("INSERT INTO site VALUES (?, ?, NULL)", [self._site, secret])
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


def _versions(log: sqlite3.Connection, about: str) -> list[Version]:
    """Return what has been said of patients in a column so far; see `common.privacy.versions`."""
    found = log.execute("SELECT digests FROM versions WHERE about = ? ORDER BY number", [about])
    return [{name.hex(): own for name, own in struct.iter_unpack("16s8s", digests)} for (digests,) in found]


def _digest(patients: Patients, used: Collection[str]) -> bytes:
    """Return a digest of all that a run uses."""
    digest = hashlib.sha256(repr(patients.columns).encode())
    for name in sorted(used):
        digest.update(f"{name} {patients.sets[name]}".encode() + b"".join(patients.values[name]))
    return digest.digest()


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
