"""What each of a run's trainings is made with: a candidate's settings, or those that validation has chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankdad.common.lowrank.routes import Route
from rankdad.common.spec import MethodSpec, RunSpec
from rankdad.common.spec.tasks import LOWER_IS_BETTER

Tried = Sequence[tuple[float | None, int]]


def chosen(spec: RunSpec, tried: Tried) -> int:
    """Return the place of the best candidate: the first of several, and of those without a metric.

    Args:
        spec: the run.
        tried: best validation metric of every candidate, and its epoch.
    """
    sign = -1 if spec.training.monitor in LOWER_IS_BETTER else 1
    values = [-float("inf") if value is None else sign * value for value, _ in tried]
    return values.index(max(values))


def settings_of(spec: RunSpec, fold: int, tried: Tried) -> tuple[RunSpec, int]:
    """Return the run with the settings of one of its trainings, and how many epochs that has at most.

    What is chosen is trained for as many epochs as were best, at the learning rates that these had.

    Args:
        spec: the run.
        fold: which of the trainings, from 0.
        tried: best validation metric of every candidate for this model so far, and its epoch.
    """
    if not spec.candidates:
        return spec, spec.training.epochs
    candidate = spec.place(fold)[1]
    if candidate is not None:
        settings = spec.with_settings(spec.candidates[candidate])
        return settings, settings.training.epochs
    best = chosen(spec, tried)
    return spec.with_settings(spec.candidates[best]), tried[best][1] + 1


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
