"""Batches at weights that hardly move: from as many as there are patients it can be solved who is in which.

A site draws batches by a secret. At the same weights each batch adds up the same gradients of its patients, so that
all have no more dimensions than there are patients, and who is in which follows (`python -m benchmarks memberships`).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from rankdad.common.run.weight_sketch import distance

NEAR = 3e-3  # of the size of all weights
MOST = 50  # places that are remembered


class Place(NamedTuple):
    """Weights at which a site has sent gradients.

    Args:
        sketch: of the weights; see `common.run.weight_sketch`.
        steps: that were taken near them.
    """

    sketch: Tensor
    steps: int


Places = tuple[Place, ...]  # the last one is where the epoch began that is trained


def arrived(places: Places, sketch: Tensor) -> Places:
    """Return the places with that at which an epoch begins, whose first step counts already."""
    near = next((place for place in places if distance(place.sketch, sketch) <= NEAR), Place(sketch, 0))
    others = [place for place in places if place is not near]
    return *others[max(0, len(others) - MOST + 1) :], near._replace(steps=near.steps + 1)


def stayed(places: Places, sketch: Tensor, steps: int) -> Places:
    """Return the places after an epoch: of one that has not left where it began, all steps count.

    Args:
        places: the last one is where it began.
        sketch: of the weights now.
        steps: of the epoch.
    """
    *others, last = places
    moved = distance(last.sketch, sketch) > NEAR
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
    before = sum(place.steps for place in earlier if distance(place.sketch, here.sketch) <= NEAR)
    return min(here.steps + before, numbers)
