"""Limits the batches at nearly the same weights: with as many as patients, their members could be solved for.

A site draws batches by a secret. At the same weights, batches are sums of the same gradients of its patients. All
batches together have no more dimensions than patients, and reveal who is in which (`python -m benchmarks memberships`).

Weights may change while the model does not: by a number added to all outputs of a softmax, by inactive units, or by a
factor moved between layers. So the change of the deltas is measured, too: for each class, since a factor by class can
be divided out, and for each output, since one may stay while others change. Models with other outputs are compared by
the size of each sample's deltas. The site's secret selects the step of each stretch at which it measures, so that
weights cannot be prepared for it.

Two batches, or two epochs, may differ by one patient, and so may their sums at one place. So an epoch that begins
near a place has the same batches as the one before: they have already been sent.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

NEAR = 3e-3  # distance relative to the size of all weights
MOST = 50  # remembered places, of some kilobytes each; cycling through more is not noticed
MOST_OUTPUTS = 16  # outputs of deltas in a log
LOOKS = 16  # measurements within the allowed number of steps
NUMBER = -1  # the kind of a numeric label
FEWEST = 8  # samples for comparing models


@dataclass(frozen=True, eq=False)
class Flows:
    """The deltas of some of a site's samples.

    Args:
        ids: of the samples, int64 [n].
        kinds: int64 [n, outputs], each sample's class, or whether it has the label; -1 for numbers.
        values: [n, outputs]; float32 is enough.
    """

    ids: Tensor
    kinds: Tensor
    values: Tensor

    @cached_property
    def key(self) -> bytes:
        """Identifies deltas that can be compared value by value: samples and kinds."""
        return blake2b(torch.cat([self.ids, self.kinds.flatten()]).numpy().tobytes(), digest_size=16).digest()

    @cached_property
    def directions(self) -> Tensor:
        """Deltas of each class and output, normalised; for numbers also centred."""
        found = torch.zeros_like(self.values)
        for kind in self.kinds.unique().tolist():
            chosen = self.kinds == kind
            values = self.values - self.values.mean(0) if kind == NUMBER else self.values
            values = torch.where(chosen, values, 0.0)
            found += values / torch.linalg.vector_norm(values, dim=0).clamp_min(torch.finfo(values.dtype).tiny)
        return found

    def near(self, others: Sequence[Flows]) -> list[bool]:
        """Return which models are nearly the same, for one output or for the samples of one class.

        This holds if the deltas of each class differ by a factor, and those of numbers by a factor and a constant.
        Models with other outputs are compared by the size of each sample's deltas.
        """
        alike = [other.key == self.key for other in others]
        same = iter(self._near([other for other, whole in zip(others, alike, strict=True) if whole]))
        return [next(same) if whole else self._nearly(other) for other, whole in zip(others, alike, strict=True)]

    def _near(self, others: Sequence[Flows]) -> list[bool]:
        if not others:
            return []
        theirs, own = torch.stack([other.directions for other in others]), self.directions.square()
        apart = (theirs - self.directions).square()
        stay = _stays(apart.sum(1), own.sum(0)).any(1)
        for kind in self.kinds.unique():
            chosen = self.kinds == kind
            if chosen.sum(0).max() >= FEWEST:
                stay |= _stays((apart * chosen).sum((1, 2)), (own * chosen).sum())
        found: list[bool] = stay.tolist()
        return found

    def _nearly(self, other: Flows) -> bool:
        """Return whether a model is nearly the same, with other outputs or samples."""
        _, own, its = np.intersect1d(self.ids.numpy(), other.ids.numpy(), assume_unique=True, return_indices=True)
        if len(own) < FEWEST:
            return False
        here, there = (Flows(one.ids[at], one.kinds[at], one.values[at]) for one, at in ((self, own), (other, its)))
        if here.key != there.key:
            kinds = (there if here.kinds[0, 0] == NUMBER else here).kinds[:, :1]
            here, there = here._sizes(kinds, centred=True), there._sizes(kinds, centred=True)
        return here._near([there])[0]

    def _sizes(self, kinds: Tensor, *, centred: bool = False) -> Flows:
        """Return the size of each sample's deltas, relative to the mean of its kind."""
        sizes = self.values.norm(dim=1, keepdim=True)
        for kind in kinds.unique() if centred else ():
            sizes = torch.where(kinds == kind, sizes - sizes[kinds == kind].mean(), sizes)
        return Flows(self.ids, kinds, sizes)

    def pack(self) -> bytes:
        """Return the bytes, starting with the number of outputs; with many outputs, sizes per sample."""
        if self.values.shape[1] > MOST_OUTPUTS:
            return self._sizes(self.kinds[:, :1]).pack()
        numbers = torch.cat([self.ids[:, None], self.kinds, self.values.double().view(torch.int64)], 1)
        return torch.cat([torch.tensor([self.values.shape[1]]), numbers.flatten()]).numpy().tobytes()

    @classmethod
    def unpack(cls, data: bytes) -> Flows | None:
        """Read deltas from bytes; None for empty ones."""
        if not data:
            return None
        outputs = int.from_bytes(data[:8], sys.byteorder)
        numbers = torch.frombuffer(bytearray(data[8:]), dtype=torch.int64)
        ids, kinds, values = numbers.reshape(-1, 1 + 2 * outputs).split([1, outputs, outputs], 1)
        return cls(ids[:, 0], kinds, values.contiguous().view(torch.float64).float())


def _stays(apart: Tensor, sizes: Tensor) -> Tensor:
    """Return where squared distances are small compared to squared sizes, which are not zero."""
    return (apart <= NEAR**2 * sizes) & (sizes > 0)


class Place(NamedTuple):
    """Weights at which a site has sent gradients.

    Args:
        sketch: of the weights; see `common.run.weight_sketch`.
        steps: taken near them.
        flows: deltas there; None if unknown.
        first: whether a training began there.
        drawn: seeds of batches there, by the digest of patients and batch sizes.
    """

    sketch: Tensor
    steps: int = 0
    flows: Flows | None = None
    first: bool = False
    drawn: Mapping[str, int] = MappingProxyType({})


Places = tuple[Place, ...]  # the last one is that of the last measurement


def stretch(disclosed: float, people: int) -> int:
    """Return the number of steps between two measurements of the weights' movement.

    Args:
        disclosed: allowed number of steps near each other per patient; infinite without a limit.
        people: number of training patients, possibly 0.
    """
    return 1 << 30 if math.isinf(disclosed) else max(1, int(disclosed * people // LOOKS))


def near(places: Sequence[Place], here: Place) -> list[bool]:
    """Return at which places the weights, or their models, are nearly the current ones."""
    if not places:
        return []
    sketches = torch.stack([place.sketch for place in places])
    apart, sizes = (torch.linalg.vector_norm(one, dim=1) for one in (sketches - here.sketch, sketches))
    found: list[bool] = (apart <= NEAR * sizes).tolist()
    if here.flows is None:
        return found
    known = [(at, place.flows) for at, place in enumerate(places) if place.flows is not None]
    for (at, _), stays in zip(known, here.flows.near([flows for _, flows in known]), strict=True):
        found[at] |= stays
    return found


def arrived(places: Places, here: Place) -> Places:
    """Return the places with the current one, including the steps of places near it.

    If there are too many, those with fewest steps are dropped first, and starts of trainings last.
    """
    others, last = list(places), here
    if any(found := near(places, here)):
        known = others.pop(found.index(True))
        first, drawn = known.first or here.first, {**here.drawn, **known.drawn}
        last = known._replace(steps=known.steps + here.steps, first=first, drawn=drawn)
    if len(others) >= MOST:
        del others[min(range(len(others)), key=lambda at: (others[at].first, others[at].steps))]
    return *others, last


def drawn_before(places: Sequence[Place], here: Place, patients: str) -> int | None:
    """Return the seed of batches of these patients from near here; None if there is none.

    Args:
        places: of this run and others.
        here: where an epoch begins.
        patients: digest of patients and batch sizes.
    """
    known = [place for place in places if patients in place.drawn]
    return next((place.drawn[patients] for place, same in zip(known, near(known, here), strict=True) if same), None)


def most_known(places: Places, numbers: int, earlier: Places = ()) -> int:
    """Return the number of known dimensions of what is sent at the last of some places.

    Args:
        places: of this run.
        numbers: of each step.
        earlier: places of other runs.
    """
    if not places:
        return 0
    here = places[-1]
    before = sum(place.steps for place, same in zip(earlier, near(earlier, here), strict=True) if same)
    return min(here.steps + before, numbers)
