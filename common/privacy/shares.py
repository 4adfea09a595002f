"""Shares of a step: how much of its gradient is one patient's, and how much may be.

A gradient is a sum over patients of what flows back from the loss through each one's outputs. Where a model is certain
of all patients but one, that one is the whole gradient: divided by the bias's, it is the patient's row. So of all that
flows back no patient has more than a share, nor of what flows back through one unit of a layer; and of what flows back
from one output, such as a class, not nearly all.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Gathered = Callable[[Tensor], tuple[Tensor, int]]

ROUNDING = 1e-9  # beyond equal shares: where as many as share a step have as much, nobody has too much
OF_OUTPUT = 0.8  # of what flows back from one output, as of a class that one patient alone is on the wrong side of
OF_SUMS = 0.9  # of the sum of squares of any weighted sum of units: the rest is a third as large
ROUNDED = 100  # times the rounding of a number: sums of units that are smaller than that are nothing
ALONE = 1e-7  # of the sum of squares: below, the rest is rounding
ROUNDS = 20  # who has less of an output has less of all, and the other way round


def limit(sums: Tensor, sharing: int) -> Tensor:
    """Return how much one patient may have, so that nobody has more than one part of so many of what is left then.

    Of fewer patients than share it nothing is left.

    Args:
        sums: what each patient has of each of some things, at least 0, float64 [patients, things].
        sharing: how many patients share each at least.

    Returns:
        float64 [things].
    """
    ordered = torch.cat([sums.sort(0, descending=True).values, sums.new_zeros(sharing, sums.shape[1])])
    rest = ordered.flip(0).cumsum(0).flip(0)[:sharing]  # of a patient and all who have less
    equal = rest / torch.arange(sharing, 0, -1, dtype=sums.dtype, device=sums.device)[:, None]
    fits = ordered[:sharing] <= equal * (1 + ROUNDING)
    larger = (fits.cumsum(0) == 0).sum(0, keepdim=True)  # so many have more than they may; the last always fits
    return equal.gather(0, larger)[0]


def scales(deltas: Tensor, people: Tensor, sharing: int) -> Tensor | None:
    """Return by what is multiplied what flows back from each row's outputs; None where nobody has too large a share.

    Args:
        deltas: gradients of each row's loss by its outputs, [rows, outputs].
        people: which patient each row is of, int64 [rows].
        sharing: how many patients share a step at least.

    Returns:
        Of the type of the deltas, [rows, outputs], from 0 to 1.
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
    """Return what flows back through a layer's units, of which nobody has too large a share; None where it is so.

    Two batches, or two epochs, differ by one patient now and then. Of a unit that answers to few patients the
    difference is that patient's, unless the larger share of each sum is several others'.

    Nor is nearly all of any weighted sum of units, such as the difference of two, one patient's, where Δ has at most
    half as high a rank as there are patients; of a higher one, some sum always is.

    Args:
        deltas: Δ of the layer, [rows, units].
        people: which patient each row is of, int64 [rows].
        gathered: returns the rows of all ranks that share the batch, and where this rank's begin.
        sharing: how many patients share a unit at least; 1 of the outputs, which `scales` has limited.
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
    """Return by what each patient's rows are multiplied, so that no weighted sum of units is nearly one's, [people, 1].

    How much of some such sum is a patient's at most, as a part of its sum of squares over all rows, is the patient's
    leverage; of several rows, the largest eigenvalue of their part of the projection on Δ's columns. As many random
    sums as the rank may be, and one more, have the same leverages.

    Args:
        deltas: Δ of this rank's rows, [rows, units].
        of: which patient each row of all ranks is of, on the CPU.
        mine: likewise, of this rank's.
        people: how many patients there are.
        gathered: see `shared_units`.

    Returns:
        None where Δ has too high a rank.
    """
    most, units, rounding = people // 2, deltas.shape[1], torch.finfo(deltas.dtype).eps * ROUNDED
    deltas, scale = deltas.double(), torch.ones(people, 1, dtype=torch.float64)
    drawn = torch.Generator().manual_seed(0)
    sums = torch.randn(units, most + 1, generator=drawn, dtype=torch.float64).to(deltas) if units > most else None
    for _ in range(ROUNDS):
        left = deltas * scale.to(deltas)[mine]
        squares, _ = gathered(left.square().sum(0, keepdim=True))
        left = left / squares.sum(0).sqrt().clamp(min=torch.finfo(left.dtype).tiny)  # small units tell as much
        rows = gathered(left if sums is None else left @ sums)[0].cpu()  # small, and soonest decomposed there
        if not rows.isfinite().all():
            break
        sides, sizes, _ = torch.linalg.svd(rows, full_matrices=False)
        sides = sides[:, sizes > sizes[:1] * rounding]
        leverage = scale.new_zeros(people).index_add_(0, of, sides.square().sum(1))  # of one row each
        for one in (leverage > OF_SUMS).nonzero().flatten() if people < len(of) else ():
            leverage[one] = torch.linalg.matrix_norm(sides[of == one], 2).square()
        larger = leverage > OF_SUMS * (1 + 1e-6)
        # Ranks on machines of two kinds may round on both sides of a limit: what one finds, all go by.
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
    """Return how much one patient may have of each output, [outputs]: it is several patients'.

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
    """Return rows that are scaled down where a patient's together are larger than they may be; else the same tensor."""
    own = sizes.new_zeros(people, sizes.shape[1]).index_add_(0, of, sizes)
    sums = gathered(own)[0].reshape(-1, *own.shape).sum(0)
    bound = most(sums)
    larger = sums > bound * (1 + ROUNDING)
    return left * torch.where(larger, bound / sums, 1.0)[of].to(left) if larger.any() else left
