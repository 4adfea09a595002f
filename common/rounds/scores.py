"""What the answer to a test tells of all models' scores, so that sites can compare the models.

The answer has all sites' histograms of every model's scores, smoothed until they tell of no few rows. Where a site is
left out, a test has that site's samples alone: it compares within them, and others' scores, or its own in a histogram
for others, travel nowhere.
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

GUESS = "baseline"  # what the guess is called beside the references
MAX_COUNT = 2.0**31


def rivals(references: Sequence[str]) -> tuple[str, ...]:
    """Return the names of what the model is compared with, in the order of the sums."""
    return (GUESS, *references) if references else ()


def compares(spec: RunSpec, fold: int) -> bool:
    """Tell whether a comparison follows the test of one of the run's trainings."""
    return bool(spec.references) and spec.tests(fold)


def within_site(spec: RunSpec) -> bool:
    """Tell whether each test is of one site's samples alone, so that nobody needs others' histograms."""
    return isinstance(spec.evaluation, LeaveOneSiteOut)


def least(spec: RunSpec) -> int:
    """Return how many rows of either class an AUC needs to be compared."""
    return 2 if within_site(spec) else LEAST


def pooled_scores(spec: RunSpec, fold: int, tests: Sequence[Sequence[Tally]]) -> Tensor | None:
    """Return what the answer to a test tells all sites of each model's scores, float32 [models, outputs, 2, BINS].

    Args:
        spec: the run.
        fold: which of the run's trainings is tested.
        tests: tallies of every model, of each who has sent some.

    Returns:
        None where no comparison follows, or where it needs none.
    """
    if not compares(spec, fold) or within_site(spec) or not ranked(spec.task):
        return None
    totals = (sum(histograms(spec.task, one) for one in sent) for sent in zip(*tests, strict=True))
    return torch.stack([smoothed(total) for total in totals if isinstance(total, Tensor)]).float()


def scores_shape(plan: Plan) -> tuple[int, ...]:
    """Return [models, outputs, 2, BINS] of what an answer to a test tells of scores."""
    models = 1 + len(rivals(plan.references)) if plan.references else 0
    return models, ranked(plan.task), 2, BINS


def unpack_scores(plan: Plan, data: bytes) -> Tensor:
    """Return histograms from the network.

    Raises:
        ValueError: the size is wrong, or a number is none that can be counted.
    """
    scores = numbers_in(data, torch.float32, *scores_shape(plan))
    if not bool(((scores >= 0) & (scores <= MAX_COUNT)).all()):
        raise ValueError(f"a count is not between 0 and {MAX_COUNT:g}")
    return scores
