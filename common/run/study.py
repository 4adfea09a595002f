"""The trainings of a run, in order, and their settings.

A run trains for every fold, for every candidate of a fold's model before that model, and finally for the model that is
kept. Repeats of folds that equal an earlier one at every site are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from rankdad.common.lowrank.routes import Route
from rankdad.common.protocol.messages import Control, Count, Figure
from rankdad.common.spec import MethodSpec, RunSpec
from rankdad.common.spec.evaluation import MAX_FOLDS
from rankdad.common.spec.tasks import LOWER_IS_BETTER
from rankdad.common.spec.tuning import MAX_CANDIDATES

Best = tuple[Figure | None, Count]
"""The best validation metric of a training, or None, and its epoch."""


class Study(Control):
    """The current training of a run.

    Args:
        fold: its number, from 0; after the last one, the number of trainings.
        began: its first round.
        before: optimizer steps of earlier trainings.
        equal: skipped repeats of folds.
        tried: the best of each candidate so far for the current model.
    """

    fold: Count = 0
    began: Count = 0
    before: Count = 0
    equal: Annotated[tuple[Count, ...], Field(max_length=MAX_FOLDS)] = ()
    tried: Annotated[tuple[Best, ...], Field(max_length=MAX_CANDIDATES)] = ()

    def settings(self, spec: RunSpec) -> tuple[RunSpec, int]:
        """Return the run with the settings of this training, and its largest number of epochs.

        Chosen settings are trained for the best number of epochs, at the learning rates that these had.
        """
        if not spec.candidates:
            return spec, spec.training.epochs
        candidate = spec.place(self.fold)[1]
        if candidate is not None:
            own = spec.with_settings(spec.candidates[candidate])
            return own, own.training.epochs
        best = chosen(spec, self.tried)
        return spec.with_settings(spec.candidates[best]), self.tried[best][1] + 1

    def following(self, spec: RunSpec, best: Best, began: int, before: int) -> Study:
        """Return the next training.

        Args:
            spec: the run.
            best: of this training.
            began: first round of the next one.
            before: steps so far.
        """
        is_candidate = spec.place(self.fold)[1] is not None
        tried, fold = (*self.tried, best) if is_candidate else (), self.fold + 1
        while spec.repeat(fold) in self.equal:
            fold += 1
        if fold == spec.folds:  # the last settings stay
            began, before = self.began, self.before
        return Study(fold=fold, began=began, before=before, equal=self.equal, tried=tried)


def chosen(spec: RunSpec, tried: Sequence[Best]) -> int:
    """Return the index of the best candidate: the first of equal ones, or if none has a metric.

    Args:
        spec: the run.
        tried: the best of every candidate.
    """
    sign = -1 if spec.training.monitor in LOWER_IS_BETTER else 1
    values = [-float("inf") if value is None else sign * value for value, _ in tried]
    return values.index(max(values))


def limited(routes: tuple[Route, ...], method: MethodSpec) -> tuple[Route, ...]:
    """Return the routes for a lower rank than the plan's; dense routes stay dense."""
    most = method.most_rows
    if not method.tuned or most is None:
        return routes
    return tuple(
        route
        if route.up is None or route.down is None
        else replace(route, up=min(route.up, most), down=min(route.down, most))
        for route in routes
    )
