"""How much disk a run takes at the aggregator: its file and checkpoints, predicted from the plan, never exceeded."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rankdad.common.methods.rank_dad import MAX_BATCHES, MAX_ROWS
from rankdad.common.metrics.tally_codec import monitoring_bytes, tally_bytes
from rankdad.common.protocol.message_sizes import step_bytes
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.checkpoints import EVERY, KEPT
from rankdad.remote.run_file import JOURNAL_PAGES, PAGE, row_bytes

CELL = 24  # bytes of a number in a table's row
CONTROL = 1024  # bytes of any message that is no step, beside what follows from the plan
LATE_HEAD = 7  # bytes before the places of those who came late
DIGEST = 160  # bytes of a site's name and digest


@dataclass(frozen=True)
class Footprint:
    """Largest sizes in bytes.

    Args:
        step: that one optimizer step adds to the run's file.
        step_update: what of it is updates, and stays with `--retention all`.
        epoch: that the end of an epoch adds (buffers, evaluation, decision).
        epoch_update: what of it is updates.
        once: that hello, preparation, the tests of all folds, and goodbye add.
        checkpoint: of the aggregator.
        window: steps of which contributions are kept: of two checkpoints, and until the next.
        journal: beside the file, while it is written.
    """

    step: int
    step_update: int
    epoch: int
    epoch_update: int
    once: int
    checkpoint: int
    window: int
    journal: int

    def tail(self, epochs: int = 0) -> int:
        """Return the size of file and checkpoints with `--retention tail`, with so many ends of epochs in it."""
        return self.window * self.step + epochs * self.epoch + self.once + KEPT * self.checkpoint


def footprint(plan: Plan, every: int = EVERY, regions: int = 0) -> Footprint:
    """Return the largest sizes of what a run leaves at an aggregator.

    Args:
        plan: of the run.
        every: steps between two checkpoints.
        regions: that send to one aggregator, at most: their contributions are as large as updates.
    """
    sites, exchanges = len(plan.sites), len(plan.exchanges)
    control = row_bytes(CONTROL)
    late = plan.staleness * math.ceil(sites / 8) + LATE_HEAD * bool(plan.staleness)
    answer = step_bytes(plan, up=False) + sites + late  # and who is missing
    body = answer + sites * step_bytes(plan, up=True) + regions * answer
    update = exchanges * row_bytes(answer // exchanges)
    up = exchanges * row_bytes(step_bytes(plan, up=True) // exchanges)
    cells = row_bytes(CELL * (16 + sites + len(plan.routes)))
    contributions, update = sites * up + regions * update, update + cells
    metrics = (sites + 1) * row_bytes(16 * CELL)
    epoch_update = 3 * control + plan.buffer_bytes + sites * DIGEST + metrics
    tally, sums = tally_bytes(plan.task), 8 * plan.folds * sum(stage.size for stage in plan.stages)
    epoch = epoch_update + sites * (3 * control + plan.buffer_bytes + monitoring_bytes(plan.task))
    beginning = (2 + len(plan.stages)) * control + 4 * plan.folds * max(3, sites) + sums
    tested = tally + tally_bytes(plan.task, plan.grouped)
    once = (sites + 1) * (beginning + plan.folds * control) + sites * (DIGEST + plan.folds * tested)
    checkpoint = 2 * plan.replica_bytes + _residual_bytes(plan) + sums + _study_bytes(plan)
    once += 16 * PAGE  # tables without a row
    journal = JOURNAL_PAGES * (PAGE + 24) + 2 * body
    kept = (update + contributions, update, epoch, epoch_update, once, checkpoint)
    return Footprint(*kept, every * (KEPT + 1), journal)


def _study_bytes(plan: Plan) -> int:
    """Return the largest size of what the folds before have tested: two tallies a site, as text."""
    if plan.folds == 1:  # which is tested after the last checkpoint
        return 0
    tallies = tally_bytes(plan.task) + tally_bytes(plan.task, plan.grouped)
    return len(plan.sites) * (math.ceil(4 / 3 * tallies) + CONTROL) + plan.folds * CONTROL


def _residual_bytes(plan: Plan) -> int:
    """Return the largest size of the aggregator's residuals and bases: of each route rows, or a matrix."""
    itemsize, sites, total = 8, len(plan.sites), 0
    for route in plan.routes:
        out, columns = route.matrix
        sent = route.up or 0
        rows = max(MAX_ROWS, (route.residual or 0) + int(MAX_BATCHES * sites * sent)) + (sites + 2) * sent
        total += itemsize * max(out * columns, rows * (out + columns))
    return total
