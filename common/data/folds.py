"""Assigns samples to training, validation and test sets of every fold. Pure functions of keys, labels and the spec.

A sample's fold is determined by a hash of its key, or of its group's. It does not depend on other samples, and does not
change when rows are sorted or added. Stratified folds also depend on the samples of the same class, and a holdout of
fixed size on all samples; without keys, both depend on positions. If a site assigns its patients to parts, all sets are
unions of parts, chosen by the site's secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankdad.common.data.parts import Assignment
from rankdad.common.data.reading import Array, Reading
from rankdad.common.errors import DataError
from rankdad.common.privacy.parts import chosen, fold_of
from rankdad.common.seeds import derive
from rankdad.common.spec import Holdout, KFold, RunSpec
from rankdad.common.spec.data import TableData

TRAIN, VALIDATION, TEST = 0, 1, 2
STRATA = 5  # of equal size, for numeric labels


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of one fold: int64, ascending, disjoint."""

    train: Tensor
    validation: Tensor
    test: Tensor


def strata(labels: Array) -> list[Sequence[int]]:
    """Return the positions of labels by class, or in groups of similar numbers."""
    if labels.dtype.kind == "f" and labels.ndim == 1:
        return [part.tolist() for part in np.array_split(np.argsort(labels, kind="stable"), STRATA)]
    _, inverse = np.unique(labels, axis=0, return_inverse=True)
    return [np.flatnonzero(inverse.reshape(-1) == place).tolist() for place in range(int(inverse.max(initial=-1)) + 1)]


def folds(spec: RunSpec, reading: Reading, site_index: int, assignment: Assignment | None = None) -> tuple[Split, ...]:
    """Return a site's splits, one for each training; candidates of a model share one, without a test set.

    Args:
        spec: the run.
        reading: the site's samples.
        site_index: position of the site in the plan.
        assignment: the parts of its samples; None if folds follow from keys.

    Raises:
        DataError: there are no labels, nothing is left to train on, or the data have a split that the run does not use.
    """
    if reading.labels is None:
        raise DataError(reading.source, "has no labels (array y), expected one per sample", code="labels-missing")
    if len(reading.labels) < 2:
        found = "one sample" if len(reading.labels) else "no samples"
        raise DataError(
            reading.source, f"has {found}, expected at least two: fewer are no training data", code="too-few-samples"
        )
    if isinstance(spec.evaluation, Holdout):
        held = _holdout(spec, reading, site_index) if assignment is None else _held_parts(spec, reading, assignment)
        return _with_candidates(spec, [_checked(reading, held)])
    if reading.split is not None:
        raise DataError(
            reading.source,
            f"has a split of its own, but evaluation is {spec.evaluation.name}: choose holdout",
            code="split-given",
            field="evaluation",
        )
    units = _Units(spec, reading) if assignment is None else _Parts(spec, assignment)
    if isinstance(spec.evaluation, KFold):
        partitions = (units.folds(spec.evaluation.folds, repeat) for repeat in range(spec.evaluation.repeats))
        tests = [own == fold for own in partitions for fold in range(spec.evaluation.folds)]
    else:
        everyone = np.ones(len(reading.labels), bool)
        tests = [everyone if fold == site_index else ~everyone for fold in range(spec.tested_folds)]
    tests += [np.zeros(len(reading.labels), bool)] * (spec.models - spec.tested_folds)
    splits = []
    for fold, tested in enumerate(tests):
        parts = np.where(tested, TEST, TRAIN)
        parts[~tested & units.chosen(fold, spec.validation, ~tested)] = VALIDATION
        splits.append(_split(parts))
    if not any(len(split.train) for split in splits):
        raise DataError(
            reading.source, f"of {len(reading.labels)} samples none is left to train on", code="too-few-samples"
        )
    return _with_candidates(spec, splits)


def _with_candidates(spec: RunSpec, splits: Sequence[Split]) -> tuple[Split, ...]:
    """Return the splits of all trainings: candidates never see their model's test set, and it needs no validation."""
    if not spec.candidates:
        return tuple(splits)
    found = list[Split]()
    for split in splits:
        nothing = split.test[:0]
        both = torch.cat([split.train, split.validation]).sort().values
        found += [Split(split.train, split.validation, nothing)] * len(spec.candidates)
        found.append(Split(both, nothing, split.test))
    return tuple(found)


def _holdout(spec: RunSpec, reading: Reading, site_index: int) -> Split:
    """Split by the data's `split` if there is one, otherwise by fractions of an order that the seed determines.

    If the data define only a test set, validation is drawn from the rest. Groups are never divided.
    part ends, all samples are in it.
    """
    assert reading.labels is not None
    count = len(reading.labels)
    names = reading.groups or reading.keys
    if names is None:  # only positions distinguish samples
        generator = torch.Generator().manual_seed(derive(spec.seed, "split", site_index))
        order = torch.randperm(count, generator=generator)
        unit = order.argsort()
    else:
        units, of = np.unique(np.array(names, object), return_inverse=True)
        hashes = np.array([derive("split", spec.seed, str(name)) for name in units], np.uint64)
        unit = torch.from_numpy(hashes.argsort().argsort()[of])
        order = unit.argsort(stable=True)
    if reading.split is None:
        parts = torch.full((count,), TRAIN)
        parts[_first(order, unit, round(count * spec.training.test))] = TEST
    else:
        parts = torch.from_numpy(reading.split).clone()
    if not bool((parts == VALIDATION).any()):
        rest = order[parts[order] == TRAIN]
        share = spec.validation / (1 - spec.training.test if reading.split is None else 1)
        parts[_first(rest, unit, round(len(rest) * share))] = VALIDATION
    return _split(parts.numpy())


def _first(rows: Tensor, unit: Tensor, count: int) -> Tensor:
    """Return the first `count` rows, extended to whole units."""
    return rows[unit[rows] <= unit[rows[count - 1]]] if count else rows[:0]


def _split(parts: Array) -> Split:
    train, validation, test = (torch.from_numpy(np.flatnonzero(parts == part)) for part in (TRAIN, VALIDATION, TEST))
    return Split(train, validation, test)


def _checked(reading: Reading, split: Split) -> Split:
    if not len(split.train):
        count = len(split.validation) + len(split.test)
        raise DataError(
            reading.source,
            f"of {count} samples none is left to train on, expected at least one",
            code="too-few-samples",
        )
    return split


class _Units:
    """The units of folds: samples, or groups of them."""

    def __init__(self, spec: RunSpec, reading: Reading) -> None:
        assert reading.labels is not None
        names = reading.groups or reading.keys or tuple(map(str, range(len(reading.labels))))
        order = np.lexsort(np.atleast_2d(reading.labels.T))  # a group is represented by its smallest label
        self.names, first, of = np.unique(np.array(names, object)[order], return_index=True, return_inverse=True)
        self._of = of[np.argsort(order)]
        self._seed = spec.evaluation.seed if isinstance(spec.evaluation, KFold) else spec.seed
        stratified = isinstance(spec.evaluation, KFold) and spec.evaluation.stratified
        self._strata = strata(reading.labels[order][first]) if stratified else None

    def _hashes(self, *what: str | int) -> list[int]:
        return [derive(*what, self._seed, str(name)) for name in self.names]

    def folds(self, count: int, repeat: int) -> Array:
        """Return the fold of every sample, int64 [samples]; every repeat has other folds."""
        hashes = self._hashes("fold", *([repeat] if repeat else []))
        if self._strata is None:
            return np.array([number % count for number in hashes], np.int64)[self._of]
        found, placed = np.zeros(len(hashes), np.int64), 0
        for members in self._strata:
            for unit in sorted(members, key=hashes.__getitem__):
                found[unit], placed = placed % count, placed + 1
        return found[self._of]

    def chosen(self, fold: int, share: float, among: Array) -> Array:
        """Return a random selection of about this share, bool [samples]; whole units, from `among`."""
        hashes = self._hashes("validation", fold)
        if self._strata is None:
            return np.array([number < share * 2**63 for number in hashes], bool)[self._of]
        free = np.zeros(len(hashes), bool)
        free[self._of[among]] = True
        found = np.zeros(len(hashes), bool)
        for members in self._strata:
            left = sorted((unit for unit in members if free[unit]), key=hashes.__getitem__)
            found[left[: round(share * len(left))]] = True
        return found[self._of]


class _Parts:
    """The units of folds at a site with a secret: parts of its patients."""

    def __init__(self, spec: RunSpec, assignment: Assignment) -> None:
        self._of, self._parts, self._secret = assignment.parts, sorted(assignment.sizes), assignment.secret
        self._seed = spec.evaluation.seed if isinstance(spec.evaluation, KFold) else spec.seed

    def folds(self, count: int, repeat: int) -> Array:
        """Return the fold of every sample, int64 [samples], -1 if no fold tests it; repeats permute the parts."""
        tests = fold_of(self._parts, count, self._secret, self._seed, repeat)
        return np.array([tests.get(part, -1) for part in self._of.tolist()], np.int64)

    def chosen(self, fold: int | str, share: float, among: Array) -> Array:
        """Return a selection of about this share of the parts, bool [samples]; from `among`."""
        parts = chosen(sorted(set(self._of[among].tolist())), share, self._secret, self._seed, fold)
        return np.isin(self._of, list(parts)) & among


def _held_parts(spec: RunSpec, reading: Reading, assignment: Assignment) -> Split:
    """Split parts by the data's `split` if there is one, otherwise by fractions, drawn with the site's secret."""
    units = _Parts(spec, assignment)
    if reading.split is None:
        sets = np.full(len(assignment.parts), TRAIN)
        sets[units.chosen("test", spec.training.test, sets == TRAIN)] = TEST
        share = spec.validation / (1 - spec.training.test)
    else:
        sets, share = reading.split.copy(), spec.validation
    if not (sets == VALIDATION).any():
        sets[units.chosen("validation", share, sets == TRAIN)] = VALIDATION
    return _split(sets)


def fewest_behind(splits: Sequence[Split], members: Tensor, tested: int) -> Tensor:
    """Return, for each set of samples, its smallest intersection with a training set or a held-out set.

    With several folds, the sums of held-out sets follow from those of the training sets. If a training has all samples
    of the one before and more, as after candidates, the two reveal sums over the additional ones.

    Args:
        splits: of every training, in the run's order.
        members: [samples, sets], whether a sample is in a set; or its share of a group, if groups are counted and none
            is divided in a fold.
        tested: number of trainings with a test set; later ones hold out only validation samples.

    Returns:
        float64 [sets]; infinity if no fold intersects the set. Empty intersections reveal nothing and do not count.
    """
    members = members.double()
    total, least = members.sum(0), torch.full((members.shape[1],), torch.inf, dtype=torch.float64)
    before = torch.arange(0)
    for fold, split in enumerate(splits):
        trained = members[split.train].sum(0)
        disclosed = [trained]
        if fold < tested and len(splits) > 1:
            disclosed.append(total - trained)
        if 0 < len(before) < len(split.train) and bool(torch.isin(before, split.train).all()):
            disclosed.append(trained - members[before].sum(0))
        for exact in disclosed:
            count = exact.round()  # shares of a group add up to one
            least = torch.where(count > 0, torch.minimum(least, count), least)
        before = split.train
    return least


def levels_of(spec: RunSpec, covariates: Tensor) -> list[tuple[str, Tensor]]:
    """Return the kept categorical columns, each with bool [samples, levels]."""
    found, at = [], 0
    for column in spec.preparation.keep:
        levels = spec.data.levels(column) if isinstance(spec.data, TableData) else 0
        width = levels - 1 if levels else 1
        own, at = covariates[:, at : at + width] > 0.5, at + width
        if levels:
            found.append((column, torch.cat([~own.any(1, keepdim=True), own], dim=1)))
    return found
