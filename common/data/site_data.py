"""A site's samples and splits, and what may be told of them."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankdad.common.data.folds import Split, fewest_behind
from rankdad.common.data.lazy import Augment
from rankdad.common.data.parts import Dealt
from rankdad.common.preparation import Inputs, Rows, count_behind, has_gaps
from rankdad.common.preparation.moments import blocks
from rankdad.common.protocol.messages import DataWarning
from rankdad.common.run.repeats import alike
from rankdad.common.spec import RunSpec

INPUTS = "inputs"


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs [samples, …] in the replica's dtype (int64 for tokens) and labels [samples, …] as the task has them.

    Inputs of a file each are read when batches are asked for.
    """

    inputs: Inputs
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> Samples:
        """Return some of the samples."""
        return Samples(self.inputs[rows], self.labels[rows])

    def batches(
        self, parts: Sequence[Tensor], device: torch.device | str = "cpu", augment: Augment | None = None
    ) -> Iterator[Batch]:
        """Yield the samples of each part on a device, one part after another.

        Args:
            parts: places of samples, int64.
            device: where they are wanted.
            augment: changes inputs, given their places.

        Raises:
            DataError: a file cannot be read any more.
        """
        inputs: Iterator[Tensor]
        if isinstance(self.inputs, Tensor):
            whole = self.inputs
            inputs = (whole[rows] if augment is None else augment(whole[rows], rows) for rows in parts)
        else:
            pinned = torch.device(device).type == "cuda"
            inputs = iter(self.inputs.batches(parts, augment, pinned=pinned))
        for rows, found in zip(parts, inputs, strict=True):
            yield Batch(*(one.to(device, non_blocking=True) for one in (found, self.labels[rows])))


class Batch(NamedTuple):
    """Samples that go through the network at once: inputs [n, …] and labels [n, …], on its device."""

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class SiteData:
    """A site's samples as they were read, and which of them every fold trains on, validates and tests with.

    Args:
        samples: all n of them, in the source's order: inputs [n, …], labels [n], or [n, labels] for multi-label.
        splits: one for each time that the run trains.
        covariates: float64 [n, columns]; None where harmonisation keeps none.
        keys: name of each sample.
        groups: int64 [samples], the number of what each belongs to, such as a patient; None where each is its own.
        group_names: what each sample's group is called at the site; none where there are no groups.
        dropped: how many rows of the source were left out.
        fewest: groups of samples behind any sum that leaves the site.
        level: of which a part has to have so many with a value in a column, if any.
        warnings: what is counted at the aggregator too.
        notes: what the person at the site should be told, one sentence each.
        tells_coefficients: whether a linear model's coefficients of this site's own rows may leave it.
        parts: of which all sets are unions; None where folds follow from keys.
    """

    samples: Samples
    splits: tuple[Split, ...]
    covariates: Tensor | None = None
    keys: tuple[str, ...] = ()
    dropped: int = 0
    fewest: int = 1
    level: int = 1
    warnings: tuple[DataWarning, ...] = ()
    notes: tuple[str, ...] = ()
    groups: Tensor | None = None
    group_names: tuple[str, ...] = ()
    tells_coefficients: bool = False
    parts: Dealt | None = None

    def shares(self, members: Tensor) -> Tensor:
        """Return which part of its group's members each sample is, float64 [samples, sets]: they add up to groups.

        Args:
            members: which samples a set has, bool [samples, sets].
        """
        if self.groups is None:
            return members.double()
        sums = torch.zeros(int(self.groups.max()) + 1, members.shape[1], dtype=torch.float64)
        sums.index_add_(0, self.groups, members.double())
        return members / sums[self.groups].clamp_min(1)

    def people(self, rows: Tensor) -> int:
        """Return how many groups some of the samples are of; without groups, how many samples they are."""
        return len(rows) if self.groups is None else len(self.groups[rows].unique())

    def drawn(self, fold: int, sizes: Sequence[int], generator: torch.Generator) -> Iterator[Tensor]:
        """Yield an epoch's batches: places of a fold's training samples, in each about as many of every group.

        Samples that are fewer than the batches have together are dealt out anew as often as it takes.

        Args:
            fold: its number.
            sizes: of the batches; of several rounds of dealing all are alike.
            generator: of random numbers.
        """
        count = len(self.splits[fold].train)
        at_once = _at_once(count, sizes)
        while sizes:
            order = torch.randperm(count, generator=generator)
            if self.groups is not None and count and at_once > 1:
                of = self.groups[self.splits[fold].train][order]
                first = torch.full((int(of.max()) + 1,), len(of)).scatter_reduce(0, of, torch.arange(len(of)), "amin")
                order = order[first[of].argsort(stable=True)]
                order = torch.cat([order[batch::at_once][: max(sizes)] for batch in range(at_once)])
            taken, sizes = list(sizes[:at_once]), sizes[at_once:]
            yield from order[: sum(taken)].split(taken)

    def fewest_people(self, fold: int, sizes: Sequence[int]) -> int:
        """Return of how many groups the samples of a batch are at least, if a fold's batches have these sizes."""
        samples = min((size for size in sizes if size), default=0)
        if self.groups is None:
            return samples
        batches = _at_once(len(self.splits[fold].train), sizes)
        counts = self.groups[self.splits[fold].train].unique(return_counts=True)[1]
        most = counts.add(batches - 1).div(batches, rounding_mode="floor").sort(descending=True).values
        return int((most.cumsum(0) < samples).sum()) + 1

    def behind_step(self, fold: int, samples: int) -> int:
        """Return how many samples are behind a step of so many, or behind what it lacks to one of all.

        Trainings begin with the same weights: of steps that take all that a fold has, those of two tell that of a part,
        and that of another run which takes fewer tells those that it does not take.
        """
        whole = len(self.splits[fold].train)
        if self.parts is None or (samples >= whole and len(self.splits) == 1):
            return samples
        if samples < whole:
            return min(samples, whole - samples)
        return int(np.unique(self.parts.parts, return_counts=True)[1].min(initial=samples))

    def alike(self, spec: RunSpec) -> tuple[int, ...]:
        """Return for each fold of several repeats the first that holds out the same; nothing without repeats."""
        if spec.tested_folds == spec.folds_per_repeat:
            return ()
        tested = [split for fold, split in enumerate(self.splits) if spec.tests(fold)]
        return alike(torch.cat([one.train, one.validation]).sort().values.numpy().tobytes() for one in tested)

    def sha256(self) -> str:
        """Return the digest of samples, labels, covariates and splits."""
        return self._digests[0]

    def order_key(self, fold: int) -> str:
        """Return what the order of a fold's batches is drawn from: a digest of its training rows, known here alone.

        Whoever knew the order could solve the sums of many batches for single samples.
        """
        own = self._digests[1 + fold]
        return own if self.parts is None else self.parts.order(own)

    def patients_key(self, fold: int) -> str:
        """Return what names a fold's training patients, in their order, in all runs; known here alone."""
        own = self._digests[1 + fold]
        if self.parts is None:
            return own
        keys = [self.keys[row] for row in self.splits[fold].train.tolist()] if self.keys else [own]
        return self.parts.secret.name("patients", *keys)

    @cached_property
    def _digests(self) -> tuple[str, ...]:
        """The digest of everything, and that of each fold's training rows: inputs are read once for all of them."""
        everything = {"labels": self.samples.labels}
        if self.covariates is not None:
            everything["covariates"] = self.covariates
        if self.groups is not None:
            everything["groups"] = self.groups
        for fold, split in enumerate(self.splits):
            everything |= {f"{fold}/{name}": rows for name, rows in vars(split).items()}
        trained = [split.train for split in self.splits]
        labels = [{"labels": self.samples.labels[rows]} for rows in trained]
        whole = torch.arange(len(self.samples))
        return digests(self.samples.inputs, [whole, *trained], [everything, *labels])

    def looked(self, most: int) -> tuple[Tensor, Tensor] | None:
        """Return ids and places, int64 [n], of samples that stay the same as long as they are the site's."""
        if self.parts is None or not self.keys:
            return None
        named = Counter[str]()  # a key may be that of several, such as a patient's visits
        ids = [self.parts.secret.number("looked", key, named.update([key]) or named[key]) for key in self.keys]
        places = sorted(range(len(ids)), key=ids.__getitem__)[:most]
        return torch.tensor([ids[place] for place in places]), torch.tensor(places)

    def rows(self, fold: int) -> Rows:
        """Return a fold's training rows, for preparation."""
        return self._rows(self.splits[fold].train)

    def summed(self, fold: int) -> Rows:
        """Return what may leave the site in sums: a column that too few samples of some fold have is missing in all."""
        return self._told(self.rows(fold))

    def whole(self) -> Rows:
        """Return all rows that the site has for the run, as far as they may leave it in sums."""
        split = self.splits[-1]
        return self._told(self._rows(torch.cat([split.train, split.validation, split.test])))

    def _rows(self, rows: Tensor) -> Rows:
        covariates, groups = (None if one is None else one[rows] for one in (self.covariates, self.groups))
        return Rows(self.samples.inputs[rows], self.samples.labels[rows], covariates, groups)

    def _told(self, rows: Rows) -> Rows:
        rows = rows.of_at_least(self.fewest)
        if isinstance(rows.inputs, Tensor) and len(rows.inputs) and (too_few := self._too_few) is not None:
            return replace(rows, inputs=rows.inputs.masked_fill(too_few, math.nan))
        return rows

    def described(self) -> Rows:
        """Return what may leave the site in Table 1: all rows that the last fold trains on or holds out.

        What it holds out of a column is left out where it is too little: the sums of training rows would tell it.
        """
        split = self.splits[-1]
        held = torch.cat([split.validation, split.test])
        rows = torch.cat([split.train, held])
        inputs, groups = self.samples.inputs[rows], None if self.groups is None else self.groups[rows]
        withheld = None
        if isinstance(inputs, Tensor) and inputs.ndim == 2 and has_gaps(inputs):
            given = inputs[len(split.train) :].isnan().logical_not()
            few = count_behind(given, None if groups is None else groups[len(split.train) :]) < self.fewest
            few &= given.any(0)
            withheld = torch.zeros_like(inputs, dtype=torch.bool)
            withheld[len(split.train) :, few] = True
            inputs[withheld] = math.nan
        return Rows(inputs, self.samples.labels[rows], groups=groups, held=withheld).of_at_least(self.fewest)

    @cached_property
    def _too_few(self) -> Tensor | None:
        """Return which columns of a table with gaps too few samples have, in a fold or in what it holds out.

        Covariates are summed up over the samples that have a column: so those that lack it must be enough, too.
        """
        inputs = self.samples.inputs
        if not isinstance(inputs, Tensor) or inputs.ndim != 2 or not has_gaps(inputs):
            return None
        lacking, few = inputs.isnan(), torch.zeros(inputs.shape[1], dtype=torch.bool)
        least = self.fewest if self.parts is None else self.level
        for members in (~lacking, *([lacking] if self.covariates is not None else [])):
            few |= self.fewest_behind(members, len(self.splits)) < least
        return few

    def fewest_behind(self, members: Tensor, tested: int) -> Tensor:
        """Return for each set of samples how many groups of it, at least, are behind sums that leave, or a difference.

        Where samples lie in parts, all sums together tell those of a part.

        Args:
            members: bool [samples, sets].
            tested: how many of the trainings hold out samples to test.

        Returns:
            float64 [sets]; infinity where no sum has one of them.
        """
        if self.parts is None:
            return fewest_behind(self.splits, self.shares(members), tested)
        nothing = torch.arange(0)
        parts = [torch.from_numpy(np.flatnonzero(self.parts.parts == part)) for part in self.parts.sizes]
        return fewest_behind([Split(rows, nothing, nothing) for rows in parts], self.shares(members), 0)


def _at_once(samples: int, sizes: Sequence[int]) -> int:
    """Return into how many batches of these sizes samples are dealt before they are dealt out anew."""
    return len(sizes) if sum(sizes) <= samples else samples // max(sizes)


def digests(inputs: Inputs, sets: Sequence[Tensor], beside: Sequence[Mapping[str, Tensor]]) -> tuple[str, ...]:
    """Return the sha256 of each set of samples: names, dtypes, shapes and raw bytes of its tensors, in order of name.

    Args:
        inputs: of all samples, read once.
        sets: rows of the samples, each ascending, int64.
        beside: tensors of each set that are not its inputs, by name.
    """
    made = [hashlib.sha256() for _ in sets]
    for digest, rows, tensors in zip(made, sets, beside, strict=True):
        for name in sorted(name for name in tensors if name < INPUTS):
            _add(digest, name, tensors[name])
        digest.update(f"{INPUTS} {inputs.dtype} {(len(rows), *inputs.shape[1:])};".encode())
    begin = 0
    for block in blocks(inputs):
        for digest, rows in zip(made, sets, strict=True):
            first, last = torch.searchsorted(rows, torch.tensor([begin, begin + len(block)])).tolist()
            digest.update(_bytes(block[rows[first:last] - begin]))
        begin += len(block)
    for digest, tensors in zip(made, beside, strict=True):
        for name in sorted(name for name in tensors if name > INPUTS):
            _add(digest, name, tensors[name])
    return tuple(digest.hexdigest() for digest in made)


def _add(digest: hashlib._Hash, name: str, value: Tensor) -> None:
    digest.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
    digest.update(_bytes(value))


def _bytes(value: Tensor) -> memoryview:
    found: memoryview = value.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return found
