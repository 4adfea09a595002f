"""The difference of two models' metrics, from the sites' sums over the same rows; see `paired`.

Source: K.-Y. Liang and S. L. Zeger, Biometrika 73 (1986) 13 (groups).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from rankdad.common.metrics.intervals import OVER_GROUPS, QUANTILE
from rankdad.common.metrics.paired import APART, LEAST, MOST, WITHIN, area, compared, histograms, measures, ranked
from rankdad.common.metrics.sums import Parts, Tally, parts, shape
from rankdad.common.spec.tasks import Metric, Regression, TaskSpec

ROUNDED, SLACK = 0.01, 1e-6  # relative tolerance of sums of squares, which are rounded, and of others
PAIRED, IN_FOLDS = "paired", ", within folds"


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two models on the same rows, with its 95 % interval.

    Args:
        value: the model's minus the other's.
        low: lower end; equal to the value if all rows agree.
        high: upper end.
        method: name of the method.
    """

    value: float
    low: float
    high: float
    method: str


def contradiction(task: TaskSpec, sums: Tensor, tests: Sequence[Tally], least: int = LEAST) -> str | None:
    """Return why no rows with these tallies can have these sums; None if some can.

    Args:
        task: what is predicted.
        sums: float64 [rivals, measures, 1 or 2], from `squares`, possibly added over sites.
        tests: tallies of the same rows' tests, the model's and each rival's. An empty tally is unknown.
        least: rows of each class behind an AUC over all sites' rows.
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
    """Return the smallest and largest sum of squares of each measure for rows with these tallies."""
    ours, theirs = parts(task, model), parts(task, other)
    groups, sizes = _groups(ours)
    alone, found = ours.clusters is None, list[tuple[float, float]]()
    if not isinstance(task, Regression):
        counts = histograms(task, model).sum(dim=2).double()
        for fewest in (least, 2):
            number = counts.clamp_min(fewest)  # of all sites' rows: a row's own part differs by at most 2
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
    """Return the smallest and largest difference of the AUC for rows with these tallies."""
    ours, theirs = tested_area(task, model, 2), tested_area(task, other, 2)
    if ours is None or theirs is None:
        return 0.0, 0.0
    apart, unsure = ours[0] - theirs[0], ours[1] + theirs[1] + SLACK
    return apart - unsure, apart + unsure


@dataclass(frozen=True)
class Sums:
    """Sums for one pair of models over some rows; sums over different rows can be added.

    Args:
        rows: their number.
        groups: number of groups, or of rows without groups.
        sizes: sum over groups of squared numbers of rows.
        means: by metric that is a mean: sum of differences, of squares over groups, of sums times numbers of rows.
        weight: rows of folds with comparable AUCs.
        auc: sum over these folds of the difference times the fold's rows.
        auc_square: sum over these folds of its variance times the fold's squared rows.
        folds: number of these folds.
        uncompared: rows of folds with too few rows of a class.
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
    """Return the sums for a pair of models over one fold's rows.

    Args:
        task: what is predicted.
        model: tally of the first.
        other: tally of the second, over the same rows.
        found: sums from `squares` [measures, 1 or 2], added over the rows' sites.
        least: rows of each class that an AUC needs.
        within: whether the AUC is over one site's rows.
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
    """Return the sums of the AUC within sites over one fold's rows: the sites' differences, weighted by pairs.

    Args:
        found: each site's sums, and the tally of its test.
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


def _groups(part: Parts) -> tuple[int, float]:
    """Return the number of groups, and the sum of their squared numbers of rows."""
    if part.clusters is None:
        return part.samples, float(part.samples)
    values = part.clusters.values[0]
    half = 1 if part.moments else len(values) // 2
    return round(part.clusters.count), float(values[:half, :half].sum())


def _means(task: TaskSpec, part: Parts) -> tuple[float, float]:
    """Return sums over rows: of the loss, and of correct predictions or errors."""
    if isinstance(task, Regression):
        return part.loss, part.moments[5]
    hits = part.confusion.diagonal(dim1=1, dim2=2).sum(dim=1).double().mean()
    return part.loss, float(hits)


def differences(task: TaskSpec, sums: Sums, *, several: bool) -> dict[Metric, Difference]:
    """Return the differences with their intervals; metrics that cannot be compared are omitted.

    AUCs are compared within folds, and averaged over folds by rows. All others are means over rows.

    Args:
        task: what is predicted.
        sums: over all rows.
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
    low, high = max(-most, value - QUANTILE * error), min(most, value + QUANTILE * error)
    return Difference(value, low, high, method)
