"""Sketches of weights, to compare replicas on different hardware.

All sites apply the same gradients, but another processor may round differently. A sketch is the sums of the weights,
with random signs, in 64 parts: the expected squared distance of two sketches is that of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from rankdad.common.protocol.arrays import numbers_in

PARTS = 64


def sketch(weights: Mapping[str, Tensor]) -> Tensor:
    """Return the sketch of named real tensors: float64 [64].

    Source: Alon, Matias and Szegedy 1999, "The space complexity of approximating the frequency moments".
    """
    sums = torch.zeros(PARTS, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for name in sorted(weights):
        values = weights[name].detach().cpu().reshape(-1)
        if not values.is_floating_point():
            continue
        signs = torch.randint(0, 2, values.shape, generator=generator, dtype=torch.int8).mul_(2).sub_(1)
        signed = values.double() * signs  # not in place: double() may return the weights themselves
        sums += torch.nn.functional.pad(signed, (0, -len(signed) % PARTS)).reshape(PARTS, -1).sum(dim=1)
    return sums


def furthest(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> tuple[str, float]:
    """Return the name of the tensor that differs most, and the norm of its difference relative to ours.

    Args:
        ours: by name.
        theirs: with the same names and shapes; values that are not finite have an infinite distance.
    """
    distances = {
        name: _relative_difference(value.detach().cpu(), theirs[name].detach().cpu()) for name, value in ours.items()
    }
    return max(distances.items(), key=lambda pair: pair[1])


def _relative_difference(ours: Tensor, theirs: Tensor) -> float:
    if torch.equal(ours, theirs):
        return 0.0
    wide = torch.complex128 if ours.is_complex() else torch.float64
    apart = float((theirs.to(wide) - ours.to(wide)).norm() / ours.to(wide).norm())
    return apart if math.isfinite(apart) else math.inf


def unpack_sketch(data: bytes) -> Tensor:
    """Decode a sketch from the network.

    Raises:
        ValueError: its size is wrong, or it holds NaN or infinity.
    """
    sums = numbers_in(data, torch.float64, PARTS)
    if not bool(torch.isfinite(sums).all()):
        raise ValueError("holds NaN or infinity, expected finite numbers")
    return sums


def distance(ours: Tensor, theirs: Tensor) -> float:
    """Return the distance of two sketches, relative to the size of the first, at most 1e300."""
    if torch.equal(ours, theirs):
        return 0.0
    apart, size = float((ours - theirs).norm()), float(ours.norm())
    return min(apart / size, 1e300) if math.isfinite(apart) and size > 0 else 1e300
