"""Logistic and ridge regression of all sites' rows by Newton's method: rounds add up slopes, and few of them curvature.

A row is an intercept and the prepared inputs. Two classes, and each label, have one line; more classes one each
(multinomial); numbers one, in standard deviations. Weights are held small as those of standardised columns are by
scikit-learn's defaults (C = 1, alpha = 1), the intercept is not. Columns' variances are part of the first curvature.

A curvature holds products of columns, so it is only ever of all rows that a site has: differences of two would be
products of few rows. Trainings on fewer rows begin where that on all rows has ended, send slopes alone, and make up
for the missing curvature as quasi-Newton methods do (BFGS).
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
ROUNDS = 12  # of all rows, fewer once they have converged; a square needs one
CURVED = 3  # of these that add up the curvature, too
FREE_ROUNDS = 12  # of the fit that holds no weights small, from there on
FOLD_ROUNDS = 4  # of a training on fewer rows, from there on: to about a thousandth of a standard error
MOST_ROUNDS = 100  # where no message is sent for one
TOLERANCE = 1e-9  # of weights, between two rounds: they have converged
MAX_OUTPUT = 1e20
LARGEST = 1e220  # of a row: products of two readers' numbers, and of a weight
SMALLEST = 1e-12  # of a curvature relative to the largest: a direction with less has no weight
SLACK = 1e-6  # of what only rounding may break
TINY = 1e-9  # of a slope
ELSEWHERE = 0.1  # of the weights: how far from a first round that is not answered the next ones are
CONVERGED = 1e-15  # of the loss, what a whole step would still win
NEAR = 0.005  # of the loss, what steps beyond the last would win: half the square of a tenth of a standard error
SAME = 1e-13  # of a row's part in a slope: two that differ by less are one, but for rounding
DIFFER = 4  # a site of so many times its fewest patients hardly ever keeps sums back (measured: 3 to 10 columns)
LEAST = 1e-9  # of a row's curvature: where the largest has less, all rows are called with certainty

Sums = Mapping[str, Tensor]
WHOLE, FREE, FOLD = "linear-", "unpenalised-", "fold-"  # rounds of all rows, without penalty, and of each training
CURVATURE, FREE_CURVATURE = "curvature", "unpenalised-curvature"  # where these have ended


def stages(task: TaskSpec, inputs: int, *, coefficients: bool = False) -> dict[str, Stage]:
    """Return the rounds by name: those of all rows, and behind them those of each training on fewer.

    Args:
        task: what is predicted.
        inputs: how many there are.
        coefficients: whether a second fit of all rows, which holds no weights small, follows the first; of numbers
            the sums of the first serve both.
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
    """Return loss, slope and curvature at some weights, added up over rows.

    Weights of a size that no honest round leads to part rows so sharply that the curvature is of those at the border
    alone. Where fewer than allowed are behind it, no sums are told but a loss so large that the step is halved; nor
    where fewer are behind what the sums differ by from those at other weights, such as one whom a plane was moved past.

    Args:
        task: what is predicted.
        inputs: [n, …], prepared.
        labels: of the task; numbers in standard deviations.
        weights: float64 [lines, 1 + inputs].
        fewest: rows, or groups, that are to be behind a curvature, each counted by its largest part in it as a share
            of the largest of all.
        groups: int64 [n], what each row belongs to; None where each is its own.
        class_weights: float64 [classes], what a row of each class counts; None where each counts once.
        curved: whether the curvature is asked for.
        before: weights at which sums of these rows, or of more, were asked for already, and whether the curvature was.
    """
    loss, away, spread = _parts(task, inputs, labels, weights, class_weights)
    size = weights.numel()
    if fewest > 1:
        known = [(*_parts(task, inputs, labels, at, class_weights)[1:], too) for at, too in before]
        if not _are_told([*known, (away, spread, curved)], inputs, fewest, groups)[-1]:
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


def is_told(found: Sums) -> bool:
    """Tell whether a site's sums are of its rows, and not in their place."""
    return float(found["loss"]) < LARGEST


def _parts(
    task: TaskSpec, inputs: Tensor, labels: Tensor, weights: Tensor, class_weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, and the part of each row in slope, [n, lines], and curvature, [n, lines, lines]."""
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


def _are_told(
    answers: Sequence[tuple[Tensor, Tensor, bool]], inputs: Tensor, fewest: int, groups: Tensor | None
) -> list[bool]:
    """Return which of some answers about the same rows are given, one after the other.

    Args:
        answers: parts of each row in slope and curvature, and whether this is asked for.
        inputs: of the rows.
        fewest: rows, or groups, behind each, and behind what any two of them differ by.
        groups: what each row belongs to.
    """
    told = list[bool]()
    for away, spread, curved in answers:
        ends = spread.diagonal(dim1=1, dim2=2)
        enough = bool((inputs.double().abs() < RAW).all()) and _enough(ends, fewest, groups, LEAST)
        for (other, its_spread, its_curved), was in zip(answers, told, strict=False):
            if enough and was:
                apart = [other - away, *[its_spread.flatten(1) - spread.flatten(1)] * (curved and its_curved)]
                enough = all(_enough(one.abs() * (one.abs() > SAME), fewest, groups) for one in apart)
        told.append(enough)
    return told


def contradiction(task: TaskSpec, found: Sums, rows: float) -> str | None:
    """Return what no rows add up to among a site's sums: the curvature of so many is a matrix of products.

    Args:
        task: what is predicted.
        found: the sums.
        rows: how many they are of, each as often as it counts at most.
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
    if isinstance(task, Regression):  # where the curvature is not told, that of the intercept is known
        slope, ends = (slope[:1], slope.new_tensor([math.sqrt(rows)])) if ends is None else (slope, ends)
        largest = math.sqrt(2 * loss) * ends
    else:  # by how much a row's probability is wrong is no more than its loss
        slope = slope[:: len(slope) // count]
        largest = slope.new_full((count,), min(loss, rows))
    return "slope: expected no more than its loss allows" if (slope > largest * (1 + SLACK) + TINY).any() else None


@dataclass(frozen=True, eq=False)
class Descent:
    """Where Newton's method stands.

    Args:
        at: float64 [size], where the next round is to be taken; after the last the solution.
        curvature: float64 [size, size], what was known of it at the best weights so far.
        loss: there.
        decrement: by how much a whole step from there would lower it, about; 0 at the solution.
        path: where each round so far was taken.
        left: what steps beyond the next one would win, if they go on as before; as much as the next where the last
            round has brought nothing.
        best: float64 [size], the best weights so far that a round was taken at; None before any.
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
        """Where the curvature of the solution is taken: at a solution that has converged no new place is asked about.

        A place a rounding away would be one more answer, and few rows may be behind what the two differ by.
        """
        return self.best if self.best is not None and self.has_converged else self.at

    @property
    def is_near(self) -> bool:
        """Whether the solution is near enough to be taken for it."""
        return self.left <= NEAR

    @property
    def has_converged(self) -> bool:
        """Whether a step would change nothing that could be seen."""
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
    """Return where Newton's method stands after some rounds.

    A step that makes the loss larger is halved. A column that does not vary has no weight: rows that are not among
    these may have anything in it. Totals that lead to no finite numbers lead nowhere: one site's numbers
    may spoil this model, but not the run. Rounds without loss and slope have not been taken.

    Args:
        task: what is predicted.
        totals: of all rounds so far; where they lack the curvature it follows from how slopes have changed.
        variance: float64 [1 + inputs], of every column; 0 of the intercept.
        start: float64 [size], where the first round is taken; None are zeros.
        curvature: float64 [size, size], before the first round, unless that has its own.
        penalty: of squared weights of standardised columns, halved.
        fixed: bool [size], weights that stay 0.
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
        if not is_told(total):  # by somebody
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
    """Return the curvature that a step's change of the slope tells: BFGS, of the part that the penalty is not."""
    whole = curvature + torch.diag(held)
    moved = whole @ step
    along, before = float(step @ change), float(step @ moved)
    if not (0 < along < math.inf and 0 < before < math.inf):
        return curvature
    return curvature + torch.outer(change, change) / along - torch.outer(moved, moved) / before


def fitted(task: TaskSpec, inputs: Tensor, labels: Tensor) -> Tensor | None:
    """Return the weights for rows that are all here, at least one; None if they have not converged in `MOST_ROUNDS`."""
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
    """Return rows with their intercept; means and scales that a site has spoilt make no number without bounds."""
    return F.pad(inputs.double().flatten(1).nan_to_num(0.0).clamp(-RAW, RAW), (1, 0), value=1.0)


def _enough(parts: Tensor, fewest: int, groups: Tensor | None, least: float = 0.0) -> bool:
    """Return whether enough rows are behind sums in which each has these parts, [n, sums]; without rows they are.

    Args:
        parts: of each row.
        fewest: rows, or groups, each counted by its part as a share of the largest.
        groups: what each row belongs to.
        least: of the largest; where all have less, none are behind the sum.
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
    """Return a symmetric matrix from what is on and above its diagonal."""
    size = (math.isqrt(8 * len(upper) + 1) - 1) // 2
    matrix = torch.zeros(size, size, dtype=torch.float64)
    places = torch.triu_indices(size, size)
    matrix[tuple(places)] = upper
    matrix[tuple(places.flip(0))] = upper
    return matrix


def variances(curvature: Tensor, size: int) -> Tensor:
    """Return the variance of every column; 0 of the intercept. At weights 0 all rows have the same part in it."""
    rows = curvature[0, 0].clamp_min(1e-300)
    mean, square = curvature[0, :size] / rows, curvature.diagonal()[:size] / rows
    variance = square - mean.square()
    return torch.where(variance > SMALLEST * square, variance, 0.0)


def _solved(matrix: Tensor, slope: Tensor, without: Tensor) -> Tensor:
    """Return the least solution, with columns brought to one size first, and 0 of some; NaN where there is none."""
    ends = matrix.diagonal().clamp_min(1e-300).sqrt().masked_fill(without, math.inf)
    try:
        inverse: Tensor = torch.linalg.pinv(matrix / torch.outer(ends, ends), rtol=SMALLEST, hermitian=True)
    except RuntimeError:  # of numbers so large that they have no eigenvalues
        return torch.full_like(slope, math.nan)
    return (inverse @ (slope / ends)) / ends
