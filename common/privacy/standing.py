"""Batches at weights that hardly move: from as many as there are patients it can be solved who is in which.

A site draws batches by a secret. At the same weights each batch adds up the same gradients of its patients, so that all
have no more dimensions than there are patients, and who is in which follows (`python -m benchmarks memberships`).

Weights may move and the model stay: by a number added to all outputs of a softmax, by units that say nothing, or by a
factor that one layer has more and the next one less. So it is looked, too, how far what flows back from the loss moved:
of each class by itself, since a factor by class can be divided out, and of each output, since one can stay while the
others move. Runs with other outputs are compared by how much flows back from each sample. And whoever knew when it is
looked could let the weights be elsewhere just then: of each stretch of steps the site looks at one that it draws by its
secret.

Two batches, or two epochs, differ by one patient now and then, and so do their sums at one place. So an epoch that
begins near a place has the same batches as the one before there: what it sends has been sent.
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

NEAR = 3e-3  # of the size of all weights
MOST = 50  # places that are remembered: each is some kilobytes; whoever goes round more of them is not seen
MOST_OUTPUTS = 16  # of what flows back, in a log
LOOKS = 16  # before as many steps are taken as may be
NUMBER = -1  # the kind of what flows back from a number
FEWEST = 8  # samples by which models are compared


@dataclass(frozen=True, eq=False)
class Flows:
    """What flows back to the model from the loss of some of a site's samples.

    Args:
        ids: int64 [n], which samples.
        kinds: int64 [n, outputs], each sample's class, or whether it has the label; -1 of a number.
        values: [n, outputs]; float32 is enough.
    """

    ids: Tensor
    kinds: Tensor
    values: Tensor

    @cached_property
    def key(self) -> bytes:
        """What those have in common that are compared value by value: their samples, and the kinds of these."""
        return blake2b(torch.cat([self.ids, self.kinds.flatten()]).numpy().tobytes(), digest_size=16).digest()

    @cached_property
    def directions(self) -> Tensor:
        """The values of each class and output with length 1, and in the mean 0 where they are of numbers."""
        found = torch.zeros_like(self.values)
        for kind in self.kinds.unique().tolist():
            chosen = self.kinds == kind
            values = self.values - self.values.mean(0) if kind == NUMBER else self.values
            values = torch.where(chosen, values, 0.0)
            found += values / torch.linalg.vector_norm(values, dim=0).clamp_min(torch.finfo(values.dtype).tiny)
        return found

    def near(self, others: Sequence[Flows]) -> list[bool]:
        """Tell which models are nearly the same for one of their outputs, or for the samples of one class.

        That is where the flows of each class are but for a factor, and those of numbers but for one and what is added
        to all. Of models with other outputs it is how much flows back from each sample.
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
        """Tell whether a model is nearly the same, of other outputs or some other samples."""
        _, own, its = np.intersect1d(self.ids.numpy(), other.ids.numpy(), assume_unique=True, return_indices=True)
        if len(own) < FEWEST:
            return False
        here, there = (Flows(one.ids[at], one.kinds[at], one.values[at]) for one, at in ((self, own), (other, its)))
        if here.key != there.key:
            kinds = (there if here.kinds[0, 0] == NUMBER else here).kinds[:, :1]
            here, there = here._sizes(kinds, centred=True), there._sizes(kinds, centred=True)
        return here._near([there])[0]

    def _sizes(self, kinds: Tensor, *, centred: bool = False) -> Flows:
        """Return how much flows back from each sample, in the mean of a kind 0: of many outputs that hardly differs."""
        sizes = self.values.norm(dim=1, keepdim=True)
        for kind in kinds.unique() if centred else ():
            sizes = torch.where(kinds == kind, sizes - sizes[kinds == kind].mean(), sizes)
        return Flows(self.ids, kinds, sizes)

    def pack(self) -> bytes:
        """Return them as bytes, the number of outputs first; of many outputs how much flows back from each sample."""
        if self.values.shape[1] > MOST_OUTPUTS:
            return self._sizes(self.kinds[:, :1]).pack()
        numbers = torch.cat([self.ids[:, None], self.kinds, self.values.double().view(torch.int64)], 1)
        return torch.cat([torch.tensor([self.values.shape[1]]), numbers.flatten()]).numpy().tobytes()

    @classmethod
    def unpack(cls, data: bytes) -> Flows | None:
        """Return flows from bytes; None of no flows."""
        if not data:
            return None
        outputs = int.from_bytes(data[:8], sys.byteorder)
        numbers = torch.frombuffer(bytearray(data[8:]), dtype=torch.int64)
        ids, kinds, values = numbers.reshape(-1, 1 + 2 * outputs).split([1, outputs, outputs], 1)
        return cls(ids[:, 0], kinds, values.contiguous().view(torch.float64).float())


def _stays(apart: Tensor, sizes: Tensor) -> Tensor:
    """Tell where squared distances are small beside squared sizes, which are more than nothing."""
    return (apart <= NEAR**2 * sizes) & (sizes > 0)


class Place(NamedTuple):
    """Weights at which a site has sent gradients.

    Args:
        sketch: of the weights; see `common.run.weight_sketch`.
        steps: that were taken near them.
        flows: there; None where nobody could look.
        first: whether a training began there.
        drawn: what batches of some patients were drawn from there; by what names these and the batches' sizes.
    """

    sketch: Tensor
    steps: int = 0
    flows: Flows | None = None
    first: bool = False
    drawn: Mapping[str, int] = MappingProxyType({})


Places = tuple[Place, ...]  # the last one is where it was looked last


def stretch(told: float, people: int) -> int:
    """Return in how many steps it is looked once how far the weights are.

    Args:
        told: so many steps for each patient may be near each other; infinite without a limit.
        people: that it trains on, possibly none.
    """
    return 1 << 30 if math.isinf(told) else max(1, int(told * people // LOOKS))


def near(places: Sequence[Place], here: Place) -> list[bool]:
    """Tell at which places the weights, or the models that they make, are nearly those of now."""
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
    """Return the places with that at which it is looked now, whose steps are added to what is near.

    Of too many that is forgotten at which fewest steps were taken, last those where trainings began.
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
    """Return what batches of some patients were drawn from near here; None where none were.

    Args:
        places: of this run and others.
        here: where an epoch begins.
        patients: what names them, and their batches' sizes.
    """
    known = [place for place in places if patients in place.drawn]
    return next((place.drawn[patients] for place, same in zip(known, near(known, here), strict=True) if same), None)


def most_known(places: Places, numbers: int, earlier: Places = ()) -> int:
    """Return how many dimensions of what is sent at the last of some places are known.

    Args:
        places: of this run.
        numbers: of each step.
        earlier: of other runs.
    """
    if not places:
        return 0
    here = places[-1]
    before = sum(place.steps for place, same in zip(earlier, near(earlier, here), strict=True) if same)
    return min(here.steps + before, numbers)
