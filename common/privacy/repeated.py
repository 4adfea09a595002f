"""Numbers about the same patients at many weights: they are counted against what these patients' cells are.

Whoever has as many numbers about some patients as these have cells, patients times columns, can solve for the cells. A
number about a set of patients counts as an equal share of the cells of each. Batches that are drawn afresh hide who is
in one, and are not counted; nor are sums in which there are no weights, which are the same each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rankdad.common.lowrank.routes import Route
from rankdad.common.metrics.monitoring import monitoring_shape
from rankdad.common.spec.tasks import Metric, TaskSpec

NUMBERS = 4  # a cell, times rows_per_rank
MEASURES = 2  # of a step, beside the payload: loss and norm
OF_LABELS = 2  # of the moments of a number: its sum, and that of its squares


class Sent(NamedTuple):
    """Numbers that leave about a set of patients, whom others know to be the same each time.

    Args:
        people: number of each patient in the set, int64.
        numbers: how many.
        cells: of each that have to be solved for, the label among them.
    """

    people: Tensor
    numbers: int
    cells: float


def shares_told(sent: Iterable[Sent], people: int) -> Tensor:
    """Return what share of each patient's cells is told, float64 [people].

    As long as it is at most 1 of each, the numbers about any patients are no more than these have cells.

    Args:
        sent: of all trainings.
        people: that a site has.
    """
    told = torch.zeros(people, dtype=torch.float64)
    for some, numbers, cells in sent:
        if len(some):
            told[some] += numbers / (len(some) * cells)
    return told


def most_told(rows_per_rank: int | None) -> float:
    """Return what share of a patient's cells may be told in all: what a step of as many rows tells, twice."""
    return math.inf if rows_per_rank is None else 2 / rows_per_rank


def numbers_of_epoch(task: TaskSpec, monitor: Metric) -> int:
    """Return how many numbers leave about validation samples after an epoch: the loss, and those of another metric.

    How many samples and pairs there are, and what a number's labels come to, is the same in each.
    """
    (_, hits), (loss, moments, ordered, _) = monitoring_shape(task)
    others = {"loss": 0, "accuracy": hits, "auc_within": ordered}
    return loss + others.get(monitor, moments - OF_LABELS)


def numbers_of_step(routes: Sequence[Route], rows: int | None, *, projections: bool) -> int:
    """Return how many numbers a step sends of a batch.

    Args:
        routes: of the gradients that are counted.
        rows: of a layer that a policy lets out at most; None is no limit.
        projections: whether a pair is sent for every matrix.
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
        count += sent + sum(route.projected or ()) * projections
    return count


def numbers_a_cell(rows_per_rank: int | None) -> float:
    """Return how many numbers a step may send for each cell of its samples: with 4 rows per rank as many as cells.

    A program solved some steps of 1.6 and more for the whole batch (`python -m benchmarks inversion`).
    """
    return math.inf if rows_per_rank is None else NUMBERS / rows_per_rank


def rows_for_cells(routes: Sequence[Route], most: int, numbers: float, *, projections: bool) -> int:
    """Return how many rows of a layer, at most so many, a step may send to have no more than so many numbers.

    0 where even what travels dense is too many, or just few enough.
    """
    while most and numbers_of_step(routes, most, projections=projections) > numbers:
        most -= 1
    return most


def steps_of_all(sizes: Sequence[int], samples: int) -> int:
    """Return how many of an epoch's batches have all samples of a training."""
    return sum(size >= samples > 0 for size in sizes)
