"""rank-dAD: factors reduced at each site, concatenated, and reduced again at the aggregator.

With error feedback, a reduction's residual (the intended minus the decoded matrix) is added to the next step's matrix
before it is reduced: no part of a gradient is lost, it only arrives later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from rankdad.common.errors import NonFiniteError
from rankdad.common.lowrank.factors import Factor, Matrix, norms
from rankdad.common.lowrank.reduction.block import block
from rankdad.common.lowrank.reduction.exact import exact
from rankdad.common.lowrank.reduction.feedback import (
    Residuals,
    leading_rows,
    minus_matrix,
    minus_rows,
    plus_matrix,
    plus_rows,
)
from rankdad.common.lowrank.reduction.operators import empty_factor
from rankdad.common.lowrank.reduction.spi import spi
from rankdad.common.lowrank.routes import Payload, Route, smaller
from rankdad.common.lowrank.wire import is_lossless
from rankdad.common.methods.base import (
    Aggregated,
    Contribution,
    Method,
    MethodState,
    SiteStep,
    all_received,
    pooled,
)
from rankdad.common.methods.local_steps import LocalPreset, LocalSteps
from rankdad.common.methods.options import RowWire, few_bits_have_feedback
from rankdad.common.numbers import Fraction, UpToMillion
from rankdad.common.seeds import derive

CONVERGED: Mapping[str, Any] = {"reducer": "spi", "feedback": "none"}
RESIDUAL_ROWS = 64  # of a reduced residual: fewer reduce accuracy, and save little time
WARM_ITERATIONS, COLD_ITERATIONS = 1, 6  # of the block reducer, with and without the last update's basis
LAST_CHANCE_ITERATIONS = 2  # warm, but without feedback to correct what one iteration misses
OVERSAMPLING = 8
MAX_ROWS = 192  # of gradient and residual together before they are reduced, for any batch size
MAX_BATCHES = 2.5  # the same in rows of the gradient: a reduction in every third step


class RankDad(LocalSteps):
    """Send factors reduced at the site, and reduce their concatenation again at the aggregator (rank-dAD)."""

    updates_are_factors: ClassVar[bool] = True
    joins_later: ClassVar[bool] = True
    tuned: ClassVar[bool] = True
    reduces_dense: ClassVar[bool] = True
    stands_for: ClassVar[tuple[str, ...]] = ("converged",)

    name: Literal["rank-dad"]
    rank: UpToMillion
    """Largest number of rows of a factor on the wire."""
    preset: Literal["converged", LocalPreset] | None = None
    """\"converged\" is the paper's algorithm iterated to convergence, at a fixed rank: reducer spi, no feedback. The
    others are presets of local steps, as for dsgd."""
    reducer: Literal["spi", "block", "exact", "auto"] = "auto"
    """Structured power iterations (Algorithm 2), the same on all directions at once, a truncated SVD, or one of these
    three chosen by shape."""
    feedback: Literal["none", "site", "aggregator", "both"] = "both"
    """Where the residual of a reduction is kept for the next step."""
    residual: Literal["factors", "dense"] = "factors"
    """Form of the residual: rows if a factor is captured, which is fast, or a matrix, which is exact."""
    lazy: Annotated[float, Field(ge=0, le=100)] = 0.0
    """After its first step, a site sends no rows of a parameter until gradient and residual together are this many
    times as large as the step's gradient; 0 sends at every step, and values up to 1 rarely skip a step."""
    tolerance: Fraction = 0.0
    """Components with a singular value below this fraction of the largest are not sent."""
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 40
    """Power iterations of spi per component at most."""
    wire: RowWire = "float32"
    """Precision on the wire; int8, int4 and int2 are in blocks of 64 with one scale each, and the last two need
    feedback."""

    @model_validator(mode="before")
    @classmethod
    def _filled_from_preset(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("preset") != "converged":
            return given
        for field, value in CONVERGED.items():
            if given.get(field, value) != value:
                raise ValueError(f"the preset converged has {field} {value}, but {field} {given[field]} is asked for")
        return {**given, **CONVERGED}

    _few_bits = model_validator(mode="after")(few_bits_have_feedback)

    @model_validator(mode="after")
    def _feedback_covers_residuals(self) -> RankDad:
        if self.lazy and self.feedback not in ("site", "both"):
            whose = "the preset converged has" if self.preset == "converged" else "there is"
            raise ValueError(
                f"lazy: got {self.lazy:g}, but {whose} feedback {self.feedback}, so no site keeps residuals: expected "
                "0, or feedback site or both"
            )
        return self

    @property
    def most_rows(self) -> int:
        """Largest number of rows of a factor."""
        return self.rank

    @property
    def fewest_rows(self) -> int:
        """One: a reduction can leave out any number of rows."""
        return 1

    def route(self, dense: Route, bias: str | None, rows: int | None, sites: int) -> Route:
        """Return the route of a reduced factor; dense if that is smaller."""
        # A reduction loses part of the bias, which only feedback at both ends restores; otherwise the bias is dense.
        kept = bias if self.feedback == "both" else None
        route = Route(dense.name, dense.shape, kept, up=self.rank, down=self.rank)
        # With more rows, the product is the smaller operator, and autograd forms it anyway.
        out, columns = route.matrix
        route = replace(route, captured=rows is not None and rows * (out + columns) <= out * columns)
        if route.captured and self.residual == "factors":
            route = replace(route, residual=RESIDUAL_ROWS)
        return smaller(route, dense, self.wire)

    def method(self, routes: tuple[Route, ...], model: nn.Module, seed: int) -> Method:
        """Return the reduction at sites and aggregator."""
        return RankDadMethod(self, routes)

    def described(self, route: Route) -> tuple[str, str]:
        """Return a parameter's reducer and residual as text; "–" for none."""
        if route.up is None:
            return "–", "–"
        kept, reducer = f"{route.residual} rows" if route.residual else "dense", str(self.reducer)
        if reducer == "auto":
            small = not route.captured and is_small(torch.empty(route.matrix, device="meta"), route.up)
            reducer = "exact" if small else "block"
        return reducer, "–" if self.feedback == "none" else kept


class RankDadMethod(Method):
    """Reduced factors, with error feedback at the site, the aggregator, both or neither.

    Source: arXiv 2102.09631, Algorithms 1 and 2; the feedback is ours, after Vogels 2019 (arXiv 1905.13727).
    """

    def __init__(self, spec: RankDad, routes: tuple[Route, ...]) -> None:
        self._spec = spec
        self._routes = routes

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Reduce gradients plus residuals and send them; a site out of data sends no rows and keeps its residuals.

        Source: arXiv 2102.09631, Algorithm 1 (a site's part); the feedback is ours.
        """
        residuals = state.residuals
        sent = gradients
        if share > 0:
            feedback = self._spec.feedback in ("site", "both")
            sent, residuals = self._reduce(gradients, share, state, seed, feedback=feedback, up=True, max_rows=max_rows)
        update = yield sent
        return MethodState(residuals, self.bases([update]))

    def bases(self, updates: Sequence[Payload]) -> Mapping[str, Tensor]:
        """Return the rows of the update's factors."""
        pairs = zip(self._routes, updates[0], strict=True)
        return {route.name: value.activation for route, value in pairs if isinstance(value, Factor)}

    def compacted(self, residuals: Mapping[str, Matrix]) -> Mapping[str, Matrix]:
        """Reduce residuals that have more rows than any step would leave."""
        rows = {route.name: route.residual for route in self._routes}
        return {name: _compacted(value, rows[name]) for name, value in residuals.items()}

    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Concatenate all sites' rows and reduce them again.

        Source: arXiv 2102.09631, Algorithm 1 (the aggregator's part); the feedback is ours.
        """
        update, kept = self.combine(exchange, contributions, 1.0, state, seed)
        return update, MethodState(kept.residuals, self.bases([update]))

    def combine(
        self, exchange: int, contributions: Sequence[Contribution], share: float, state: MethodState, seed: int
    ) -> Aggregated:
        """Concatenate and reduce a region's rows, as `aggregate` does, as a part of the whole."""
        payload = pooled(contributions)
        if not share:  # all are out of data: no rows, and unchanged residuals
            return tuple(value.leading(0) if isinstance(value, Factor) else value for value in payload), state
        feedback = self._spec.feedback in ("aggregator", "both")
        sent, residuals = self._reduce(payload, share, state, seed, feedback=feedback, up=False)
        return sent, MethodState(residuals, state.bases)

    def _reduce(
        self,
        payload: Payload,
        share: float,
        state: MethodState,
        seed: int,
        *,
        feedback: bool,
        up: bool,
        max_rows: int | None = None,
    ) -> tuple[Payload, Residuals]:
        """Return the rows to send, within rank, tolerance and the site's limit, and the residuals."""
        residuals = state.residuals if feedback else {}
        meant = [
            self._meant(route, value, residuals.get(route.name), share, max_rows) if feedback else value
            for route, value in zip(self._routes, payload, strict=True)
        ]
        waits = self._waits(payload, meant, residuals, up=up) if feedback and self._spec.lazy else set[str]()
        components: list[Matrix] = []
        sent: list[Matrix] = []
        rows: list[int] = []  # of each residual; 0 lets it grow
        for route, value, matrix in zip(self._routes, payload, meant, strict=True):
            rows.append(_rows_to_keep(route, matrix, value) if feedback else 0)
            # spi finds rows one by one, and would spend as much time on each that is only kept.
            behind = 0 if self._spec.reducer == "spi" else rows[-1]
            limit = _limit(route, up, max_rows)
            limit = 0 if route.name in waits and not route.dense else limit
            found = self._components(route, matrix, limit, behind, state, derive(seed, route.name))
            components.append(found)
            leading = found.leading(self._rows_to_send(found, limit)) if isinstance(found, Factor) else found
            sent.append(leading.gradient() if route.dense and isinstance(leading, Factor) else leading)
        if not feedback:
            return tuple(sent), {}
        exact = [self._lossless(value) for value in sent]
        rounded = iter(all_received([v for v, same in zip(sent, exact, strict=True) if not same], self._spec.wire))
        decoded = [value if same else next(rounded) for value, same in zip(sent, exact, strict=True)]
        parts = zip(self._routes, meant, components, rows, sent, decoded, strict=True)
        return tuple(sent), {
            route.name: self._residual(matrix, leading, part, as_applied, kept, share)
            for route, matrix, leading, kept, part, as_applied in parts
            if route.up is not None or as_applied is not matrix or (max_rows is not None and route.name in residuals)
        }

    def _meant(
        self, route: Route, value: Matrix, residual: Matrix | None, share: float, max_rows: int | None
    ) -> Matrix:
        """Return gradient plus residual: rows if the residual is rows, otherwise a new matrix."""
        if route.up is None and (residual is None or max_rows is None) and self._lossless(value):
            return value  # without a limit, a residual is of the time before the matrix was sent whole, as for a hook
        if route.residual is not None and isinstance(value, Factor) and not isinstance(residual, Tensor):
            return plus_rows(value, residual, share)
        # A layer that was not captured in this step or an earlier one stays a matrix.
        return plus_matrix(value, residual.gradient() if isinstance(residual, Factor) else residual, share)

    def _waits(self, payload: Payload, meant: Sequence[Matrix], residuals: Residuals, *, up: bool) -> set[str]:
        """Return the parameters that are not sent yet: at a site those with small sums, above those that none sends.

        The first step is always sent.
        """
        names = [route.name for route in self._routes]
        if not up:
            pairs = zip(names, payload, strict=True)
            return {name for name, value in pairs if isinstance(value, Factor) and not value.rows}
        sizes = zip(names, norms(payload), norms(meant), strict=True)
        return {name for name, own, gathered in sizes if name in residuals and gathered < self._spec.lazy * own}

    def _components(
        self, route: Route, matrix: Matrix, limit: int | None, kept: int, state: MethodState, seed: int
    ) -> Matrix:
        """Reduce a matrix to the rows to send, followed by those to keep."""
        if limit is None:
            return matrix
        if not limit + kept:
            return empty_factor(matrix)
        basis = state.bases.get(route.name)
        try:
            return self._reduced(matrix, limit + kept, basis, seed, tolerance=0.0 if kept else self._spec.tolerance)
        except ValueError:
            raise NonFiniteError(f"the gradient of {route.name}") from None

    def _reduced(self, matrix: Matrix, rank: int, basis: Tensor | None, seed: int, *, tolerance: float) -> Factor:
        """Reduce a matrix by the spec's reducer."""
        spec = self._spec
        if spec.reducer == "exact" or (spec.reducer == "auto" and is_small(matrix, rank)):
            return exact(matrix, rank, tolerance=tolerance)
        if spec.reducer == "spi":
            return spi(matrix, rank, tolerance=tolerance, seed=seed, iterations=spec.iterations)
        warm = LAST_CHANCE_ITERATIONS if spec.feedback == "none" else WARM_ITERATIONS
        # With local steps, the last directions are old, and a few products cost little compared to the steps.
        cold = basis is None or not len(basis) or spec.local_steps is not None
        iterations = COLD_ITERATIONS if cold else warm
        return block(
            matrix, rank, basis=basis, tolerance=tolerance, seed=seed, iterations=iterations, oversampling=OVERSAMPLING
        )

    def _rows_to_send(self, components: Factor, limit: int | None) -> int:
        assert limit is not None
        if not limit or components.rows <= limit or not self._spec.tolerance:
            return min(components.rows, limit)
        sizes = torch.linalg.vector_norm(
            components.delta[:limit], dim=1
        )  # the singular values, including those to keep
        return int((sizes > self._spec.tolerance * sizes[0]).sum())

    def _residual(
        self, meant: Matrix, components: Matrix, sent: Matrix, decoded: Matrix, kept: int, share: float
    ) -> Matrix:
        """Return the intended minus the decoded matrix, as it will be applied.

        If `kept` rows suffice, the `components` after the sent ones represent the rest.
        """
        if isinstance(meant, Tensor):
            return minus_matrix(meant, decoded, share)
        assert isinstance(components, Factor)
        assert isinstance(sent, Factor)
        assert isinstance(decoded, Factor)
        if kept and self._spec.reducer != "spi":
            return leading_rows(components, sent, decoded, share)
        rest = minus_rows(meant, decoded, share)
        if not kept:
            return rest
        return block(rest, kept, iterations=WARM_ITERATIONS, oversampling=OVERSAMPLING)

    def _lossless(self, value: Matrix) -> bool:
        return is_lossless(self._spec.wire, (value.delta if isinstance(value, Factor) else value).dtype)


def _limit(route: Route, up: bool, max_rows: int | None) -> int | None:
    """Return the limit on a parameter's rows; None if its matrix is sent whole."""
    limit = route.up if up else route.down
    if max_rows is None:
        return limit
    return route.limit(max_rows) if limit is None else min(limit, max_rows)


def _compacted(residual: Matrix, rows: int | None) -> Matrix:
    if rows is None or not isinstance(residual, Factor) or residual.rows <= MAX_ROWS:
        return residual
    return block(residual, rows, iterations=COLD_ITERATIONS, oversampling=OVERSAMPLING)


def _rows_to_keep(route: Route, matrix: Matrix, gradient: Matrix) -> int:
    """Return the number of rows for a residual after this step: 0 if it may grow, or is a matrix."""
    if route.residual is None or not isinstance(matrix, Factor) or not isinstance(gradient, Factor):
        return 0
    most = max(MAX_ROWS, route.residual + int(MAX_BATCHES * gradient.rows))
    return route.residual if matrix.rows > most else 0


def is_small(matrix: Matrix, rank: int) -> bool:
    """Return whether an iteration is no cheaper than a decomposition."""
    if isinstance(matrix, Factor):
        return matrix.rows <= 2 * rank
    return min(matrix.shape) <= rank + OVERSAMPLING
