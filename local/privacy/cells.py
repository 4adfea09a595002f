"""Cells of a site's table, patients times columns, and the numbers of one step that are held against them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from rankdad.common.errors import FewSamplesError, counted
from rankdad.common.gradients.routes import Route
from rankdad.common.policy import Policy, refusal, rows_sent
from rankdad.common.preparation.description import blocks
from rankdad.common.privacy.repeated import NUMBERS, numbers_a_cell, numbers_of_step, rows_for_cells
from rankdad.common.protocol.plan import Plan
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.common.spec.method import RankDad
from rankdad.common.spec.tasks import Classification
from rankdad.local.data import SiteData

WIDE = "more numbers than a step's samples have cells: of a wide network on few columns these can be solved for"


def varies(inputs: Tensor) -> Tensor:
    """Return which columns have more than one value, a gap being one, bool [columns]."""
    flat = inputs.flatten(1).double()
    low, high = flat.nan_to_num(math.inf).amin(0), flat.nan_to_num(-math.inf).amax(0)
    return (low < high) | (flat.isnan().any(0) & (low <= high))


def columns_here(spec: RunSpec, data: SiteData) -> int:
    """Return how many columns have more than one value here, the outcome among them.

    A column's levels are one column, whatever levels a run lists: an owner may invent some.
    """
    inputs = data.samples.inputs
    if not isinstance(inputs, Tensor):
        return math.prod(spec.data.shape) + 1
    several = varies(inputs)
    if not isinstance(spec.data, TableData):
        return int(several.sum()) + 1
    named = zip(spec.data.inputs, blocks(spec.data), strict=True)
    ends = [(at, at + (levels or 1) + spec.data.is_indicated(name)) for name, (at, levels) in named]
    return sum(bool(several[first:end].any()) for first, end in ends) + 1


@dataclass(frozen=True)
class StepNumbers:
    """How many numbers a site's steps send, and may send.

    Args:
        policy: of the site.
        routes: of the run, without what says nothing of its own: gradients of columns that are the same in all rows
            here, and of one of several classes, since what flows back to all adds up to 0.
        projections: whether a pair is sent for every matrix.
        columns: of a table that a step's numbers are held against; 0 of images, series, texts, and a single value.
    """

    policy: Policy
    routes: tuple[Route, ...]
    projections: bool
    columns: int

    @classmethod
    def of(cls, policy: Policy, spec: RunSpec, plan: Plan, data: SiteData) -> StepNumbers:
        """Return those of a site in a run."""
        routes, inputs = list(plan.routes), data.samples.inputs
        if spec.data.tokens is not None or len(spec.data.shape) > 1 or not isinstance(inputs, Tensor):
            return cls(policy, plan.routes, spec.training.sends_projections, 0)
        width, several = spec.data.shape[0], int(varies(inputs).sum())
        first = next((at for at, one in enumerate(routes) if one.shape[1:] == (width,)), None)
        if first is not None:
            routes[first] = replace(routes[first], shape=(routes[first].shape[0], several))
        last = max(0, len(routes) - 2 if len(routes[-1].shape) == 1 else len(routes) - 1)
        if isinstance(spec.task, Classification) and routes[last].dense:
            out, *others = routes[last].shape
            routes[last] = replace(routes[last], shape=(out - (out == spec.task.outputs > 1), *others))
        columns = columns_here(spec, data)
        return cls(policy, tuple(routes), spec.training.sends_projections, columns if columns > 1 else 0)

    def most(self, samples: int) -> float:
        """Return how many numbers a step of so many samples may send."""
        return numbers_a_cell(self.policy.rows_per_rank) * samples * self.columns if self.columns else math.inf

    def rows(self, samples: int) -> int | None:
        """Return how many rows of a layer a step of so many samples may send; None is no limit."""
        rows = self.policy.rank(samples)
        return rows and rows_for_cells(self.routes, rows, self.most(samples), projections=self.projections)

    def sent(self, samples: int) -> int:
        """Return how many numbers a step of so many samples sends."""
        return numbers_of_step(self.routes, self.rows(samples), projections=self.projections)


def check_numbers(policy: Policy, spec: RunSpec, plan: Plan, data: SiteData, samples: int) -> None:
    """Check that one step of a table can do with so few numbers that its samples cannot be solved for.

    Args:
        policy: of the site.
        spec: of the run.
        plan: of the run.
        data: of the site.
        samples: of the smallest step.

    Raises:
        FewSamplesError: it cannot.
    """
    step = StepNumbers.of(policy, spec, plan, data)
    least = 1 + step.projections if isinstance(spec.method, RankDad) else rows_sent(spec)
    numbers, most = numbers_of_step(step.routes, least, projections=step.projections), step.most(samples)
    if numbers <= most:
        return
    asks = f"sends at least {numbers:,} numbers of {counted(samples, 'sample')} here in a step"
    allows = f"{int(most):,}, for {counted(step.columns, 'column')} (rows_per_rank {policy.rows_per_rank})"
    change: dict[str, object] = {"rows_per_rank": NUMBERS * samples * step.columns // numbers or None}
    enough = math.ceil(numbers * samples / most)
    owner = f"fewer units, or steps of at least {counted(enough, 'sample')},"
    error = refusal("model", asks, allows, change, WIDE, owner=owner)
    raise FewSamplesError.of(error, code="step-of-too-many-numbers")
