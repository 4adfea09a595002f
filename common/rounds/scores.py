"""All models' scores in the answer to a test, for comparing the models.

The answer has all sites' histograms of every model's scores, smoothed so that no bin has few rows. When sites are left
out in turn, a test has one site's samples: it compares within them, and no histograms are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankdad.common.metrics.auc import BINS
from rankdad.common.metrics.paired import LEAST, histograms, ranked, smoothed
from rankdad.common.metrics.sums import Tally
from rankdad.common.protocol.arrays import numbers_in
from rankdad.common.spec import LeaveOneSiteOut, RunSpec

if TYPE_CHECKING:
    from rankdad.common.protocol.plan import Plan

GUESS = "baseline"  # name of the guess among the rivals
MAX_COUNT = 2.0**31


def rivals(references: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the rivals of the model, in the order of the sums."""
    return (GUESS, *references) if references else ()


def compares(spec: RunSpec, fold: int) -> bool:
    """Return whether a comparison follows the test of a training."""
    return bool(spec.references) and spec.tests(fold)


def within_site(spec: RunSpec) -> bool:
    """Return whether each test has one site's samples, so that no histograms are needed."""
    return isinstance(spec.evaluation, LeaveOneSiteOut)


def least(spec: RunSpec) -> int:
    """Return how many rows of each class an AUC needs to be compared."""
    return 2 if within_site(spec) else LEAST


def pooled_scores(spec: RunSpec, fold: int, tests: Sequence[Sequence[Tally]]) -> Tensor | None:
    """Return the smoothed scores of each model for all sites, float32 [models, outputs, 2, BINS].

    Args:
        spec: the run.
        fold: number of the tested training.
        tests: tallies of every model, for each contributor.

    Returns:
        None if there is no comparison, or it needs no histograms.
    """
    if not compares(spec, fold) or within_site(spec) or not ranked(spec.task):
        return None
    totals = (sum(histograms(spec.task, one) for one in sent) for sent in zip(*tests, strict=True))
    return torch.stack([smoothed(total) for total in totals if isinstance(total, Tensor)]).float()


def scores_shape(plan: Plan) -> tuple[int, ...]:
    """Return the shape [models, outputs, 2, BINS] of the scores in the answer to a test."""
    models = 1 + len(rivals(plan.references)) if plan.references else 0
    return models, ranked(plan.task), 2, BINS


def unpack_scores(plan: Plan, data: bytes) -> Tensor:
    """Decode histograms from the network.

    Raises:
        ValueError: the size is wrong, or a number is no valid count.
    """
    scores = numbers_in(data, torch.float32, *scores_shape(plan))
    if not bool(((scores >= 0) & (scores <= MAX_COUNT)).all()):
        raise ValueError(f"a count is not between 0 and {MAX_COUNT:g}")
    return scores
