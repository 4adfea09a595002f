"""The progress of a run, as stored in snapshots next to tensors, and its validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from rankdad.common.preparation import Preparing
from rankdad.common.protocol.messages import Control, Count, Measure, Name
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.study import Study
from rankdad.common.spec import RunSpec
from rankdad.common.spec.recording import MOST_ROUNDS
from rankdad.common.staleness import MAX_STALENESS

Places = Annotated[tuple[Count, ...], Field(max_length=1000)]


class Progress(Control):
    """The progress of a run; between two steps, it and the state's tensors suffice to resume.

    Args:
        round: number of the next round.
        roster: training samples of every fold and site, in the plan's order; empty before hello.
        held: completed rounds of other packages.
        study: current training.
        steps: optimizer steps done, over all trainings.
        epoch: of the next step.
        step: of the next step, within its epoch.
        compared: the training's steps at the last comparison of weights.
        missing: indices of the sites that the last step left out, ascending.
        left_out: for each of the training's last steps, sites whose contributions may still join a later one.
        late: weight of late contributions in the last step.
        best_value: best validation metric so far; None before the first.
        best_epoch: its epoch.
        stale: epochs since then.
        stopped: whether training has stopped early.
    """

    round: Count = 0
    roster: Annotated[tuple[tuple[Count, ...], ...], Field(max_length=1001)] = ()
    held: Annotated[tuple[Name, ...], Field(max_length=MOST_ROUNDS)] = ()
    study: Study = Study()
    steps: Count = 0
    epoch: Count = 0
    step: Count = 0
    compared: Count = 0
    missing: Places = ()
    left_out: Annotated[tuple[tuple[Count, Places], ...], Field(max_length=MAX_STALENESS)] = ()
    late: Measure = 0.0
    best_value: Annotated[float, Field(allow_inf_nan=False)] | None = None
    best_epoch: Count = 0
    stale: Count = 0
    stopped: bool = False

    def at(self, study: Study) -> Progress:
        """Return the progress at the start of another training."""
        return Progress(round=self.round, roster=self.roster, held=self.held, study=study, steps=self.steps)


def check_progress(
    spec: RunSpec, plan: Plan, model: Mapping[str, torch.Size], progress: Progress, named: Mapping[str, Tensor]
) -> None:
    """Check that a snapshot fits this run.

    Args:
        spec: the run.
        plan: of the run.
        model: shapes of its weights and buffers.
        progress: from a file or from the network.
        named: its tensors.

    Raises:
        ValueError: folds, sums, late sites, best weights or directions do not fit.
    """
    folds, totals = plan.folds, under("total", named)
    summed = [stage for stage in plan.stages if Preparing(spec).is_due(stage.name, exact=False)]  # for a run with steps
    shapes = {stage.name: (torch.float64, (folds, stage.size)) for stage in summed}
    study = progress.study
    if study.fold >= folds or [len(fold) for fold in progress.roster] != [len(plan.sites)] * folds:
        raise ValueError(f"fold {study.fold} or its roster does not fit this run's {folds} folds")
    if study.before > progress.steps or study.began > progress.round:
        raise ValueError("its training begins after its progress")
    most, due = spec.training.epochs, study.fold % (1 + len(spec.candidates))
    if len(study.tried) != due or any(epoch >= most for _, epoch in study.tried):
        raise ValueError(f"in fold {study.fold} {due} candidates have been tried, of at most {most} epochs each")
    places = [place for _, left_out in progress.left_out for place in left_out]
    if len(progress.left_out) > plan.staleness or max(places, default=0) >= len(plan.sites):
        raise ValueError("the sites that its last steps have left out do not fit this run")
    if {name: (total.dtype, tuple(total.shape)) for name, total in totals.items()} != shapes:
        raise ValueError("the sums of preparation do not fit this run")
    best = under("best", named)
    if best and {name: value.shape for name, value in best.items()} != model:
        raise ValueError("the best weights do not fit this model")
    bases = {route.name: (route.up, route.matrix[1]) for route in plan.routes if route.up is not None}
    for name, basis in under("basis", named).items():
        rows, columns = bases.get(name, (0, 0))
        exact = spec.method.fixed_rows
        if basis.ndim != 2 or basis.shape[1] != columns or len(basis) > rows or (exact and len(basis) < rows):
            raise ValueError(f"directions of {name}: got {list(basis.shape)}, expected {rows} of {columns} numbers")


def under(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose name begins with `kind/`, by the rest of the name."""
    return {name.removeprefix(f"{kind}/"): value for name, value in tensors.items() if name.startswith(f"{kind}/")}
