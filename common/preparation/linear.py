"""Logistic and ridge regression of all sites' rows by Newton's method: every round adds up slope and curvature.

A row is an intercept and the prepared inputs. Two classes, and each label, have one line; more classes one each
(multinomial); numbers one, in standard deviations. Weights are held small as those of standardised columns are by
scikit-learn's defaults (C = 1, alpha = 1), the intercept is not. Columns' variances are part of the first curvature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.preparation.stages import RAW, Field, Stage
from rankdad.common.spec.solver import lines
from rankdad.common.spec.tasks import Classification, Regression, TaskSpec

PENALTY = 1.0
ROUNDS = 12  # of Newton's method, which doubles the digits in each; a square needs one
MOST_ROUNDS = 100  # where no message is sent for one
TOLERANCE = 1e-9  # of weights, between two rounds: they have converged
MAX_OUTPUT = 1e20
LARGEST = 1e220  # of a row: products of two readers' numbers, and of a weight
SMALLEST = 1e-12  # of a curvature relative to the largest: a direction with less has no weight
SLACK = 1e-6  # of what only rounding may break
TINY = 1e-9  # of a slope
FREE = "free-"  # before the names of the sums of a fit that holds no weights small
LEAST = 1e-9  # of a row's curvature: where the largest has less, all rows are called with certainty

Sums = Mapping[str, Tensor]


def stages(task: TaskSpec, inputs: int, *, unpenalised: bool = False) -> dict[str, Stage]:
    """Return the rounds by name.

    Args:
        task: what is predicted.
        inputs: how many there are.
        unpenalised: whether they have the sums of a second fit, which holds no weights small, too; those of numbers
            serve both.
    """
    size = lines(task) * (inputs + 1)
    numbers = isinstance(task, Regression)
    fields = tuple(
        field
        for kind in ("", *[FREE] * (unpenalised and not numbers))
        for field in (
            Field(f"{kind}loss", (), "square", LARGEST),
            Field(f"{kind}slope", (size,), "sum", LARGEST),
            Field(f"{kind}curvature", (size * (size + 1) // 2,), "sum", LARGEST),
        )
    )
    return {f"linear-{number + 1}": Stage(fields) for number in range(1 if numbers else ROUNDS)}


def of_kind(sums: Sums, kind: str) -> dict[str, Tensor]:
    """Return the sums of one of a stage's fits: those whose names begin so."""
    return {name: sums[f"{kind}{name}"] for name in ("loss", "slope", "curvature")}


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
) -> dict[str, Tensor]:
    """Return loss, slope and curvature at some weights, added up over rows.

    Weights of a size that no honest round leads to part rows so sharply that the curvature is of those at the border
    alone. Where fewer than allowed are behind it, no sums are told but a loss so large that the step is halved.

    Args:
        task: what is predicted.
        inputs: [n, …], prepared.
        labels: of the task; numbers in standard deviations.
        weights: float64 [lines, 1 + inputs].
        fewest: rows, or groups, that are to be behind a curvature, each counted by its largest part in it as a share
            of the largest of all.
        groups: int64 [n], what each row belongs to; None where each is its own.
        class_weights: float64 [classes], what a row of each class counts; None where each counts once.
    """
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
    count, size = found.shape[1], weights.numel()
    if fewest > 1 and not _enough(inputs, spread.diagonal(dim1=1, dim2=2), fewest, groups):
        none = torch.zeros(size * (size + 1) // 2, dtype=torch.float64)
        return {"loss": none.new_tensor(LARGEST), "slope": none[:size], "curvature": none}
    blocks = [[(rows * spread[:, i, j, None]).T @ rows for j in range(count)] for i in range(count)]
    curvature = torch.cat([torch.cat(line, 1) for line in blocks])
    return {
        "loss": loss,
        "slope": (away.T @ rows).reshape(-1),
        "curvature": curvature[tuple(torch.triu_indices(size, size))],
    }


def contradiction(task: TaskSpec, found: Sums, rows: float) -> str | None:
    """Return what no rows add up to among a site's sums: the curvature of so many is a matrix of products.

    Args:
        task: what is predicted.
        found: the sums.
        rows: how many they are of, each as often as it counts at most.
    """
    curvature = square(found["curvature"])
    size = len(curvature) // lines(task)
    own = curvature.diagonal()
    if (own < 0).any():
        return "curvature: expected none below 0"
    ends, most = own.sqrt(), rows * (1.0 if isinstance(task, Regression) else 0.25)
    if (curvature.abs() > torch.outer(ends, ends) * (1 + SLACK) + 1e-300).any():
        return "curvature: expected no more than its diagonal allows"
    if (own[::size] > most * (1 + SLACK)).any():
        return f"curvature: expected that of {rows:g} rows"
    loss, slope = float(found["loss"]), found["slope"].abs()
    if isinstance(task, Regression):
        largest = math.sqrt(2 * loss) * ends
    else:  # by how much a row's probability is wrong is no more than its loss
        slope, largest = slope[::size], torch.full((len(own) // size,), min(loss, rows))
    return "slope: expected no more than its loss allows" if (slope > largest * (1 + SLACK) + TINY).any() else None


@dataclass(frozen=True, eq=False)
class Newton:
    """Where Newton's method stands.

    Args:
        at: float64 [size], where the next round is to be taken; after the last the solution.
        curvature: float64 [size, size], at the best weights so far.
        loss: there.
        decrement: by how much a whole step from there would lower it, about; 0 at the solution.
    """

    at: Tensor
    curvature: Tensor
    loss: float
    decrement: float


def newton(
    task: TaskSpec, inputs: int, totals: Sequence[Sums], penalty: float = PENALTY, fixed: Tensor | None = None
) -> Newton:
    """Return where Newton's method stands after some rounds.

    A step that makes the loss larger is halved. A column that does not vary has no weight: rows that are not among
    these may have anything in it. Totals that lead to no finite numbers lead nowhere: one site's numbers
    may spoil this model, but not the run.

    Args:
        task: what is predicted.
        inputs: how many there are.
        totals: of all rounds so far.
        penalty: of squared weights of standardised columns, halved.
        fixed: bool [size], weights that stay 0.
    """
    at = torch.zeros(lines(task) * (inputs + 1), dtype=torch.float64)
    best, least, direction, step, held = at, math.inf, at, 1.0, at
    curvature, decrement = torch.zeros(len(at), len(at), dtype=torch.float64), math.inf
    free = torch.ones_like(at) if fixed is None else (~fixed).double()
    for number, total in enumerate(totals):
        if not number:
            constant = variances(square(total["curvature"]), inputs + 1) == 0
            constant[0] = False  # the intercept
            free = free * (~constant).repeat(lines(task))
        here = square(total["curvature"]) * torch.outer(free, free)
        if not number:
            held = penalty * variances(square(total["curvature"]), inputs + 1).repeat(lines(task))
        value = float(total["loss"] + (held * at.square()).sum() / 2)
        if value <= least + SMALLEST * abs(value):
            slope, curvature = total["slope"] * free + held * at, here
            best, least, step = at, value, 1.0
            direction = _solved(curvature + torch.diag(held), slope, free == 0)
            decrement = float(slope @ direction) / 2
        else:
            step /= 2
        at = (best - step * direction).nan_to_num(0.0, 0.0, 0.0)
    return Newton(at, curvature, least, decrement)


def weights(task: TaskSpec, inputs: int, totals: Sequence[Sums]) -> Tensor:
    """Return where the next round is to be taken, after the last the solution: float64 [lines, 1 + inputs]."""
    return newton(task, inputs, totals).at.reshape(lines(task), inputs + 1)


def fitted(task: TaskSpec, inputs: Tensor, labels: Tensor) -> Tensor | None:
    """Return the weights for rows that are all here, at least one; None if they have not converged in `MOST_ROUNDS`."""
    width, totals = inputs[0].numel(), list[Sums]()
    at = weights(task, width, totals)
    for _ in range(MOST_ROUNDS):
        totals.append(sums(task, inputs, labels, at))
        before, at = at, weights(task, width, totals)
        if bool(((at - before).abs() <= TOLERANCE * (1 + before.abs())).all()):
            return at
    return None


def design(inputs: Tensor) -> Tensor:
    """Return rows with their intercept; means and scales that a site has spoilt make no number without bounds."""
    return F.pad(inputs.double().flatten(1).nan_to_num(0.0).clamp(-RAW, RAW), (1, 0), value=1.0)


def _enough(inputs: Tensor, parts: Tensor, fewest: int, groups: Tensor | None) -> bool:
    """Return whether enough rows are behind sums in which each has these parts, [n, lines].

    Means and scales that somebody has spoilt may leave of a number only on which side of a bound it lies.
    """
    if not len(parts):
        return True
    if groups is not None:
        names, of = groups.unique(return_inverse=True)
        largest = torch.zeros(len(names), parts.shape[1], dtype=parts.dtype)
        parts = largest.scatter_reduce(0, of.unsqueeze(1).expand_as(parts), parts, "amax")
    behind = parts.sum(0) >= fewest * parts.amax(0).clamp_min(LEAST)
    return bool(behind.all() and (inputs.double().abs() < RAW).all())


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
