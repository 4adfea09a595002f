"""A site's patients as a run would use them: their sets, classes, and values in each column."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from rankdad.common.data.file_samples import FileSamples
from rankdad.common.data.folds import STRATA, strata
from rankdad.common.data.reading import Array, Reading, number
from rankdad.common.policy import MinLevel
from rankdad.common.privacy.parts import Secret
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.common.spec.written import Tabular
from rankdad.local.privacy.usual import usual_inputs

GAP = np.float32(np.nan).tobytes()
MOST_COLUMNS = 500  # compared one by one; more are grouped by the site's secret


@dataclass(frozen=True)
class Patients:
    """What the disclosure log needs to know of each patient, by name.

    Args:
        sets: splits of the data that they are in, one bit each; one set if the data have no splits.
        strata: stratum for balancing parts.
        classes: of the patient; with several labels, each label's values; none for numbers.
        values: keyed digests of each column's values in the rows that the run would use; empty if it uses no row.
        columns: names; empty until patients are compared.
    """

    sets: Mapping[str, int]
    strata: Mapping[str, int]
    classes: Mapping[str, frozenset[int]]
    values: Mapping[str, tuple[bytes, ...]]
    columns: tuple[str, ...]

    def named(self, names: Mapping[str, str]) -> Patients:
        """Return the same patients under other names.

        Args:
            names: new name of every patient.
        """
        return Patients(
            {names[patient]: own for patient, own in self.sets.items()},
            {names[patient]: own for patient, own in self.strata.items()},
            {names[patient]: own for patient, own in self.classes.items()},
            {names[patient]: own for patient, own in self.values.items()},
            self.columns,
        )


def patients_of(spec: RunSpec, reading: Reading, by: Collection[str] | None = None) -> Patients:
    """Return the patients that a run has read, not compared yet; without groups, each sample is one.

    Args:
        spec: the run.
        reading: the samples.
        by: columns to balance between parts; None for the outcome.
    """
    assert reading.labels is not None
    names, labels = names_of(reading), reading.labels
    sets, classes = dict[str, int](), dict[str, set[int]]()
    split = np.zeros(len(names), np.int64) if reading.split is None else reading.split
    several = np.atleast_2d(labels.T) if labels.dtype.kind != "f" else labels[:0]
    for place, name in enumerate(names):
        sets[name] = sets.get(name, 0) | 1 << int(split[place])
        own = (int(column[place]) * len(several) + number for number, column in enumerate(several))
        classes.setdefault(name, set()).update(own)
    fixed = {name: frozenset(own) for name, own in classes.items()}
    return Patients(sets, _strata_of(names, _told_apart(spec, reading, by)), fixed, dict.fromkeys(sets, ()), ())


def compared(
    patients: Patients, spec: RunSpec, used: Reading, secret: Secret, level: MinLevel, parts: Array
) -> Patients:
    """Return patients with digests of their values in each column, after rare values are replaced.

    Args:
        patients: that the run has read.
        spec: the run.
        used: the samples that the run uses.
        secret: of the site.
        level: a value that fewer patients have is rare.
        parts: int64, of each used sample.
    """
    names = names_of(used)
    split = np.zeros(len(names), np.int64) if used.split is None else used.split
    columns = _columns(spec, used, _as_used(spec, used, level, parts), secret)
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    sets_of = [bytes([number]) for number in split.tolist()]
    digests = [_digests(secret, column, _joined(rows.values(), cells, sets_of)) for column, cells in columns.items()]
    return replace(patients, values=dict(zip(rows, zip(*digests, strict=True), strict=True)), columns=tuple(columns))


def _as_used(spec: RunSpec, used: Reading, level: MinLevel, parts: Array) -> Array | FileSamples:
    """Return inputs with rare values replaced; a rare missing value becomes infinite, since its fill is a mean."""
    if isinstance(used.inputs, FileSamples):
        return used.inputs
    groups = None if used.groups is None else torch.from_numpy(np.unique(used.groups, return_inverse=True)[1])
    inputs = torch.from_numpy(used.inputs)
    found = usual_inputs(spec, inputs, level, groups, torch.from_numpy(parts))
    if found is inputs or not found.is_floating_point():
        return found.numpy()
    filled = inputs.isnan() & ~found.isnan()
    if isinstance(spec.data, TableData):
        for place in spec.data.places:
            filled[:, place.first : place.first + place.levels] = False
    return found.masked_fill(filled, torch.inf).numpy()


def names_of(reading: Reading) -> tuple[str, ...]:
    """Return the patient of every sample."""
    assert reading.labels is not None
    return reading.groups or reading.keys or tuple(map(str, range(len(reading.labels))))


def _told_apart(spec: RunSpec, reading: Reading, by: Collection[str] | None) -> Array:
    """Return the strata of every sample: labels, or [samples, columns] codes."""
    data, labels = spec.data, reading.labels
    assert labels is not None
    if by is None or not isinstance(data, TableData) or isinstance(reading.inputs, FileSamples):
        return labels
    columns = [reading.inputs[:, place.values] for place in data.places if place.column in by]
    if not columns:
        return labels
    columns += [labels] * (not set(data.targets).isdisjoint(by))
    return np.stack([_codes(column) for column in columns], axis=1)


def _codes(column: Array) -> Array:
    """Return codes of a column's values, equal for equal rows."""
    rows = np.nan_to_num(column.reshape(len(column), -1).astype(np.float64), nan=-1.0)
    found, codes = np.unique(rows, axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    if rows.shape[1] == 1 and len(found) > STRATA:
        for number, places in enumerate(strata(rows[:, 0])):
            codes[places] = number
    return codes


def _strata_of(names: Sequence[str], labels: Array) -> dict[str, int]:
    """Return every patient's stratum, from their smallest label."""
    order = np.lexsort(np.atleast_2d(labels.T))
    patients, first = np.unique(np.array(names, object)[order], return_index=True)
    own = strata(labels[order][first])
    return {str(patients[place]): number for number, places in enumerate(own) for place in places}


def _columns(spec: RunSpec, reading: Reading, inputs: Array | FileSamples, secret: Secret) -> dict[str, list[bytes]]:
    """Return each column's value of each sample, as used and as in the source.

    A column has the same name for any use, and an array for any shape, so that changes in between are noticed. Both
    values are kept, because sums of two runs can be compared: used values differ by rules such as a clip, and source
    values by corrections, even if a unit or a level's name changes all used values.
    """
    assert reading.labels is not None
    data, found = spec.data, dict[str, list[bytes]]()
    if isinstance(inputs, FileSamples):
        found["samples"] = _cells(np.zeros(len(inputs)) if inputs.checksums is None else inputs.checksums)
    elif isinstance(data, TableData):
        for here in data.places:
            if here.levels:
                listed = [*map(_value, data.categorical[here.column]), b"any other"]
                found[here.column] = _levels(inputs[:, here.values], listed)
            else:
                found[here.column] = _cells(inputs[:, here.first])
    elif math.prod(inputs.shape[1:]) <= MOST_COLUMNS:
        found = {str(place): _cells(column) for place, column in enumerate(inputs.reshape(len(inputs), -1).T)}
    else:
        found["samples"] = _cells(inputs)
    targets, classes = (data.targets, data.values) if isinstance(data, Tabular) else ((), ())
    for place, column in enumerate(np.atleast_2d(reading.labels.T)):
        name = targets[place] if place < len(targets) else f"label {place}"
        found[name] = [_value(classes[code]) for code in column.tolist()] if classes else _cells(column)
    if reading.covariates is not None and isinstance(data, TableData):
        found = _kept(data, spec.preparation.keep, reading.covariates) | found
    found |= {
        f"{name} as it stands": [one if isinstance(one, bytes) else one.encode() for one in own.tolist()]
        for name, own in reading.stands().items()
    }
    if len(found) <= 2 * MOST_COLUMNS:
        return found
    together: dict[str, list[bytes]] = {}
    for name, cells in found.items():
        number = f"{secret.number('column', name) % MOST_COLUMNS} of many"
        known = together.get(number, [b""] * len(cells))
        together[number] = [before + cell for before, cell in zip(known, cells, strict=True)]
    return together


def _kept(data: TableData, keep: Sequence[str], covariates: Array) -> dict[str, list[bytes]]:
    """Return the values of columns that harmonisation keeps; zeros stand for the first level."""
    found, first = dict[str, list[bytes]](), 0
    for column in keep:
        levels = data.levels(column)
        block = covariates[:, first : first + max(1, levels - 1)]
        if levels:
            listed = [*map(_value, data.categorical[column]), b"any other"]
            found[column] = _levels(np.column_stack([1 - block.sum(1), block]), listed)
        else:
            found[column] = _cells(block[:, 0])
        first += block.shape[1]
    return found


def _levels(block: Array, listed: Sequence[bytes]) -> list[bytes]:
    """Return the level of every one-hot row; a missing one is encoded as in a numeric column."""
    gaps, places = np.isnan(block[:, 0]).tolist(), np.nan_to_num(block).argmax(1).tolist()
    return [GAP if gap else listed[place] for gap, place in zip(gaps, places, strict=True)]


def _value(level: str) -> bytes:
    """Return a level as a number if possible, else as text: a column may be both, in different runs."""
    own = number(level)
    return _cells(np.array([own]))[0] if math.isfinite(own) else level.encode()


def _digests(secret: Secret, column: str, values: Sequence[bytes]) -> list[bytes]:
    """Return the digests of a column's values; equal values are hashed once."""
    digest, made = secret.digests(column), dict.fromkeys(values, b"")
    for own in made:
        made[own] = digest(own)
    return [made[own] for own in values]


def _joined(rows: Collection[Sequence[int]], cells: Sequence[bytes], sets: Sequence[bytes]) -> list[bytes]:
    """Return each patient's values in a column, independent of the order of rows."""
    if all(len(own) == 1 for own in rows):
        return [cells[row] + sets[row] for (row,) in rows]
    return [
        cells[own[0]] + sets[own[0]]
        if len(own) == 1
        else b"".join(len(cell).to_bytes(4, "big") + cell for cell in sorted(cells[row] + sets[row] for row in own))
        for own in rows
    ]


def _cells(values: Array) -> list[bytes]:
    """Return the bytes of each sample's values, equal in both precisions and for all kinds of NaN."""
    cells = np.ascontiguousarray(values.astype(np.float32).reshape(len(values), -1) + np.float32(0))
    cells[np.isnan(cells)] = np.nan
    return [row.tobytes() for row in cells]
