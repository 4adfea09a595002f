"""The file of a site's disclosure log, with checks that it is complete, current and this site's."""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from rankdad.common.errors import UserError, one_line, visible
from rankdad.common.files import cannot_write, check_writable, give_to_owner, make_folder, sync_path
from rankdad.common.privacy.parts import Secret
from rankdad.local.privacy import checksum, witness
from rankdad.local.privacy.witness import Witness

FILE = "disclosures.sqlite"
VERSION = 9
SECRET = 32  # bytes
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)  # the last of a damaged schema
TABLES = """
CREATE TABLE site (name TEXT NOT NULL, secret BLOB NOT NULL, named_by TEXT);
CREATE TABLE patients (name TEXT PRIMARY KEY, part INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE spellings (patient TEXT PRIMARY KEY REFERENCES patients (name), spelling TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE withdrawn (name TEXT PRIMARY KEY, since TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')));
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    run TEXT NOT NULL UNIQUE,
    purpose TEXT NOT NULL,
    fewest INTEGER NOT NULL,
    data BLOB NOT NULL,
    told INTEGER UNIQUE,
    began TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
);
CREATE TABLE used (
    run INTEGER NOT NULL REFERENCES runs (number),
    patient TEXT NOT NULL REFERENCES patients (name),
    part INTEGER NOT NULL,
    PRIMARY KEY (run, patient)
) WITHOUT ROWID;
CREATE TABLE told (
    run INTEGER NOT NULL REFERENCES runs (number),
    patient TEXT NOT NULL REFERENCES patients (name),
    share REAL NOT NULL,
    PRIMARY KEY (run, patient)
) WITHOUT ROWID;
CREATE TABLE versions (
    about TEXT NOT NULL,
    number INTEGER NOT NULL,
    digests BLOB NOT NULL,
    PRIMARY KEY (about, number)
) WITHOUT ROWID;
CREATE TABLE places (
    run INTEGER NOT NULL REFERENCES runs (number),
    sketch BLOB NOT NULL,
    steps INTEGER NOT NULL,
    flows BLOB NOT NULL,
    drawn TEXT NOT NULL,
    PRIMARY KEY (run, sketch)
) WITHOUT ROWID;
CREATE TABLE begun (
    run TEXT PRIMARY KEY,
    spec TEXT NOT NULL,
    number INTEGER NOT NULL,
    UNIQUE (spec, number)
) WITHOUT ROWID;
CREATE TABLE asked (
    run TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
) WITHOUT ROWID;
"""
NAMES = tuple(re.findall(r"CREATE TABLE (\w+)", TABLES))


class LogFile:
    """The file of a disclosure log.

    Args:
        folder: of the log; created with a new one.
        site: that owns the log.
        secret: for a new log; random by default.
        results: folders of the results of its runs, with the log's witnesses.
    """

    def __init__(self, folder: Path, site: str, secret: Secret | None = None, results: Iterable[Path] = ()) -> None:
        self._path, self._site, self._first = folder / FILE, site, secret
        self._results = tuple(dict.fromkeys(results))
        self._is_whole = False  # its pages, when they were first read

    @property
    def secret(self) -> Secret:
        """Return the site's secret.

        Raises:
            UserError: the log cannot be read or written, or is another site's.
        """
        with self._connected() as (_, secret):
            return secret

    def exists(self) -> bool:
        """Return whether there is a log, or one is lost; does not create one."""
        return self._path.exists() or any(witness.found(self._results))

    def contents(self) -> bytes:
        """Return the bytes of the log file, secret included.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, _):
            return log.serialize()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Name the log if a value cannot be read, within a `with`: SQLite does not notice a flipped bit of it.

        Raises:
            UserError: such a value was met.
        """
        try:
            yield
        except (ValueError, TypeError, struct.error) as error:
            raise self._damaged(f"a value cannot be read: {one_line(error)}") from error

    @contextmanager
    def _connected(self) -> Iterator[tuple[sqlite3.Connection, Secret]]:
        """Yield the log and its secret in one transaction, which excludes other runs."""
        try:
            if not self._path.exists():
                self._begin()
            place = f"{self._path.absolute().as_uri()}?mode=rw"
            with self.reading(), closing(sqlite3.connect(place, timeout=30, uri=True)) as log:
                log.isolation_level = None
                log.execute("PRAGMA synchronous = FULL")
                log.execute("PRAGMA trusted_schema = OFF")
                log.text_factory = bytes.decode  # a `ValueError` if it is not UTF-8
                with _transaction(log):
                    secret = self._opened(log)
                    if not self._is_whole:
                        self._check_pages(log)
                        self._is_whole = True
                    self._check_newest(log, secret)
                    checksum.watch(log, NAMES)
                    yield log, secret
                if log.total_changes and self._results:
                    with _transaction(log):  # waits for other runs
                        witness.write(self._results, _witness(log, secret))
        except (sqlite3.Error, OSError) as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in DAMAGED or self._path.is_dir():
                raise self._damaged(str(error)) from None
            raise self._error(
                f"cannot be used now ({error}), and without it nothing leaves: end the process that locks it, free "
                "space on the disk, or give this user write access",
                "log-out-of-reach",
            ) from None

    def _begin(self) -> None:
        """Create a new log, unless another process has just done so."""
        for path, _ in witness.found(self._results):
            raise self._too_old(path)
        make_folder(self._path.parent, private=True)
        with suppress(FileExistsError):
            _put(
                self._path, _new(self._site, secrets.token_bytes(SECRET) if self._first is None else self._first.value)
            )

    def _opened(self, log: sqlite3.Connection) -> Secret:
        """Check that the log is this site's; return its secret."""
        (version,) = log.execute("PRAGMA user_version").fetchone()
        if not version:
            raise self._damaged("it is empty")
        if version == VERSION - 1:  # without a checksum
            log.execute(checksum.SCHEMA)
            checksum.begin(log, NAMES)
            log.execute(f"PRAGMA user_version = {VERSION}")
        elif version != VERSION:
            raise self._error(
                f"is of version {version}, expected {VERSION}: use the rankdad that wrote it", "log-version"
            )
        with closing(sqlite3.connect(":memory:")) as ours:
            ours.executescript(TABLES + checksum.SCHEMA)
            if _schema(log) != _schema(ours):
                raise self._damaged("its tables are wrong")
        found = log.execute("SELECT name, secret FROM site").fetchall()
        if [(type(secret), len(secret)) for _, secret in found] != [(bytes, SECRET)]:
            raise self._damaged("it does not have one secret")
        ((site, secret),) = found
        if site != self._site:
            raise self._error(
                f"is the log of {visible(str(site), 63)}, and this is {self._site}: each site needs its own folder",
                "log-of-another-site",
            )
        return Secret(secret)

    def _check_pages(self, log: sqlite3.Connection) -> None:
        """Check all pages and rows: a flipped bit of a header may shift the values of a row, others change one."""
        if log.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
            raise self._damaged("its pages are inconsistent")
        if not checksum.holds(log, NAMES):
            raise self._damaged("its rows are not those that were written")

    def _check_newest(self, log: sqlite3.Connection, secret: Secret) -> None:
        """Check that the log knows everything that its witnesses know."""
        runs = dict(log.execute("SELECT number, run FROM runs"))
        (withdrawn,) = log.execute("SELECT count(*) FROM withdrawn").fetchone()
        (counted,) = log.execute("SELECT count(told) FROM runs").fetchone()
        for path, told in witness.found(self._results):
            last = secret.name("run", runs.get(told.runs, ""))
            if withdrawn < told.withdrawn or counted < told.told or (told.runs and last != told.last):
                raise self._too_old(path)

    def check(self, content: bytes) -> None:
        """Check the bytes of a log before they replace this one.

        Raises:
            UserError: it is damaged, another site's, or outdated.
        """
        if not content:  # SQLite cannot open an empty image
            raise self._damaged("it is empty")
        try:
            with self.reading(), closing(sqlite3.connect(":memory:")) as log:
                log.execute("PRAGMA trusted_schema = OFF")
                log.text_factory = bytes.decode
                log.deserialize(content)
                secret = self._opened(log)
                self._check_pages(log)
                self._check_newest(log, secret)
        except sqlite3.Error as error:
            raise self._damaged(str(error)) from None

    def _too_old(self, newer: Path) -> UserError:
        return self._error(
            f"is missing or older than {newer}, which knows of a later run or withdrawal: restore the newest log. "
            f"Only if that is lost, move every {witness.FILE} of this site's output away: earlier disclosures are then "
            "no longer counted",
            "log-too-old",
        )

    def _damaged(self, how: str) -> UserError:
        return self._error(
            f"is damaged ({how}), and without it nothing leaves: restore its newest copy; one that lacks a run is "
            "refused",
            "log-unusable",
        )

    def _error(self, problem: str, code: str) -> UserError:
        return UserError(f"{self._path}: {problem}", code=code, field="privacy", file=self._path)


def restore(
    folder: Path,
    site: str,
    content: bytes,
    source: Path,
    results: Iterable[Path] = (),
    first: Callable[[], object] = lambda: None,
) -> None:
    """Write a site's log, as returned by `LogFile.contents`, into a folder.

    Args:
        folder: of the log.
        site: that owns it.
        content: of the log.
        source: file that the content comes from, for errors.
        results: folders of the results of its runs, with the log's witnesses.
        first: called once the log can be written; if it fails, no log is.

    Raises:
        UserError: a log exists already, or it cannot be written, is damaged, another site's or outdated.
    """
    LogFile(source, site, results=results).check(content)
    path = make_folder(folder, private=True) / FILE
    try:
        if path.exists():
            raise FileExistsError
        check_writable(folder, "privacy")
        first()
        _put(path, content)
    except FileExistsError:
        problem = "already exists, and is never overwritten: move it away to replace it"
        raise UserError(f"{path}: {problem}", code="log-there-already", field="privacy", file=path) from None
    except OSError as error:
        raise cannot_write(path, error, "privacy") from None


@contextmanager
def _transaction(log: sqlite3.Connection) -> Iterator[None]:
    """Run a `with` block as one write transaction."""
    log.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        log.execute("ROLLBACK")
        raise
    log.execute("COMMIT")


def _schema(log: sqlite3.Connection) -> list[tuple[str, str, str]]:
    """Return the kind, name and SQL of all tables, triggers and views."""
    found = log.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_schema ORDER BY type, name").fetchall()
    return [(kind, name, " ".join(sql.split())) for kind, name, sql in found]


def _witness(log: sqlite3.Connection, secret: Secret) -> Witness:
    """Return what a witness records of a log."""
    runs, last = log.execute("SELECT number, run FROM runs ORDER BY number DESC").fetchone() or (0, "")
    (withdrawn,) = log.execute("SELECT count(*) FROM withdrawn").fetchone()
    (told,) = log.execute("SELECT count(told) FROM runs").fetchone()
    return Witness(runs=runs, last=secret.name("run", last), withdrawn=withdrawn, told=told)


def _new(site: str, secret: bytes) -> bytes:
    """Return the bytes of a new log."""
    with closing(sqlite3.connect(":memory:")) as log:
        log.executescript(TABLES + checksum.SCHEMA)
        log.execute(f"PRAGMA user_version = {VERSION}")
        log.execute("INSERT INTO site VALUES (?, ?, NULL)", [site, secret])
        checksum.begin(log, NAMES)
        log.commit()
        return log.serialize()


def _put(path: Path, content: bytes) -> None:
    """Write a file completely before it gets its name.

    Raises:
        FileExistsError: the file exists.
    """
    number, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(number, "wb") as written:  # noqa: PTH123
            written.write(content)
            written.flush()
            os.fsync(number)
        give_to_owner(Path(name))
        os.link(name, path)
        sync_path(path.parent)
    finally:
        Path(name).unlink()
