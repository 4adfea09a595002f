"""What predicted risks are worth: curves, thresholds, calibration and net benefit, from one output's two histograms.

A threshold that is an edge between bins has exact counts: named thresholds are moved to the nearest edge, by at most
half a bin. What depends on where scores lie within their bins comes with the largest error that this makes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from rankdad.common.metrics.auc import bin_edges, pairs
from rankdad.common.metrics.clusters import Pairs
from rankdad.common.metrics.intervals import QUANTILE, auc_deviation, wilson

RISKS = (0.05, 0.1, 0.2, 0.3, 0.5)  # named thresholds
GROUPS = 10  # of the calibration plot
JOINT = NormalDist().inv_cdf(0.5 + 0.95**0.5 / 2)  # two independent intervals hold both at once with 95 %
STEPS = 60  # of Newton's method
STEEPEST = 1e3  # a larger slope is that of classes that are told apart without error


@dataclass(frozen=True, eq=False)
class Risks:
    """The predictions of one outcome.

    Args:
        edges: float64 [BINS + 1], log-odds between which the bins lie.
        negatives: float64 [BINS], how many samples without the outcome each bin holds.
        positives: float64 [BINS], how many with it.
        effects: of samples in groups, by how many times that makes the variance of a figure larger at every edge,
            float64 [BINS + 1] each.
        pairs: of samples of one group; None where there are no groups, or nobody knows.
    """

    edges: Tensor
    negatives: Tensor
    positives: Tensor
    effects: Mapping[str, Tensor] = field(default_factory=dict)
    pairs: Pairs | None = None

    @classmethod
    def of(cls, scores: Tensor, base: float, pairs: Pairs | None = None) -> Risks:
        """Return those of an output's histograms [2, BINS] around its base."""
        effects = {} if pairs is None else pairs.at_edges()
        return cls(bin_edges(base), scores[0].double(), scores[1].double(), effects, pairs)

    @property
    def counts(self) -> tuple[float, float]:
        """How many samples are without the outcome, and how many with it."""
        return float(self.negatives.sum()), float(self.positives.sum())

    @property
    def above(self) -> tuple[Tensor, Tensor]:
        """How many negatives and positives are at or above every edge, [BINS + 1]."""
        negatives, positives = (
            torch.cat([one.flip(0).cumsum(0).flip(0), torch.zeros(1)]) for one in (self.negatives, self.positives)
        )
        return negatives, positives

    def effect(self, figure: str) -> Tensor:
        """Return by how many times groups make a figure's variance larger at every edge, [BINS + 1]."""
        return self.effects.get(figure, torch.ones_like(self.edges))


@dataclass(frozen=True, eq=False)
class Curve:
    """A curve with a band: within it lie, at every threshold, both coordinates with 95 %.

    Args:
        x, y: of the points.
        low: the band's lower limit, its x and its y.
        high: its upper limit.
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
    """Return precision (y) against sensitivity (x), where anything is predicted."""
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
    first = true[1:] + 1  # a bin's negatives before its positives, and the other way round
    low = first / (first + false[:-1])
    high = true[:-1] / (true[:-1] + false[1:]).clamp_min(1)
    value, least, most = (float((added * one).sum() / positives) for one in (whole, low, high))
    return value, max(most - value, value - least, 0.0)


def threshold(risks: Risks, edge: int, name: str) -> dict[str, Any]:
    """Return the figures of calling a risk at or above an edge positive, each with Wilson's interval.

    Args:
        risks: of all samples.
        edge: number of the edge.
        name: why this one.
    """
    negatives, positives = risks.counts
    false, true = (float(one[edge]) for one in risks.above)
    pairs_of = {
        "sensitivity": (true, positives),
        "specificity": (negatives - false, negatives),
        "ppv": (true, true + false),
        "npv": (negatives - false, negatives + positives - true - false),
        "flagged": (true + false, negatives + positives),
    }
    figures: dict[str, Any] = {"name": name, "risk": float(risks.edges[edge].sigmoid())}
    for figure, (hits, count) in pairs_of.items():
        ends = wilson(*(torch.tensor([hits, count], dtype=torch.float64) / risks.effect(figure)[edge]))
        low, high = map(float, ends)
        figures[figure] = {"value": hits / count, "low": low, "high": high} if count else None
    return figures


def thresholds(risks: Risks) -> list[dict[str, Any]]:
    """Return the figures of named thresholds, in the order of their risks; none unless there are both outcomes.

    They are fixed risks, and those that the tests themselves choose: Youden's largest sum of sensitivity and
    specificity, and the ones where either is first 90 %.
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
    return [threshold(risks, edge, name) for name, edge in sorted(edges.items(), key=lambda one: one[1])]


def calibration_groups(risks: Risks) -> list[dict[str, float]]:
    """Return predicted and observed risk of about ten equally large groups of neighbouring bins.

    Returns:
        For each group `predicted`, its largest `error`, `observed` with Wilson's `low` and `high`, and `count`.
    """
    both, points = risks.negatives + risks.positives, risks.edges.sigmoid()
    total = both.sum()
    if not total:
        return []
    place = ((both.cumsum(0) - both / 2) / total * GROUPS).long().clamp_max(GROUPS - 1)
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


@dataclass(frozen=True)
class Estimate:
    """A coefficient with its interval of 95 %, and how far the bins may put it off, to first order."""

    value: float
    low: float
    high: float
    error: float


def recalibration(risks: Risks) -> dict[str, Estimate]:
    """Return what log-odds need to be right: log-odds of the outcome = intercept + slope · predicted log-odds.

    Returns:
        `slope` (below 1: predictions are too extreme) and `intercept`, fitted together by maximum likelihood, and
        `in_the_large`, the intercept where the slope is kept at 1 (below 0: risks are too high). Empty where there is
        no maximum: one outcome alone, one prediction for all, or classes that are told apart without error.

    Source: D. R. Cox, Biometrika 45 (1958) 562.
    """
    used = (risks.negatives + risks.positives) > 0
    low, high = risks.edges[:-1][used], risks.edges[1:][used]
    z, half = (low + high) / 2, (high - low) / 2
    zeros, ones = risks.negatives[used], risks.positives[used]
    if not zeros.sum() or not ones.sum() or len(z) < 2:
        return {}
    both = None if risks.pairs is None else (risks.pairs, used)
    whole = _maximum(torch.stack([torch.ones_like(z), z]), torch.zeros_like(z), zeros, ones, half, both)
    large = _maximum(torch.ones_like(z)[None], z, zeros, ones, half, both)
    if whole is None or large is None:
        return {}
    return {"slope": whole[1], "intercept": whole[0], "in_the_large": large[0]}


def _maximum(
    x: Tensor, offset: Tensor, zeros: Tensor, ones: Tensor, half: Tensor, grouped: tuple[Pairs, Tensor] | None
) -> list[Estimate] | None:
    """Fit log-odds = offset + coefficients · x by Newton's method; x [coefficients, bins], its last row the scores.

    Of samples in groups `grouped` are their pairs, and which of all bins these are.
    """
    both, several = zeros + ones, len(x) > 1
    found = torch.zeros(len(x), dtype=torch.float64)
    for _ in range(STEPS):
        p = (offset + found @ x).sigmoid()
        fisher = (x * (both * p * (1 - p))) @ x.T
        change = torch.linalg.pinv(fisher, hermitian=True) @ (x @ (ones - both * p))
        longest = float(change.abs().max())
        found = found + change / max(1.0, longest)  # a step of more than 1 would overshoot
        if not longest < STEEPEST or float(found.abs().max()) > STEEPEST:
            return None
        if longest < 1e-10:
            break
    else:
        return None
    p = (offset + found @ x).sigmoid()
    if torch.linalg.matrix_rank(fisher, hermitian=True) < len(x):
        return None
    inverse = torch.linalg.inv(fisher)
    # A sample's score moves by at most half its bin; the gradient of the likelihood with it, and so the coefficients.
    steepness, error = found[-1] if several else torch.tensor(1.0), torch.zeros(len(x), dtype=torch.float64)
    for count, outcome in ((zeros, 0.0), (ones, 1.0)):
        moved = -steepness * p * (1 - p) * x
        if several:
            moved[-1] += outcome - p
        error += (inverse @ moved).abs() @ (count * half)
    variance = inverse.diagonal()
    if grouped is not None:
        pairs, used = grouped
        influence = torch.zeros(len(x), 2, len(used), dtype=torch.float64)
        influence[:, :, used] = (inverse @ x).unsqueeze(1) * torch.stack([-p, 1 - p])
        variance = ((variance + pairs.added(influence)) * pairs.factor).clamp_min(0)
    spread = QUANTILE * variance.sqrt()
    rows = torch.stack([found, found - spread, found + spread, error], dim=1).tolist()
    return [Estimate(*row) for row in rows]


def net_benefit(risks: Risks) -> dict[str, Tensor]:
    """Return the decision curve at every edge's risk: of the model, and of treating all; treating nobody is 0.

    Net benefit is (true positives − false positives · risk / (1 − risk)) / samples: what acting on a positive
    prediction brings if a false alarm weighs as much as the risk's odds say.

    Source: A. J. Vickers and E. B. Elkin, Medical Decision Making 26 (2006) 565.
    """
    (negatives, positives), (false, true) = risks.counts, risks.above
    odds, total = risks.edges.exp(), max(negatives + positives, 1.0)
    return {
        "risk": risks.edges.sigmoid(),
        "model": (true - false * odds) / total,
        "all": (positives - negatives * odds) / total,
    }


def risk_summary(risks: Risks, brier: float) -> dict[str, Any]:
    """Return what a page says of an outcome, as JSON.

    Args:
        risks: of all samples.
        brier: their sum of squared errors.
    """
    (negatives, positives), scores = risks.counts, torch.stack([risks.negatives, risks.positives])[None]
    samples = negatives + positives
    (concordant,), (unsure,), (number,) = pairs(scores)
    area, error = (float(one / number) if number else None for one in (concordant, unsure))
    deviation, precision = auc_deviation(scores[0], risks.pairs), average_precision(risks)
    prevalence, value = positives / samples, brier / samples
    guess = prevalence * (1 - prevalence)
    known = area is not None and deviation > 0
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
        "recalibration": {name: asdict(one) for name, one in recalibration(risks).items()},
        "calibration_groups": calibration_groups(risks),
        "thresholds": thresholds(risks),
    }


def _brier_interval(risks: Risks, value: float) -> dict[str, list[float]]:
    """Return the interval of a mean squared error of samples in groups; else none, for lack of their squares' sum."""
    if risks.pairs is None:
        return {}
    middle = ((risks.edges[1:] + risks.edges[:-1]) / 2).sigmoid()
    squares = torch.stack([middle.square(), (1 - middle).square()])
    number = risks.pairs.counts.sum()
    influence = (squares - (risks.pairs.counts * squares).sum() / number) / number
    alone = (risks.pairs.counts * influence.square()).sum()
    half = QUANTILE * float(((alone + risks.pairs.added(influence)) * risks.pairs.factor).clamp_min(0).sqrt())
    return {"brier_interval": [max(0.0, value - half), min(1.0, value + half)]}
