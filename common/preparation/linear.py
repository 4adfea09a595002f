"""Logistic and ridge regression of all sites' rows by Newton's method: rounds sum slopes, and some the curvature.

A row is an intercept and the prepared inputs. Two classes, and each label, have one line (linear function); more
classes one each (multinomial); regression has one, in standard deviations. The penalty is that of scikit-learn's
defaults (C = 1, alpha = 1) on standardised columns, without the intercept. The first curvature contains the columns'
variances.

A curvature holds products of columns, so it is always over all rows of a site: the difference of two would be products
of few rows. Trainings on fewer rows start at the fit to all rows, send slopes only, and replace the missing curvature
as quasi-Newton methods do (BFGS).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.preparation.stages import RAW, Field, Stage
from rankdad.common.spec.solver import lines
from rankdad.common.spec.tasks import Classification, Regression, TaskSpec

PENALTY = 1.0
ROUNDS = 12  # over all rows at most; least squares need one
CURVED = 3  # of these with the curvature
FREE_ROUNDS = 12  # of the fit without penalty, which follows
FOLD_ROUNDS = 4  # of a training on fewer rows, which follows; mostly to a thousandth of a standard error: see `NEAR`
MOST_ROUNDS = 100  # of a fit at one site, which sends no messages
TOLERANCE = 1e-9  # change of the weights between two rounds at convergence
MAX_OUTPUT = 1e20
LARGEST = 1e220  # limit of a row: products of two readers' numbers and a weight
SMALLEST = 1e-12  # curvature relative to the largest, below which a direction has no weight
SLACK = 1e-6  # relative error that rounding may cause
TINY = 1e-9  # absolute error of a slope that rounding may cause
ELSEWHERE = 0.1  # distance of the next round, relative to the weights, if the first one was not answered
CONVERGED = 1e-15  # relative decrease of the loss by a whole step at convergence
NEAR = 0.005  # decrease of the loss by all later steps near the solution: half the square of 0.1 standard errors
SAME = 1e-13  # difference of a row's part in two slopes that is rounding
DIFFER = 4  # a site with this many times its fewest patients hardly ever withholds sums (measured: 3 to 10 columns)
LEAST = 1e-9  # a row's curvature; if the largest is smaller, all rows are predicted with certainty

Sums = Mapping[str, Tensor]
WHOLE, FREE, FOLD = "linear-", "unpenalised-", "fold-"  # rounds over all rows, without penalty, of each training
CURVATURE, FREE_CURVATURE = "curvature", "unpenalised-curvature"  # at the end of the first two


def stages(task: TaskSpec, inputs: int, *, coefficients: bool = False) -> dict[str, Stage]:
    """Return the rounds by name: those over all rows, then those of each training on fewer.

    Args:
        task: what is predicted.
        inputs: number of inputs.
        coefficients: whether a second fit to all rows, without penalty, follows the first; in regression both use the
            same sums.
    """
    size, numbers = lines(task) * (inputs + 1), isinstance(task, Regression)
    curvature = Field("curvature", (size * (size + 1) // 2,), "sum", LARGEST, whole=True)
    slope = Field("loss", (), "square", LARGEST), Field("slope", (size,), "sum", LARGEST)
    whole = tuple(replace(field, whole=True) for field in slope)
    rounds = range(1 if numbers else ROUNDS)
    found = {f"{WHOLE}{number + 1}": Stage((*whole, *[curvature] * (number < CURVED))) for number in rounds}
    found[CURVATURE] = Stage((Field("rows", (), "count", whole=True), curvature))
    if coefficients and not numbers:
        found |= {f"{FREE}{number + 1}": Stage(whole) for number in range(FREE_ROUNDS)}
        found[FREE_CURVATURE] = found[CURVATURE]
    return found | {f"{FOLD}{number + 1}": Stage(slope) for number in range(min(FOLD_ROUNDS, inputs))}


def outputs(task: TaskSpec, inputs: Tensor, weights: Tensor) -> Tensor:
    """Return what a linear model says of rows, as a network of the task would: float64 [n, task.outputs]."""
    found = _lines(design(inputs), weights)
    binary = isinstance(task, Classification) and task.classes == 2
    return torch.cat([torch.zeros_like(found), found], 1) if binary else found


def sums(
    task: TaskSpec,
    inputs: Tensor,
    labels: Tensor,
    weights: Tensor,
    fewest: int = 1,
    groups: Tensor | None = None,
    class_weights: Tensor | None = None,
    *,
    curved: bool = True,
    before: Sequence[tuple[Tensor, bool]] = (),
) -> dict[str, Tensor]:
    """Return loss, slope and curvature at some weights, summed over rows.

    Weights larger than any honest round's separate rows so sharply that only rows at the border contribute to the
    curvature. If fewer rows than allowed contribute, or fewer to the difference from sums at other weights, as when a
    plane moves past a single row, the sums are withheld: the loss is then so large that the step is halved.

    Args:
        task: what is predicted.
        inputs: prepared inputs [n, …].
        labels: labels of the task; numbers in standard deviations.
        weights: float64 [lines, 1 + inputs].
        fewest: least number of rows, or groups, behind a curvature; each counts by its largest part relative to the
            largest of all.
        groups: group of each row, int64 [n]; None if each row is its own.
        class_weights: weight of a row of each class, float64 [classes]; None for equal weights.
        curved: whether the curvature is included.
        before: weights of earlier sums over these rows, or more, and whether they included the curvature.
    """
    loss, away, spread = _parts(task, inputs, labels, weights, class_weights)
    size = weights.numel()
    if fewest > 1:
        known = [(*_parts(task, inputs, labels, at, class_weights)[1:], too) for at, too in before]
        if not _may_leave([*known, (away, spread, curved)], inputs, fewest, groups)[-1]:
            none = torch.zeros(size * (size + 1) // 2, dtype=torch.float64)
            nothing = {"loss": none.new_tensor(LARGEST), "slope": none[:size]}
            return nothing | ({"curvature": none} if curved else {})
    rows, count = design(inputs), away.shape[1]
    slope = {"loss": loss, "slope": (away.T @ rows).reshape(-1)}
    if not curved:
        return slope
    blocks = [[(rows * spread[:, i, j, None]).T @ rows for j in range(count)] for i in range(count)]
    curvature = torch.cat([torch.cat(line, 1) for line in blocks])
    return slope | {"curvature": curvature[tuple(torch.triu_indices(size, size))]}


def is_disclosed(found: Sums) -> bool:
    """Return whether a site has sent its sums, and not withheld them."""
    return float(found["loss"]) < LARGEST


def _parts(
    task: TaskSpec, inputs: Tensor, labels: Tensor, weights: Tensor, class_weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, and each row's part in the slope, [n, lines], and the curvature, [n, lines, lines]."""
    rows = design(inputs)
    found, counts = _lines(rows, weights), None if class_weights is None else class_weights[labels].unsqueeze(1)
    if isinstance(task, Regression):
        true = labels.double().reshape(-1, 1).clamp(-MAX_OUTPUT, MAX_OUTPUT)
        expected, loss = found, (found - true).square().sum() / 2
        spread = torch.ones(len(rows), 1, 1, dtype=torch.float64)
    elif found.shape[1] == 1 or not isinstance(task, Classification):
        true = labels.double().reshape(found.shape)
        expected = found.sigmoid()
        loss = F.binary_cross_entropy_with_logits(found, true, counts, reduction="sum")
        spread = torch.diag_embed(expected * (1 - expected))
    else:
        true = F.one_hot(labels, found.shape[1]).double()
        expected, loss = found.softmax(1), F.cross_entropy(found, labels, class_weights, reduction="sum")
        spread = torch.diag_embed(expected) - expected[:, :, None] * expected[:, None]
    away = expected - true
    if counts is not None:
        away, spread = away * counts, spread * counts.unsqueeze(2)
    return loss, away, spread


def _may_leave(
    answers: Sequence[tuple[Tensor, Tensor, bool]], inputs: Tensor, fewest: int, groups: Tensor | None
) -> list[bool]:
    """Return which of several answers about the same rows may leave, in their order.

    Args:
        answers: each row's parts in slope and curvature, and whether the curvature is included.
        inputs: inputs of the rows.
        fewest: least number of rows, or groups, behind each answer, and behind the difference of any two.
        groups: group of each row.
    """
    allowed = list[bool]()
    for away, spread, curved in answers:
        ends = spread.diagonal(dim1=1, dim2=2)
        enough = bool((inputs.double().abs() < RAW).all()) and _enough(ends, fewest, groups, LEAST)
        for (other, its_spread, its_curved), left in zip(answers, allowed, strict=False):
            if enough and left:
                apart = [other - away, *[its_spread.flatten(1) - spread.flatten(1)] * (curved and its_curved)]
                enough = all(_enough(one.abs() * (one.abs() > SAME), fewest, groups) for one in apart)
        allowed.append(enough)
    return allowed


def contradiction(task: TaskSpec, found: Sums, rows: float) -> str | None:
    """Return why no rows can have these sums; None if some can. A curvature is a matrix of products of columns.

    Args:
        task: what is predicted.
        found: a site's sums.
        rows: largest number of rows behind them, with their weights.
    """
    count, ends = lines(task), None
    if "curvature" in found:
        curvature = square(found["curvature"])
        own = curvature.diagonal()
        if (own < 0).any():
            return "curvature: expected none below 0"
        ends, most = own.sqrt(), rows * (1.0 if isinstance(task, Regression) else 0.25)
        if (curvature.abs() > torch.outer(ends, ends) * (1 + SLACK) + 1e-300).any():
            return "curvature: expected no more than its diagonal allows"
        if (own[:: len(own) // count] > most * (1 + SLACK)).any():
            return f"curvature: expected that of {rows:g} rows"
    if "slope" not in found:
        return None
    loss, slope = float(found["loss"]), found["slope"].abs()
    if isinstance(task, Regression):  # without the curvature, that of the intercept is still known
        slope, ends = (slope[:1], slope.new_tensor([math.sqrt(rows)])) if ends is None else (slope, ends)
        largest = math.sqrt(2 * loss) * ends
    else:  # the error of a row's probability is at most its loss
        slope = slope[:: len(slope) // count]
        largest = slope.new_full((count,), min(loss, rows))
    return "slope: expected no more than its loss allows" if (slope > largest * (1 + SLACK) + TINY).any() else None


@dataclass(frozen=True, eq=False)
class Descent:
    """State of Newton's method.

    Args:
        at: weights of the next round, float64 [size]; after the last round the solution.
        curvature: estimate at the best weights so far, float64 [size, size].
        loss: at the best weights so far.
        decrement: approximate decrease of the loss by a whole step from there; 0 at the solution.
        path: weights of each round so far.
        left: estimated decrease of the loss by all steps after the next one; that of the next one if the last round
            brought no decrease.
        best: best weights of a round so far, float64 [size]; None before any.
    """

    at: Tensor
    curvature: Tensor
    loss: float
    decrement: float
    path: tuple[Tensor, ...] = ()
    left: float = math.inf
    best: Tensor | None = None

    @property
    def final(self) -> Tensor:
        """Weights at which the curvature of the solution is computed: after convergence, those of an earlier round.

        Weights that differ by rounding would be one more answer, and few rows may be behind the difference.
        """
        return self.best if self.best is not None and self.has_converged else self.at

    @property
    def is_near(self) -> bool:
        """Whether the weights are near enough to the solution."""
        return self.left <= NEAR

    @property
    def has_converged(self) -> bool:
        """Whether another step would change nothing but rounding."""
        return self.decrement <= CONVERGED * max(1.0, abs(self.loss))


def descend(
    task: TaskSpec,
    totals: Sequence[Sums],
    variance: Tensor,
    *,
    start: Tensor | None = None,
    curvature: Tensor | None = None,
    penalty: float = PENALTY,
    fixed: Tensor | None = None,
) -> Descent:
    """Return the state of Newton's method after some rounds.

    A step that increases the loss is halved. A constant column has no weight, because new rows may have any value in
    it. Weights that would not be finite become 0: a site can spoil this model, but not the run.
    Rounds without loss and slope have not happened.

    Args:
        task: what is predicted.
        totals: of all rounds so far; without the curvature, it is estimated from changes of the slope.
        variance: of every column, float64 [1 + inputs]; 0 for the intercept.
        start: weights of the first round, float64 [size]; None for zeros.
        curvature: before the first round, float64 [size, size], unless that round has its own.
        penalty: factor of half the squared weights of standardised columns.
        fixed: weights that stay 0, bool [size].
    """
    free = (variance != 0).double()
    free[0] = 1.0  # the intercept
    free, held = free.repeat(lines(task)), penalty * variance.repeat(lines(task))
    if fixed is not None:
        free = free * (~fixed).double()
    at = torch.zeros(len(free), dtype=torch.float64) if start is None else start * free
    mask, direction, step = torch.outer(free, free), torch.zeros_like(at), 1.0
    known = torch.zeros(len(free), len(free), dtype=torch.float64) if curvature is None else curvature * mask
    best, slope, least, decrement, left, begun = at, at, math.inf, math.inf, math.inf, False
    path = list[Tensor]()
    for total in totals:
        if not total["loss"] and not total["slope"].any():
            continue
        path.append(at)
        value = float(total["loss"] + (held * at.square()).sum() / 2)
        if not is_disclosed(total):  # by at least one site
            direction = direction if begun else ELSEWHERE * at
            step /= 2
        elif value <= least + SMALLEST * abs(value):
            here = total["slope"] * free + held * at
            if "curvature" in total:
                known = square(total["curvature"]) * mask
            elif begun:
                known = _updated(known, held, at - best, here - slope)
            best, slope, least, step, begun = at, here, value, 1.0, True
            direction = _solved(known + torch.diag(held), slope, free == 0)
            before, decrement = decrement, float(slope @ direction) / 2
            left = decrement * min(1.0, decrement / before) if 0 < before < math.inf else decrement
        else:
            step /= 2
        at = (best - step * direction).nan_to_num(0.0, 0.0, 0.0)
    left = left if step == 1.0 else decrement
    return Descent(at, known, least, decrement, tuple(path), left, best if begun else None)


def _updated(curvature: Tensor, held: Tensor, step: Tensor, change: Tensor) -> Tensor:
    """Return the curvature updated by a step's change of the slope (BFGS), without the penalty's part."""
    whole = curvature + torch.diag(held)
    moved = whole @ step
    along, before = float(step @ change), float(step @ moved)
    if not (0 < along < math.inf and 0 < before < math.inf):
        return curvature
    return curvature + torch.outer(change, change) / along - torch.outer(moved, moved) / before


def fitted(task: TaskSpec, inputs: Tensor, labels: Tensor) -> Tensor | None:
    """Return the weights for local rows, at least one; None if they have not converged in `MOST_ROUNDS`."""
    shape = lines(task), 1 + inputs[0].numel()
    totals, at = list[Sums](), torch.zeros(shape, dtype=torch.float64)
    for _ in range(MOST_ROUNDS):
        totals.append(sums(task, inputs, labels, at))
        variance = variances(square(totals[0]["curvature"]), shape[1])
        before, at = at, descend(task, totals, variance).at.reshape(shape)
        if bool(((at - before).abs() <= TOLERANCE * (1 + before.abs())).all()):
            return at
    return None


def design(inputs: Tensor) -> Tensor:
    """Return rows with their intercept, within bounds even if a site has sent wrong means or scales."""
    return F.pad(inputs.double().flatten(1).nan_to_num(0.0).clamp(-RAW, RAW), (1, 0), value=1.0)


def _enough(parts: Tensor, fewest: int, groups: Tensor | None, least: float = 0.0) -> bool:
    """Return whether enough rows contribute to sums; True without rows.

    Args:
        parts: each row's part in each sum, [n, sums].
        fewest: least number of rows, or groups, each counted by its part relative to the largest.
        groups: group of each row.
        least: least size of the largest part; below it, no row contributes.
    """
    if not len(parts):
        return True
    if groups is not None:
        names, of = groups.unique(return_inverse=True)
        largest = torch.zeros(len(names), parts.shape[1], dtype=parts.dtype)
        parts = largest.scatter_reduce(0, of.unsqueeze(1).expand_as(parts), parts, "amax")
    return bool((parts.sum(0) >= fewest * parts.amax(0).clamp_min(least)).all())


def _lines(rows: Tensor, weights: Tensor) -> Tensor:
    return (rows @ weights.T).nan_to_num(0.0).clamp(-MAX_OUTPUT, MAX_OUTPUT)


def square(upper: Tensor) -> Tensor:
    """Return a symmetric matrix from its upper triangle, row by row."""
    size = (math.isqrt(8 * len(upper) + 1) - 1) // 2
    matrix = torch.zeros(size, size, dtype=torch.float64)
    places = torch.triu_indices(size, size)
    matrix[tuple(places)] = upper
    matrix[tuple(places.flip(0))] = upper
    return matrix


def variances(curvature: Tensor, size: int) -> Tensor:
    """Return the variance of every column, 0 for the intercept, from the curvature at weights of 0."""
    rows = curvature[0, 0].clamp_min(1e-300)
    mean, square = curvature[0, :size] / rows, curvature.diagonal()[:size] / rows
    variance = square - mean.square()
    return torch.where(variance > SMALLEST * square, variance, 0.0)


def _solved(matrix: Tensor, slope: Tensor, without: Tensor) -> Tensor:
    """Return the least-norm solution for columns scaled to one size, 0 for those left out; NaN if there is none."""
    ends = matrix.diagonal().clamp_min(1e-300).sqrt().masked_fill(without, math.inf)
    try:
        inverse: Tensor = torch.linalg.pinv(matrix / torch.outer(ends, ends), rtol=SMALLEST, hermitian=True)
    except RuntimeError:  # numbers too large for eigenvalues
        return torch.full_like(slope, math.nan)
    return (inverse @ (slope / ends)) / ends
