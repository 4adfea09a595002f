"""Batches at weights that hardly move: from as many as there are patients it can be solved who is in which.

A site draws batches by a secret. At the same weights each batch adds up the same gradients of its patients, so that all
have no more dimensions than there are patients, and who is in which follows (`python -m benchmarks memberships`).

Weights may move and the model stay: by a number added to all outputs of a softmax, by units that say nothing, or by a
factor that one layer has more and the next one less. So it is looked, too, how far what flows back from the loss moved.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rankdad.common.run.weight_sketch import distance

NEAR = 3e-3  # of the size of all weights
MOST = 50  # places that are remembered
LOOKS = 8  # before as many steps are taken as may be


class Place(NamedTuple):
    """Weights at which a site has sent gradients.

    Args:
        sketch: of the weights; see `common.run.weight_sketch`.
        steps: that were taken near them.
        flows: what flows back to the model from the loss of some samples, of length 1; None where nobody looks.
    """

    sketch: Tensor
    steps: int = 0
    flows: Tensor | None = None

    def near(self, other: Place) -> bool:
        """Tell whether weights, or the models that they make, are nearly the same."""
        if distance(self.sketch, other.sketch) <= NEAR:
            return True
        if self.flows is None or other.flows is None or self.flows.shape != other.flows.shape:
            return False
        return float(torch.linalg.vector_norm(self.flows - other.flows)) <= NEAR


Places = tuple[Place, ...]  # the last one is where the stretch of an epoch began that is trained


def stretch(told: float, people: int) -> int:
    """Return after how many steps it is looked again how far the weights are.

    Args:
        told: so many steps for each patient may be near each other; infinite without a limit.
        people: that it trains on, possibly none.
    """
    return 1 << 30 if math.isinf(told) else max(1, int(told * people // LOOKS))


def arrived(places: Places, here: Place) -> Places:
    """Return the places with that at which a stretch begins, whose first step counts already.

    Of too many that is forgotten at which fewest steps were taken, never the first, where all trainings begin.
    """
    near = next((place for place in places if place.near(here)), here)
    others = [place for place in places if place is not near]
    if len(others) >= MOST:
        del others[min(range(1, len(others)), key=lambda at: others[at].steps)]
    return *others, near._replace(steps=near.steps + 1)


def stayed(places: Places, here: Place, steps: int) -> Places:
    """Return the places after a stretch: of one that has not left where it began, all steps count.

    Args:
        places: the last one is where it began.
        here: where the weights are now.
        steps: of the stretch.
    """
    *others, last = places
    moved = not last.near(here)
    return *others, last._replace(steps=last.steps + (0 if moved else max(0, steps - 1)))


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
