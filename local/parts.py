"""The parts of a step: what travels of each bucket, made as soon as the backward pass has its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from rankdad.common.errors import NonFiniteError
from rankdad.common.gradients.buckets import cut, routes_of
from rankdad.common.gradients.factors import Factor, norms
from rankdad.common.gradients.projections import Projections, least_norm, projections_of
from rankdad.common.gradients.routes import Payload, gather
from rankdad.common.protocol.plan import Plan


@dataclass(frozen=True)
class Part:
    """A bucket of a site's own gradients.

    Args:
        number: of the bucket.
        gradients: of its parameters, in its order.
        loss: of the whole step's batch.
        norm: of the gradients that begin in this bucket.
        projections: of these, where the optimizer asks for them.
    """

    number: int
    gradients: Payload
    loss: float
    norm: float
    projections: tuple[Projections, ...]


Take = Callable[[Part], None]
Pooled = Callable[[Payload, float], tuple[Payload, float] | None]
Gradients = Callable[[Collection[str]], tuple[Mapping[str, Factor], Mapping[str, Tensor]]]


class Parts:
    """Gives out a step's parts in the order of their exchanges, each once and as soon as it is complete.

    Args:
        plan: of the run.
        signs: seed of their projections' signs; None where the optimizer asks for none.
        step: number of the step, from 1.
        like: a tensor of the dtype and device of what the step did not use.
        gradients: returns the factors and other gradients of some parameters.
        loss: returns that of the step's batch.
        pooled: returns the gradients and the loss of all ranks that share the batch; None if another rank has them.
        take: is given the parts.
    """

    def __init__(
        self,
        plan: Plan,
        signs: int | None,
        step: int,
        like: Tensor,
        gradients: Gradients,
        loss: Callable[[], float],
        pooled: Pooled = lambda payload, loss: (payload, loss),
        *,
        take: Take,
    ) -> None:
        self._plan, self._signs, self._step, self._like = plan, signs, step, like
        self._gradients, self._loss, self._pooled, self._take = gradients, loss, pooled, take
        self._waits = [
            {name for route in routes_of(bucket, plan.routes) for name in (route.name, route.bias) if name}
            for bucket in plan.buckets
        ]
        self._next = 0

    def complete(self, name: str) -> None:
        """Take note that a parameter's gradient is complete."""
        for waits in self._waits[self._next :]:
            waits.discard(name)
        while self._next < len(self._waits) and not self._waits[self._next]:
            self._give()

    def finish(self) -> None:
        """Give out the rest: nothing is computed any more."""
        while self._next < len(self._waits):
            self._give()

    def _give(self) -> None:
        number, self._next = self._next, self._next + 1
        bucket = self._plan.buckets[number]
        routes = routes_of(bucket, self._plan.routes)
        names = {name for route in routes for name in (route.name, route.bias) if name}
        found = self._pooled(gather(routes, *self._gradients(names), self._like), self._loss())
        if found is None:
            return
        whole, loss = found
        begun = [(r, value) for r, value, piece in zip(routes, whole, bucket, strict=True) if not piece.start]
        sizes = norms([value for _, value in begun])
        for (route, _), size in zip(begun, sizes, strict=True):
            if not math.isfinite(size):
                raise NonFiniteError(f"the gradient of {route.name} in step {self._step}")
        of_begun = tuple(route for route, _ in begun), tuple(value for _, value in begun)
        projections = () if self._signs is None else projections_of(*of_begun, self._signs)
        # Where gradients cancel out, rounding makes projections longer than the norm, and they would be refused.
        norm = max(math.hypot(*sizes), least_norm(projections))
        self._take(Part(number, cut(bucket, whole), loss, norm, projections))
