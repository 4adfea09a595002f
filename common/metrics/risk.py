"""Curves, thresholds, calibration and net benefit of predicted risks, from one output's two histograms.

Counts at edges between bins are exact: named thresholds are moved to the nearest edge, by at most half a bin. Values
that depend on positions within bins come with their largest error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from rankdad.common.metrics.auc import COVERS, MOST_OFF, areas, bin_edges
from rankdad.common.metrics.clusters import Pairs
from rankdad.common.metrics.intervals import QUANTILE, auc_deviation, wilson
from rankdad.common.metrics.recalibration import Estimate, recalibrated, recalibrations
from rankdad.common.metrics.repeats import mean_document
from rankdad.common.metrics.sums import CALIBRATED

RISKS = (0.05, 0.1, 0.2, 0.3, 0.5)  # named thresholds
GROUPS = 10  # of the calibration plot
THRESHOLDS = 1000  # least samples for thresholds on smooth scores: with fewer, errors were up to .1
JOINT = NormalDist().inv_cdf(0.5 + 0.95**0.5 / 2)  # two independent intervals with a joint level of 95 %


@dataclass(frozen=True, eq=False)
class Risks:
    """The predictions of one outcome.

    Args:
        edges: float64 [BINS + 1], edges of the bins in log-odds.
        negatives: float64 [BINS], number of samples without the outcome in each bin.
        positives: float64 [BINS], number with it.
        effects: factors by which groups increase the variance of a metric at each edge, float64 [BINS + 1] each.
        pairs: of samples within groups; None without groups, or if unknown.
    """

    edges: Tensor
    negatives: Tensor
    positives: Tensor
    effects: Mapping[str, Tensor] = field(default_factory=dict)
    pairs: Pairs | None = None

    @classmethod
    def of(cls, scores: Tensor, base: float, pairs: Pairs | None = None) -> Risks:
        """Create the risks from an output's histograms [2, BINS] around its base."""
        return replace(cls.plain(scores, base, pairs), effects={} if pairs is None else pairs.at_edges())

    @classmethod
    def plain(cls, scores: Tensor, base: float, pairs: Pairs | None = None) -> Risks:
        """Return the same without `effects`."""
        return cls(bin_edges(base), scores[0].double(), scores[1].double(), pairs=pairs)

    @property
    def counts(self) -> tuple[float, float]:
        """Number of samples without the outcome, and with it."""
        return float(self.negatives.sum()), float(self.positives.sum())

    @property
    def above(self) -> tuple[Tensor, Tensor]:
        """Number of negatives and positives at or above each edge, [BINS + 1]."""
        negatives, positives = (
            torch.cat([one.flip(0).cumsum(0).flip(0), torch.zeros(1)]) for one in (self.negatives, self.positives)
        )
        return negatives, positives

    def effect(self, figure: str) -> Tensor:
        """Return the factor by which groups increase a metric's variance at each edge, [BINS + 1]."""
        return self.effects.get(figure, torch.ones_like(self.edges))


@dataclass(frozen=True, eq=False)
class Curve:
    """A curve with a band that contains both coordinates at each threshold with 95 %.

    Args:
        x, y: of the points.
        low: lower limit of the band, its x and y.
        high: upper limit.
    """

    x: Tensor
    y: Tensor
    low: tuple[Tensor, Tensor]
    high: tuple[Tensor, Tensor]


def roc(risks: Risks) -> Curve:
    """Return sensitivity (y) against 1 − specificity (x), from no positive prediction to all."""
    false, true = (one.flip(0) for one in risks.above)
    negatives, positives = risks.counts
    specificity, sensitivity = (risks.effect(name).flip(0) for name in ("specificity", "sensitivity"))
    (x_low, x_high) = _at_once(false, negatives, specificity)
    (y_low, y_high) = _at_once(true, positives, sensitivity)
    return Curve(false / max(negatives, 1), true / max(positives, 1), (x_high, y_low), (x_low, y_high))


def precision_recall(risks: Risks) -> Curve:
    """Return precision (y) against sensitivity (x), at thresholds with positive predictions."""
    false, true = (one.flip(0) for one in risks.above)
    some = true + false > 0
    sensitivity, ppv = (risks.effect(name).flip(0)[some] for name in ("sensitivity", "ppv"))
    false, true = false[some], true[some]
    positives = risks.counts[1]
    (x_low, x_high) = _at_once(true, positives, sensitivity)
    (y_low, y_high) = _at_once(true, true + false, ppv)
    return Curve(true / max(positives, 1), true / (true + false), (x_low, y_low), (x_high, y_high))


def _at_once(hits: Tensor, counts: Tensor | float, effect: Tensor) -> tuple[Tensor, Tensor]:
    return wilson(hits / effect, torch.as_tensor(counts, dtype=torch.float64).expand_as(hits) / effect, JOINT)


def average_precision(risks: Risks) -> tuple[float, float] | None:
    """Return the mean of precisions over recall, and its largest error; None without positives."""
    false, true = risks.above
    added, positives = risks.positives, risks.counts[1]
    if not positives:
        return None
    whole = true[:-1] / (true + false)[:-1].clamp_min(1)
    first = true[1:] + 1  # a bin's negatives before its positives, and the reverse
    low = first / (first + false[:-1])
    high = true[:-1] / (true[:-1] + false[1:]).clamp_min(1)
    value, least, most = (float((added * one).sum() / positives) for one in (whole, low, high))
    return value, max(most - value, value - least, 0.0)


def threshold(risks: Risks, edge: int, name: str, called: tuple[float, float] | None = None) -> dict[str, Any]:
    """Return the figures of calling a risk at or above an edge positive, each with Wilson's interval.

    Args:
        risks: of all samples.
        edge: number of the edge.
        name: why this one.
        called: negatives and positives above a risk of 1/2, to which the edge is the nearest; None counts at the edge.
    """
    negatives, positives = risks.counts
    false, true = _above(risks, edge) if called is None else called
    pairs_of = {
        "sensitivity": (true, positives),
        "specificity": (negatives - false, negatives),
        "ppv": (true, true + false),
        "npv": (negatives - false, negatives + positives - true - false),
        "flagged": (true + false, negatives + positives),
    }
    figures: dict[str, Any] = {"name": name, "risk": float(risks.edges[edge].sigmoid()) if called is None else 0.5}
    for figure, (hits, count) in pairs_of.items():
        ends = wilson(*(torch.tensor([hits, count], dtype=torch.float64) / risks.effect(figure)[edge]))
        low, high = map(float, ends)
        figures[figure] = {"value": hits / count, "low": low, "high": high} if count else None
    return figures


def _above(risks: Risks, edge: int) -> tuple[float, float]:
    """Return how many negatives and positives are at or above an edge."""
    false, true = (float(one[edge]) for one in risks.above)
    return false, true


def _half(risks: Risks) -> int:
    """Return the edge that is nearest to a risk of 1/2."""
    return int(risks.edges.abs().argmin())


def thresholds(risks: Risks, called: tuple[float, float] | None = None) -> list[dict[str, Any]]:
    """Return the figures of named thresholds, in the order of their risks; none unless there are both outcomes.

    They are fixed risks, and those that the tests themselves choose: Youden's largest sum of sensitivity and
    specificity, and the ones where either is first 90 %.

    Args:
        risks: of all samples.
        called: negatives and positives above a risk of 1/2, where it is known: then that threshold is exact.
    """
    negatives, positives = risks.counts
    if not negatives or not positives:
        return []
    sensitivity, specificity = risks.above[1] / positives, 1 - risks.above[0] / negatives
    edges = {
        f"risk of {100 * risk:.0f} %": int((risks.edges - math.log(risk / (1 - risk))).abs().argmin()) for risk in RISKS
    }
    edges["largest Youden index"] = int((sensitivity + specificity).argmax())
    edges["sensitivity of 90 %"] = int((sensitivity >= 0.9).nonzero().max())
    edges["specificity of 90 %"] = int((specificity >= 0.9).nonzero().min())
    half = "risk of 50 %"
    found = [threshold(risks, edge, name, called if name == half else None) for name, edge in edges.items()]
    return sorted(found, key=lambda one: float(one["risk"]))


def off_at_half(risks: Risks, called: tuple[float, float] | None) -> dict[str, float] | None:
    """Return by how much smooth scores put sensitivity and specificity off at a risk of 1/2, where both are known."""
    negatives, positives = risks.counts
    if called is None or not negatives or not positives:
        return None
    false, true = _above(risks, _half(risks))
    return {"sensitivity": abs(true - called[1]) / positives, "specificity": abs(false - called[0]) / negatives}


def calibration_groups(risks: Risks, fewest: int = 1) -> list[dict[str, float]]:
    """Return predicted and observed risk of about ten groups of neighbouring bins of equal size.

    Args:
        risks: of all samples.
        fewest: least number of samples in a group; with fewer in total there is no group.

    Returns:
        For each group `predicted`, its largest `error`, `observed` with Wilson's `low` and `high`, and `count`.
    """
    both, points = risks.negatives + risks.positives, risks.edges.sigmoid()
    total = both.sum()
    if total < fewest or not total:
        return []
    place = ((both.cumsum(0) - both / 2) / total * GROUPS).long().clamp_max(GROUPS - 1)
    if fewest > 1:
        place = _merged(place, both, fewest)
    middle, half = (points[1:] + points[:-1]) / 2, (points[1:] - points[:-1]) / 2
    sums = torch.zeros(4, GROUPS, dtype=torch.float64)
    sums.index_add_(1, place, torch.stack([both, risks.positives, both * middle, both * half]))
    effect = torch.ones(GROUPS, dtype=torch.float64)
    if risks.pairs is not None:
        members = (place == torch.arange(GROUPS).unsqueeze(1)).double().unsqueeze(1).expand(-1, 2, -1)
        effect = risks.pairs.design_effects(members * torch.tensor([[0.0], [1.0]]), members)
    low, high = wilson(sums[1] / effect, sums[0] / effect)
    return [
        {
            "predicted": float(sums[2, at] / sums[0, at]),
            "error": float(sums[3, at] / sums[0, at]),
            "observed": float(sums[1, at] / sums[0, at]),
            "low": float(low[at]),
            "high": float(high[at]),
            "count": round(float(sums[0, at])),
        }
        for at in range(GROUPS)
        if sums[0, at]
    ]


def _merged(place: Tensor, counts: Tensor, fewest: int) -> Tensor:
    """Join groups of too few samples with the following ones, the last one with the one before."""
    sizes, to, held = torch.zeros(GROUPS).double().index_add_(0, place, counts).tolist(), [0] * GROUPS, 0.0
    group = 0
    for at, size in enumerate(sizes):
        to[at], held = group, held + size
        if held >= fewest:
            group, held = group + 1, 0.0
    if held and group:
        to = [min(one, group - 1) for one in to]
    return torch.tensor(to)[place]


def recalibration(risks: Risks) -> dict[str, Estimate]:
    """Return the calibration of log-odds; see `recalibrations`."""
    return recalibrations(risks.edges, risks.negatives[None], risks.positives[None], [risks.pairs])[0]


def net_benefit(risks: Risks) -> dict[str, Tensor]:
    """Return the decision curve at every edge's risk: of the model, and of treating all; treating nobody is 0.

    Net benefit is (true positives − false positives · risk / (1 − risk)) / samples: the value of acting on positive
    predictions if a false alarm costs as much as the odds of the risk.

    Source: A. J. Vickers and E. B. Elkin, Medical Decision Making 26 (2006) 565.
    """
    (negatives, positives), (false, true) = risks.counts, risks.above
    odds, total = risks.edges.exp(), max(negatives + positives, 1.0)
    return {
        "risk": risks.edges.sigmoid(),
        "model": (true - false * odds) / total,
        "all": (positives - negatives * odds) / total,
    }


def risk_summary(
    risks: Risks, brier: float, order: Tensor | None = None, called: tuple[float, float] | None = None
) -> dict[str, Any]:
    """Return what a page says of an outcome, as JSON.

    Args:
        risks: of all samples.
        brier: their sum of squared errors.
        order: float64 [3], the outcome's own; see `Parts.order`.
        called: see `thresholds`.
    """
    (negatives, positives), scores = risks.counts, torch.stack([risks.negatives, risks.positives])[None]
    samples, smooth = negatives + positives, order is not None and bool(order[2])
    (found,), (off,), (number,) = areas(scores, torch.zeros(1, 3) if order is None else order[None])
    area, error = (float(one) if number else None for one in (found, off))
    area = area if error is None or error <= MOST_OFF else None
    deviation = auc_deviation(scores[0], risks.pairs)
    precision = None if smooth else average_precision(risks)  # smooth scores put it off by up to .1
    prevalence, value = positives / samples, brier / samples
    guess = prevalence * (1 - prevalence)
    known = area is not None and deviation > 0
    if known and error is not None and smooth:
        deviation = math.hypot(deviation, error / COVERS)
    return {
        "samples": round(samples),
        "events": round(positives),
        "auc": area,
        "auc_error": error,
        "auc_interval": [min(1.0, max(0.0, area + side * QUANTILE * deviation)) for side in (-1, 1)]
        if area is not None and known
        else None,
        "average_precision": precision and precision[0],
        "average_precision_error": precision and precision[1],
        "brier": value,
        **_brier_interval(risks, value),
        "brier_of_prevalence": guess,
        "brier_skill": 1 - value / guess if guess else None,
        "recalibration": recalibrated(recalibration(risks), vague=smooth and samples < CALIBRATED, smooth=smooth),
        "calibration_groups": calibration_groups(risks),
        "thresholds": [] if smooth and samples < THRESHOLDS else thresholds(risks, called),
        "thresholds_off": off_at_half(risks, called) if smooth and samples >= THRESHOLDS else None,
    }


def mean_risk_summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of results over repetitions of a cross-validation, with thresholds matched by name."""
    named = [one | {"thresholds": {row["name"]: row for row in one["thresholds"]}} for one in found]
    mean: dict[str, Any] = mean_document(named)
    rows = sorted(mean["thresholds"].values(), key=lambda row: float(row["risk"]))
    return mean | {"thresholds": rows}


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the mean height of curves at each position, whose area is the mean of their areas; also for bands."""
    if len(curves) == 1:
        return curves[0]
    x, y = _mean_line([(one.x, one.y) for one in curves])
    low, high = (_mean_line([getattr(one, name) for one in curves]) for name in ("low", "high"))
    return Curve(x, y, low, high)


def _mean_line(lines: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the mean of monotonic lines, which may have vertical parts."""
    places = torch.cat([x for x, _ in lines]).unique()
    first, last = torch.zeros(2, len(places), dtype=torch.float64)
    for x, y in lines:
        before, after = torch.searchsorted(x, places), torch.searchsorted(x, places, right=True)
        right, left = before.clamp_max(len(x) - 1), (after - 1).clamp_min(0)
        share = ((places - x[left]) / (x[right] - x[left]).clamp_min(1e-300)).clamp(0, 1)
        between = y[left] + share * (y[right] - y[left])
        there = after > before
        first += torch.where(there, y[right], between) / len(lines)
        last += torch.where(there, y[left], between) / len(lines)
    return places.repeat_interleave(2), torch.stack([first, last], 1).flatten()


def _brier_interval(risks: Risks, value: float) -> dict[str, list[float]]:
    """Return the interval of a mean squared error for samples in groups; none otherwise, as the variance is unknown."""
    if risks.pairs is None:
        return {}
    middle = ((risks.edges[1:] + risks.edges[:-1]) / 2).sigmoid()
    squares = torch.stack([middle.square(), (1 - middle).square()])
    number = risks.pairs.counts.sum()
    influence = (squares - (risks.pairs.counts * squares).sum() / number) / number
    alone = (risks.pairs.counts * influence.square()).sum()
    half = QUANTILE * float(((alone + risks.pairs.added(influence)) * risks.pairs.factor).clamp_min(0).sqrt())
    return {"brier_interval": [max(0.0, value - half), min(1.0, value + half)]}
