"""Limits on each patient's share of a step's gradient.

A gradient is a sum over patients of the deltas through each one's outputs. If a model is certain of all patients but
one, the gradient is that patient's: divided by the bias's, it is the patient's row. So no patient may have more than a
share of all deltas, or of those through one unit of a layer, or nearly all of those of one output, such as a class.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Gathered = Callable[[Tensor], tuple[Tensor, int]]

ROUNDING = 1e-9  # tolerance: with as many equal shares as patients must share, none is too large
OF_OUTPUT = 0.8  # of the deltas of one output, such as a class with a single misclassified patient
OF_SUMS = 0.9  # of the sum of squares of any weighted sum of units: the rest is a third as large
ROUNDED = 100  # in rounding errors: smaller sums of units count as zero
ALONE = 1e-7  # of the sum of squares: a smaller rest is a rounding error
ROUNDS = 20  # because the limits on outputs and on the whole depend on each other


def limit(sums: Tensor, sharing: int) -> Tensor:
    """Return the largest amount for which no patient has more than 1 / `sharing` of what is left.

    With fewer patients than `sharing`, nothing is left.

    Args:
        sums: each patient's amount of each thing, at least 0, float64 [patients, things].
        sharing: least number of patients that share each.

    Returns:
        float64 [things].
    """
    ordered = torch.cat([sums.sort(0, descending=True).values, sums.new_zeros(sharing, sums.shape[1])])
    rest = ordered.flip(0).cumsum(0).flip(0)[:sharing]  # of a patient and all with less
    equal = rest / torch.arange(sharing, 0, -1, dtype=sums.dtype, device=sums.device)[:, None]
    fits = ordered[:sharing] <= equal * (1 + ROUNDING)
    larger = (fits.cumsum(0) == 0).sum(0, keepdim=True)  # patients above the limit; the last one always fits
    return equal.gather(0, larger)[0]


def scales(deltas: Tensor, people: Tensor, sharing: int) -> Tensor | None:
    """Return the factors of each row's deltas; None if no patient has too large a share.

    Args:
        deltas: gradients of each row's loss with respect to its outputs, [rows, outputs].
        people: patient of each row, int64 [rows].
        sharing: least number of patients that share a step.

    Returns:
        From 0 to 1, in the deltas' dtype, [rows, outputs].
    """
    if sharing < 2 or not len(deltas) or not deltas.isfinite().all():
        return None
    names, of = people.unique(return_inverse=True)
    left = deltas.double()
    for _ in range(ROUNDS):
        before = left
        left = _within(left, left.abs(), of, len(names), most_of_outputs)
        size = torch.linalg.vector_norm(left, dim=1, keepdim=True)
        left = _within(left, size, of, len(names), lambda sums: limit(sums, sharing))
        if left is before:
            break
    if torch.equal(left, deltas.double()):
        return None
    return torch.where(deltas == 0, 0.0, left / deltas.double()).to(deltas.dtype)


def shared_units(deltas: Tensor, people: Tensor, gathered: Gathered, sharing: int) -> Tensor | None:
    """Return a layer's deltas scaled so that no patient has too large a share of a unit; None if none has.

    Two batches, or two epochs, may differ by one patient. For a unit that responds to few patients, the difference is
    that patient's, unless several others have most of each sum. For the same reason, no patient may have nearly all of
    any weighted sum of units, such as a difference of two, if the rank of Δ is at most half the number of patients;
    with a higher rank, some sum always is one patient's.

    Args:
        deltas: Δ of the layer, [rows, units].
        people: patient of each row, int64 [rows].
        gathered: returns the rows of all ranks of the batch, and the position of this rank's.
        sharing: least number of patients that share a unit; 1 for the outputs, which `scales` has limited.
    """
    everybody, begin = gathered(people.to(deltas.device, torch.float64)[:, None])
    names, of = everybody[:, 0].unique(return_inverse=True)
    if not len(names):
        return None
    mine = of[begin : begin + len(people)]
    left = deltas
    if sharing > 1:
        left = _within(left, left.double().abs(), mine, len(names), lambda sums: limit(sums, sharing), gathered)
    scale = _out_of_sums(left, of.cpu(), mine, len(names), gathered)
    if scale is not None and not bool((scale == 1).all()):
        left = left * scale.to(left)[mine]
    elif scale is None and sharing < 2:  # the rank is higher
        left = _within(left, left.double().abs(), mine, len(names), most_of_outputs, gathered)
    return None if left is deltas else left


def _out_of_sums(deltas: Tensor, of: Tensor, mine: Tensor, people: int, gathered: Gathered) -> Tensor | None:
    """Return the factors of each patient's rows for which no weighted sum of units is nearly one's, [people, 1].

    A patient's largest share of the sum of squares of any such sum is the patient's leverage; with several rows, the
    largest eigenvalue of their part of the projection on Δ's columns. Random sums, one more than the rank may be, have
    the same leverages.

    Args:
        deltas: Δ of this rank's rows, [rows, units].
        of: patient of each row of all ranks, on the CPU.
        mine: patient of each row of this rank.
        people: number of patients.
        gathered: see `shared_units`.

    Returns:
        None if the rank of Δ is too high.
    """
    most, units, rounding = people // 2, deltas.shape[1], torch.finfo(deltas.dtype).eps * ROUNDED
    deltas, scale = deltas.double(), torch.ones(people, 1, dtype=torch.float64)
    drawn = torch.Generator().manual_seed(0)
    sums = torch.randn(units, most + 1, generator=drawn, dtype=torch.float64).to(deltas) if units > most else None
    for _ in range(ROUNDS):
        left = deltas * scale.to(deltas)[mine]
        squares, _ = gathered(left.square().sum(0, keepdim=True))
        left = left / squares.sum(0).sqrt().clamp(min=torch.finfo(left.dtype).tiny)  # scale does not affect leverage
        rows = gathered(left if sums is None else left @ sums)[0].cpu()  # small, and decomposed fastest there
        if not rows.isfinite().all():
            break
        sides, sizes, _ = torch.linalg.svd(rows, full_matrices=False)
        sides = sides[:, sizes > sizes[:1] * rounding]
        leverage = scale.new_zeros(people).index_add_(0, of, sides.square().sum(1))  # of one row each
        for one in (leverage > OF_SUMS).nonzero().flatten() if people < len(of) else ():
            leverage[one] = torch.linalg.matrix_norm(sides[of == one], 2).square()
        larger = leverage > OF_SUMS * (1 + 1e-6)
        # Ranks on different machines may round differently at a limit, so all use the result of one.
        found, _ = gathered(torch.tensor([[sides.shape[1] > most, bool(larger.any())]], device=deltas.device).double())
        too_high, any_larger = found.any(0).tolist()
        if too_high:
            return None
        if not any_larger:
            break
        rest = torch.where(leverage < 1 - ALONE, 1 - leverage, 0.0)
        scale = torch.where(larger, (OF_SUMS / (1 - OF_SUMS) * rest / leverage).sqrt(), 1.0)[:, None] * scale
    return scale


def most_of_outputs(sums: Tensor) -> Tensor:
    """Return the largest amount of each output that one patient may have, [outputs].

    Args:
        sums: of each patient, [patients, outputs].
    """
    others = sums.scatter(0, sums.argmax(0, keepdim=True), 0.0)
    return others.sum(0) * OF_OUTPUT / (1 - OF_OUTPUT)


def _within(
    left: Tensor,
    sizes: Tensor,
    of: Tensor,
    people: int,
    most: Callable[[Tensor], Tensor],
    gathered: Gathered = lambda own: (own, 0),
) -> Tensor:
    """Return rows scaled so that no patient's exceed the limit together; otherwise the same tensor."""
    own = sizes.new_zeros(people, sizes.shape[1]).index_add_(0, of, sizes)
    sums = gathered(own)[0].reshape(-1, *own.shape).sum(0)
    bound = most(sums)
    larger = sums > bound * (1 + ROUNDING)
    return left * torch.where(larger, bound / sums, 1.0)[of].to(left) if larger.any() else left
