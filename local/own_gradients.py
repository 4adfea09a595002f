"""A site's gradients of a step, with their norm, the loss and projections."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from rankdad.common.errors import NonFiniteError
from rankdad.common.lowrank.factors import Factor, norms
from rankdad.common.lowrank.routes import Payload
from rankdad.common.projections import Projections, least_norm, projections_of
from rankdad.common.protocol.plan import Plan

Gradients = tuple[Mapping[str, Factor], Mapping[str, Tensor]]


@dataclass(frozen=True)
class OwnGradients:
    """A site's own gradients of a step.

    Args:
        gradients: of all parameters, in the plan's order.
        loss: mean over the step's batch.
        norm: Euclidean norm over all gradients.
        projections: of the gradients, if the optimizer needs them.
    """

    gradients: Payload
    loss: float
    norm: float
    projections: tuple[Projections, ...]


def own_gradients(plan: Plan, gradients: Payload, loss: float, step: int, signs: int | None) -> OwnGradients:
    """Return a site's gradients with norm and projections.

    Args:
        plan: of the run.
        gradients: in its order.
        loss: of the step's batch.
        step: number of the step, from 1.
        signs: seed of the projections' signs; None without projections.

    Raises:
        NonFiniteError: a gradient holds NaN or infinity; names the parameter.
    """
    sizes = norms(gradients)
    for route, size in zip(plan.routes, sizes, strict=True):
        if not math.isfinite(size):
            raise NonFiniteError(f"the gradient of {route.name} in step {step}")
    projections = () if signs is None else projections_of(plan.routes, gradients, signs)
    # If gradients cancel out, rounding can make projections longer than the norm, and they would be refused.
    return OwnGradients(gradients, loss, max(math.hypot(*sizes), least_norm(projections)), projections)
