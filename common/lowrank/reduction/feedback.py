"""Error feedback: the part of a step's gradient that a reduction leaves out is added to the next step. Pure functions.

A residual is a matrix, or rows if the gradient is a factor: the intended rows, and the sent ones with the opposite
sign. Rows are exact and need no product; from time to time they are reduced.

Units: `share` is the site's part of the round's total weight, by which the aggregator multiplies what the site sends.
Residuals are in units of the applied update, so they are divided by the share before they are added to a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rankdad.common.lowrank.factors import Factor, Matrix, concatenate

Residuals = Mapping[str, Matrix]  # by parameter


def plus_matrix(gradient: Matrix, residual: Tensor | None, share: float) -> Tensor:
    """Return gradient + residual / share, a new matrix [out, columns]."""
    if residual is None:
        return gradient.gradient() if isinstance(gradient, Factor) else gradient.clone()
    if isinstance(gradient, Factor):
        return torch.addmm(residual, gradient.delta.T, gradient.activation, beta=1 / share)
    return torch.add(gradient, residual, alpha=1 / share)


def plus_rows(gradient: Factor, residual: Factor | None, share: float) -> Factor:
    """Return gradient + residual / share as rows, those of the residual first."""
    if residual is None:
        return gradient
    rows = concatenate([residual, gradient])
    rows.delta[: residual.rows].div_(share)
    return rows


def minus_matrix(meant: Tensor, decoded: Matrix, share: float, out: Tensor | None = None) -> Tensor:
    """Return share · (meant − decoded), the new residual, in the memory of `out` if given."""
    if isinstance(decoded, Factor):
        return torch.addmm(meant, decoded.delta.T, decoded.activation, beta=share, alpha=-share, out=out)
    return torch.sub(meant, decoded, out=out).mul_(share)


def minus_rows(meant: Factor, decoded: Factor, share: float) -> Factor:
    """Return share · (meant − decoded) as rows."""
    delta = torch.cat([meant.delta, -decoded.delta]).mul_(share)
    return Factor(delta, torch.cat([meant.activation, decoded.activation]))


def interpolate_residual(old: Residuals, new: Residuals, part: float) -> Residuals:
    """Return part · new + (1 − part) · old: the residual if the applied share is only `part` of the expected one.

    With 0, for a site that was left out, this is the old residual. Applied updates and residuals always add up to all
    gradients that took part.
    """
    if part in (0, 1):
        return new if part else old
    return {name: _interpolate(old.get(name), value, part) for name, value in new.items()}


def _interpolate(old: Matrix | None, new: Matrix, part: float) -> Matrix:
    if isinstance(new, Factor) and not isinstance(old, Tensor):
        return concatenate([*([old.scaled(1 - part)] if old else []), new.scaled(part)])
    before, after = (value.gradient() if isinstance(value, Factor) else value for value in (old, new))
    assert after is not None
    return after * part if before is None else torch.lerp(before, after, part)


def plus(first: Residuals, second: Residuals, part: float) -> Residuals:
    """Return first + part · second."""
    return {name: _plus(first.get(name), second.get(name), part) for name in {**first, **second}}


def _plus(first: Matrix | None, second: Matrix | None, part: float) -> Matrix:
    if isinstance(second, Factor) and not isinstance(first, Tensor):
        return concatenate([*([first] if first else []), second.scaled(part)])
    if second is None:
        assert first is not None
        return first
    before, more = (value.gradient() if isinstance(value, Factor) else value for value in (first, second))
    assert more is not None
    return more * part if before is None else torch.add(before, more, alpha=part)


def leading_rows(components: Factor, sent: Factor, decoded: Factor, share: float) -> Factor:
    """Return about the same residual in few rows: components that were not sent, and rounding errors of those sent.

    Args:
        components: leading ones of the intended matrix, the sent ones first.
        sent: the first of them.
        decoded: `sent` after the wire; the same object if nothing was rounded.
        share: see above.
    """
    rest = Factor(components.delta[sent.rows :], components.activation[sent.rows :])
    rounded = [] if decoded is sent else [sent, decoded.scaled(-1)]
    return concatenate([rest, *rounded]).scaled(share)
