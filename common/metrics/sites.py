"""Metrics across sites or folds: their mean and spread, and metrics within sites."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rankdad.common.metrics.auc import areas
from rankdad.common.metrics.summary import Metrics, correlation, deviations, mean_auc, r_squared
from rankdad.common.metrics.sums import Tally, parts
from rankdad.common.spec.tasks import LanguageModel, Metric, Regression, TaskSpec


@dataclass(frozen=True)
class Spread:
    """A metric over sites or folds.

    Args:
        mean: mean over those that have the metric.
        sd: sample standard deviation; None for fewer than two.
        count: how many have it.
        missing: how many do not.
    """

    mean: float | None = None
    sd: float | None = None
    count: int = 0
    missing: int = 0


def mean_over_sites(task: TaskSpec, metrics: Sequence[Metrics]) -> dict[Metric, Spread]:
    """Return the mean of each metric over sites, or folds, with equal weights."""
    return {name: _spread([one.values[name] for one in metrics]) for name in task.metrics}


def within_sites(task: TaskSpec, tallies: Sequence[Tally]) -> dict[Metric, float | None]:
    """Return metrics within sites, which do not improve by knowing a sample's site.

    Regression: r2 and pearson_r after subtracting each site's mean from its labels and outputs. Otherwise: the AUC over
    pairs of samples of one site, pooled over sites. This is the mean of the sites' AUCs, weighted by their numbers of
    pairs.

    Args:
        task: what was predicted.
        tallies: one of each site.
    """
    if isinstance(task, LanguageModel):
        return {}
    if not isinstance(task, Regression):
        known = [parts(task, total) for total in tallies]
        found = [torch.stack(areas(part.scores, part.order + part.across)) for part in known]
        area, error, number = torch.stack(found or [torch.zeros(3, task.outputs)]).unbind(dim=1)
        pairs = number.sum(dim=0)
        weights = number / pairs.clamp_min(1)
        return {"auc": mean_auc((area * weights).sum(dim=0), (error * weights).sum(dim=0), pairs)[0]}
    label = output = product = errors = 0.0
    for total in tallies:
        part = parts(task, total)
        if part.samples == 0:
            continue
        labels, outputs, label_square, output_square, products, _, square = part.moments
        label += deviations(labels, label_square, part.samples)
        output += deviations(outputs, output_square, part.samples)
        product += products - labels / part.samples * outputs
        errors += deviations(outputs - labels, square, part.samples)
    return {"r2": r_squared(errors, label), "pearson_r": correlation(label, output, product)}


def site_alone(task: TaskSpec, tallies: Sequence[Tally]) -> float | None:
    """Return the AUC of predicting for each sample its site's share of samples with the outcome."""
    counts = torch.stack([parts(task, total).scores.sum(2) for total in tallies], dim=2).double()  # [outputs, 2, sites]
    shares = counts[:, 1] / counts.sum(1).clamp_min(1)
    scores = torch.zeros_like(counts)
    for own, share, bins in zip(counts, shares, scores, strict=True):  # sites with equal shares form one bin
        bins.index_add_(1, share.unique(return_inverse=True)[1], own)
    return mean_auc(*areas(scores, torch.zeros(len(scores), 3)))[0]


def _spread(values: Sequence[float | None]) -> Spread:
    known = [value for value in values if value is not None]
    mean = statistics.fmean(known) if known else None
    sd = statistics.stdev(known) if len(known) > 1 else None
    return Spread(mean, sd, len(known), len(values) - len(known))
