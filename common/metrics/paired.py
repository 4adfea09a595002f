"""Two models tested on the same rows: how far their metrics are apart, and how sure that is.

A row's influence on a metric is by how much the row moves it; of a mean it is the row's own value. Sites add up squares
of what one row, or all rows of one group, move the *difference* of two models' metrics by. That is all that the
variance of the difference needs: what one model says of a row never travels beside what another one says of it.

What a row moves an AUC by depends on all sites' scores. They come as histograms in which neighbouring bins are spread
out until none is of fewer than `LEAST` rows.

Sources: DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988) 837; K.-Y. Liang and S. L. Zeger, Biometrika 73
(1986) 13 (groups).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

import torch
from torch import Tensor

from rankdad.common.metrics.auc import BINS, areas, class_log_odds, placements, score_bins
from rankdad.common.metrics.sums import Parts, Tally, default_log_odds, parts, shape
from rankdad.common.spec.tasks import Classification, Metric, Regression, TaskSpec

LEAST = 8  # rows of a class behind any part of a histogram that all sites see: what policies ask for by default
EDGE = 25  # bins: to multiples of them the outermost scores are rounded outwards
MAX_RANKED = 30  # outputs; of more, models are compared by loss and accuracy alone
DIGITS = 11  # binary ones of a sum of squares: enough for an interval, too few to solve it for single rows
ROUNDED, SLACK = 0.01, 1e-6  # of sums of squares, which are rounded, once more in a region; of what is not
MOST = 1e290  # of a sum: of a model that diverges squares are no numbers any more, and its interval is endless
NORMAL = NormalDist().inv_cdf(0.975)
WITHIN = "auc_within"  # among measures: of the site's own rows alone
APART = (
    "auc_within_difference"  # among measures: no squares, but the difference itself, which histograms know less well
)
PAIRED, OVER_GROUPS, IN_FOLDS = "paired", " over groups", ", within folds"


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two models on the same rows, with its interval of 95 %.

    Args:
        value: the model's less the other's.
        low: lower end; the value itself where no two rows differ.
        high: upper end.
        method: name of the method.
    """

    value: float
    low: float
    high: float
    method: str


@dataclass(frozen=True, eq=False)
class Rows:
    """What one model says of rows, as far as metrics need it; never sent.

    Args:
        bins: of scores, int64 [n, ranked outputs]; of numbers [n, 0].
        scores: float64, as the bins.
        means: float64 [n, means]: the loss, and how much of a row is right or how far off it is.
    """

    bins: Tensor
    scores: Tensor
    means: Tensor


def compared(task: TaskSpec) -> tuple[Metric, ...]:
    """Return the metrics by which two models are compared, those that are means last."""
    return ("loss", "mae") if isinstance(task, Regression) else ("auc", "loss", "accuracy")


def measures(task: TaskSpec) -> tuple[str, ...]:
    """Return the names of the sums that a site returns of each pair of models."""
    return tuple(compared(task)) if isinstance(task, Regression) else ("auc", WITHIN, APART, "loss", "accuracy")


def ranked(task: TaskSpec) -> int:
    """Return of how many outputs all sites see histograms: of two classes one tells the other."""
    outputs = shape(task).ranked if not isinstance(task, Regression) else 0
    return outputs if outputs <= MAX_RANKED else 0


def rows(task: TaskSpec, outputs: Tensor, labels: Tensor, losses: Tensor, *, base: Tensor | None = None) -> Rows:
    """Return what a model says of rows; for the arguments see `rankdad.common.metrics.tally`."""
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
    """Return histograms [outputs, 2, BINS] that tell of no fewer rows than `least`, float64.

    Neighbouring bins are put together until they hold enough, and what they hold lies evenly around its mean. A bin
    that holds enough by itself stays as it is: many rows may share a score. It is begun where an AUC is decided, with
    the largest scores of negatives and the least of positives. A histogram of fewer rows in all is empty.
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
    """Return from where to where bins are put together: all that are occupied, each part of `least` rows or more."""
    if sum(counts) < least:
        return []
    occupied = [place for place, count in enumerate(counts) if count]
    start, end = occupied[0] // EDGE * EDGE, min(BINS, (occupied[-1] // EDGE + 1) * EDGE)
    found, held = list[tuple[int, int]](), 0
    for place in range(start, end):
        if counts[place] >= least and (found or not held):  # what is before it, and too little, joins the part below
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
    """Return by how much a row of each bin moves the mean AUC, float64 [outputs, 2, BINS].

    Outputs that lack one of both classes have no AUC, and are not in the mean.

    Args:
        scores: [outputs, 2, BINS].
        least: rows of either class that an AUC needs; with fewer of one there is None.
        alone: whether rows are independent: what makes DeLong's variance unbiased for few rows is then put in.
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
    """Return the sums of squared influences on differences from the first model, rounded; and of `APART` these.

    Args:
        task: what is predicted.
        models: what each says of a site's rows, the first of which the others are compared with; None of those that the
            site lacks.
        positive: as `positives` returns it.
        pooled: all sites' histograms [models, ranked outputs, 2, BINS] by `smoothed`; None where this site's rows are
            all that there are, or where AUCs are not compared.
        groups: int64 [n], which group each row is of; None where there are none.

    Returns:
        float64 [models − 1, measures, 1], with groups [models − 1, measures, 2]: sums over groups of the squares of a
        group's sum, and of its sum times its number of rows. What cannot be measured is 0.
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
    """Return every model's influence of each row on the AUC of all sites' rows, and on that of the site's own."""
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
    """Return each row's place among the different scores of its output, and histograms [outputs, 2, n] of these."""
    count, outputs = model.scores.shape
    ranks = torch.zeros_like(model.bins)
    for at in range(outputs):
        ranks[:, at] = model.scores[:, at].unique(return_inverse=True)[1]
    places = ((2 * torch.arange(outputs) + positive) * count + ranks).reshape(-1)
    return ranks, places.bincount(minlength=outputs * 2 * count).reshape(outputs, 2, count)


def _over(moved: Tensor, of: Tensor) -> tuple[float, float]:
    """Return sums over groups: of the squared sums, and of the sums times the numbers of rows."""
    count = int(of.max()) + 1
    sums = torch.zeros(count, dtype=torch.float64).index_add_(0, of, moved)
    return float(sums.square().sum()), float(sums @ of.bincount(minlength=count).double())


def coarse(sums: Tensor) -> Tensor:
    """Return numbers to so many digits that an interval is right, and no row can be solved for."""
    mantissa, exponent = torch.frexp(sums)
    rounded: Tensor = (mantissa * 2**DIGITS).round() / 2**DIGITS
    return rounded * torch.pow(2.0, exponent.double())


def contradiction(task: TaskSpec, sums: Tensor, tests: Sequence[Tally], least: int = LEAST) -> str | None:
    """Return what no rows that were tested so add up to, in words; None where there are such rows.

    Args:
        task: what is predicted.
        sums: float64 [rivals, measures, 1 or 2], as `squares` returns them, or several sites' added up.
        tests: tallies of the same rows' tests, the model's and each rival's. A rival's that is of none is unknown.
        least: rows of either class behind an AUC of all sites' rows.
    """
    for found, other in zip(sums, tests[1:], strict=True):
        if other.samples != tests[0].samples:
            continue
        _, sizes = _groups(parts(task, tests[0]))
        for name, own, (low, high) in zip(measures(task), found, _bounds(task, tests[0], other, least), strict=True):
            square = float(own[0])
            if name == APART:
                if (square and not low <= square <= high) or bool(own[1:].any()):  # a region's is 0
                    return f"the difference of the AUC is {square:g}, expected {low:.6f} to {high:.6f} of these rows"
                continue
            if not low * (1 - ROUNDED) <= square <= high * (1 + ROUNDED):
                return f"the squares of {name} are {square:g}, expected {low:g} to {high:g} of these rows"
            if len(own) > 1 and abs(float(own[1])) > math.sqrt(square) * math.sqrt(sizes) * (1 + ROUNDED):
                return f"a product of {name} is larger than its squares allow"
    return None


def _bounds(task: TaskSpec, model: Tally, other: Tally, least: int) -> list[tuple[float, float]]:
    """Return the least and largest sum of squares of each measure that rows with these tallies have."""
    ours, theirs = parts(task, model), parts(task, other)
    groups, sizes = _groups(ours)
    alone, found = ours.clusters is None, list[tuple[float, float]]()
    if not isinstance(task, Regression):
        counts = histograms(task, model).sum(dim=2).double()
        for fewest in (least, 2):
            number = counts.clamp_min(fewest)  # of all sites' rows: a row's own part is within 2 of it
            each = 4 * counts / number / (number - 1) if alone else 2 * counts / number
            largest = each.sum(dim=1) if alone else each.sum(dim=1).square()
            found.append((0.0, float(largest.max()) if ranked(task) else 0.0))
        found.append(_apart(task, model, other) if ranked(task) else (0.0, 0.0))
    for name, mine, its in zip(compared(task)[-2:], _means(task, ours), _means(task, theirs), strict=True):
        apart, most = max(abs(mine - its) - SLACK * (mine + its), 0.0), mine * mine + its * its
        if name == "accuracy":
            wrong = 2 * ours.samples - mine - its
            most = min(mine + its, wrong) * (1 if alone else math.sqrt(sizes))
        found.append((min(apart * apart / max(groups, 1), MOST), most))
    return found


def _apart(task: TaskSpec, model: Tally, other: Tally) -> tuple[float, float]:
    """Return the least and largest difference of the AUC that rows with these tallies have."""
    ours, theirs = tested_area(task, model, 2), tested_area(task, other, 2)
    if ours is None or theirs is None:
        return 0.0, 0.0
    apart, unsure = ours[0] - theirs[0], ours[1] + theirs[1] + SLACK
    return apart - unsure, apart + unsure


@dataclass(frozen=True)
class Sums:
    """What is known of one pair of models over some rows; two of different rows add up.

    Args:
        rows: how many there are.
        groups: how many groups, or rows where there are none.
        sizes: sum over groups of squared numbers of rows.
        means: by metric that is a mean: sum of differences, of squares over groups, of sums times numbers of rows.
        weight: rows of folds whose AUCs are compared.
        auc: sum over these folds of the difference times the fold's rows.
        auc_square: sum over these folds of its variance times the fold's squared rows.
        folds: how many these are.
        uncompared: rows of folds with too few of a class for that.
    """

    rows: int = 0
    groups: int = 0
    sizes: float = 0.0
    means: tuple[tuple[float, float, float], ...] = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    weight: int = 0
    auc: float = 0.0
    auc_square: float = 0.0
    folds: int = 0
    uncompared: int = 0

    def __add__(self, other: Sums) -> Sums:
        means = tuple((a + d, b + e, c + f) for (a, b, c), (d, e, f) in zip(self.means, other.means, strict=True))
        plain = {
            name: getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__ if name != "means"
        }
        return Sums(**plain, means=means)


def sums_of(task: TaskSpec, model: Tally, other: Tally, found: Tensor, *, least: int, within: bool) -> Sums:
    """Return what is known of a pair of models over one fold's rows.

    Args:
        task: what is predicted.
        model: tally of the first.
        other: tally of the second, of the same rows.
        found: the sums that `squares` returned [measures, 1 or 2], added up over the rows' sites.
        least: rows of either class that an AUC needs.
        within: whether the AUC is that of one site's own rows.
    """
    ours, theirs, names = parts(task, model), parts(task, other), measures(task)
    groups, sizes = _groups(ours)
    totals = [_means(task, one) for one in (ours, theirs)]
    means = []
    for at, (mine, its) in enumerate(zip(*totals, strict=True)):
        own = found[len(names) - len(totals[0]) + at]
        difference = mine - its
        means.append((difference, float(own[0]), float(own[1]) if ours.clusters is not None else difference))
    known = Sums(ours.samples, groups, sizes, tuple(means))
    if isinstance(task, Regression) or not ranked(task):
        return known
    tested = [tested_area(task, one, least) for one in (model, other)]
    if tested[0] is None or tested[1] is None:
        return known + Sums(uncompared=ours.samples)
    factor = groups / (groups - 1) if ours.clusters is not None and groups > 1 else 1.0
    variance, weight = float(found[names.index(WITHIN if within else "auc"), 0]) * factor, ours.samples
    apart = float(found[names.index(APART), 0]) if within else tested[0][0] - tested[1][0]
    return known + Sums(weight=weight, auc=weight * apart, auc_square=weight**2 * variance, folds=1)


def sums_within(found: Sequence[tuple[Sums, Tally]], task: TaskSpec, samples: int) -> Sums:
    """Return what is known of the AUC within sites over one fold's rows: the sites' differences, weighted by pairs.

    Args:
        found: each site's own sums, and the tally of its test.
        task: what is predicted.
        samples: rows of the fold.
    """
    known = [(one, histograms(task, tally).sum(dim=2).double().prod(dim=1).sum()) for one, tally in found if one.weight]
    total = float(sum(pairs for _, pairs in known))
    if not total:
        return Sums(samples, uncompared=samples)
    parts = [(one, samples * float(pairs) / total / one.weight) for one, pairs in known]
    value, square = sum(part * one.auc for one, part in parts), sum(part**2 * one.auc_square for one, part in parts)
    return Sums(samples, weight=samples, auc=value, auc_square=square, folds=1)


def tested_area(task: TaskSpec, total: Tally, least: int) -> tuple[float, float] | None:
    """Return `area` of a test."""
    first = task.outputs - shape(task).ranked
    part = parts(task, total)
    return area(part.scores[first:], least, part.order[first:])


def area(scores: Tensor, least: int, order: Tensor | None = None) -> tuple[float, float] | None:
    """Return the mean AUC of outputs that have one, and its error; None where one of them has too few rows of a class.

    Args:
        scores: [outputs, 2, bins].
        least: rows of a class.
        order: [outputs, 3], see `Parts.order`; None where scores are exact.
    """
    number = scores.sum(dim=2)
    measured = (number > 0).all(dim=1)
    if not measured.any() or bool((number[measured] < least).any()):
        return None
    known = torch.zeros(len(scores), 3) if order is None else order
    found, error, _ = areas(scores[measured], known[measured])
    return float(found.mean()), float(error.mean())


def _groups(part: Parts) -> tuple[int, float]:
    """Return how many groups rows are of, and the sum of their squared numbers of rows."""
    if part.clusters is None:
        return part.samples, float(part.samples)
    values = part.clusters.values[0]
    half = 1 if part.moments else len(values) // 2
    return round(part.clusters.count), float(values[:half, :half].sum())


def _means(task: TaskSpec, part: Parts) -> tuple[float, float]:
    """Return sums over rows: of the loss, and of what is right or how far off numbers are."""
    if isinstance(task, Regression):
        return part.loss, part.moments[5]
    hits = part.confusion.diagonal(dim1=1, dim2=2).sum(dim=1).double().mean()
    return part.loss, float(hits)


def differences(task: TaskSpec, sums: Sums, *, several: bool) -> dict[Metric, Difference]:
    """Return the differences with their intervals; of a metric that cannot be compared none.

    AUCs are compared between rows of one fold, and the mean over folds is by their rows. All else is a mean over rows.

    Args:
        task: what is predicted.
        sums: of all rows.
        several: whether there is more than one fold.
    """
    found = dict[Metric, Difference]()
    over = OVER_GROUPS if sums.groups < sums.rows or sums.sizes > sums.rows else ""
    if sums.weight and not sums.uncompared:
        value, error = sums.auc / sums.weight, math.sqrt(max(sums.auc_square, 0.0)) / sums.weight
        found["auc"] = _difference(value, error, f"{PAIRED} DeLong{over}{IN_FOLDS if several else ''}", 1.0)
    for name, (total, square, sized) in zip(compared(task)[-2:], sums.means, strict=True):
        if sums.groups < 2:
            continue
        mean = total / sums.rows
        left = square - 2 * mean * sized + mean**2 * sums.sizes
        variance = max(left, 0.0) * sums.groups / (sums.groups - 1) / sums.rows**2
        most = 1.0 if name == "accuracy" else math.inf
        found[name] = _difference(mean, math.sqrt(variance), f"{PAIRED} differences{over}", most)
    return found


def _difference(value: float, error: float, method: str, most: float = math.inf) -> Difference:
    low, high = max(-most, value - NORMAL * error), min(most, value + NORMAL * error)
    return Difference(value, low, high, method)


def mean_differences(found: Iterable[dict[Metric, Difference]]) -> dict[Metric, Difference]:
    """Return differences whose values and ends are the means of those of the repetitions: see `mean_intervals`."""
    repeats = list(found)
    if len(repeats) == 1:
        return repeats[0]
    return {
        name: Difference(
            fmean(one[name].value for one in repeats),
            fmean(one[name].low for one in repeats),
            fmean(one[name].high for one in repeats),
            f"{first.method}, mean of {len(repeats)} repeats",
        )
        for name, first in repeats[0].items()
        if all(name in one for one in repeats)
    }
