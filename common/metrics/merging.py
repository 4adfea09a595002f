"""What a site's counts tell where they must be of enough people: merged bins, or mean and spread alone.

Neighbouring bins are merged so that as few samples as can be share one with a sample of the other class, which an AUC
would count as ties. Samples of a merged bin all count at their mean place, so that histograms of several sites still
add up. Where a threshold is counted by itself, as a confusion matrix does, no merged bin lies on both sides of it,
unless one side has too few: else the difference of the two counts would tell of single samples.

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
SMALLER = 1 / 16  # ties of two classes that squares of a bin's samples outweigh
STEPS = 50  # to a standard deviation: how finely the mean is told


def merged(
    places: Tensor,
    fewest: int,
    groups: Tensor | None = None,
    above: Tensor | None = None,
    positive: Tensor | None = None,
) -> Tensor:
    """Return the merged bin of every sample.

    Args:
        places: the bin of each, int64 [n].
        fewest: people of a merged bin; of fewer in all there is one bin.
        groups: int64 [n], whose each sample is; None where each is of another person.
        above: bool [n], which samples are above a threshold that is counted elsewhere; None where there is none.
        positive: bool [n], which samples an AUC ranks before the others; None where there is none.

    Returns:
        int64 [n], counted from 0 in the order of the bins.
    """
    if above is None:
        return _merged(places, fewest, groups, positive)
    sides = [(~above).nonzero().flatten(), above.nonzero().flatten()]
    enough = [_people(rows, groups) >= fewest for rows in sides]
    found = torch.zeros_like(places)
    low, high = (
        _merged(places[rows], fewest, *(None if one is None else one[rows] for one in (groups, positive)))
        for rows in sides
    )
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


def _merged(places: Tensor, fewest: int, groups: Tensor | None, positive: Tensor | None) -> Tensor:
    """Return the merged bins that tie the fewest samples of both classes, and then the fewest samples."""
    occupied, own = places.unique(return_inverse=True)
    first, count = torch.ones_like(own), len(occupied)
    if groups is not None:  # a person counts in the lowest bin that holds one of their samples
        _, of = groups.unique(return_inverse=True)
        lowest = torch.full((int(of.max()) + 1 if len(of) else 0,), count).scatter_reduce(0, of, own, "amin")
        people = lowest.bincount(minlength=count)
    else:
        people = own.bincount(first, minlength=count)
    with_it = own.bincount(None if positive is None else positive.double(), minlength=count)
    sums = [
        torch.cat([torch.zeros(1), one.double()]).cumsum(0) for one in (people, own.bincount(minlength=count), with_it)
    ]
    behind, samples, positives = sums
    costs, begins = torch.zeros(count + 1, dtype=torch.float64), [0] * (count + 1)
    for end in range(1, count + 1):
        held, hits = samples[end] - samples[:end], positives[end] - positives[:end]
        ties = 0 if positive is None else hits * (held - hits)
        enough = (behind[end] - behind[:end] >= fewest) & costs[:end].isfinite()
        cost = torch.where(enough, costs[:end] + ties + SMALLER * held.square(), torch.inf)
        begins[end], costs[end] = int(cost.argmin()), cost.min()
    cuts, end = list[int](), count
    while end and costs[count].isfinite():
        cuts.append(end)
        end = begins[end]
    return torch.searchsorted(torch.tensor(cuts[::-1] or [count]), own, right=True)
