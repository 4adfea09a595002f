"""How a site's samples come to lie in parts: by its secret, and by its log where a folder lasts."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankdad.common.errors import DataError, UserError
from rankdad.common.policy import Policy
from rankdad.common.privacy.parts import Secret, refine
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.local.data.reading import Array, Reading
from rankdad.local.privacy.log import DisclosureLog

NOT_USED = -1
STRATA = 5  # of equally many samples, where labels are numbers


@dataclass(frozen=True, eq=False)
class Dealt:
    """The parts in which a site's samples lie, and the secret by which all else is drawn.

    Args:
        parts: int64 [samples]; -1 where the run may not use one.
        sizes: patients of each part.
        secret: of the site.
    """

    parts: Array
    sizes: Mapping[int, int]
    secret: Secret

    def notes(self) -> tuple[str, ...]:
        """Return what the person at the site should know."""
        if not self.sizes:
            return ()
        several = f"{len(self.sizes)} parts of at least {min(self.sizes.values())} patients"
        told = f"folds and validation are made of {several if len(self.sizes) > 1 else 'a single part: none is tested'}"
        held = int((self.parts == NOT_USED).sum())
        waits = f"{held} samples wait: alone, or beside what has left already, they are too few for a part"
        return (told, waits) if held else (told,)


@dataclass(frozen=True)
class Dealing:
    """How a site deals its patients out.

    Args:
        secret: of the site.
        fewest: patients of a part.
        log: of the site; without one nothing is kept from run to run.
        run: identity of the run; None only looks how it would be, and keeps nothing.
        purpose: what the run is for, as JSON.
        level: patients of a class at the site, and in each part at first.
    """

    secret: Secret
    fewest: int
    log: DisclosureLog | None = None
    run: str | None = None
    purpose: str = ""
    level: int = 1

    def deal(self, reading: Reading) -> Dealt:
        """Return the parts of what was read: all samples of a patient, or of what else groups them, are in one.

        Raises:
            DataError: there are too few patients for a single part.
            UserError: the site's log cannot be used.
        """
        assert reading.labels is not None
        names = reading.groups or reading.keys or tuple(map(str, range(len(reading.labels))))
        sets = dict[str, int]()
        for place, name in enumerate(names):  # a patient in two of the data's own sets is in a set of their own
            sets[name] = sets.get(name, 0) | (1 << int(reading.split[place]) if reading.split is not None else 1)
        own, classes = _stratum_of(names, reading.labels), _classes_of(names, reading.labels)
        if self.log is None:
            found, used = refine({}, (), sets, own, self.fewest, self.secret, classes, self.level)
            parts = {name: found[name] for name in used}
        else:
            parts = self.log.parts(
                self.run, self.purpose, reading.named_by, sets, own, self.fewest, classes, self.level
            )
        if not parts:
            raise DataError(
                reading.source,
                f"has fewer patients for this run than the policy's min_rows, {self.fewest}: nothing may leave",
                code="too-few-patients",
                field="min_rows",
            )
        return Dealt(
            np.array([parts.get(name, NOT_USED) for name in names], np.int64), Counter(parts.values()), self.secret
        )


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
        run: its identity; None only looks, and keeps nothing.
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
    return Dealing(log.secret, policy.min_rows, log, run, purpose_of(spec), policy.min_level.count)


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


def strata(labels: Array) -> list[Sequence[int]]:
    """Return the places of labels that are alike: of one class, or near one another where they are numbers."""
    if labels.dtype.kind == "f" and labels.ndim == 1:
        return [part.tolist() for part in np.array_split(np.argsort(labels, kind="stable"), STRATA)]
    _, inverse = np.unique(labels, axis=0, return_inverse=True)
    return [np.flatnonzero(inverse.reshape(-1) == place).tolist() for place in range(int(inverse.max(initial=-1)) + 1)]


def _classes_of(names: Sequence[str], labels: Array) -> dict[str, set[int]]:
    """Return the classes that every patient is of, of several labels each with its values; of numbers none."""
    found: dict[str, set[int]] = {name: set() for name in names}
    if labels.dtype.kind != "f":
        columns = np.atleast_2d(labels.T).astype(np.int64)
        for place, column in enumerate(columns):
            for name, value in zip(names, (column * len(columns) + place).tolist(), strict=True):
                found[name].add(value)
    return found


def _stratum_of(names: Sequence[str], labels: Array) -> dict[str, int]:
    """Return every patient's stratum, of their least label where they have several."""
    order = np.lexsort(np.atleast_2d(labels.T))
    patients, first = np.unique(np.array(names, object)[order], return_index=True)
    own = strata(labels[order][first])
    return {str(patients[place]): number for number, places in enumerate(own) for place in places}
