"""Calibration at each site, because errors of opposite sign cancel in the pooled one."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch

from rankdad.common.metrics.intervals import QUANTILE, wilson
from rankdad.common.metrics.recalibration import recalibrated, recalibrations
from rankdad.common.metrics.repeats import mean_document
from rankdad.common.metrics.risk import Risks, calibration_groups
from rankdad.common.metrics.sums import Tally, parts
from rankdad.common.spec.tasks import Classification, TaskSpec

FEWEST = 20  # samples per point of a site's calibration plot
SURE = 0.05 / 2  # significance level of Cochran's Q, for two tests
RIGHT = {"in_the_large": 0.0, "slope": 1.0}


def calibration_by_site(
    repeats: Sequence[Mapping[str, Risks]],
    expected: Sequence[Mapping[str, float]],
    *,
    groups: bool,
    vague: Container[str] = (),
    smooth: bool = False,
) -> dict[str, Any]:
    """Return one outcome's calibration at every site with tested samples, as JSON.

    Args:
        repeats: each site's predictions, for every repetition of a cross-validation; results are averaged.
        expected: sums of the same predicted risks.
        groups: whether to return the points of a plot for each site.
        vague: sites without a slope.
        smooth: whether sites have sent smoothed curves of scores.

    Returns:
        `sites`: for each its `samples`, `events`, the sum of predicted risks (`expected`), `observed_expected` with
        Wilson's interval of the observed share over the predicted mean, `recalibration` and `groups`. `differ`: p of
        Cochran's Q for equal calibration in the large, and for equal slopes; None for fewer than two sites.
    """
    found = [_of_sites(*one, groups, vague, smooth) for one in zip(repeats, expected, strict=True)]
    sites = [mean_document([one[site] for one in found]) for site in found[0] if all(site in one for one in found)]
    estimates = {name: [one["recalibration"].get(name) for one in sites] for name in RIGHT}
    return {"differ": {name: _heterogeneity(several) for name, several in estimates.items()}, "sites": sites}


def differing(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return in which respect sites differ significantly, with the values at sites that deviate.

    Args:
        found: from `calibration_by_site`.

    Returns:
        For `in_the_large` observed/expected, and for `slope` the slope, by site: those whose interval excludes the
        right value, or all if there are none.
    """
    differ = [name for name, p in found["differ"].items() if p is not None and p < SURE]
    told = dict[str, dict[str, float]]()
    for name in differ:
        known = [one for one in found["sites"] if name in one["recalibration"] and one["observed_expected"]]
        wrong = [one for one in known if not _holds(one["recalibration"][name], RIGHT[name])]
        figures = {one["site"]: one["recalibration"][name] for one in wrong or known}
        if name == "in_the_large":
            figures = {one["site"]: one["observed_expected"] for one in wrong or known}
        told[name] = {site: figure["value"] for site, figure in figures.items()}
    return told


def _holds(interval: Mapping[str, float], value: float) -> bool:
    return interval["low"] <= value <= interval["high"]


def expected(task: TaskSpec, total: Tally, outcome: int, risks: Risks) -> float:
    """Return the sum of an outcome's predicted risks; approximate for one of several classes, from bins of scores."""
    if isinstance(task, Classification) and task.classes > 2:
        middle = ((risks.edges[1:] + risks.edges[:-1]) / 2).sigmoid()
        return float(((risks.negatives + risks.positives) * middle).sum())
    return float(parts(task, total).confidence[0 if isinstance(task, Classification) else outcome].sum())


def _of_sites(
    risks: Mapping[str, Risks], expected: Mapping[str, float], groups: bool, vague: Container[str], smooth: bool
) -> dict[str, Any]:
    tested = {site: one for site, one in risks.items() if sum(one.counts)}
    edges = next(iter(tested.values())).edges
    zeros, ones = (torch.stack([getattr(one, name) for one in tested.values()]) for name in ("negatives", "positives"))
    fits = recalibrations(edges, zeros, ones, [one.pairs for one in tested.values()])
    rows = {}
    for (site, one), fit in zip(tested.items(), fits, strict=True):
        negatives, positives = one.counts
        row: dict[str, Any] = {
            "site": site,
            "samples": round(negatives + positives),
            "events": round(positives),
            "expected": expected[site],
            "observed_expected": _ratio(one, expected[site]),
            "recalibration": recalibrated(fit, vague=site in vague, smooth=smooth),
        }
        rows[site] = row | ({"groups": calibration_groups(one, FEWEST)} if groups else {})
    return rows


def _ratio(risks: Risks, expected: float) -> dict[str, float] | None:
    """Return the ratio of observed to expected outcomes, with its interval."""
    negatives, positives = risks.counts
    if not expected > 0:
        return None
    samples, effect = torch.tensor(negatives + positives, dtype=torch.float64), torch.tensor(1.0)
    if risks.pairs is not None:
        members = torch.ones_like(risks.pairs.counts)
        effect = risks.pairs.design_effects(members * torch.tensor([[0.0], [1.0]]), members)
    low, high = (float(end) * float(samples) / expected for end in wilson(positives / effect, samples / effect))
    return {"value": positives / expected, "low": low, "high": high}


def _heterogeneity(estimates: Sequence[Mapping[str, float] | None]) -> float | None:
    """Return p of Cochran's Q; None for fewer than two estimates. Source: W. G. Cochran, Biometrics 10 (1954) 101."""
    known = [(one["value"], (one["high"] - one["low"]) / (2 * QUANTILE)) for one in estimates if one is not None]
    values, errors = torch.tensor([one for one in known if one[1] > 0], dtype=torch.float64).reshape(-1, 2).unbind(1)
    if len(values) < 2:
        return None
    weights = errors.pow(-2)
    q = (weights * (values - (weights * values).sum() / weights.sum()).square()).sum()
    return float(torch.special.gammaincc(torch.tensor((len(values) - 1) / 2, dtype=torch.float64), q / 2))
