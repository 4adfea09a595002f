"""What a site's counts tell where they must be of enough people: merged bins, or mean and spread alone.

Bins are merged from the lowest to the highest, and what is left over joins the last. Samples of a merged bin all count
at their mean place, so that histograms of several sites still add up. Where a threshold is counted by itself, as a
confusion matrix does, no merged bin lies on both sides of it, unless one side has too few: else the difference of the
two counts would tell of single samples.

Sets that are counted often, or are too small for bins, as those between epochs and a single fold's test are, tell of
the scores of either class no more than their mean and spread, to few digits: their samples count where those of a
normal distribution would.
"""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

WIDEST = 1000.0  # log-odds
NORMAL = NormalDist()
STEPS = 50  # to a standard deviation: how finely the mean is told


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


def normal_scores(log_odds: Tensor, positive: Tensor, fewest: int, people: Tensor | None = None) -> Tensor:
    """Return log-odds that have the mean and spread of those of either class, and tell nothing else, float64 [n].

    A class of fewer people is told nothing of: it takes those of both together.

    Args:
        log_odds: of every sample, [n].
        positive: bool [n], which class it is of.
        fewest: people of a class.
        people: int64 [n], whose each sample is; None where each is of another person.
    """
    known, found = log_odds.double().nan_to_num(0.0).clamp(-WIDEST, WIDEST), torch.zeros(len(positive)).double()
    for own in (~positive, positive):
        rows = own.nonzero().flatten()
        of = known[rows] if _people(rows, people) >= fewest else known
        if len(rows):
            spread = float(f"{float(of.std(correction=0)):.1e}")
            mean = float(of.mean())
            mean = round(mean * STEPS / spread) * spread / STEPS if spread else float(f"{mean:.1e}")
            shares = ((torch.arange(len(rows)) + 0.5) / len(rows)).tolist()
            found[rows] = mean + spread * torch.tensor([NORMAL.inv_cdf(one) for one in shares]).double()
    return found


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
