"""Counts numbers about the same patients at many weights, and compares them with the patients' cells.

With as many numbers about some patients as they have cells (patients times columns), the cells can be solved for. A
number about a set of patients counts as an equal share of each patient's cells. Batches that are drawn afresh do not
reveal their patients and are not counted; nor are sums that do not depend on weights, which are the same each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rankdad.common.lowrank.routes import Route
from rankdad.common.metrics.monitoring import monitoring_shape
from rankdad.common.spec.tasks import Metric, TaskSpec

NUMBERS = 4  # per cell, times rows_per_rank
MEASURES = 2  # of a step, besides the payload: loss and norm
OF_LABELS = 2  # moments of a numeric label: its sum, and that of its squares


class Sent(NamedTuple):
    """Numbers about a set of patients, which is the same each time.

    Args:
        people: number of each patient in the set, int64.
        numbers: their number.
        cells: of each patient, including the label.
    """

    people: Tensor
    numbers: int
    cells: float


def shares_told(sent: Iterable[Sent], people: int) -> Tensor:
    """Return the share of each patient's cells that is disclosed, float64 [people].

    While all shares are at most 1, the numbers about any patients do not exceed their cells.

    Args:
        sent: of all trainings.
        people: number of the site's patients.
    """
    disclosed = torch.zeros(people, dtype=torch.float64)
    for some, numbers, cells in sent:
        if len(some):
            disclosed[some] += numbers / (len(some) * cells)
    return disclosed


def most_disclosed(rows_per_rank: int | None) -> float:
    """Return the limit on the disclosed share of a patient's cells: twice that of a step with rows_per_rank samples."""
    return math.inf if rows_per_rank is None else 2 / rows_per_rank


def numbers_of_epoch(task: TaskSpec, monitor: Metric) -> int:
    """Return how many numbers leave about validation samples after an epoch: the loss, and sums of another metric.

    Numbers of samples and pairs, and sums of labels, are the same in each epoch.
    """
    (_, hits), (loss, moments, ordered, _) = monitoring_shape(task)
    others = {"loss": 0, "accuracy": hits, "auc_within": ordered}
    return loss + others.get(monitor, max(0, moments - OF_LABELS))


def numbers_of_step(routes: Sequence[Route], rows: int | None, *, projections: bool, reduces: bool = False) -> int:
    """Return how many numbers a step sends about a batch.

    Args:
        routes: of the counted gradients.
        rows: the policy's limit for a layer; None for no limit.
        projections: whether a pair is sent for every matrix.
        reduces: whether the limit also holds for dense gradients.
    """
    count = MEASURES
    for route in routes:
        out, columns = route.matrix
        sent = out * columns
        if route.entries is not None:
            sent = route.entries.count
        elif route.up is not None:
            most = route.up if rows is None else min(route.up, rows)
            sent = min(sent, most * (out + columns))
        elif reduces and rows is not None and (limit := route.limit(rows)) is not None:
            sent = limit * (out + columns)
        count += sent + sum(route.projected or ()) * projections
    return count


def numbers_a_cell(rows_per_rank: int | None) -> float:
    """Return how many numbers a step may send per cell of its samples: with rows_per_rank 4, one.

    An attack recovered whole batches from some steps with 1.6 numbers and more (`python -m benchmarks inversion`).
    """
    return math.inf if rows_per_rank is None else NUMBERS / rows_per_rank


def rows_for_cells(of_step: Callable[[int], int], most: int, numbers: float) -> int:
    """Return the largest number of rows of a layer, up to `most`, for which a step sends at most `numbers`.

    0 if the dense gradients alone are too many, or exactly as many.

    Args:
        of_step: returns how many numbers a step sends, given a limit on rows.
        most: limit on rows.
        numbers: that a step may send.
    """
    while most and of_step(most) > numbers:
        most -= 1
    return most


def steps_of_all(sizes: Sequence[int], samples: int) -> int:
    """Return how many of an epoch's batches have all samples of a training."""
    return sum(size >= samples > 0 for size in sizes)
