"""Steps of the same patients: of a set whose sums leave at many weights, the numbers are counted against its cells.

Whoever has as many numbers about some patients as these have cells can solve for the cells. Batches that are drawn
afresh hide who is in one; a batch of all patients is the same in every step.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankdad.common.protocol.plan import Plan

MEASURES = 2  # of a step, beside the payload: loss and norm


def numbers_of_step(plan: Plan, rows: int | None, *, projections: bool) -> int:
    """Return how many numbers a step sends of a batch.

    Args:
        plan: of the run.
        rows: of a layer that a policy lets out at most; None is no limit.
        projections: whether a pair is sent for every matrix.
    """
    count = MEASURES
    for route in plan.routes:
        out, columns = route.matrix
        sent = out * columns
        if route.entries is not None:
            sent = route.entries.count
        elif route.up is not None:
            most = route.up if rows is None else min(route.up, rows)
            sent = min(sent, most * (out + columns))
        count += sent + sum(route.projected or ()) * projections
    return count


def epochs_allowed(cells: int, numbers: int, rows_per_rank: int) -> int:
    """Return for how many epochs so many numbers in each may leave about so many cells.

    Args:
        cells: patients times columns.
        numbers: of an epoch, all trainings together.
        rows_per_rank: of the policy: two parts of so many of the cells, at most.
    """
    return 2 * cells // (rows_per_rank * numbers)


def steps_of_all(sizes: Sequence[int], samples: int) -> int:
    """Return how many of an epoch's batches have all samples of a training."""
    return sum(size >= samples > 0 for size in sizes)
