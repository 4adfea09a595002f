"""A step in buckets: each is a step of the same method with the bucket's parameters, in an exchange of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rankdad.common.gradients.buckets import Bucket, cut
from rankdad.common.gradients.factors import Matrix
from rankdad.common.gradients.methods.base import Aggregated, Contribution, Method, MethodState, SiteStep, as_matrix
from rankdad.common.gradients.routes import Payload


class BucketedMethod(Method):
    """The same gradients as in one message: a method that treats every parameter by itself does so in any order.

    Args:
        buckets: of the plan.
        methods: of each bucket, with one exchange.
    """

    def __init__(self, buckets: Sequence[Bucket], methods: Sequence[Method]) -> None:
        self._buckets, self._methods = tuple(buckets), tuple(methods)

    @property
    def parts(self) -> tuple[Method, ...]:
        """The method of each bucket."""
        return self._methods

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Send one bucket after the other."""
        residuals: dict[str, Matrix] = dict(state.residuals)
        bases: dict[str, Tensor] = {}
        for bucket, method in zip(self._buckets, self._methods, strict=True):
            values = cut(bucket, tuple(gradients[piece.place] for piece in bucket))
            kept = yield from method.step(values, share, state, seed, max_rows)
            residuals |= kept.residuals
            bases |= kept.bases
        return MethodState(residuals, bases)

    def bases(self, updates: Sequence[Payload]) -> Mapping[str, Tensor]:
        """Return the directions of all buckets."""
        found: dict[str, Tensor] = {}
        for method, update in zip(self._methods, updates, strict=True):
            found |= method.bases([update])
        return found

    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Turn all sites' payloads of one bucket into its update."""
        return _beside(state, self._methods[exchange].aggregate(0, contributions, state, seed))

    def combine(
        self, exchange: int, contributions: Sequence[Contribution], share: float, state: MethodState, seed: int
    ) -> Aggregated:
        """Turn the payloads of a region's members, of one bucket, into the region's own."""
        return _beside(state, self._methods[exchange].combine(0, contributions, share, state, seed))

    def gradients(self, updates: Sequence[Payload]) -> Payload:
        """Return the gradients in the plan's order, divided ones put together."""
        values: dict[int, list[Matrix]] = {}
        for bucket, method, update in zip(self._buckets, self._methods, updates, strict=True):
            for piece, value in zip(bucket, method.gradients([update]), strict=True):
                values.setdefault(piece.place, []).append(value)
        return tuple(_together(values[place]) for place in sorted(values))


def _beside(state: MethodState, found: Aggregated) -> Aggregated:
    """Return what a bucket's method has found, with the other buckets' state."""
    payload, new = found
    return payload, MethodState({**state.residuals, **new.residuals}, {**state.bases, **new.bases})


def _together(pieces: Sequence[Matrix]) -> Matrix:
    return pieces[0] if len(pieces) == 1 else torch.cat([as_matrix(piece) for piece in pieces])
