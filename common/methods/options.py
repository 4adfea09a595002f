"""Options that methods have in common, and what a method declares of itself: nobody asks which one it is."""

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
    """The options of a method, which make it. A subclass has a `name` of its own.

    Attributes:
        sends_rows_as_they_are: who sees what single samples put into a layer, where that is not reduced; "" of others.
        lets_out: what else a site lets out; "" where that is sums and leading components.
        whole: whether every gradient travels whole, with its layer's own rank.
        needs_weights: whether gradients are made of what travels and of the weights, which a site then has whole.
        updates_are_factors: whether what comes down has singular values.
        joins_later: whether what comes too late for a step may be added to a later one.
        tuned: whether `tuning.rank` may have lower ranks than its own.
        fixed_rows: whether its directions are always as many as its rank.
        rank_field: of the spec, that says how much is sent.
        stands_for: presets that may be asked for in place of its name.
    """

    sends_rows_as_they_are: ClassVar[str] = ""
    lets_out: ClassVar[str] = ""
    whole: ClassVar[bool] = False
    needs_weights: ClassVar[bool] = False
    updates_are_factors: ClassVar[bool] = False
    joins_later: ClassVar[bool] = False
    tuned: ClassVar[bool] = False
    fixed_rows: ClassVar[bool] = False
    rank_field: ClassVar[str] = "method.rank"
    stands_for: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:
        name: str
        wire: Wire | RowWire

    @property
    def most_rows(self) -> int | None:
        """Rows of a layer that a site sends at most; None where no option says so."""
        return None

    @property
    def fewest_rows(self) -> int | None:
        """Rows of a layer with which it can do, where a site lets out no more."""
        return self.most_rows

    @property
    def wires(self) -> tuple[str, ...]:
        """Precisions that `wire` may have."""
        return get_args(type(self).model_fields["wire"].annotation)

    def check_model(self, model: nn.Module) -> None:
        """Check that it can train a model.

        Raises:
            SpecError: it cannot.
        """

    def route(self, dense: Route, bias: str | None, rows: int | None, sites: int) -> Route:
        """Return how a weight travels, here dense.

        Args:
            dense: its route where it travels whole.
            bias: that may travel with it; None where it has none of its own.
            rows: of its factor at most, of a site's step; None where the gradient is captured as a matrix.
            sites: how many there are.
        """
        return dense

    def exchanges(self, routes: Sequence[Route], sites: int) -> tuple[Exchange, ...]:
        """Return a step's exchanges: here one, of what all routes send."""
        return one_exchange(routes)

    def method(self, routes: tuple[Route, ...], model: nn.Module, seed: int) -> Method:
        """Return what sends and pools gradients.

        Args:
            routes: of the plan, or of a lower rank.
            model: of the replica, as it is at each step.
            seed: of the run.
        """
        raise NotImplementedError

    def described(self, route: Route) -> tuple[str, str]:
        """Return what reduces a parameter's gradient, and how what is left of it is kept; "–" for nothing."""
        kept = getattr(self, "feedback", False) not in (False, "none")
        return "–", "dense" if kept and not (route.dense and route.entries is None) else "–"


def few_bits_have_feedback(method: Any) -> Any:
    """Refuse codes of few bits whose rounding nobody makes up for."""
    if method.wire in ("int4", "int2") and method.feedback == "none":
        raise ValueError(
            f"wire: got {method.wire}, which rounds off too much without feedback: expected int8, or another feedback "
            "than none"
        )
    return method
