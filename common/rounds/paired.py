"""The paired comparison: after a test, how sure the differences between the models are that were tested.

The answer to the test has all sites' histograms of every model's scores, smoothed until they tell of no few rows. In
this round sites return, of each model beside the trained one, sums of squared differences over their test samples, and
the answer says that it is done. Only a run that asks for references has the round; a guess is then compared, too.

Where a site is left out, a test has that site's samples alone: it compares within them, and others' scores, or its own
in a histogram for others, travel nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankdad.common.metrics.auc import BINS
from rankdad.common.metrics.paired import (
    APART,
    LEAST,
    WITHIN,
    Rows,
    coarse,
    contradiction,
    histograms,
    measures,
    positives,
    ranked,
    smoothed,
    squares,
)
from rankdad.common.metrics.sums import Tally
from rankdad.common.protocol.arrays import unpack_sums
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


def contribution(
    spec: RunSpec, models: Sequence[Rows | None], labels: Tensor, pooled: Tensor | None, groups: Tensor | None
) -> Tensor:
    """Return what a site's test samples add up to, float64 [rivals, measures, 1 or 2].

    Args:
        spec: the run.
        models: what the trained model and each rival say of the samples; None of a rival that the site lacks.
        labels: of the samples, as the network learns them.
        pooled: what the answer to the test has told.
        groups: which group each sample is of; None where the run knows of none.
    """
    positive = positives(spec.task, labels)
    if pooled is None and not within_site(spec):  # there is nothing to compare AUCs by
        pooled = torch.zeros(len(models), positive.shape[1], 2, BINS)
    return squares(spec.task, models, positive, None if within_site(spec) else pooled, groups)


def combined(spec: RunSpec, sent: Sequence[Tensor]) -> Tensor:
    """Return what a region contributes: its members' sums, but for what is of one site's samples alone."""
    total, names = torch.stack(list(sent)).sum(dim=0), measures(spec.task)
    apart = [names.index(name) for name in (WITHIN, APART) if name in names]
    found = coarse(total)
    found[:, apart] = total[:, apart] if within_site(spec) else 0.0
    return found


def _shape(plan: Plan) -> tuple[int, int, int]:
    return len(rivals(plan.references)), len(measures(plan.task)), 1 + plan.grouped


def scores_bytes(plan: Plan) -> int:
    """Return the size of what an answer to a test tells of scores, in bytes."""
    return 4 * (1 + len(rivals(plan.references))) * ranked(plan.task) * 2 * BINS if plan.references else 0


def pack_scores(scores: Tensor | None) -> bytes:
    """Return histograms as bytes: float32, little-endian."""
    return b"" if scores is None else scores.float().contiguous().numpy().tobytes()


def unpack_scores(plan: Plan, data: bytes) -> Tensor:
    """Return histograms [models, outputs, 2, BINS] from the network.

    Raises:
        ValueError: the size is wrong, or a number is none that can be counted.
    """
    if len(data) != scores_bytes(plan):
        raise ValueError(f"got {len(data)} bytes, expected {scores_bytes(plan)}")
    scores = torch.frombuffer(bytearray(data), dtype=torch.float32)
    if not bool(((scores >= 0) & (scores <= MAX_COUNT)).all()):
        raise ValueError(f"a count is not between 0 and {MAX_COUNT:g}")
    return scores.reshape(-1, ranked(plan.task), 2, BINS)


def unpack_squares(plan: Plan, data: bytes) -> Tensor:
    """Return a site's sums [rivals, measures, 1 or 2] from the network.

    Raises:
        ValueError: the size is wrong, or a number is NaN or too large.
    """
    count, names, columns = _shape(plan)
    return unpack_sums(data, count * names, columns).reshape(count, names, columns)


def problem_of(spec: RunSpec, sums: Tensor, tests: Sequence[Tally]) -> str | None:
    """Return why rows with these tests cannot have such sums, in words; None where they can. See `contradiction`."""
    return contradiction(spec.task, sums, tests, least(spec))
