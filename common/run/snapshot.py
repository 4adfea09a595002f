"""A snapshot of a run's state between two steps: its numbers, and the check before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from rankdad.common.preparation import Preparing
from rankdad.common.protocol.messages import Control, Count, Figure, Measure, Name
from rankdad.common.protocol.plan import Plan
from rankdad.common.spec import RunSpec
from rankdad.common.spec.evaluation import MAX_FOLDS
from rankdad.common.spec.federation import MAX_STALENESS
from rankdad.common.spec.recording import MOST_ROUNDS
from rankdad.common.spec.tuning import MAX_CANDIDATES

Places = Annotated[tuple[Count, ...], Field(max_length=1000)]


class Snapshot(Control):
    """Where a run stands between two steps; with the state's tensors, all that is needed to go on.

    `steps` are those of the whole run. All else is named as in `RunState`.
    """

    round: Count
    fold: Count
    began: Count
    before: Count
    epoch: Count
    step: Count
    steps: Count
    compared: Count
    roster: Annotated[tuple[tuple[Count, ...], ...], Field(max_length=1001)]
    equal: Annotated[tuple[Count, ...], Field(max_length=MAX_FOLDS)] = ()
    held: Annotated[tuple[Name, ...], Field(max_length=MOST_ROUNDS)] = ()
    missing: Places
    left_out: Annotated[tuple[tuple[Count, Places], ...], Field(max_length=MAX_STALENESS)] = ()
    late: Measure = 0.0
    best_value: Annotated[float, Field(allow_inf_nan=False)] | None
    best_epoch: Count
    stale: Count
    stopped: bool
    tried: Annotated[tuple[tuple[Figure | None, Count], ...], Field(max_length=MAX_CANDIDATES)] = ()


def check_snapshot(
    spec: RunSpec, plan: Plan, model: nn.Module, snapshot: Snapshot, named: Mapping[str, Tensor]
) -> None:
    """Check that a snapshot is one of this run.

    Args:
        spec: the run.
        plan: of the run.
        model: of the run.
        snapshot: from a file or from the network.
        named: its tensors.

    Raises:
        ValueError: folds, sums, late sites, best weights or directions are not those of this run.
    """
    folds, totals = plan.folds, under("total", named)
    summed = [stage for stage in plan.stages if Preparing(spec).is_due(stage.name, exact=False)]  # where steps are made
    shapes = {stage.name: (torch.float64, (folds, stage.size)) for stage in summed}
    if snapshot.fold >= folds or [len(fold) for fold in snapshot.roster] != [len(plan.sites)] * folds:
        raise ValueError(f"fold {snapshot.fold} or its roster is none of this run's {folds} folds")
    most, due = spec.training.epochs, snapshot.fold % (1 + len(spec.candidates))
    if len(snapshot.tried) != due or any(epoch >= most for _, epoch in snapshot.tried):
        raise ValueError(f"in fold {snapshot.fold} {due} candidates have been tried, of at most {most} epochs each")
    places = [place for _, left_out in snapshot.left_out for place in left_out]
    if len(snapshot.left_out) > plan.staleness or max(places, default=0) >= len(plan.sites):
        raise ValueError("the sites that its last steps have left out are not those of this run")
    if {name: (total.dtype, tuple(total.shape)) for name, total in totals.items()} != shapes:
        raise ValueError("what preparation has added up is not what this run asks for")
    best = under("best", named)
    if best and _shapes(best) != _shapes(model.state_dict()):
        raise ValueError("the best weights are not those of this model")
    bases = {route.name: (route.up, route.matrix[1]) for route in plan.routes if route.up is not None}
    for name, basis in under("basis", named).items():
        rows, columns = bases.get(name, (0, 0))
        exact = spec.method.fixed_rows
        if basis.ndim != 2 or basis.shape[1] != columns or len(basis) > rows or (exact and len(basis) < rows):
            raise ValueError(f"directions of {name}: got {list(basis.shape)}, expected {rows} of {columns} numbers")


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}


def under(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose name begins with `kind/`, by what follows."""
    return {name.removeprefix(f"{kind}/"): value for name, value in tensors.items() if name.startswith(f"{kind}/")}
