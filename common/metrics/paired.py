"""Compares two models on the same rows: a site's sums for the interval of their difference.

A row's influence on a metric is the change by that row; for a mean it is the row's value. Sites sum the squared
influences of rows, or of groups of rows, on the *difference* of two models' metrics. The variance of the difference
needs no more: the outputs of two models for a row are never sent together.

A row's influence on an AUC depends on all sites' scores. These are sent as histograms in which neighbouring bins are
merged until each has at least `LEAST` rows.
Source: DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988) 837.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankdad.common.metrics.auc import BINS, areas, class_log_odds, placements, score_bins
from rankdad.common.metrics.sums import Tally, default_log_odds, parts, shape
from rankdad.common.spec.tasks import Classification, Metric, Regression, TaskSpec

LEAST = 8  # rows of a class behind any bin that all sites receive: the default of policies
EDGE = 25  # bins: the outermost scores are rounded outwards to multiples of it
MAX_RANKED = 30  # outputs; with more, models are compared only by loss and accuracy
DIGITS = 11  # binary digits of a sum of squares: enough for an interval, too few to solve for single rows
MOST = 1e290  # of a sum: squares of a diverging model overflow, and its interval is infinite
WITHIN = "auc_within"  # measure: over the site's own rows
APART = "auc_within_difference"  # measure: the difference itself, more precise than from histograms


@dataclass(frozen=True, eq=False)
class Rows:
    """One model's results for rows, as needed by metrics; never sent.

    Args:
        bins: of scores, int64 [n, ranked outputs]; for regression [n, 0].
        scores: float64, shaped like the bins.
        means: float64 [n, means]: the loss, and whether a row is right or its error.
    """

    bins: Tensor
    scores: Tensor
    means: Tensor


def compared(task: TaskSpec) -> tuple[Metric, ...]:
    """Return the metrics for comparing two models, with means last."""
    return ("loss", "mae") if isinstance(task, Regression) else ("auc", "loss", "accuracy")


def measures(task: TaskSpec) -> tuple[str, ...]:
    """Return the names of the sums that a site sends for each pair of models."""
    return tuple(compared(task)) if isinstance(task, Regression) else ("auc", WITHIN, APART, "loss", "accuracy")


def ranked(task: TaskSpec) -> int:
    """Return the number of outputs with histograms; with two classes, one determines the other."""
    outputs = shape(task).ranked if not isinstance(task, Regression) else 0
    return outputs if outputs <= MAX_RANKED else 0


def rows(task: TaskSpec, outputs: Tensor, labels: Tensor, losses: Tensor, *, base: Tensor | None = None) -> Rows:
    """Return a model's results for rows; see `rankdad.common.metrics.sums.tally` for the arguments."""
    outputs, labels, losses = outputs.detach().cpu().double(), labels.detach().cpu(), losses.detach().cpu().double()
    if isinstance(task, Regression):
        error = (outputs.reshape(-1) - labels.double().reshape(-1)).abs()
        none = torch.zeros(len(labels), 0, dtype=torch.int64)
        return Rows(none, none.double(), torch.stack([losses, error], dim=1))
    if isinstance(task, Classification):
        log_odds, right = class_log_odds(outputs), (outputs.softmax(dim=1).argmax(dim=1) == labels).double()
    else:
        log_odds, right = outputs, ((outputs > 0) == (labels > 0.5)).double().mean(dim=1)
    bins = score_bins(log_odds - (default_log_odds(task) if base is None else base.cpu()))
    first = task.outputs - shape(task).ranked
    return Rows(bins[:, first:], log_odds[:, first:], torch.stack([losses, right], dim=1))


def positives(task: TaskSpec, labels: Tensor) -> Tensor:
    """Return whether each row is a positive of each ranked output, bool [n, ranked outputs]."""
    if isinstance(task, Regression):
        return torch.zeros(len(labels), 0, dtype=torch.bool)
    if isinstance(task, Classification):
        return (labels.unsqueeze(1) == torch.arange(task.classes))[:, task.outputs - shape(task).ranked :]
    return labels > 0.5


def histograms(task: TaskSpec, total: Tally) -> Tensor:
    """Return a tally's histograms of the ranked outputs, int64 [ranked outputs, 2, BINS]."""
    return parts(task, total).scores[task.outputs - shape(task).ranked :]


def smoothed(scores: Tensor, least: int = LEAST) -> Tensor:
    """Return histograms [outputs, 2, BINS] in which no bin has fewer rows than `least`, float64.

    Neighbouring bins are merged until they have enough rows, which are spread evenly around their mean. A bin with
    enough rows is unchanged, because many rows may share a score. Merging starts where it affects the AUC most: with
    the largest scores of negatives and the smallest of positives. A histogram with fewer rows in total is empty.
    """
    return torch.stack(
        [torch.stack([_spread(one[0].flip(0), least).flip(0), _spread(one[1], least)]) for one in scores]
    )


def _spread(histogram: Tensor, least: int) -> Tensor:
    """Return one histogram [BINS], smoothed from below."""
    made = torch.zeros(BINS, dtype=torch.float64)
    for low, high in _divided(histogram.tolist(), least):
        held, places = histogram[low:high].double(), torch.arange(low, high) + 0.5
        number = held.sum()
        middle = float((held * places).sum() / number)
        first, last = (low, round(2 * middle - low)) if 2 * middle < low + high else (round(2 * middle - high), high)
        first, last = max(low, min(first, high - 1)), min(high, max(last, first + 1))
        made[first:last] = number / (last - first)
    return made


def _divided(counts: list[int], least: int) -> list[tuple[int, int]]:
    """Return the ranges of bins to merge: all occupied bins, at least `least` rows in each range."""
    if sum(counts) < least:
        return []
    occupied = [place for place, count in enumerate(counts) if count]
    start, end = occupied[0] // EDGE * EDGE, min(BINS, (occupied[-1] // EDGE + 1) * EDGE)
    found, held = list[tuple[int, int]](), 0
    for place in range(start, end):
        if counts[place] >= least and (found or not held):  # too few rows before it join the range below
            if held:
                found[-1] = found[-1][0], place
            found.append((place, place + 1))
            start, held = place + 1, 0
            continue
        held += counts[place]
        if held >= least:
            found.append((start, place + 1))
            start, held = place + 1, 0
    return [*found[:-1], (found[-1][0], end)] if held else found


def influences(scores: Tensor, least: int = 2, *, alone: bool = True) -> Tensor | None:
    """Return the influence of a row in each bin on the mean AUC, float64 [outputs, 2, BINS].

    Outputs without both classes have no AUC, and are not in the mean.

    Args:
        scores: [outputs, 2, BINS].
        least: rows of each class that an AUC needs; None is returned if there are fewer.
        alone: whether rows are independent, to make DeLong's variance unbiased for few rows.
    """
    number = scores.sum(dim=2).double()
    measured = (number > 0).all(dim=1)
    if not measured.any() or bool((number[measured] < least).any()):
        return None
    moves = placements(scores) * measured[:, None, None] / measured.sum()
    return moves * (number / (number - 1).clamp_min(1)).sqrt()[:, :, None] if alone else moves


def squares(
    task: TaskSpec,
    models: Sequence[Rows | None],
    positive: Tensor,
    pooled: Tensor | None,
    groups: Tensor | None = None,
) -> Tensor:
    """Return the rounded sums of squared influences on differences from the first model; for `APART` the differences.

    Args:
        task: what is predicted.
        models: results for a site's rows; others are compared with the first. None for models that the site lacks.
        positive: from `positives`.
        pooled: all sites' histograms [models, ranked outputs, 2, BINS] from `smoothed`; None for a comparison on this
            site's rows alone, or without AUCs.
        groups: group of each row, int64 [n]; None without groups.

    Returns:
        float64 [models − 1, measures, 1], with groups [models − 1, measures, 2]: sums over groups of the squares of a
        group's sum, and of its sum times its number of rows. Unavailable measures are 0.
    """
    first, count = models[0], len(positive)
    names, of = measures(task), torch.arange(count) if groups is None else groups.cpu().unique(return_inverse=True)[1]
    found = torch.zeros(len(models) - 1, len(names), 1 if groups is None else 2, dtype=torch.float64)
    if not count or first is None:
        return found
    ranks = ranked(task) > 0
    weigh = _weights(models, positive, pooled, alone=groups is None) if ranks else None
    for place, other in enumerate(models[1:], 1):
        if other is None:
            continue
        moved = dict.fromkeys(names, torch.zeros(count, dtype=torch.float64))
        moved |= {
            name: first.means[:, at] - other.means[:, at] for at, name in enumerate(names[-first.means.shape[1] :])
        }
        for at, name in enumerate(("auc", WITHIN) if weigh is not None else ()):
            ours, theirs = (None, None) if weigh is None else (weigh[at][0], weigh[at][place])
            if ours is not None and theirs is not None:
                moved[name] = ours - theirs
        for at, name in enumerate(names):
            found[place - 1, at] = torch.tensor(_over(moved[name], of))[: found.shape[2]]
    found = coarse(found.nan_to_num(MOST, MOST, -MOST).clamp(-MOST, MOST))
    exact = [None if one is None or not ranks else area(_by_rank(one, positive)[1], 2) for one in models]
    for place, its in enumerate(exact[1:]):
        if exact[0] is not None and its is not None:
            found[place, names.index(APART), 0] = exact[0][0] - its[0]
    return found


def _weights(
    models: Sequence[Rows | None], positive: Tensor, pooled: Tensor | None, *, alone: bool
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Return every model's influence of each row on the AUC of all sites' rows, and of the site's own."""
    everywhere, here = list[Tensor | None](), list[Tensor | None]()
    place, kinds = torch.arange(positive.shape[1]), positive.long()
    for at, model in enumerate(models):
        if model is None:
            everywhere.append(None)
            here.append(None)
            continue
        own = _by_rank(model, positive)
        seen = own if pooled is None else (model.bins, pooled[at])
        for made, (bins, scores) in ((everywhere, seen), (here, own)):
            moves = influences(scores, alone=alone)
            made.append(None if moves is None else moves[place, kinds, bins].sum(dim=1))
    return everywhere, here


def _by_rank(model: Rows, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rank of each row's score among an output's different scores, and their histograms [outputs, 2, n]."""
    count, outputs = model.scores.shape
    ranks = torch.zeros_like(model.bins)
    for at in range(outputs):
        ranks[:, at] = model.scores[:, at].unique(return_inverse=True)[1]
    places = ((2 * torch.arange(outputs) + positive) * count + ranks).reshape(-1)
    return ranks, places.bincount(minlength=outputs * 2 * count).reshape(outputs, 2, count)


def _over(moved: Tensor, of: Tensor) -> tuple[float, float]:
    """Return sums over groups: of squared sums, and of sums times numbers of rows."""
    count = int(of.max()) + 1
    sums = torch.zeros(count, dtype=torch.float64).index_add_(0, of, moved)
    return float(sums.square().sum()), float(sums @ of.bincount(minlength=count).double())


def coarse(sums: Tensor) -> Tensor:
    """Round numbers so that intervals are still accurate, but single rows cannot be solved for."""
    mantissa, exponent = torch.frexp(sums)
    rounded: Tensor = (mantissa * 2**DIGITS).round() / 2**DIGITS
    return rounded * torch.pow(2.0, exponent.double())


def area(scores: Tensor, least: int, order: Tensor | None = None) -> tuple[float, float] | None:
    """Return the mean AUC of outputs and its error; None if one of them has too few rows of a class.

    Args:
        scores: [outputs, 2, bins].
        least: rows of a class.
        order: [outputs, 3], see `Parts.order`; None for exact scores.
    """
    number = scores.sum(dim=2)
    measured = (number > 0).all(dim=1)
    if not measured.any() or bool((number[measured] < least).any()):
        return None
    known = torch.zeros(len(scores), 3) if order is None else order
    found, error, _ = areas(scores[measured], known[measured])
    return float(found.mean()), float(error.mean())
