"""Merges the bins of a site's samples until each is of enough people, before they are counted.

Bins are merged from the lowest to the highest, and what is left over joins the last. Samples of a merged bin all count
at their mean place, so that histograms of several sites still add up. Where a threshold is counted by itself, as a
confusion matrix does, no merged bin lies on both sides of it, unless one side has too few: else the difference of the
two counts would tell of single samples.
"""

from __future__ import annotations

import torch
from torch import Tensor


def merged(places: Tensor, fewest: int, groups: Tensor | None = None, above: Tensor | None = None) -> Tensor:
    """Return the merged bin of every sample.

    Args:
        places: the bin of each, int64 [n].
        fewest: people of a merged bin; of fewer in all there is one bin.
        groups: int64 [n], whose each sample is; None where each is of another person.
        above: bool [n], which samples are above a threshold that is counted elsewhere; None where there is none.

    Returns:
        int64 [n], counted from 0 in the order of the bins.
    """
    if above is None:
        return _merged(places, fewest, groups)
    sides = [(~above).nonzero().flatten(), above.nonzero().flatten()]
    enough = [_people(rows, groups) >= fewest for rows in sides]
    found = torch.zeros_like(places)
    low, high = (_merged(places[rows], fewest, None if groups is None else groups[rows]) for rows in sides)
    found[sides[0]] = low if enough[0] else 0
    below = int(low.max()) if enough[0] else -1  # the last bin below the threshold
    found[sides[1]] = below + 1 + high if enough[1] else max(below, 0)
    return found


def mean_places(values: Tensor, of: Tensor) -> Tensor:
    """Return the mean of each sample's merged bin, float64 [n].

    Args:
        values: of every sample.
        of: its merged bin.
    """
    return (of.bincount(values.double()) / of.bincount().clamp_min(1))[of]


def _people(rows: Tensor, groups: Tensor | None) -> int:
    return len(rows) if groups is None else len(groups[rows].unique())


def _merged(places: Tensor, fewest: int, groups: Tensor | None) -> Tensor:
    _, own = places.unique(return_inverse=True)
    counts, behind = own.bincount().tolist(), list[list[int]]()
    if groups is not None:
        behind = [one.tolist() for one in groups[own.argsort(stable=True)].split(counts)]
    number, numbers, held, people = 0, list[int](), 0, set[int]()
    for place, count in enumerate(counts):
        numbers.append(number)
        if groups is None:
            held += count
        else:
            people.update(behind[place])
            held = len(people)
        if held >= fewest:
            number, held, people = number + 1, 0, set()
    if held and number:
        numbers = [min(one, number - 1) for one in numbers]
    return torch.tensor(numbers, dtype=torch.int64)[own]
