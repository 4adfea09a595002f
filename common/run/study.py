"""A study: the trainings of a run, one after the other, and the settings that each is made with.

A run trains for every fold, for every candidate of a fold's model before that model, and at last for the model that is
kept. Repeats of folds that are as one before at every site are left out.
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
"""The best validation metric of a training, None where it has none, and its epoch."""


class Study(Control):
    """Which of a run's trainings is made.

    Args:
        fold: which one, from 0; how many there are when all have been made and tested.
        began: its first round.
        before: optimizer steps of those before.
        equal: repeats of folds that are as one before at every site, and not run.
        tried: the best of each candidate so far for the model that is made now.
    """

    fold: Count = 0
    began: Count = 0
    before: Count = 0
    equal: Annotated[tuple[Count, ...], Field(max_length=MAX_FOLDS)] = ()
    tried: Annotated[tuple[Best, ...], Field(max_length=MAX_CANDIDATES)] = ()

    def settings(self, spec: RunSpec) -> tuple[RunSpec, int]:
        """Return the run with the settings of this training, and how many epochs that has at most.

        What is chosen is trained for as many epochs as were best, at the learning rates that these had.
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
        """Return the study at its next training.

        Args:
            spec: the run.
            best: of this training.
            began: the first round of the next.
            before: steps so far.
        """
        is_candidate = spec.place(self.fold)[1] is not None
        tried, fold = (*self.tried, best) if is_candidate else (), self.fold + 1
        while spec.repeat(fold) in self.equal:
            fold += 1
        if fold == spec.folds:  # what has been trained last stays as it is
            began, before = self.began, self.before
        return Study(fold=fold, began=began, before=before, equal=self.equal, tried=tried)


def chosen(spec: RunSpec, tried: Sequence[Best]) -> int:
    """Return the place of the best candidate: the first of several, and of those without a metric.

    Args:
        spec: the run.
        tried: the best of every candidate.
    """
    sign = -1 if spec.training.monitor in LOWER_IS_BETTER else 1
    values = [-float("inf") if value is None else sign * value for value, _ in tried]
    return values.index(max(values))


def limited(routes: tuple[Route, ...], method: MethodSpec) -> tuple[Route, ...]:
    """Return the routes of a rank that is lower than the plan's; what travels dense there does so here."""
    most = method.most_rows
    if not method.tuned or most is None:
        return routes
    return tuple(
        route
        if route.up is None or route.down is None
        else replace(route, up=min(route.up, most), down=min(route.down, most))
        for route in routes
    )
