"""How a site's samples come to lie in parts: by its secret, and by its log where a folder lasts."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rankdad.common.errors import DataError, UserError, visible
from rankdad.common.policy import Policy
from rankdad.common.privacy.heads import Heads
from rankdad.common.privacy.parts import Secret, refine
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.local.data.reading import Array, Reading
from rankdad.local.privacy.log import DisclosureLog
from rankdad.local.privacy.patients import names_of, patients_of

LARGE = 1 / 3  # of a part's samples
MOST_NAMED = 3  # patients in a note


@dataclass(frozen=True, eq=False)
class Dealt:
    """The parts in which a run's samples lie at a site, and the secret by which all else is drawn.

    Args:
        parts: int64 [samples].
        sizes: patients of each part.
        secret: of the site.
        waits: samples that the run may not use.
        run: digest of its specification.
        keep: notes in the site's log that the run uses them, and returns whether it still may; None without a log.
        log: of the site, where the run is noted in one.
        large: names of patients who have more than `LARGE` of their part's samples.
    """

    parts: Array
    sizes: Mapping[int, int]
    secret: Secret
    waits: int = 0
    run: str = ""
    keep: Callable[[], bool] | None = None
    log: DisclosureLog | None = None
    large: tuple[str, ...] = ()

    def kept(self) -> bool:
        """Note in the site's log that the run uses its patients; return whether it still may."""
        return self.keep is None or self.keep()

    def heads(self) -> Heads | None:
        """Return how far the site's log has come by now; None without one."""
        return None if self.log is None else self.log.heads()

    def notes(self) -> tuple[str, ...]:
        """Return what the person at the site should know."""
        several = f"{len(self.sizes)} parts of at least {min(self.sizes.values())} patients"
        told = f"folds and validation are made of {several if len(self.sizes) > 1 else 'a single part: none is tested'}"
        notes = [told]
        if self.waits:
            notes.append(f"{self.waits} samples wait: alone, or beside what has left, they are too few for a part")
        if self.large:
            names = ", ".join(visible(one, 40) for one in self.large[:MOST_NAMED])
            more = ", …" * (len(self.large) > MOST_NAMED)
            notes.append(
                f"{names}{more}: has more than a third of a part's samples, whose sums are nearly theirs alone"
            )
        return tuple(notes)


@dataclass(frozen=True)
class Dealing:
    """How a site deals its patients out.

    Args:
        spec: of the run.
        secret: of the site.
        fewest: patients of a part.
        log: of the site; without one nothing is kept from run to run.
        run: identity of the run; None where there is none yet.
        level: patients of a class at the site, and in each part at first.
        by: columns by which patients are dealt out evenly; None is the outcome.
    """

    spec: RunSpec
    secret: Secret
    fewest: int
    log: DisclosureLog | None = None
    run: str | None = None
    level: int = 1
    by: tuple[str, ...] | None = None

    def deal(self, reading: Reading) -> tuple[Reading, Dealt]:
        """Return the samples that the run may use, and the parts in which they lie: all of a patient's are in one.

        Raises:
            DataError: there are too few patients for a single part.
            UserError: the site's log cannot be used.
        """
        names = np.array(names_of(reading), object)
        patients = patients_of(self.spec, reading, self.secret, self.by)
        if self.log is None:
            own = patients.sets, patients.strata, self.fewest, self.secret, patients.classes, self.level
            found, used = refine({}, (), *own)
            parts, keep = {name: found[name] for name in used}, None
        else:
            ask = partial(
                self.log.parts, self.run, purpose_of(self.spec), reading.named_by, patients, self.fewest, self.level
            )
            parts = ask()

            def keep() -> bool:
                return ask(expected=parts) == parts

        if not parts:
            raise DataError(
                reading.source,
                f"has fewer patients for this run than the policy's min_rows, {self.fewest}: nothing may leave",
                code="too-few-patients",
                field="min_rows",
            )
        rows = np.array([row for row, name in enumerate(names) if name in parts], np.int64)
        places = np.array([parts[name] for name in names[rows]], np.int64)
        sizes, waits = Counter(parts.values()), len(names) - len(rows)
        large = _large(names[rows].tolist(), places.tolist(), sizes)
        log = None if self.run is None else self.log
        dealt = Dealt(places, sizes, self.secret, waits, self.spec.sha256(), keep, log, large)
        return reading.take(rows), dealt


def _large(names: Sequence[str], parts: Sequence[int], sizes: Mapping[int, int]) -> tuple[str, ...]:
    """Return who has more than `LARGE` of a part's samples, where it has patients enough for nobody to have it."""
    rows, own = Counter(parts), Counter(zip(parts, names, strict=True))
    return tuple(sorted(name for (part, name), count in own.items() if sizes[part] > 3 and count > LARGE * rows[part]))


def dealing_of(
    folder: Path,
    site: str,
    policy: Policy,
    spec: RunSpec,
    run: str | None = None,
    secret: Secret | None = None,
    results: Sequence[Path] = (),
    others: int | None = None,
) -> Dealing | None:
    """Return how a site with a folder that lasts deals its patients out; None where folds follow from keys.

    Args:
        folder: of the site's log.
        site: its name.
        policy: of the site.
        spec: of the run.
        run: its identity; None where there is none yet.
        secret: that a new log begins with; a random one without it.
        results: folders of the results of its runs, in which the log's witnesses lie.
        others: number of the run whose patients may be mostly others than those before.

    Raises:
        UserError: the site's log cannot be used; or folds are to follow from keys, but the log holds runs in parts.
    """
    log = DisclosureLog(folder, site, secret, results, others)
    if policy.keyed_folds:
        if log.exists() and log.runs():
            raise UserError(
                f"keyed_folds: is true in the policy, but {folder} holds runs of {site} in parts, and with folds by "
                'keys beside these, answers add up to single patients: set "keyed_folds" to false in the policy',
                code="log-bypassed",
                field="keyed_folds",
            )
        return None
    return Dealing(spec, log.secret, policy.min_rows, log, run, policy.min_level.count, policy.strata)


def purpose_of(spec: RunSpec) -> str:
    """Return what the log keeps of a run, as JSON that later versions can show."""
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
        }
    )


def secret_of_files(path: Path) -> Secret:
    """Return a secret that follows from a file, or from all files of a folder: for a site where no folder lasts.

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
