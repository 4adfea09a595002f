"""Assigns a site's patients to parts, by its secret and its disclosure log."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from rankdad.common.data.parts import LARGE, Assignment
from rankdad.common.data.reading import PLACE, Array, Reading
from rankdad.common.errors import DataError, UserError, counted
from rankdad.common.policy import EVERYTHING, MinLevel, Policy
from rankdad.common.privacy.parts import Secret, most_rows, refine
from rankdad.common.privacy.standing import Flows, Place, Places
from rankdad.common.run.weight_sketch import unpack_sketch
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.local.privacy.log import DisclosureLog, Waiting
from rankdad.local.privacy.patients import Patients, compared, names_of, patients_of

DIGITS = 32  # of a digest
MOST_ASKED = 50  # iterations; each usually removes at least one part


@dataclass(frozen=True)
class PartAssigner:
    """Assigns a site's patients to parts.

    Args:
        spec: of the run.
        secret: of the site.
        fewest: patients in a part.
        log: of the site; without one, nothing is kept between runs.
        run: identity of the run; None if there is none yet.
        level: least patients with a class, per site or per part; also for values, if rare ones are replaced.
        by: columns to balance between parts; None for the outcome.
        share: largest share of a part's rows that one patient may have; further rows are left out.
        beginning: distinguishes runs of the same spec if there is no log; "" for no distinction.
    """

    spec: RunSpec
    secret: Secret
    fewest: int
    log: DisclosureLog | None = None
    run: str | None = None
    level: MinLevel = EVERYTHING.min_level
    by: tuple[str, ...] | None = None
    share: float = EVERYTHING.largest_share
    beginning: str = ""

    def assign(self, reading: Reading) -> tuple[Reading, Assignment]:
        """Return the samples that the run may use, and their parts; all samples of a patient are in one part.

        Raises:
            DataError: there are too few patients for a single part.
            UserError: the site's log cannot be used.
        """
        names = names_of(reading)
        patients = patients_of(self.spec, reading, self.by)
        if self.log is None:
            given = patients.sets, patients.strata, self.fewest, self.secret, patients.classes, self.level.count
            found, used = refine({}, (), *given)
            parts, keep = {name: found[name] for name in used}, None
        else:
            parts, keep = self._asked(self.log, reading, patients)
        why = "" if self.log is None else _why(self.log.waiting(patients.sets, parts), self.fewest)
        if not parts:
            few = f"has fewer patients for this run than the policy requires (min_rows {self.fewest})"
            if len(patients.sets) >= self.fewest:
                few = (
                    f"has {len(patients.sets)} patients, but no part of {self.fewest} (min_rows) that this run may use"
                )
            raise DataError(
                reading.source,
                f"{few}: nothing may leave",
                code="too-few-patients",
                field="min_rows",
                hint=f". {why}" * bool(why),
            )
        rows, places = self._rows_of(names, parts)
        beyond = sum(name in parts for name in names) - len(rows)
        sizes, waits = Counter(parts.values()), len(names) - len(rows) - beyond
        own = [names[row] for row in rows]
        large = _large(own, places.tolist(), sizes)
        assignment = Assignment(
            places, sizes, self.secret, waits, self.spec.sha256(), keep, large=large, beyond=beyond, why=why
        )
        assignment = replace(assignment, beginning=lambda: self.beginning)
        return reading.take(rows), assignment if self.log is None else self._with_log(self.log, assignment, own)

    def _with_log(self, log: DisclosureLog, assignment: Assignment, names: Sequence[str]) -> Assignment:
        """Add the log's information about the named patients to assigned samples."""
        disclosed, run = log.disclosed(self.run, names), self.run
        assignment = replace(assignment, disclosed=np.array([disclosed[name] for name in names]))
        if run is None:
            return assignment

        def tell(shares: Array, most: float, anew: bool) -> bool:
            return log.tell(run, dict(zip(names, shares.tolist(), strict=True)), disclosed, most, anew=anew)

        def places(anew: bool) -> Places:
            known = log.places(None if anew else run)
            with log.reading():
                return tuple(
                    Place(unpack_sketch(sketch), steps, Flows.unpack(flows), drawn=json.loads(drawn))
                    for sketch, steps, flows, drawn in known
                )

        def place(here: Place) -> None:
            flows = b"" if here.flows is None else here.flows.pack()
            log.note_place(run, here.sketch.numpy().tobytes(), here.steps, flows, json.dumps(dict(here.drawn)))

        def beginning() -> str:
            number = log.beginning(run, assignment.run)
            return str(number) if number else ""

        return replace(
            assignment,
            tell=tell,
            heads=log.heads,
            places=places,
            place=place,
            begun=lambda: log.begin(run, assignment.run),
            beginning=beginning,
        )

    def _asked(
        self, log: DisclosureLog, reading: Reading, patients: Patients
    ) -> tuple[dict[str, int], Callable[[Sequence[str]], bool]]:
        """Return the part of every patient that the log allows the run to use, and a function that logs the run.

        Rare values depend on the parts, and parts on changed cells. Without a part, other values may become rare, so
        this is repeated until the result is stable.
        """
        named_by = _named_by(reading)
        ask = partial(log.parts, self.run, purpose_of(self.spec), named_by)
        limits = self.fewest, self.level.count
        parts, before, names = ask(patients, *limits), dict[str, int](), names_of(reading)
        for _ in range(MOST_ASKED):
            if not parts or parts == before:
                break
            rows, places = self._rows_of(names, parts)
            patients = compared(patients, self.spec, reading.take(rows), self.secret, self.level, places)
            before, parts = parts, ask(patients, *limits)
        else:
            parts = {}

        def keep(warnings: Sequence[str]) -> bool:
            purpose = purpose_of(self.spec, warnings)
            return log.parts(self.run, purpose, named_by, patients, *limits, expected=parts) == parts

        return parts, keep

    def _rows_of(self, names: Sequence[str], parts: Mapping[str, int]) -> tuple[Array, Array]:
        """Return the positions of the samples of patients with a part, and the part of each."""
        of: dict[int, dict[str, list[int]]] = {}
        for row, name in enumerate(names):
            if name in parts:
                of.setdefault(parts[name], {}).setdefault(name, []).append(row)
        rows = list[int]()
        for patients in of.values():
            most = most_rows([len(own) for own in patients.values()], self.share)
            for name, own in patients.items():
                if len(own) > most:
                    order = sorted(range(len(own)), key=lambda place, name=name: self.secret.number("row", name, place))  # type: ignore[misc]
                    own = [own[place] for place in order[:most]]
                rows += own
        rows.sort()
        return np.array(rows, np.int64), np.array([parts[names[row]] for row in rows], np.int64)


def _why(waiting: Waiting, fewest: int) -> str:
    """Explain why patients wait, and what would help."""
    reasons = list[str]()
    if waiting.gone:
        are, those = ("is", "that patient") if waiting.gone == 1 else ("are", "those patients")
        reasons.append(
            f"{counted(waiting.gone, 'patient')} of earlier runs {are} not in this run's table, or left out by its "
            f"rules, so {waiting.beside_gone} in the same parts are left out too: withdraw {those} with "
            "`rankdad purge`, or restore the rows"
        )
    if waiting.withdrawn:
        reasons.append(f"{counted(waiting.withdrawn, 'patient')} in the table have withdrawn")
    if waiting.beside_withdrawn:
        reasons.append(
            f"{counted(waiting.beside_withdrawn, 'patient')} shared a part with withdrawn patients: wait until at "
            f"least {fewest} new patients join them"
        )
    if waiting.new:
        reasons.append(
            f"{counted(waiting.new, 'patient')} since the last run are too few for a part, or too few have their "
            f"class: wait for at least {fewest}"
        )
    if waiting.changed:
        reasons.append(
            f"{counted(waiting.changed, 'patient')} are in parts of which this run would use or change only a few: "
            "ask its owner for the columns, values and rules of earlier runs; if cells of the table have been "
            "corrected since, restore the earlier values until at least as many patients' have been"
        )
    if waiting.gone or waiting.changed:
        reasons.append("others can see from the number of rows that somebody here is left out or changed")
    return "; ".join(reasons)


def _large(names: Sequence[str], parts: Sequence[int], sizes: Mapping[int, int]) -> tuple[str, ...]:
    """Return the patients with more than `LARGE` of a part's samples, if the part has enough patients to avoid it."""
    rows, own = Counter(parts), Counter(zip(parts, names, strict=True))
    return tuple(sorted(name for (part, name), count in own.items() if sizes[part] > 3 and count > LARGE * rows[part]))


def assigner_of(
    folder: Path,
    site: str,
    policy: Policy,
    spec: RunSpec,
    run: str | None = None,
    secret: Secret | None = None,
    results: Sequence[Path] = (),
    others: int | None = None,
) -> PartAssigner | None:
    """Return the assigner of a site's patients to parts; None if folds follow from keys.

    Args:
        folder: of the site's log.
        site: its name.
        policy: of the site.
        spec: of the run.
        run: its identity; None if there is none yet.
        secret: for a new log; random by default.
        results: folders of the results of its runs, with the log's witnesses.
        others: number of the run whose patients may mostly differ from earlier ones.

    Raises:
        UserError: the site's log cannot be used, or folds should follow from keys but the log holds runs in parts.
    """
    log = DisclosureLog(folder, site, secret, results, others)
    if policy.keyed_folds:
        if log.exists() and log.runs():
            raise UserError(
                f"keyed_folds: is true in the policy, but {folder} holds runs of {site} in parts; combined with folds "
                'by keys, their results would reveal single patients: set "keyed_folds" to false in the policy',
                code="log-bypassed",
                field="keyed_folds",
            )
        return None
    return PartAssigner(
        spec, log.secret, policy.min_rows, log, run, policy.min_level, policy.strata, policy.largest_share
    )


def purpose_of(spec: RunSpec, warnings: Sequence[str] = ()) -> str:
    """Return the log entry of a run, as JSON.

    Args:
        spec: of the run.
        warnings: about what others can learn here.
    """
    data = spec.data
    columns, outcome = [f"samples of shape {list(data.shape)}"], ["their labels"]
    if isinstance(data, TableData):
        columns, outcome = list(data.named), list(data.targets)
    return json.dumps(
        {
            "spec": spec.sha256(),
            "name": spec.name,
            "task": spec.task.name,
            "method": spec.trained_by,
            "columns": columns,
            "outcome": outcome,
            "sites": list(spec.federation.sites),
            "read": {field: list(names) for field, names in spec.columns.items()},
            "figures": figures_of(spec),
            "warnings": list(warnings),
        }
    )


def figures_of(spec: RunSpec) -> list[str]:
    """Return the kinds of figures that a run sends; `local.privacy.cli` explains them."""
    sums = (
        spec.task.name in ("language-model", "regression")
        or isinstance(spec.data, TableData)
        or spec.preparation.standardise != "none"
    )
    due = {
        "gradients": spec.solver != "exact" and spec.local is None,
        "local-steps": spec.solver != "exact" and spec.local is not None,
        "sums": sums or getattr(spec.task, "class_weights", None) == "balanced",
        "table-1": isinstance(spec.data, TableData),
        "products": spec.solver != "steps" or "linear" in spec.references,
        "coefficients": spec.solver != "steps",
        "metrics": True,
        "references": bool(spec.references),
    }
    return [kind for kind, is_due in due.items() if is_due]


def _named_by(reading: Reading) -> str:
    """Return what identifies patients; row numbers are valid only for the same file."""
    source = Path(reading.source)
    if reading.named_by != PLACE or not source.is_file():
        return reading.named_by
    with source.open("rb") as opened:
        return f"{PLACE}, {source.name} with the sha256 {hashlib.file_digest(opened, 'sha256').hexdigest()[:DIGITS]}"


def secret_of_files(path: Path) -> Secret:
    """Derive a secret from a file or a folder's files, for a site without a permanent folder.

    Raises:
        DataError: one cannot be read.
    """
    digest = hashlib.sha256()
    for file in sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]:
        try:
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
        except OSError as error:
            raise DataError(file, f"cannot be read: {error.strerror}", code="cannot-read") from None
    return Secret(digest.digest())
