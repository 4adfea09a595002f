"""Batches at weights that hardly move: from as many as there are patients it can be solved who is in which.

A site draws batches by a secret. At the same weights each batch adds up the same gradients of its patients, so that all
have no more dimensions than there are patients, and who is in which follows (`python -m benchmarks memberships`).

Weights may move and the model stay: by a number added to all outputs of a softmax, by units that say nothing, or by a
factor that one layer has more and the next one less. So it is looked, too, how far what flows back from the loss moved;
of each class by itself, since a factor by class can be divided out. And whoever knew when it is looked could let the
weights be elsewhere just then: of each stretch of steps the site looks at one that it draws by its secret.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankdad.common.run.weight_sketch import distance

NEAR = 3e-3  # of the size of all weights
MOST = 50  # places that are remembered
LOOKS = 16  # before as many steps are taken as may be
NUMBER = -1  # the kind of what flows back from a number
FEWEST = 8  # samples by which models are compared


class Flows(NamedTuple):
    """What flows back to the model from the loss of some of a site's samples.

    Args:
        ids: int64 [n], which samples.
        kinds: int64 [n, outputs], each sample's class, or whether it has the label; -1 of a number.
        values: float64 [n, outputs].
    """

    ids: Tensor
    kinds: Tensor
    values: Tensor

    def near(self, other: Flows) -> bool:
        """Tell whether the flows of each class are nearly the same but for a factor, and those of numbers, but for one
        and what is added to all.
        """
        _, own, its = np.intersect1d(self.ids.numpy(), other.ids.numpy(), assume_unique=True, return_indices=True)
        if len(own) < FEWEST or self.values.shape[1] != other.values.shape[1]:
            return False
        kinds = self.kinds[own]
        apart, blocks = 0.0, 0
        for kind in kinds.unique().tolist():
            of_kind = kinds == kind
            ours, theirs = (_directions(one, of_kind, kind) for one in (self.values[own], other.values[its]))
            apart, blocks = apart + float((ours - theirs).square().sum()), blocks + int(of_kind.any(0).sum())
        return math.sqrt(apart / max(1, blocks)) <= NEAR

    def pack(self) -> bytes:
        """Return them as bytes."""
        numbers = torch.cat([self.ids[:, None], self.kinds, self.values.view(torch.int64)], 1)
        return numbers.contiguous().numpy().tobytes()

    @classmethod
    def unpack(cls, data: bytes, outputs: int) -> Flows | None:
        """Return flows from bytes; None of no flows, or of a model with other outputs."""
        numbers = torch.frombuffer(bytearray(data), dtype=torch.int64) if data else torch.empty(0, dtype=torch.int64)
        if not len(numbers) or len(numbers) % (1 + 2 * outputs):
            return None
        ids, kinds, values = numbers.reshape(-1, 1 + 2 * outputs).split([1, outputs, outputs], 1)
        return cls(ids[:, 0], kinds, values.contiguous().view(torch.float64))


def _directions(values: Tensor, chosen: Tensor, kind: int) -> Tensor:
    """Return the chosen values with each column of length 1, and in the mean 0 where they are of numbers."""
    if kind == NUMBER:
        values = values - values.mean(0)
    values = torch.where(chosen, values, 0.0)
    sizes = torch.linalg.vector_norm(values, dim=0).clamp_min(torch.finfo(values.dtype).tiny)
    found: Tensor = values / sizes
    return found


class Place(NamedTuple):
    """Weights at which a site has sent gradients.

    Args:
        sketch: of the weights; see `common.run.weight_sketch`.
        steps: that were taken near them.
        flows: there; None where nobody could look.
    """

    sketch: Tensor
    steps: int = 0
    flows: Flows | None = None

    def near(self, other: Place) -> bool:
        """Tell whether weights, or the models that they make, are nearly the same."""
        if distance(self.sketch, other.sketch) <= NEAR:
            return True
        return self.flows is not None and other.flows is not None and self.flows.near(other.flows)


Places = tuple[Place, ...]  # the last one is where it was looked last


def stretch(told: float, people: int) -> int:
    """Return in how many steps it is looked once how far the weights are.

    Args:
        told: so many steps for each patient may be near each other; infinite without a limit.
        people: that it trains on, possibly none.
    """
    return 1 << 30 if math.isinf(told) else max(1, int(told * people // LOOKS))


def arrived(places: Places, here: Place) -> Places:
    """Return the places with that at which it is looked now, whose steps are added to what is near.

    Of too many that is forgotten at which fewest steps were taken, never the first, where all trainings begin.
    """
    near = next((place for place in places if place.near(here)), None)
    if near is None:
        near, others = here, list(places)
    else:
        others = [place for place in places if place is not near]
        near = near._replace(steps=near.steps + here.steps)
    if len(others) >= MOST:
        del others[min(range(1, len(others)), key=lambda at: others[at].steps)]
    return *others, near


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
    before = sum(place.steps for place in earlier if place.near(here))
    return min(here.steps + before, numbers)
