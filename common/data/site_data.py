"""A site's samples and splits, and the sums of them that may leave."""

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
from rankdad.common.data.parts import Assignment
from rankdad.common.data.reading import Array
from rankdad.common.preparation import Inputs, Rows, count_behind, has_gaps
from rankdad.common.preparation.moments import blocks
from rankdad.common.protocol.messages import DataWarning
from rankdad.common.run.repeats import alike
from rankdad.common.spec import RunSpec

INPUTS = "inputs"


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs [samples, …] in the replica's dtype (int64 for tokens) and labels [samples, …] as for the task.

    Inputs with a file each are read in batches when they are used.
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
        """Yield the samples of each part on a device, in order.

        Args:
            parts: positions of samples, int64.
            device: for the batches.
            augment: changes inputs, given their positions.

        Raises:
            DataError: a file can no longer be read.
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
    """Samples for one pass of the network: inputs [n, …] and labels [n, …], on its device."""

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class SiteData:
    """A site's samples, and their split into training, validation and test sets in every fold.

    Args:
        samples: all n of them, in the source's order: inputs [n, …], labels [n], or [n, labels] for multi-label.
        splits: one for each training.
        covariates: float64 [n, columns]; None if harmonisation keeps no columns.
        keys: of the samples.
        groups: int64 [samples], group of each, such as a patient; None if each is its own.
        group_names: name of each sample's group at the site; empty without groups.
        dropped: number of rows left out.
        fewest: least number of groups behind any sum that leaves the site.
        level: least number of them with a value of a column in a part, if any has it.
        warnings: also counted at the aggregator.
        notes: sentences for the site's staff.
        tells_coefficients: whether a linear model's coefficients of this site's rows alone may leave it.
        parts: whose unions are all sets; None if folds follow from keys.
        as_read: digest of each sample's inputs before rare values were replaced, int64 [n]; None if none were.
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
    parts: Assignment | None = None
    as_read: Array | None = None

    def shares(self, members: Tensor) -> Tensor:
        """Return each sample's share of its group in a set, float64 [samples, sets]; shares of a group add up to 1.

        Args:
            members: samples of each set, bool [samples, sets].
        """
        if self.groups is None:
            return members.double()
        sums = torch.zeros(int(self.groups.max()) + 1, members.shape[1], dtype=torch.float64)
        sums.index_add_(0, self.groups, members.double())
        return members / sums[self.groups].clamp_min(1)

    def people(self, rows: Tensor) -> int:
        """Return the number of groups of some samples; without groups, the number of samples."""
        return len(rows) if self.groups is None else len(self.groups[rows].unique())

    def drawn(self, fold: int, sizes: Sequence[int], generator: torch.Generator) -> Iterator[Tensor]:
        """Yield an epoch's batches, as positions of a fold's training samples, with groups spread evenly.

        If the batches need more samples than there are, samples are shuffled again.

        Args:
            fold: its number.
            sizes: of the batches; equal if samples are shuffled again.
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
        """Return the least number of groups in a batch, if a fold's batches have these sizes."""
        samples = min((size for size in sizes if size), default=0)
        if self.groups is None:
            return samples
        batches = _at_once(len(self.splits[fold].train), sizes)
        counts = self.groups[self.splits[fold].train].unique(return_counts=True)[1]
        most = counts.add(batches - 1).div(batches, rounding_mode="floor").sort(descending=True).values
        return int((most.cumsum(0) < samples).sum()) + 1

    def behind_step(self, fold: int, samples: int) -> int:
        """Return the smaller of a step's samples and the samples that it lacks.

        Trainings begin with the same weights: two steps, one over all samples and one over a part, reveal the sum over
        the rest, also between runs.
        """
        whole = len(self.splits[fold].train)
        if self.parts is None or (samples >= whole and len(self.splits) == 1):
            return samples
        if samples < whole:
            return min(samples, whole - samples)
        return int(np.unique(self.parts.parts, return_counts=True)[1].min(initial=samples))

    def alike(self, spec: RunSpec) -> tuple[int, ...]:
        """Return for each fold of repeated folds the first one with the same test set; empty without repeats."""
        if spec.tested_folds == spec.folds_per_repeat:
            return ()
        tested = [split for fold, split in enumerate(self.splits) if spec.tests(fold)]
        return alike(torch.cat([one.train, one.validation]).sort().values.numpy().tobytes() for one in tested)

    def sha256(self) -> str:
        """Return the digest of samples, labels, covariates and splits."""
        return self._digests[0]

    def order_key(self, fold: int) -> str:
        """Return the seed of the order of a fold's batches: a digest of its training rows, known only here.

        With the order, the sums of many batches could be solved for single samples.
        """
        own = self._digests[1 + fold]
        return own if self.parts is None else self.parts.order(own)

    def patients_key(self, fold: int) -> str:
        """Return what identifies a fold's training patients and their order in all runs, known only here."""
        own = self._digests[1 + fold]
        if self.parts is None:
            return own
        keys = [self.keys[row] for row in self.splits[fold].train.tolist()] if self.keys else [own]
        return self.parts.secret.name("patients", *keys)

    @cached_property
    def _digests(self) -> tuple[str, ...]:
        """Return the digest of everything and of each fold's training rows, reading inputs once."""
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
        """Return ids and positions, int64 [n], of samples that stay the same while the site has them."""
        if self.parts is None or not self.keys:
            return None
        named = Counter[str]()  # several samples may have one key, such as a patient's visits
        ids = [self.parts.secret.number("looked", key, named.update([key]) or named[key]) for key in self.keys]
        places = sorted(range(len(ids)), key=ids.__getitem__)[:most]
        return torch.tensor([ids[place] for place in places]), torch.tensor(places)

    def rows(self, fold: int) -> Rows:
        """Return a fold's training rows, for preparation."""
        return self._rows(self.splits[fold].train)

    def summed(self, fold: int) -> Rows:
        """Return a fold's training rows for sums; a column that too few samples of any fold have is missing in all."""
        return self._told(self.rows(fold))

    def whole(self) -> Rows:
        """Return all rows of the site for sums."""
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
        """Return the rows for Table 1: all rows that the last fold trains on or holds out.

        Held-out values of a column are omitted if they are too few: the sums of training rows would reveal them.
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
        """Return which columns have too few values, or too few missing ones, in a fold or its held-out rows.

        Covariates are summed over the samples with a value, so those without one must be enough, too.
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
        """Return, for each set of samples, the least number of its groups behind a sum that leaves, or a difference.

        With parts, all sums together determine those of each part.

        Args:
            members: bool [samples, sets].
            tested: number of trainings with a test set.

        Returns:
            float64 [sets]; infinity if no sum includes the set.
        """
        if self.parts is None:
            return fewest_behind(self.splits, self.shares(members), tested)
        nothing = torch.arange(0)
        parts = [torch.from_numpy(np.flatnonzero(self.parts.parts == part)) for part in self.parts.sizes]
        return fewest_behind([Split(rows, nothing, nothing) for rows in parts], self.shares(members), 0)


def _at_once(samples: int, sizes: Sequence[int]) -> int:
    """Return how many batches of these sizes can be drawn before samples are shuffled again."""
    return len(sizes) if sum(sizes) <= samples else samples // max(sizes)


def digests(inputs: Inputs, sets: Sequence[Tensor], beside: Sequence[Mapping[str, Tensor]]) -> tuple[str, ...]:
    """Return the sha256 of each set of samples: names, dtypes, shapes and bytes of its tensors, in order of name.

    Args:
        inputs: of all samples, read once.
        sets: rows of the samples, each ascending, int64.
        beside: further tensors of each set, by name.
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
