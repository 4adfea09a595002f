"""Smooth curves of a test's scores, because a histogram of few people discloses each one's score.

Sorted scores are a curve over their ranks. A polynomial of few coefficients approximates it, and its values replace the
scores: for a class of n people, at most n / 4 numbers leave, each a sum over the class, or over some 48 neighbours.

A site knows the effect of smoothing on the AUC for pairs of its own samples, earlier tests included, and sends it: see
`reordered`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rankdad.common.metrics.auc import exact_pairs, log_odds, score_bins
from rankdad.common.metrics.sums import Tally, default_log_odds, empty, parts
from rankdad.common.spec.tasks import Classification, Regression, TaskSpec

COEFFICIENTS = 4  # of a polynomial, at most: more would follow single scores
SHARE = 4  # people per coefficient, at least: with 2, the curve still met every sixth score
SPREAD = 3  # least number of values for a deviation of their own
NEIGHBOURS = 48  # least number of people for each of several polynomials
MOST = 100  # polynomials of a class
TIED = 8  # people with the same score, which is then no one person's
STRAIGHT = 4.0  # log-odds, or standard deviations, beyond which distances shrink: outliers would bend the curve
GOLDEN = (math.sqrt(5) - 1) / 2


class Scored(NamedTuple):
    """A site's record of a test: log-odds, bins of the smooth ones, and whether positive, each [n, outputs]."""

    scores: Tensor
    bins: Tensor
    positive: Tensor


class Smooth(NamedTuple):
    """Replacement of a test's outputs in the tally that leaves.

    Args:
        scores: log-odds of every output, float64 [n, outputs]; for regression output − label, [n, 1].
        levels: probabilities for the calibration, float64 [n, groups]; for regression means of output and label.
        order: effect of smoothing on the order of scores, as in a tally.
        scored: for later tests of other samples; None for regression.
    """

    scores: Tensor
    levels: Tensor
    order: Tally
    scored: Scored | None = None


def smooth(
    task: TaskSpec,
    outputs: Tensor,
    labels: Tensor,
    *,
    scale: float = 1.0,
    base: Tensor | None = None,
    people: Tensor | None = None,
    clustered: bool = False,
    earlier: Sequence[Scored] = (),
) -> Smooth:
    """Return smooth scores of all test samples of a site; the sums of probabilities are unchanged.

    Args:
        task: what the outputs mean.
        outputs: as for `rankdad.common.metrics.sums.tally`, and so are labels, scale and base.
        labels: of the samples.
        scale: unit of differences.
        base: log-odds [task.outputs].
        people: patient of each sample, int64 [n]; None if each is another patient.
        clustered: whether tallies have sums over groups.
        earlier: tests of other samples of the site, which add up with this one.
    """
    outputs, labels = outputs.detach().cpu().double(), labels.detach().cpu()
    whose = torch.arange(len(labels)) if people is None else people.cpu()
    nothing = empty(task, clustered)
    if isinstance(task, Regression):
        parts(task, nothing).order[0, 2] = len(labels)
        return Smooth(*_numbers(outputs.reshape(-1), labels.double().reshape(-1), scale, whose), nothing)
    origin = default_log_odds(task) if base is None else base.cpu()
    odds, positive = log_odds(task, outputs, labels)
    probability = outputs.softmax(dim=1) if isinstance(task, Classification) else outputs.sigmoid()
    scores = torch.stack(
        [
            at + _stretched(_by_class(_shrunk(own - at), kind, whose))
            for own, kind, at in zip(odds.T, positive.T, origin.double(), strict=True)
        ],
        dim=1,
    )
    if not isinstance(task, Classification):
        levels, exact = scores, probability
    elif task.classes == 2:
        levels, exact = scores[:, 1:], probability[:, 1:]
    else:
        exact, guess = probability.max(dim=1, keepdim=True)
        likeliest = odds.gather(1, guess)[:, 0]
        levels = _stretched(_by_class(_shrunk(likeliest), guess[:, 0] == labels, whose))[:, None]
    own = Scored(odds, score_bins(scores - origin.double()), positive)
    part, before = parts(task, nothing), Scored(*map(torch.cat, zip(*earlier, strict=True))) if earlier else None
    part.order.copy_(_squared(reordered(own)))
    if before is not None:
        together = Scored(*map(torch.cat, zip(before, own, strict=True)))
        part.across.copy_(_squared(reordered(together) - reordered(before) - reordered(own)))
    return Smooth(scores, _with_sums(levels, exact), nothing, own)


def reordered(scored: Scored) -> Tensor:
    """Return how many more pairs of a positive and a negative are in order by scores than by bins, [outputs, 2].

    The second number is the number of pairs: 0 without positives or negatives.
    """
    found = torch.zeros(scored.scores.shape[1], 2, dtype=torch.float64)
    for at, (scores, bins, positive) in enumerate(zip(*(one.T for one in scored), strict=True)):
        if bool(positive.any()) and not bool(positive.all()):
            (exact, number), (binned, _) = exact_pairs(scores, positive), exact_pairs(bins, positive)
            found[at] = torch.tensor([exact - binned, number])
    return found


def _squared(order: Tensor) -> Tensor:
    """Return the numbers with their squares, [outputs, 3]; see `Parts.order`."""
    off, number = order.unbind(dim=1)
    return torch.stack([off, off.square(), number], dim=1)


def curve(values: Tensor, people: Tensor, spread: float | None = None) -> Tensor:
    """Return smooth values float64 [n], in the order of the input.

    Values shared by at least `TIED` people are unchanged.

    Args:
        values: to smooth.
        people: patient of each value, int64 [n].
        spread: standard deviation to assume for too few values; None if unknown.
    """
    count = len(values)
    if not count:
        return values
    of_value = torch.stack([values.unique(return_inverse=True)[1], people]).unique(dim=1)[0]
    if int(of_value.bincount().min()) >= TIED:
        return values
    order = values.argsort(stable=True)
    places = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)
    persons = len(people.unique())
    pieces, sorted_people = min(MOST, max(1, persons // NEIGHBOURS)), people[order]
    while pieces > 1 and min(len(one.unique()) for one in sorted_people.tensor_split(pieces)) < TIED:
        pieces //= 2  # many samples of a few people are adjacent
    chunks = [rows.tensor_split(pieces) for rows in (values[order], places, sorted_people)]
    smoothed = torch.cat([_polynomial(*chunk) for chunk in zip(*chunks, strict=True)])
    if persons // SHARE == 2:  # the two numbers are mean and deviation
        spread = float(values.std(correction=0))
    if persons // SHARE <= 2 and spread is not None and count > 1:
        smoothed = values.mean() + spread * places / places.square().mean().sqrt()
    elif persons // SHARE >= SPREAD:
        smoothed = _as_wide(smoothed, values)
    found = torch.empty_like(values)
    found[order] = smoothed.sort().values
    return found


def _as_wide(smoothed: Tensor, values: Tensor) -> Tensor:
    """Return smooth values with the deviation of the exact ones, because smoothing changes it."""
    mean, deviation = smoothed.mean(), smoothed.std(correction=0)
    return smoothed if deviation == 0 else mean + (smoothed - mean) * (values.std(correction=0) / deviation)


def _polynomial(values: Tensor, places: Tensor, people: Tensor) -> Tensor:
    """Return the values of the least-squares polynomial of sorted values over their positions."""
    numbers = len(people.unique()) // SHARE
    coefficients = max(1, min(COEFFICIENTS, numbers - (numbers >= SPREAD)))
    if coefficients == 1:
        return (values[0] + (values - values[0]).mean()).expand(len(values))
    centred = places - places.mean()
    deviation = centred.square().mean().sqrt()
    basis = torch.linalg.qr(torch.stack([(centred / deviation) ** power for power in range(coefficients)], dim=1))[0]
    fitted: Tensor = values[0] + basis @ (basis.T @ (values - values[0]))  # exact for equal values
    return fitted


def _by_class(values: Tensor, positive: Tensor, people: Tensor) -> Tensor:
    """Return a curve for each of two classes: few people get the deviation of both, one the mean of the others."""
    found, spread = values.clone(), None
    classes = [own for own in (positive, ~positive) if len(people[own].unique()) > 1]
    if sum(len(people[own].unique()) for own in classes) >= TIED:
        away = torch.cat([values[own] - values[own].mean() for own in classes])
        spread = float(away.square().mean().sqrt())
    for own in (positive, ~positive):
        if len(people[own].unique()) == 1 and len(people[~own].unique()) > 1:
            found[own] = values[~own].mean()
        else:
            found[own] = curve(values[own], people[own], spread)
    return found


def _shrunk(distance: Tensor) -> Tensor:
    beyond = (distance.abs() - STRAIGHT).clamp_min(0)
    return torch.where(beyond > 0, distance.sign() * (STRAIGHT + torch.asinh(beyond)), distance)


def _stretched(distance: Tensor) -> Tensor:
    beyond = (distance.abs() - STRAIGHT).clamp_min(0)
    return torch.where(beyond > 0, distance.sign() * (STRAIGHT + torch.sinh(beyond)), distance)


def _with_sums(log_odds: Tensor, exact: Tensor) -> Tensor:
    """Return the probabilities of log-odds [n, groups], shifted so that each group's sum is exact."""
    wanted = exact.sum(dim=0)
    low, high = (torch.full_like(wanted, side * 1e4) for side in (-1, 1))
    for _ in range(80):
        middle = (low + high) / 2
        above = (log_odds + middle).sigmoid().sum(dim=0) > wanted
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (log_odds + (low + high) / 2).sigmoid()


def _numbers(output: Tensor, label: Tensor, scale: float, people: Tensor) -> tuple[Tensor, Tensor]:
    """Return smooth differences and means of outputs and labels; means are a line over the differences' ranks."""
    difference, average, count = output - label, (output + label) / 2, len(label)
    smoothed = scale * _stretched(curve(_shrunk(difference / scale), people))
    if not count:
        return smoothed[:, None], average[:, None]
    order = difference.argsort(stable=True)
    sorted_averages = average[order]
    places = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)
    line = sorted_averages.mean().expand(count)
    if len(people.unique()) >= 3 * SHARE:  # enough for three numbers
        slope = (places @ sorted_averages) / places.square().sum()
        line = line + slope * places
        left = (sorted_averages - line).square().mean().sqrt()
        line = line + left * torch.special.ndtri(((torch.arange(count, dtype=torch.float64) + 0.5) * GOLDEN).frac())
    averages = torch.empty_like(average)
    averages[order] = line
    return smoothed[:, None], averages[:, None]
