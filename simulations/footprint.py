"""Upper bounds on the disk space of a run at the aggregator, predicted from the plan."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rankdad.common.methods.rank_dad import MAX_BATCHES, MAX_ROWS
from rankdad.common.metrics.tally_codec import monitoring_bytes, tally_bytes
from rankdad.common.protocol.message_sizes import step_bytes
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.checkpoints import EVERY, KEPT
from rankdad.remote.journal import PAGE
from rankdad.remote.run_file import JOURNAL_PAGES, row_bytes

CELL = 24  # bytes of a number in a table's row
CONTROL = 1024  # bytes of a message other than steps, beyond sizes from the plan
LATE_HEAD = 7  # bytes before the places of late sites
DIGEST = 160  # bytes of a site's name and digest


@dataclass(frozen=True)
class Footprint:
    """Upper bounds in bytes.

    Args:
        step: growth of the run's file by an optimizer step.
        step_update: part of it in updates, which remain with `--retention all`.
        epoch: growth by the end of an epoch (buffers, evaluation, decision).
        epoch_update: part of it in updates.
        once: growth by hello, preparation, the tests of all folds, and goodbye.
        checkpoint: size of the aggregator's checkpoint.
        window: number of steps with stored contributions: of two checkpoints, and until the next.
        journal: size of the write-ahead log.
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
        """Return the size of file and checkpoints with `--retention tail`, including so many ends of epochs."""
        return self.window * self.step + epochs * self.epoch + self.once + KEPT * self.checkpoint


def footprint(plan: Plan, every: int = EVERY, regions: int = 0) -> Footprint:
    """Compute upper bounds for a run's files at an aggregator.

    Args:
        plan: the run's.
        every: steps between checkpoints.
        regions: maximum number of regions below one aggregator; their contributions are as large as updates.
    """
    sites, exchanges = len(plan.sites), len(plan.exchanges)
    control = row_bytes(CONTROL)
    late = plan.staleness * math.ceil(sites / 8) + LATE_HEAD * bool(plan.staleness)
    answer = step_bytes(plan, up=False) + sites + late  # with missing sites
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
    """Bound the size of the tests of previous folds in a checkpoint: two tallies a site, as text."""
    if plan.folds == 1:  # tested after the last checkpoint
        return 0
    tallies = tally_bytes(plan.task) + tally_bytes(plan.task, plan.grouped)
    return len(plan.sites) * (math.ceil(4 / 3 * tallies) + CONTROL) + plan.folds * CONTROL


def _residual_bytes(plan: Plan) -> int:
    """Bound the size of the aggregator's residuals and bases."""
    itemsize, sites, total = 8, len(plan.sites), 0
    for route in plan.routes:
        out, columns = route.matrix
        sent = route.up or 0
        rows = max(MAX_ROWS, (route.residual or 0) + int(MAX_BATCHES * sites * sent)) + (sites + 2) * sent
        total += itemsize * max(out * columns, rows * (out + columns))
    return total
