"""Coefficients of a linear model in the columns' own units, with standard errors, from sums over rows.

They are of a fit without penalty: least squares, or maximum likelihood. The reference is the first level of each
categorical column and, with more than two classes, the first class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from rankdad.common.preparation import linear
from rankdad.common.preparation.linear import Sums
from rankdad.common.preparation.stages import Field, Stage
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.common.spec.solver import lines
from rankdad.common.spec.tasks import Classification, Regression, TaskSpec

FEWEST = 3  # patients for each column
CONVERGED = 1e-10  # decrease of the loss by a whole step at convergence
SINGULAR = 1e-10  # eigenvalue of the curvature, with a diagonal of 1, of columns that depend on each other
PART = 0.05  # least part of a column in such a direction
Problem = Literal[
    "", "few-patients", "collinear", "separated", "no-class", "no-level", "impossible-sums", "held-back", "unsolved"
]
SLACK = 1e-6  # error of a share that rounding may cause
MOST_LEFT_OUT = 8  # times that a site repeats its own fit without a column or its levels
OWN_ROUNDS = 12  # of Newton's method, which doubles the digits in each
OWN = "own-coefficients"  # the round in which sites send coefficients of their own rows
SENT: tuple[Problem | None, ...] = (None, "", "collinear", "separated")  # a site's own fit: none, problem
HELD_BACK: dict[Problem, Problem] = {"no-level": "collinear", "no-class": "separated"}  # sent instead: they show counts


@dataclass(frozen=True, eq=False)
class Coefficients:
    """A fit's coefficients.

    Args:
        estimates: float64 [lines, 1 + inputs], the intercept first; NaN if missing.
        errors: standard errors, float64 [lines, 1 + inputs]; NaN if missing.
        rows: number of rows.
        freedom: rows minus coefficients.
        determination: R²; for classes McFadden's, which is 1 − the log-likelihood over that of intercepts alone.
        problem: why the estimates are those of the ridge, without errors; "" if they are not. With impossible sums
            there are no estimates.
        collinear: places of columns that depend on others, 0 for the intercept; of first levels without rows.
    """

    estimates: Tensor
    errors: Tensor
    rows: int
    freedom: int
    determination: float
    problem: Problem = ""
    collinear: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Coding:
    """References of the coefficients.

    Args:
        fixed: the references, which stay 0, bool [lines, 1 + inputs].
        first: place of the first level of a level's column, and of other columns their own, int64 [1 + inputs].
    """

    fixed: Tensor
    first: Tensor

    @classmethod
    def of(cls, spec: RunSpec) -> Coding:
        """Return the coding of a run's columns and classes."""
        data, first = spec.data, [0]
        if isinstance(data, TableData):
            for place in data.places:
                first += [len(first)] * (place.levels or 1)
                first += [len(first)] * place.is_indicated
        else:
            first += range(1, 1 + math.prod(data.shape))
        places = torch.tensor(first)
        several = torch.bincount(places, minlength=len(places)) > 1
        fixed = (several & (places == torch.arange(len(places)))).repeat(lines(spec.task), 1)
        if isinstance(spec.task, Classification) and spec.task.classes > 2:
            fixed[0] = True
        return cls(fixed, places)

    def apply(self, weights: Tensor) -> Tensor:
        """Return a model's weights [lines, 1 + inputs] as differences from their references."""
        if bool(self.fixed[0].all()):
            weights = weights - weights[0]
        levels = self.fixed[-1][self.first]  # of the columns that are levels
        moved = weights - torch.where(levels, weights[:, self.first], 0.0)
        moved[:, 0] += torch.where(self.fixed[-1], weights, 0.0).sum(1)
        return moved


def own_stage(size: int) -> Stage:
    """Return the round in which sites send `size` coefficients of their own rows; no other site receives them."""
    counts = (Field(name, (), "count", whole=True) for name in ("people", "told", "rows", "freedom"))
    numbers = Field("determination", (), "sum"), Field("estimates", (size,), "sum"), Field("errors", (size,), "square")
    return Stage((*counts, *numbers))


def packed_own(people: int, found: Coefficients | None, size: int) -> dict[str, Tensor]:
    """Return the values of the fields of `own_stage`; without coefficients only the number of patients."""
    nothing = torch.zeros(size, dtype=torch.float64)
    values = {"told": 0, "rows": 0, "freedom": 0, "determination": 0.0}
    estimates = errors = nothing
    problem = None if found is None else HELD_BACK.get(found.problem, found.problem)
    if found is not None and problem in SENT:
        values["told"] = SENT.index(problem)
        if not found.problem:
            values |= {"rows": found.rows, "freedom": found.freedom, "determination": found.determination}
            estimates, errors = found.estimates.nan_to_num(0.0).reshape(-1), found.errors.nan_to_num(0.0).reshape(-1)
    numbers = {name: torch.tensor(float(value)) for name, value in ({"people": people} | values).items()}
    return numbers | {"estimates": estimates, "errors": errors}


def patients_only(total: Tensor) -> Tensor:
    """Return sums of several sites [folds, …] as others may see them: the number of patients alone."""
    return torch.cat([total[:, :1], torch.zeros_like(total[:, 1:])], dim=1)


def contradiction(sums: Sums, fixed: Tensor) -> str | None:
    """Return why no fit can have these values, beginning with the field; None if one can.

    Args:
        sums: as `packed_own` returns them.
        fixed: references of the coefficients.
    """
    sent, rows, freedom = (int(sums[name]) for name in ("told", "rows", "freedom"))
    if sent >= len(SENT):
        return f"told: expected at most {len(SENT) - 1}"
    figures = torch.cat([sums["determination"].reshape(1), sums["estimates"], sums["errors"]])
    if SENT[sent] != "":
        return "rows: expected none, nor figures, where there is no fit" if rows or freedom or figures.any() else None
    if not 0 < freedom < rows or not sums["people"] <= rows:
        return "freedom: expected that of a fit, and no more patients than rows"
    if not -SLACK <= float(sums["determination"]) <= 1 + SLACK:
        return "determination: expected a number from 0 to 1"
    compared = fixed.reshape(-1) & ((sums["estimates"] != 0) | (sums["errors"] != 0))
    return "estimates: expected none of what others are compared with" if compared.any() else None


def unpacked_own(sums: Sums, like: Tensor) -> Coefficients | None:
    """Return the coefficients that a site has sent of its own rows, shaped as `like`; None if it sent none."""
    problem = SENT[min(int(sums["told"]), len(SENT) - 1)]
    if problem is None:
        return None
    errors = torch.where(sums["errors"] > 0, sums["errors"], math.nan).reshape(like.shape)
    estimates = torch.where(errors.isnan(), math.nan, sums["estimates"].reshape(like.shape))
    counts = int(sums["rows"]), int(sums["freedom"])
    return Coefficients(estimates, errors, *counts, float(sums["determination"]), problem)


def of_fit(
    task: TaskSpec,
    sums: Sums,
    found: linear.Descent,
    ridge: Tensor,
    coding: Coding,
    people: float,
    units: tuple[Tensor, Tensor],
    *,
    whole: bool = True,
    complete: bool = True,
) -> Coefficients:
    """Return the coefficients that follow from sums over rows.

    Args:
        task: what is predicted.
        sums: of the first round, at weights of 0.
        found: the fit without penalty, with its curvature.
        ridge: weights of the penalised model for prepared inputs, float64 [lines, 1 + inputs].
        coding: references of the columns.
        people: number of patients, or rows.
        units: means and scales of the inputs, float64 [inputs]; in regression those of the label come first.
        whole: whether the curvature is over all rows: sites withhold sums of few patients.
        complete: whether every round is over all rows.
    """
    (count, width), fixed = coding.fixed.shape, coding.fixed
    first = linear.square(sums["curvature"])
    rows = rows_of(task, sums)
    constant = linear.variances(first, width) == 0
    constant[0] = False
    free = ~(fixed | constant)
    used = free.any(0)
    columns = int(used.sum()) - 1
    places = free.reshape(-1).nonzero().flatten()
    curvature = found.curvature[places][:, places]
    freedom = rows - len(places)
    problem: Problem = ""
    singular: tuple[int, ...] = ()
    inverse = curvature
    if columns > people / FEWEST or freedom < 1:
        problem = "few-patients"
    elif not isinstance(task, Regression) and bool((_class_sizes(task, sums, width) < 0.5).any()):
        problem = "no-class"
    elif not whole:
        problem = "held-back"
    elif not isinstance(task, Regression) and not found.decrement <= CONVERGED * max(1.0, rows):
        problem = "separated" if complete else "held-back"
    else:
        ends = curvature.diagonal().clamp_min(1e-300).sqrt()
        values, vectors = torch.linalg.eigh(curvature / torch.outer(ends, ends))
        if values[0] < SINGULAR:
            problem = "collinear"
            part = vectors[:, values < SINGULAR].abs().amax(1) > PART
            singular = tuple(sorted({int(place) % width for place in places[part]}))
            firsts = {int(coding.first[place]) for place in singular}
            if empty := tuple(sorted(place for place in firsts if place and fixed[-1, place] and constant[place])):
                problem, singular = "no-level", empty
        inverse = (vectors / values.clamp_min(SINGULAR)) @ vectors.T / torch.outer(ends, ends)
    at = found.at.reshape(count, width)
    loss, least = _losses(task, sums, found, width)
    determination = 1 - loss / least if least > 0 else math.nan
    if not problem and not -SLACK <= determination <= 1 + SLACK:
        problem = "impossible-sums"
    if problem:
        estimates = torch.where(constant, math.nan, _in_units(task, coding.apply(ridge), units))
        nothing = torch.full_like(estimates, math.nan)
        estimates = nothing if problem == "impossible-sums" else estimates
        return Coefficients(estimates, nothing, rows, max(freedom, 0), math.nan, problem, singular)
    scale = 2 * loss / freedom if isinstance(task, Regression) else 1.0
    covariance = torch.zeros(count * width, count * width, dtype=torch.float64)
    covariance[places[:, None], places] = inverse * scale
    errors = _errors(task, covariance.reshape(count, width, count, width), units)
    estimates = _in_units(task, torch.where(free, at, 0.0), units)
    shown = torch.where(free, 0.0, math.nan)
    return Coefficients(estimates + shown, errors + shown, rows, freedom, determination)


def fitted(
    task: TaskSpec,
    inputs: Tensor,
    labels: Tensor,
    coding: Coding,
    people: int,
    units: tuple[Tensor, Tensor],
    fewest: int = 1,
    groups: Tensor | None = None,
    before: Sequence[tuple[Tensor, bool]] = (),
) -> Coefficients | None:
    """Return the coefficients of local rows, without columns that are collinear or separate classes.

    If each of several columns follows from the others, none has a coefficient. Rows of an omitted level count as the
    first level's. The fit discloses a slope of 0 and the curvature at its weights: it is None if a round would withhold
    these sums. `linear.sums` has `fewest`, `groups` and `before`.
    """
    width, ridge = inputs[0].numel(), torch.zeros(coding.fixed.shape, dtype=torch.float64)
    unclear = torch.zeros(width + 1, dtype=torch.bool)
    for tried in range(MOST_LEFT_OUT + 1):
        totals, ats, fixed = list[Sums](), [ridge], coding.fixed.reshape(-1)
        for _ in range(1 if isinstance(task, Regression) else OWN_ROUNDS):
            totals.append(linear.sums(task, inputs, labels, ats[-1]))
            variance = linear.variances(linear.square(totals[0]["curvature"]), width + 1)
            fit = linear.descend(task, totals, variance, penalty=0.0, fixed=fixed)
            ats.append(fit.at.reshape(ridge.shape))
        found = of_fit(task, totals[0], fit, ridge, coding, people, units)
        out = alike = torch.zeros_like(unclear)
        if found.problem in ("collinear", "no-level"):
            out, alike = _dependent(linear.square(totals[0]["curvature"])[: width + 1, : width + 1], coding)
        elif found.problem == "separated":
            out = alike = _separating(task, inputs, labels, ats[-1] - ats[-2], coding)
        if not out.any() or tried == MOST_LEFT_OUT:
            break
        unclear, coding = unclear | alike, replace(coding, fixed=coding.fixed | out)
    if found.problem:
        return found
    if not linear.is_disclosed(linear.sums(task, inputs, labels, ats[-1], fewest, groups, before=before)):
        return None
    estimates, errors = (torch.where(unclear, math.nan, one) for one in (found.estimates, found.errors))
    return replace(found, estimates=estimates, errors=errors)


def _dependent(products: Tensor, coding: Coding) -> tuple[Tensor, Tensor]:
    """Return the columns that follow from earlier ones, and all columns involved; bool [1 + inputs].

    Args:
        products: sums of products of columns.
        coding: references of the columns.
    """
    constant = linear.variances(products, len(products)) == 0
    constant[0] = False
    places = (~(coding.fixed.all(0) | constant)).nonzero().flatten()
    ends = products.diagonal()[places].clamp_min(1e-300).sqrt()
    left = products[places][:, places] / torch.outer(ends, ends)
    values, vectors = torch.linalg.eigh(left)
    follows, alike = torch.zeros(2, len(products), dtype=torch.bool)
    if bool((values < SINGULAR).any()):
        alike[places[vectors[:, values < SINGULAR].abs().amax(1) > PART]] = True
    for at, place in enumerate(places):
        if left[at, at] < SINGULAR:
            follows[place] = True
        else:
            left = left - torch.outer(left[:, at], left[at]) / left[at, at]
    return follows, alike | follows


def _separating(task: TaskSpec, inputs: Tensor, labels: Tensor, step: Tensor, coding: Coding) -> Tensor:
    """Return the column, or the levels of a column, that separates classes the most; bool [1 + inputs].

    If the likelihood has no maximum, a step of Newton's method moves along the separating direction.
    """
    rows = linear.design(inputs)
    along = rows @ step.T
    nothing, largest = torch.zeros(step.shape[1], dtype=torch.bool), float(along.abs().max())
    if isinstance(task, Classification) and len(step) > 1:
        own = along.gather(1, labels.long().reshape(-1, 1))
        gained = own - along
    else:
        gained = along * (2 * labels.reshape(len(labels), -1) - 1)
    if not largest > 0 or float(gained.min()) < -PART * largest:
        return nothing
    moved = (step.abs() * rows.std(0, correction=0)).amax(0)
    together = coding.first == coding.first[moved.argmax()]
    return together & (moved > PART * moved.max())


def rows_of(task: TaskSpec, first: Sums) -> int:
    """Return the number of rows behind the first round's sums: at weights of 0 all have the same curvature."""
    count = lines(task)
    many = isinstance(task, Classification) and count > 1
    each = 1.0 if isinstance(task, Regression) else (1 - 1 / count) / count if many else 0.25
    return round(float(linear.square(first["curvature"])[0, 0]) / each)


def _class_sizes(task: TaskSpec, first: Sums, width: int) -> Tensor:
    """Return how many rows have each class, or have each label and lack it."""
    count, rows = lines(task), rows_of(task, first)
    ones = first["slope"].reshape(count, width)[:, 0]  # what each is expected to be without weights, less what it is
    if isinstance(task, Classification) and count > 1:
        return rows / count - ones
    return torch.cat([rows / 2 - ones, rows / 2 + ones])


def _losses(task: TaskSpec, first: Sums, found: linear.Descent, width: int) -> tuple[float, float]:
    """Return the loss of the fit, and that of intercepts alone."""
    rows = rows_of(task, first)
    if isinstance(task, Regression):
        total, explained = -float(first["slope"][0]), -float(first["slope"] @ found.at)
        return float(first["loss"]) - explained / 2, float(first["loss"]) - total**2 / rows / 2
    counts = _class_sizes(task, first, width)
    return found.loss, -float(torch.special.xlogy(counts, counts / rows).sum())


def _in_units(task: TaskSpec, weights: Tensor, units: tuple[Tensor, Tensor]) -> Tensor:
    """Return weights of prepared inputs as those of inputs in their own units."""
    of_label, change = _change(task, units)
    moved = weights @ change.T
    moved[:, 0] += of_label
    return moved


def _errors(task: TaskSpec, covariance: Tensor, units: tuple[Tensor, Tensor]) -> Tensor:
    _, change = _change(task, units)
    each = [change @ covariance[line, :, line] @ change.T for line in range(len(covariance))]
    return torch.stack([one.diagonal().clamp_min(0).sqrt() for one in each])


def _change(task: TaskSpec, units: tuple[Tensor, Tensor]) -> tuple[float, Tensor]:
    """Return what is added to intercepts, and the matrix from weights of prepared inputs to those of inputs."""
    mean, scale = units
    label_mean, label_scale = 0.0, 1.0
    if isinstance(task, Regression):
        label_mean, label_scale, mean, scale = float(mean[0]), float(scale[0]), mean[1:], scale[1:]
    change = torch.diag(torch.cat([torch.ones(1, dtype=torch.float64), 1 / scale]))
    change[0, 1:] = -mean / scale
    return label_mean, change * label_scale
