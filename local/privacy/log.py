"""The disclosure log: a site's secret, and the partition of its patients behind everything that has left the site.

Both are in one file, so that neither is lost without the other. Patients are identified by keyed hashes.
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
    """How many patients a run does not use, by reason.

    Args:
        gone: known ones that the run has not read, so that their parts are left out.
        beside_gone: others in these parts.
        withdrawn: withdrawn ones that the run has read.
        beside_withdrawn: others in parts of withdrawn patients.
        changed: in parts of which the run divides or changes a few.
        new: not yet in a part.
    """

    gone: int = 0
    beside_gone: int = 0
    withdrawn: int = 0
    beside_withdrawn: int = 0
    changed: int = 0
    new: int = 0


class DisclosureLog(RunLog):
    """The disclosure log of a site.

    Args:
        folder: of the log; created with a new one.
        site: that owns the log.
        secret: for a new log; random by default.
        results: folders of the results of its runs, with the log's witnesses.
        others: number of the run whose patients may mostly differ from earlier ones.
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
        """Return the part of every patient that a run may use.

        A resumed run has the parts that it began with, even if other runs have divided them since. Patients with
        another value in a column than in an earlier run are a set of their own, because the two runs' sums differ by
        them.

        Args:
            run: the run's identity; None if there is none yet.
            purpose: description of the run, as JSON; its `spec` must not change when the run is resumed.
            named_by: what identifies patients, such as a column; otherwise one patient could count twice.
            patients: that the run would use.
            fewest: patients in a part.
            level: least patients of a class.
            expected: the parts of an earlier call; if they are unchanged, the run is logged.

        Raises:
            UserError: the log cannot be read or written, belongs to another site, or identifies patients differently;
                or the resumed run is not the one that began here with the same patients.
            DataError: the run's patients seem to be known ones under other names.
        """
        with self._connected() as (log, secret):
            ((known_by,),) = log.execute("SELECT named_by FROM site").fetchall()
            another = known_by not in (None, named_by)
            if another and not (known_by.startswith(PLACE) and named_by.startswith(PLACE)):
                known_by = visible(known_by, 200)
                raise self._error(
                    f"identifies patients by {known_by}, and this run by {visible(named_by, 200)}: the same patient "
                    f"would count twice. Let the run identify them by {known_by}, with data.group or data.key",
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
            compared = [
                {short[name]: values[place] for name, values in own.values.items()} for place in range(len(own.columns))
            ]
            known = [_versions(log, about) for about in own.columns]
            others = changed(zip(known, compared, strict=True))
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
                for about, versions, values in zip(own.columns, known, compared, strict=True):
                    of_used = {short[name]: values[short[name]] for name in used}
                    for number, digests in with_version(versions, of_used):
                        packed = b"".join(name + digest for name, digest in sorted(digests.items()))
                        log.execute("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", [about, number, packed])
            return may

    def waiting(self, patients: Collection[str], used: Collection[str]) -> Waiting:
        """Return why a run does not use some of the patients that it has read.

        Args:
            patients: that the run has read.
            used: that it uses.

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
        """Check that known patients have not been renamed, which would assign them to parts twice."""
        known = dict(log.execute("SELECT patient, spelling FROM spellings"))
        new, spelt = patients.keys() - known.keys(), set(known.values())
        twice = sorted(patients[name] for name in new if _spelt(secret, patients[name]) in spelt)
        if twice:
            problem = (
                "names of new patients differ from known ones only in spelling: the same patient would count twice"
            )
            raise self._not_known(
                f"{problem}. Write names as in earlier runs", "patients-named-otherwise", f": {_listed(twice)}"
            )
        ((number,),) = log.execute("SELECT 1 + coalesce(max(number), 0) FROM runs").fetchall()
        gone = known.keys() - patients.keys()
        if 2 * len(new) > len(patients) and 2 * len(gone) > len(known) and self._others != number:
            problem = "more than half of the run's patients are new, and more than half of the known ones are missing"
            raise self._not_known(
                f"{problem}: if they are the same, name them as in earlier runs; if they are others, set "
                f'"other_patients": {number} in the site\'s file',
                "patients-replaced",
            )

    def _check_places(self, log: sqlite3.Connection) -> None:
        """Check that unchanged row numbers are confirmed after a change of a file, if only these identify patients."""
        ((number,),) = log.execute("SELECT 1 + coalesce(max(number), 0) FROM runs").fetchall()
        if self._others != number:
            raise self._not_known(
                "patients are identified by their row in a file that has changed since the last run: rows may have "
                f'moved. If none has, and new ones are at the end, set "other_patients": {number} in the site\'s file',
                "rows-may-have-moved",
                ". A column that identifies patients (data.key), from the first run on, avoids this",
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
        """Check that a resumed run is the one that began here: an aggregator may reuse a name."""
        if not same:
            problem = f"another run began here as {run}, with other parts"
            raise self._error(f"{problem}; submit it again", "run-differs")
        if not began.keys().isdisjoint(withdrawn):
            problem = f"a patient of the run {run} has been withdrawn since it began: it cannot be resumed here"
            raise self._error(f"{problem}; submit it again", "patient-withdrawn")
        gone = not began.keys() <= patients.values.keys()
        if gone or (patients.columns and _digest(patients, began) != data):
            problem = f"the run {run} began here with other patients or other data"
            raise self._error(f"{problem}: restore the data, or submit it again", "data-changed")

    def disclosed(self, run: str | None, patients: Iterable[str]) -> dict[str, float]:
        """Return the share of each patient's cells that has been disclosed; see `common.privacy.repeated`.

        Args:
            run: the run's identity; for a resumed run, what it disclosed itself does not count.
            patients: that it uses.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, secret):
            return _told(log, run, {secret.name(patient): patient for patient in patients})

    def shares(self) -> tuple[float, ...]:
        """Return the share of each patient's cells that all runs have disclosed, smallest first.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, _):
            names = {name: name for (name,) in log.execute("SELECT DISTINCT patient FROM used")}
            return tuple(sorted(_told(log, None, names).values()))

    def tell(
        self, run: str, shares: Mapping[str, float], before: Mapping[str, float], most: float, *, anew: bool
    ) -> bool:
        """Log the share of each patient's cells that a run discloses; return whether it may begin.

        If the run starts anew, its earlier disclosures count as well; if it is resumed, only additional ones count.

        Args:
            run: the run's identity.
            shares: of each patient that it uses.
            before: result of `disclosed`; if another run has disclosed more since, nothing is logged.
            most: limit of all runs for a patient, for a run that began before.
            anew: whether it starts from the beginning.

        Raises:
            PolicyError: it began before, and the total exceeds the limit.
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
                    text = (
                        "the run began here before, and together with that it would disclose too much of some patients"
                    )
                    raise PolicyError(
                        "rows_per_rank", f"{text}: submit it again, or a smaller one", code="run-told-already"
                    )
            rows = [(number, name, share) for name, share in sorted(new.items()) if share]
            log.executemany("INSERT OR REPLACE INTO told VALUES (?, ?, ?)", rows)
            return True

    def unknown(self, patients: Iterable[str]) -> dict[str, bool]:
        """Return the names that no run has used; of each, whether a known name differs only in spelling.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, secret):
            known = dict(log.execute("SELECT patient, spelling FROM spellings"))
            spelt = set(known.values())
            return {one: _spelt(secret, one) in spelt for one in patients if secret.name(one) not in known}

    def withdraw(self, patients: Sequence[str]) -> None:
        """Exclude patients from all runs that begin or resume from now on.

        Raises:
            UserError: the log cannot be written, or is another site's.
        """
        with self._connected() as (log, secret):
            names = [[secret.name(patient)] for patient in patients]
            log.executemany("INSERT OR IGNORE INTO withdrawn (name) VALUES (?)", names)


def _told(log: sqlite3.Connection, run: str | None, patients: Mapping[str, str]) -> dict[str, float]:
    """Return the disclosed shares of patients by name, given their keyed hashes."""
    (own,) = log.execute("SELECT told FROM runs WHERE run = ?", [run]).fetchone() or (None,)
    earlier = "SELECT number FROM runs WHERE told < ?" if own else "SELECT number FROM runs WHERE told IS NOT NULL"
    sums = f"SELECT patient, sum(share) FROM told WHERE run IN ({earlier}) GROUP BY patient"
    found = dict(log.execute(sums, [own] if own else []))
    return {patient: found.get(name, 0.0) for name, patient in patients.items()}


def _named(names: Mapping[str, str], shares: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield each patient's keyed hash and share."""
    return ((name, shares[patient]) for name, patient in names.items())


def _spec(purpose: str) -> object:
    """Return the digest of a run's spec; the rest of its purpose may differ between versions."""
    return json.loads(purpose).get("spec")


def _versions(log: sqlite3.Connection, about: str) -> list[Version]:
    """Return the earlier values of patients in a column; see `common.privacy.versions`."""
    found = log.execute("SELECT digests FROM versions WHERE about = ? ORDER BY number", [about])
    return [dict(struct.iter_unpack("16s8s", digests)) for (digests,) in found]


def _digest(patients: Patients, used: Collection[str]) -> bytes:
    """Return a digest of the data that a run uses."""
    digest = hashlib.sha256(repr(patients.columns).encode())
    for name in sorted(used):
        digest.update(f"{name} {patients.sets[name]}".encode() + b"".join(patients.values[name]))
    return digest.digest()


def _spelt(secret: Secret, patient: str) -> str:
    """Return a normal form of a name, equal for different spellings."""
    return secret.name("spelling", spelling(patient))


def _listed(patients: Sequence[str]) -> str:
    """Format some names for an error."""
    return ", ".join(visible(one, 40) for one in patients[:3]) + ", …" * (len(patients) > 3)
