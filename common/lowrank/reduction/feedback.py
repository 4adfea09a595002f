"""Error feedback: what a reduction leaves out of one step joins the next. Pure functions.

A residual is kept as a matrix, or as rows where the gradient is a factor: those that were meant, and those that were
sent with the opposite sign. That is exact and costs no product; now and then a reduction makes few rows of many.

Units: `share` is the site's part of the round's total weight, by which the aggregator multiplies what it sends. A
residual is in the units of what is applied, so it is divided by the share before it joins a gradient.
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
    """Return share · (meant − decoded), the new residual, in the memory of `out` if that is given."""
    if isinstance(decoded, Factor):
        return torch.addmm(meant, decoded.delta.T, decoded.activation, beta=share, alpha=-share, out=out)
    return torch.sub(meant, decoded, out=out).mul_(share)


def minus_rows(meant: Factor, decoded: Factor, share: float) -> Factor:
    """Return share · (meant − decoded) as rows."""
    delta = torch.cat([meant.delta, -decoded.delta]).mul_(share)
    return Factor(delta, torch.cat([meant.activation, decoded.activation]))


def interpolate_residual(old: Residuals, new: Residuals, part: float) -> Residuals:
    """Return part · new + (1 − part) · old: what is kept if the share applied is only `part` of the one meant.

    With 0, at a site that was left out, the old residuals stay as they are. All that was applied and all that is kept
    still add up to all gradients that took part.
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
    """Return nearly the same in few rows: components not sent, and what the wire has rounded off of those sent.

    Args:
        components: the leading ones of what was meant, those that were sent first.
        sent: the first of them.
        decoded: what the other end has of `sent`; the same object if nothing was rounded.
        share: see above.
    """
    rest = Factor(components.delta[sent.rows :], components.activation[sent.rows :])
    rounded = [] if decoded is sent else [sent, decoded.scaled(-1)]
    return concatenate([rest, *rounded]).scaled(share)
