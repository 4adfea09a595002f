"""The disclosure log: a site's secret, and the partition of its patients behind all that has left it, over all runs.

Both are in one file, so that neither is lost without the other. Patients are named there by keyed hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import struct
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rankdad.common.data.reading import PLACE
from rankdad.common.errors import DataError, PolicyError, UserError, visible
from rankdad.common.files import make_folder, sync_path
from rankdad.common.privacy.heads import Heads, chained
from rankdad.common.privacy.parts import Secret, refine
from rankdad.common.privacy.versions import Version, changed, with_version
from rankdad.common.spec.table_schema import spelling
from rankdad.local.privacy import witness
from rankdad.local.privacy.patients import Patients
from rankdad.local.privacy.witness import Witness

FILE = "disclosures.sqlite"
VERSION = 8
SECRET = 32  # bytes
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
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


@dataclass(frozen=True)
class Disclosed:
    """A run that a site has taken part in.

    Args:
        run: its identity.
        purpose: what it was for, as JSON.
        began: when, in UTC.
        parts: patients of each part that it used.
        fewest: what the policy asked for then.
        told: largest share of a patient's cells that it told, of what is counted over runs.
        named_by: what names patients, in all runs.
        owner: who asked for it, as far as the log counts that; "" where it does not.
    """

    run: str
    purpose: str
    began: str
    parts: tuple[int, ...]
    fewest: int
    told: float = 0.0
    named_by: str = ""
    owner: str = ""


@dataclass(frozen=True)
class Waiting:
    """How many patients a run does not use, by the reason.

    Args:
        gone: known ones whom the run has not read, so that parts are left out.
        beside_gone: others of the parts of these.
        withdrawn: those whom the run has read, though they have.
        beside_withdrawn: others of the parts of those who have withdrawn.
        changed: of parts of which the run divides or changes a few.
        new: of no part yet.
    """

    gone: int = 0
    beside_gone: int = 0
    withdrawn: int = 0
    beside_withdrawn: int = 0
    changed: int = 0
    new: int = 0


class DisclosureLog:
    """A site's log.

    Args:
        folder: where it lies, made with a new one.
        site: whose it is.
        secret: that a new log begins with; a random one without it.
        results: folders of the results of its runs, in which the log's witnesses lie.
        others: number of the run whose patients may be mostly others than those before.
    """

    def __init__(
        self,
        folder: Path,
        site: str,
        secret: Secret | None = None,
        results: Iterable[Path] = (),
        others: int | None = None,
    ) -> None:
        self._path, self._site, self._first = folder / FILE, site, secret
        self._results, self._others = tuple(dict.fromkeys(results)), others

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
            purpose: what the run is and is for, as JSON: its `spec` is the same whenever it goes on.
            named_by: what names patients, such as a column: one patient by two names would be two.
            patients: whom the run would use.
            fewest: of a part.
            level: of a class.
            expected: what is returned if no other run has begun since: then it is noted that the run has begun.

        Raises:
            UserError: the log cannot be read or written, is another site's, or names patients by something else; or
                the run that goes on is not the one that began here, with the same patients.
            DataError: the run's patients seem to be known ones by other names.
        """
        with self._connected() as (log, secret):
            ((known_by,),) = log.execute("SELECT named_by FROM site").fetchall()
            another = known_by not in (None, named_by)
            if another and not (known_by.startswith(PLACE) and named_by.startswith(PLACE)):
                known_by = visible(known_by, 200)
                raise self._error(
                    f"names patients by {known_by}, and this run by {visible(named_by, 200)}: the same patient would "
                    f"be two. Let the run's data name them by {known_by}, such as with data.group or data.key",
                    "patients-named-otherwise",
                )
            names = {patient: secret.name(patient) for patient in patients.sets}
            hashed, own = {name: patient for patient, name in names.items()}, patients.named(names)
            withdrawn = {name for (name,) in log.execute("SELECT name FROM withdrawn")}
            row = log.execute("SELECT number, purpose, data FROM runs WHERE run = ?", [run]).fetchone()
            if row is not None:
                began: dict[str, int] = dict(log.execute("SELECT patient, part FROM used WHERE run = ?", row[:1]))
                self._check_goes_on(str(run), _spec(row[1]) == _spec(purpose), began, own, withdrawn, row[2])
                return {hashed[name]: part for name, part in began.items()}
            self._check_names(log, secret, hashed)
            if another:
                self._check_places(log)
            short = {name: bytes.fromhex(name) for name in own.sets}
            said = [
                {short[name]: values[place] for name, values in own.values.items()} for place in range(len(own.columns))
            ]
            known = [_versions(log, about) for about in own.columns]
            others = changed(zip(known, said, strict=True))
            sets = {name: (own.sets[name], others.get(short[name], frozenset())) for name in own.values}
            parts = dict(log.execute("SELECT name, part FROM patients"))
            found, used = refine(parts, withdrawn, sets, own.strata, fewest, secret, own.classes, level)
            may = {hashed[name]: found[name] for name in used}
            if run is not None and may == expected:
                log.execute("UPDATE site SET named_by = ?", [named_by])
                log.executemany("INSERT OR REPLACE INTO patients VALUES (?, ?)", sorted(found.items()))
                spelt = [(name, _spelt(secret, hashed[name])) for name in sorted(found.keys() & hashed.keys())]
                log.executemany("INSERT OR IGNORE INTO spellings VALUES (?, ?)", spelt)
                begun = log.execute(
                    "INSERT INTO runs (run, purpose, fewest, data) VALUES (?, ?, ?, ?)",
                    [run, purpose, fewest, _digest(own, used)],
                )
                rows = [(begun.lastrowid, name, found[name]) for name in sorted(used)]
                log.executemany("INSERT INTO used VALUES (?, ?, ?)", rows)
                for about, versions, values in zip(own.columns, known, said, strict=True):
                    of_used = {short[name]: values[short[name]] for name in used}
                    for number, digests in with_version(versions, of_used):
                        packed = b"".join(name + digest for name, digest in sorted(digests.items()))
                        log.execute("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", [about, number, packed])
            return may

    def waiting(self, patients: Collection[str], used: Collection[str]) -> Waiting:
        """Return why patients wait whom a run has read and does not use.

        Args:
            patients: of all that the run has read.
            used: those whom it uses.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, secret):
            here, using = ({secret.name(one) for one in several} for several in (patients, used))
            withdrawn = {name for (name,) in log.execute("SELECT name FROM withdrawn")}
            parts: dict[int, set[str]] = {}
            for name, part in log.execute("SELECT name, part FROM patients"):
                parts.setdefault(part, set()).add(name)
        counts, new = Counter[str](), here - withdrawn - using
        for members in parts.values():
            own, gone = members & here - withdrawn, members - here - withdrawn
            new -= members
            if not own or own & using:
                continue
            counts["gone"] += len(gone)
            counts["beside_gone" if gone else "beside_withdrawn" if members & withdrawn else "changed"] += len(own)
        return Waiting(**counts, withdrawn=len(here & withdrawn), new=len(new))

    def _check_names(self, log: sqlite3.Connection, secret: Secret, patients: Mapping[str, str]) -> None:
        """Check that known patients have not come to be called otherwise: all would be dealt out a second time."""
        known = dict(log.execute("SELECT patient, spelling FROM spellings"))
        new, spelt = patients.keys() - known.keys(), set(known.values())
        twice = sorted(patients[name] for name in new if _spelt(secret, patients[name]) in spelt)
        if twice:
            problem = "new patients are called as known ones are, but for the spelling: the same would be two"
            raise self._not_known(
                f"{problem}. Write names as in former runs", "patients-named-otherwise", f": {_listed(twice)}"
            )
        ((number,),) = log.execute("SELECT 1 + coalesce(max(number), 0) FROM runs").fetchall()
        gone = known.keys() - patients.keys()
        if 2 * len(new) > len(patients) and 2 * len(gone) > len(known) and self._others != number:
            problem = "more than half of the run's patients are new, and more than half of the known ones are not there"
            raise self._not_known(
                f"{problem}: if they are the same, name them as in former runs; if they are others, "
                f'"other_patients": {number} in the site\'s file says so',
                "patients-replaced",
            )

    def _check_places(self, log: sqlite3.Connection) -> None:
        """Check that rows of a file that has changed are confirmed to be where they were: only that names patients."""
        ((number,),) = log.execute("SELECT 1 + coalesce(max(number), 0) FROM runs").fetchall()
        if self._others != number:
            raise self._not_known(
                "patients are known by their place in a file, and it has changed since the last run: rows may have "
                f'moved. If none has, and new ones stand at the end, "other_patients": {number} in the site\'s file '
                "says so",
                "rows-may-have-moved",
                ". A column that names patients (data.key), from the first run on, makes that unnecessary",
            )

    def _not_known(self, problem: str, code: str, hint: str = "") -> DataError:
        return DataError(self._path, problem, code=code, field="privacy", hint=hint)

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
        gone = not began.keys() <= patients.values.keys()
        if gone or (patients.columns and _digest(patients, began) != data):
            problem = f"the patients of the run {run} are not those with whom it began here, or their data are not"
            raise self._error(f"{problem}: put the data back, or submit it anew", "data-changed")

    def count(self, run: str | None, owner: str, per_day: int | None, most: int | None) -> None:
        """Count a run that an owner asks for, whatever becomes of it; one that goes on counts once.

        Args:
            run: its identity; None only looks whether there may be one more.
            owner: who asks, or where that is unknown the aggregator.
            per_day: most runs of an owner within 24 hours; None is no limit.
            most: of an owner in all; None is no limit.

        Raises:
            PolicyError: there would be more; the run is not counted.
            UserError: the log cannot be read or written, or is another site's.
        """
        with self._connected() as (log, _):
            known = "SELECT count(*), coalesce(sum(at > strftime('%Y-%m-%dT%H:%M:%SZ', 'now', '-1 day')), 0) FROM asked"
            if log.execute("SELECT 1 FROM asked WHERE run = ?", [run]).fetchone() is not None:
                return
            ((in_all, today),) = log.execute(f"{known} WHERE owner = ?", [owner]).fetchall()
            for field, limit, count in (("runs_per_day", per_day, today), ("runs", most, in_all)):
                if limit is not None and count >= limit:
                    said = f"this site's policy allows {limit} of one owner, refused ones included"
                    raise PolicyError(field, said, code="too-many-runs")
            if run is not None:
                log.execute("INSERT INTO asked (run, owner) VALUES (?, ?)", [run, owner])

    def told(self, run: str | None, patients: Iterable[str]) -> dict[str, float]:
        """Return what share of each patient's cells has been told; see `common.privacy.repeated`.

        Args:
            run: the run's identity: of one that goes on, what had been told when it was noted what it tells.
            patients: all whom it uses.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, secret):
            return _told(log, run, {secret.name(patient): patient for patient in patients})

    def shares(self) -> tuple[float, ...]:
        """Return what share of each patient's cells all runs have told, of all whom any has used, the least first.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, _):
            names = {name: name for (name,) in log.execute("SELECT DISTINCT patient FROM used")}
            return tuple(sorted(_told(log, None, names).values()))

    def tell(
        self, run: str, shares: Mapping[str, float], before: Mapping[str, float], most: float, *, anew: bool
    ) -> bool:
        """Note what share of each patient's cells a run tells; return whether it may begin.

        Of a run that began before, what it told then counts, too, where it begins anew; else what it tells more.

        Args:
            run: the run's identity.
            shares: of each patient whom it uses.
            before: what `told` said: if another run tells of them meanwhile, nothing is noted.
            most: that all runs may tell of a patient, where it began before.
            anew: whether it begins at the beginning.

        Raises:
            PolicyError: it began before, and all together is more.
            UserError: the log cannot be written, or is another site's.
        """
        with self._connected() as (log, secret):
            number, known = log.execute("SELECT number, told FROM runs WHERE run = ?", [run]).fetchone() or (None, None)
            names = {secret.name(patient): patient for patient in shares}
            if number is None or (known is None and _told(log, run, names) != before):
                return False
            if known is None:
                log.execute("UPDATE runs SET told = (SELECT 1 + count(told) FROM runs) WHERE number = ?", [number])
            noted = dict(log.execute("SELECT patient, share FROM told WHERE run = ?", [number]))
            own = {name: noted.get(name, 0.0) for name in names}
            new = {name: own[name] + share if anew else max(own[name], share) for name, share in _named(names, shares)}
            if known is not None and new != own:
                everything = _told(log, None, {name: name for name in names})
                if any(everything[name] - own[name] + share > most * (1 + 1e-9) for name, share in new.items()):
                    said = "the run began here before, and with what it told then it tells too much of some patients"
                    raise PolicyError("rows_per_rank", f"{said}: submit it anew, or smaller", code="run-told-already")
            rows = [(number, name, share) for name, share in sorted(new.items()) if share]
            log.executemany("INSERT OR REPLACE INTO told VALUES (?, ?, ?)", rows)
            return True

    def begin(self, run: str, spec: str) -> None:
        """Note that a run begins at the beginning: of each time other batches are drawn.

        Args:
            run: the run's identity.
            spec: the digest of its specification.

        Raises:
            UserError: the log cannot be written, or is another site's.
        """
        with self._connected() as (log, _):
            _begin(log, run, spec)

    def beginning(self, run: str, spec: str) -> int:
        """Return how many runs of a specification have begun here before one did, for the last time.

        Raises:
            UserError: the log cannot be read or written, or is another site's.
        """
        with self._connected() as (log, _):
            known = "SELECT number FROM begun WHERE run = ? AND spec = ?"
            if log.execute(known, [run, spec]).fetchone() is None:
                _begin(log, run, spec)
            ((number,),) = log.execute(known, [run, spec]).fetchall()
            return int(number)

    def places(self, but: str | None = None) -> list[tuple[bytes, int, bytes, str]]:
        """Return sketches of the weights at which runs have sent batches, how many, what flowed back there, and more.

        See `common.privacy.standing`.

        Args:
            but: identity of a run whose batches are not counted.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, _):
            known = (
                "SELECT sketch, iif(runs.run IS ?, 0, steps), flows, drawn FROM places, runs WHERE number = places.run"
            )
            return log.execute(known, [but]).fetchall()

    def note_place(self, run: str, sketch: bytes, steps: int, flows: bytes, drawn: str) -> None:
        """Note how many batches a run has sent near some weights, and as JSON what they were drawn from.

        Raises:
            UserError: the log cannot be written, or is another site's.
        """
        with self._connected() as (log, _):
            log.execute(
                "INSERT INTO places SELECT number, ?, ?, ?, ? FROM runs WHERE run = ? "
                "ON CONFLICT DO UPDATE SET steps = max(steps, excluded.steps), drawn = excluded.drawn",
                [sketch, steps, flows, drawn, run],
            )

    def exists(self) -> bool:
        """Tell whether there is a log, or one is lost; none is made by asking."""
        return self._path.exists() or any(witness.found(self._results))

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
                "SELECT number, run, purpose, began, fewest, coalesce(named_by, '') FROM runs, site "
                f"WHERE number IN ({numbers}) ORDER BY number",
                [] if patient is None else [secret.name(patient)],
            ).fetchall()
            sizes = "SELECT count(*) FROM used WHERE run = ? GROUP BY part ORDER BY part"
            shares = dict(log.execute("SELECT run, max(share) FROM told GROUP BY run"))
            owners = {asked.partition(" ")[0]: owner for asked, owner in log.execute("SELECT run, owner FROM asked")}
            return tuple(
                Disclosed(
                    run,
                    purpose,
                    began,
                    tuple(size for (size,) in log.execute(sizes, [number])),
                    fewest,
                    shares.get(number, 0.0),
                    named_by,
                    owners.get(run, ""),
                )
                for number, run, purpose, began, fewest, named_by in found
            )

    def heads(self) -> Heads:
        """Return how far the log has come, as others are told.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, secret):
            noted = log.execute("SELECT run, purpose, hex(data) FROM runs ORDER BY number")
            return chained(secret, noted)

    def unknown(self, patients: Iterable[str]) -> dict[str, bool]:
        """Return the names of patients that no run has used; of each, whether a known one is another spelling of it.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, secret):
            known = dict(log.execute("SELECT patient, spelling FROM spellings"))
            spelt = set(known.values())
            return {one: _spelt(secret, one) in spelt for one in patients if secret.name(one) not in known}

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
            if not self._path.exists():
                self._begin()
            with closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=rw", timeout=30, uri=True)) as log:
                log.isolation_level = None
                log.execute("PRAGMA synchronous = FULL")
                log.execute("PRAGMA trusted_schema = OFF")
                with _transaction(log):
                    secret = self._opened(log)
                    self._check_newest(log, secret)
                    yield log, secret
                if log.total_changes and self._results:
                    with _transaction(log):  # what another run has noted meanwhile is told, too
                        witness.write(self._results, _witness(log, secret))
        except (sqlite3.Error, OSError) as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in DAMAGED or self._path.is_dir():
                raise self._damaged(str(error)) from None
            raise self._error(
                f"cannot be used now ({error}), and without it nothing leaves: end what holds it, make room on the "
                "disk, or let this user write it",
                "log-out-of-reach",
            ) from None

    def _begin(self) -> None:
        """Put a new log in place, unless another process has just done so."""
        for path, _ in witness.found(self._results):
            raise self._too_old(path)
        make_folder(self._path.parent, private=True)
        with suppress(FileExistsError):
            _put(
                self._path, _new(self._site, secrets.token_bytes(SECRET) if self._first is None else self._first.value)
            )

    def _opened(self, log: sqlite3.Connection) -> Secret:
        """Check that a log is this site's; return its secret."""
        (version,) = log.execute("PRAGMA user_version").fetchone()
        if not version:
            raise self._damaged("it is empty")
        if version != VERSION:
            raise self._error(
                f"is of version {version}, expected {VERSION}: use the rankdad that wrote it", "log-version"
            )
        with closing(sqlite3.connect(":memory:")) as ours:
            ours.executescript(TABLES)
            if _schema(log) != _schema(ours):
                raise self._damaged("its tables are others")
        found = log.execute("SELECT name, secret FROM site").fetchall()
        if [(type(secret), len(secret)) for _, secret in found] != [(bytes, SECRET)]:
            raise self._damaged("it does not have one secret")
        ((site, secret),) = found
        if site != self._site:
            raise self._error(
                f"is the log of {visible(str(site), 63)}, and this is {self._site}: every site has a folder of its own",
                "log-of-another-site",
            )
        return Secret(secret)

    def _check_newest(self, log: sqlite3.Connection, secret: Secret) -> None:
        """Check that the log knows all that its witnesses do."""
        runs = dict(log.execute("SELECT number, run FROM runs"))
        (withdrawn,) = log.execute("SELECT count(*) FROM withdrawn").fetchone()
        (counted,) = log.execute("SELECT count(told) FROM runs").fetchone()
        for path, told in witness.found(self._results):
            last = secret.name("run", runs.get(told.runs, ""))
            if withdrawn < told.withdrawn or counted < told.told or (told.runs and last != told.last):
                raise self._too_old(path)

    def check(self, content: bytes) -> None:
        """Check a whole log, as `contents` returns it, before it is put into the place of this one.

        Raises:
            UserError: it is damaged, another site's, or not the newest.
        """
        if not content:  # which SQLite has no memory for
            raise self._damaged("it is empty")
        try:
            with closing(sqlite3.connect(":memory:")) as log:
                log.execute("PRAGMA trusted_schema = OFF")
                log.deserialize(content)
                if log.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
                    raise self._damaged("its pages do not fit together")
                self._check_newest(log, self._opened(log))
        except sqlite3.Error as error:
            raise self._damaged(str(error)) from None

    def _too_old(self, newer: Path) -> UserError:
        return self._error(
            f"is missing or older than {newer}, which tells of a run or a withdrawal that is not in it: put the newest "
            f"log in its place. Only if that is lost, move every {witness.FILE} of this site's output away: what left "
            "before and what leaves then add up",
            "log-too-old",
        )

    def _damaged(self, how: str) -> UserError:
        return self._error(
            f"is damaged ({how}), and without it nothing leaves: put its newest copy in its place; one that lacks a "
            "run is refused",
            "log-unusable",
        )

    def _error(self, problem: str, code: str) -> UserError:
        return UserError(f"{self._path}: {problem}", code=code, field="privacy", file=self._path)


def _told(log: sqlite3.Connection, run: str | None, patients: Mapping[str, str]) -> dict[str, float]:
    """Return what has been told of patients, by name, given their keyed hashes."""
    (own,) = log.execute("SELECT told FROM runs WHERE run = ?", [run]).fetchone() or (None,)
    earlier = "SELECT number FROM runs WHERE told < ?" if own else "SELECT number FROM runs WHERE told IS NOT NULL"
    sums = f"SELECT patient, sum(share) FROM told WHERE run IN ({earlier}) GROUP BY patient"
    found = dict(log.execute(sums, [own] if own else []))
    return {patient: found.get(name, 0.0) for name, patient in patients.items()}


def _begin(log: sqlite3.Connection, run: str, spec: str) -> None:
    log.execute(
        "INSERT OR REPLACE INTO begun SELECT ?1, ?2, 1 + coalesce(max(number), -1) FROM begun WHERE spec = ?2",
        [run, spec],
    )


def _named(names: Mapping[str, str], shares: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield each patient's keyed hash and share."""
    return ((name, shares[patient]) for name, patient in names.items())


def _spec(purpose: str) -> object:
    """Return the digest of a run's specification; a later version notes more of the same run."""
    return json.loads(purpose).get("spec")


def _versions(log: sqlite3.Connection, about: str) -> list[Version]:
    """Return what has been said of patients in a column so far; see `common.privacy.versions`."""
    found = log.execute("SELECT digests FROM versions WHERE about = ? ORDER BY number", [about])
    return [dict(struct.iter_unpack("16s8s", digests)) for (digests,) in found]


def _digest(patients: Patients, used: Collection[str]) -> bytes:
    """Return a digest of all that a run uses."""
    digest = hashlib.sha256(repr(patients.columns).encode())
    for name in sorted(used):
        digest.update(f"{name} {patients.sets[name]}".encode() + b"".join(patients.values[name]))
    return digest.digest()


def restore(folder: Path, site: str, content: bytes, source: Path, results: Iterable[Path] = ()) -> None:
    """Put a site's log, as `DisclosureLog.contents` returned it, into a folder.

    Args:
        folder: of the log.
        site: whose it is.
        content: of the log.
        source: file that it comes from.
        results: folders of the results of its runs, in which the log's witnesses lie.

    Raises:
        UserError: a log is there already, it cannot be written, or is damaged, another site's or not the newest.
    """
    DisclosureLog(source, site, results=results).check(content)
    path = make_folder(folder, private=True) / FILE
    try:
        _put(path, content)
    except FileExistsError:
        problem = "is there already: one log is never put in place of another; move it away if that is meant"
        raise UserError(f"{path}: {problem}", code="log-there-already", field="privacy", file=path) from None
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written: {error.strerror}", code="cannot-write", field="privacy", file=path
        ) from None


@contextmanager
def _transaction(log: sqlite3.Connection) -> Iterator[None]:
    """Do all of what is done in a `with`, or nothing, while no other process writes."""
    log.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        log.execute("ROLLBACK")
        raise
    log.execute("COMMIT")


def _schema(log: sqlite3.Connection) -> list[tuple[str, str, str]]:
    """Return all that a log's file is made of, triggers and views as well as tables."""
    found = log.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_schema ORDER BY type, name").fetchall()
    return [(kind, name, " ".join(sql.split())) for kind, name, sql in found]


def _spelt(secret: Secret, patient: str) -> str:
    """Return in place of a name what it has in common with other ways to write it."""
    return secret.name("spelling", spelling(patient))


def _listed(patients: Sequence[str]) -> str:
    """Return some names as they stand in an error."""
    return ", ".join(visible(one, 40) for one in patients[:3]) + ", …" * (len(patients) > 3)


def _witness(log: sqlite3.Connection, secret: Secret) -> Witness:
    """Return what is told of a log outside of it."""
    runs, last = log.execute("SELECT number, run FROM runs ORDER BY number DESC").fetchone() or (0, "")
    (withdrawn,) = log.execute("SELECT count(*) FROM withdrawn").fetchone()
    (told,) = log.execute("SELECT count(told) FROM runs").fetchone()
    return Witness(runs=runs, last=secret.name("run", last), withdrawn=withdrawn, told=told)


def _new(site: str, secret: bytes) -> bytes:
    """Return a new log, as a file holds it."""
    with closing(sqlite3.connect(":memory:")) as log:
        log.executescript(TABLES)
        log.execute(f"PRAGMA user_version = {VERSION}")
        log.execute("INSERT INTO site VALUES (?, ?, NULL)", [site, secret])
        log.commit()
        return log.serialize()


def _put(path: Path, content: bytes) -> None:
    """Put a file in its place when all of it is on the disk.

    Raises:
        FileExistsError: there is one already.
    """
    number, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(number, "wb") as written:  # noqa: PTH123
            written.write(content)
            written.flush()
            os.fsync(number)
        os.link(name, path)
        sync_path(path.parent)
    finally:
        Path(name).unlink()
