"""The disclosure log: a site's secret, and the partition of its patients behind all that has left it, over all runs.

Both are in one file, so that neither is lost without the other. Patients are named there by keyed hashes.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankdad.common.data.reading import PLACE
from rankdad.common.errors import DataError, PolicyError, visible
from rankdad.common.privacy.parts import Secret, refine
from rankdad.common.privacy.versions import Version, changed, with_version
from rankdad.common.spec.table_schema import spelling
from rankdad.local.privacy.patients import Patients
from rankdad.local.privacy.run_log import RunLog


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


class DisclosureLog(RunLog):
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
        super().__init__(folder, site, secret, results)
        self._others = others

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


def _told(log: sqlite3.Connection, run: str | None, patients: Mapping[str, str]) -> dict[str, float]:
    """Return what has been told of patients, by name, given their keyed hashes."""
    (own,) = log.execute("SELECT told FROM runs WHERE run = ?", [run]).fetchone() or (None,)
    earlier = "SELECT number FROM runs WHERE told < ?" if own else "SELECT number FROM runs WHERE told IS NOT NULL"
    sums = f"SELECT patient, sum(share) FROM told WHERE run IN ({earlier}) GROUP BY patient"
    found = dict(log.execute(sums, [own] if own else []))
    return {patient: found.get(name, 0.0) for name, patient in patients.items()}


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


def _spelt(secret: Secret, patient: str) -> str:
    """Return in place of a name what it has in common with other ways to write it."""
    return secret.name("spelling", spelling(patient))


def _listed(patients: Sequence[str]) -> str:
    """Return some names as they stand in an error."""
    return ", ".join(visible(one, 40) for one in patients[:3]) + ", …" * (len(patients) > 3)
