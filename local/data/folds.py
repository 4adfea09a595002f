"""Which samples a site trains on, validates and tests with, in every fold. Pure functions of keys, labels and the spec.

A sample's fold follows from a hash of its key, or of its group's: it depends on nothing else at this site or at others,
so that it does not move when rows are sorted or added. Only stratified folds depend on who else is of its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankdad.common.errors import DataError
from rankdad.common.run.seeds import derive
from rankdad.common.spec import Holdout, KFold, RunSpec
from rankdad.local.data.reading import Array, Reading

TRAIN, VALIDATION, TEST = 0, 1, 2
STRATA = 5  # of equally many samples, where labels are numbers


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of one fold: int64, ascending, no row in two of them."""

    train: Tensor
    validation: Tensor
    test: Tensor


def folds(spec: RunSpec, reading: Reading, site_index: int) -> tuple[Split, ...]:
    """Return a site's splits, one for each time that the run trains: of candidates all alike, without a test.

    Raises:
        DataError: there are no labels, nothing is left to train on, or the data have a split that is not asked for.
    """
    if reading.labels is None:
        raise DataError(reading.source, "has no labels (array y), expected one per sample", code="labels-missing")
    if len(reading.labels) < 2:
        found = "one sample" if len(reading.labels) else "no samples"
        raise DataError(
            reading.source, f"has {found}, expected at least two: fewer are no training data", code="too-few-samples"
        )
    if isinstance(spec.evaluation, Holdout):
        return _with_candidates(spec, [_checked(reading, _holdout(spec, reading, site_index))])
    if reading.split is not None:
        raise DataError(
            reading.source,
            f"has a split of its own, but evaluation is {spec.evaluation.name}: choose holdout",
            code="split-given",
            field="evaluation",
        )
    units = _Units(spec, reading)
    if isinstance(spec.evaluation, KFold):
        dealt = (units.folds(spec.evaluation.folds, repeat) for repeat in range(spec.evaluation.repeats))
        tests = [own == fold for own in dealt for fold in range(spec.evaluation.folds)]
    else:
        everyone = np.ones(len(reading.labels), bool)
        tests = [everyone if fold == site_index else ~everyone for fold in range(spec.tested_folds)]
    tests += [np.zeros(len(reading.labels), bool)] * (spec.models - spec.tested_folds)
    splits = []
    for fold, tested in enumerate(tests):
        parts = np.where(tested, TEST, TRAIN)
        parts[~tested & units.chosen(fold, spec.training.validation, ~tested)] = VALIDATION
        splits.append(_split(parts))
    if not any(len(split.train) for split in splits):
        raise DataError(
            reading.source, f"of {len(reading.labels)} samples none is left to train on", code="too-few-samples"
        )
    return _with_candidates(spec, splits)


def _with_candidates(spec: RunSpec, splits: Sequence[Split]) -> tuple[Split, ...]:
    """Return the splits of all trainings: a model's candidates see nothing of its test, and it needs no validation."""
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
    """Split by the data's own `split` where they have one, else by fractions of a seeded permutation.

    A test set of the data's own leaves validation to be drawn from the rest. Groups stay together: of those in which a
    part ends, all samples are in it.
    """
    assert reading.labels is not None
    count = len(reading.labels)
    generator = torch.Generator().manual_seed(derive(spec.seed, "split", site_index))
    order = torch.randperm(count, generator=generator)
    unit = order.argsort()  # of a sample: its own place, or that of the first of its group
    if reading.groups is not None:
        of = torch.from_numpy(np.unique(reading.groups, return_inverse=True)[1])
        unit = torch.full((count,), count).scatter_reduce(0, of, unit, "amin")[of]
        order = unit.argsort(stable=True)
    if reading.split is None:
        parts = torch.full((count,), TRAIN)
        parts[_first(order, unit, round(count * spec.training.test))] = TEST
    else:
        parts = torch.from_numpy(reading.split).clone()
    if not bool((parts == VALIDATION).any()):
        rest = order[parts[order] == TRAIN]
        share = spec.training.validation / (1 - spec.training.test if reading.split is None else 1)
        parts[_first(rest, unit, round(len(rest) * share))] = VALIDATION
    return _split(parts.numpy())


def _first(rows: Tensor, unit: Tensor, count: int) -> Tensor:
    """Return so many of the rows, and what else is of the last one's unit."""
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
    """What is dealt out to folds: samples, or groups of them that stay together."""

    def __init__(self, spec: RunSpec, reading: Reading) -> None:
        assert reading.labels is not None
        names = reading.groups or reading.keys or tuple(map(str, range(len(reading.labels))))
        order = np.lexsort(np.atleast_2d(reading.labels.T))  # so that a group's least label stands for it
        self.names, first, of = np.unique(np.array(names, object)[order], return_index=True, return_inverse=True)
        self._of = of[np.argsort(order)]
        self._seed = spec.evaluation.seed if isinstance(spec.evaluation, KFold) else spec.seed
        stratified = isinstance(spec.evaluation, KFold) and spec.evaluation.stratified
        self._strata = _strata(reading.labels[order][first]) if stratified else None

    def _hashes(self, *what: str | int) -> list[int]:
        return [derive(*what, self._seed, str(name)) for name in self.names]

    def folds(self, count: int, repeat: int) -> Array:
        """Return the fold of every sample, int64 [samples]; every repeat deals them out anew."""
        hashes = self._hashes("fold", *([repeat] if repeat else []))
        if self._strata is None:
            return np.array([number % count for number in hashes], np.int64)[self._of]
        found, dealt = np.zeros(len(hashes), np.int64), 0
        for members in self._strata:
            for unit in sorted(members, key=hashes.__getitem__):
                found[unit], dealt = dealt % count, dealt + 1
        return found[self._of]

    def chosen(self, fold: int, share: float, among: Array) -> Array:
        """Return which samples are in a part of about such a share, bool [samples]; whole units, from `among`."""
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


def _strata(labels: Array) -> list[Sequence[int]]:
    """Return the places of labels that are alike: of one class, or near one another where they are numbers."""
    if labels.dtype.kind == "f" and labels.ndim == 1:
        return [part.tolist() for part in np.array_split(np.argsort(labels, kind="stable"), STRATA)]
    _, inverse = np.unique(labels, axis=0, return_inverse=True)
    return [np.flatnonzero(inverse.reshape(-1) == place).tolist() for place in range(int(inverse.max(initial=-1)) + 1)]
