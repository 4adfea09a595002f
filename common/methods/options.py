"""Options of all methods, and the properties that a method declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from torch import nn

from rankdad.common.documents import Part
from rankdad.common.lowrank.layout import Exchange, one_exchange
from rankdad.common.lowrank.routes import Route
from rankdad.common.methods.base import Method

Wire = Literal["float32", "float64", "bfloat16", "float16", "int8"]
RowWire = Literal["float32", "float64", "bfloat16", "float16", "int8", "int4", "int2"]


class MethodOptions(Part):
    """The options of a method, and a factory for it. A subclass adds a `name`.

    Attributes:
        sends_rows_as_they_are: who receives unreduced rows of single samples; "" for none.
        lets_out: what a site discloses besides; "" for sums and leading components.
        whole: whether every gradient is sent whole, with its layer's own rank.
        needs_weights: whether gradients depend on the weights, so that a site must have all of them.
        updates_are_factors: whether the update has singular values.
        joins_later: whether a late contribution may be added to a later step.
        tuned: whether `tuning.rank` may have lower ranks than its own.
        reduces_dense: whether a site's limit on rows also holds for a gradient that is sent as a matrix.
        fixed_rows: whether it always sends as many directions as its rank.
        rank_field: the spec's field that limits what is sent.
        stands_for: presets that are accepted as its name.
    """

    sends_rows_as_they_are: ClassVar[str] = ""
    lets_out: ClassVar[str] = ""
    whole: ClassVar[bool] = False
    needs_weights: ClassVar[bool] = False
    updates_are_factors: ClassVar[bool] = False
    joins_later: ClassVar[bool] = False
    tuned: ClassVar[bool] = False
    reduces_dense: ClassVar[bool] = False
    fixed_rows: ClassVar[bool] = False
    rank_field: ClassVar[str] = "method.rank"
    stands_for: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:
        name: str
        wire: Wire | RowWire

    @property
    def most_rows(self) -> int | None:
        """Largest number of rows of a layer that a site sends; None if no option limits it."""
        return None

    @property
    def fewest_rows(self) -> int | None:
        """Least number of rows of a layer that it can work with, if a policy allows no more."""
        return self.most_rows

    @property
    def wires(self) -> tuple[str, ...]:
        """Formats that `wire` may have."""
        return get_args(type(self).model_fields["wire"].annotation)

    def check_model(self, model: nn.Module) -> None:
        """Check that it can train a model.

        Raises:
            SpecError: it cannot.
        """

    def route(self, dense: Route, bias: str | None, rows: int | None, sites: int) -> Route:
        """Return the route of a weight, by default dense.

        Args:
            dense: its dense route.
            bias: that may be a column of its matrix; None without one.
            rows: largest number of its factor's rows in a site's step; None if the gradient is captured as a matrix.
            sites: number of them.
        """
        return dense

    def exchanges(self, routes: Sequence[Route], sites: int) -> tuple[Exchange, ...]:
        """Return a step's exchanges; by default one for all routes."""
        return one_exchange(routes)

    def method(self, routes: tuple[Route, ...], model: nn.Module, seed: int) -> Method:
        """Create the method.

        Args:
            routes: of the plan, or of a lower rank.
            model: of the replica.
            seed: of the run.
        """
        raise NotImplementedError

    def described(self, route: Route) -> tuple[str, str]:
        """Return a parameter's reducer and residual as text; "–" for none."""
        kept = getattr(self, "feedback", False) not in (False, "none")
        return "–", "dense" if kept and not (route.dense and route.entries is None) else "–"


def few_bits_have_feedback(method: Any) -> Any:
    """Refuse formats of few bits without feedback, which would correct their rounding."""
    if method.wire in ("int4", "int2") and method.feedback == "none":
        raise ValueError(
            f"wire: got {method.wire}, which rounds too much without feedback: expected int8, or a feedback other than "
            "none"
        )
    return method
