"""edAD: sends activations and the last layer's deltas, and computes the other deltas from them. Exact, for chains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from rankdad.common.errors import NonFiniteError, SpecError
from rankdad.common.lowrank.factors import MAX_NORM, Factor, norm
from rankdad.common.lowrank.layers import has_hooks
from rankdad.common.lowrank.layout import Exchange, MessageLayout, Slot
from rankdad.common.lowrank.routes import Payload, Route
from rankdad.common.methods.base import (
    Aggregated,
    Contribution,
    Method,
    MethodState,
    SiteStep,
    as_matrix,
    shares,
)
from rankdad.common.methods.local_steps import EveryBatch

Slope = Callable[[Tensor], Tensor]
SLOPES: dict[type[nn.Module], Slope] = {  # φ′ as a function of φ's output
    nn.ReLU: lambda y: (y > 0).to(y.dtype),
    nn.Tanh: lambda y: 1 - y.square(),
    nn.Sigmoid: lambda y: y * (1 - y),
    nn.Identity: torch.ones_like,
}
SHAPING = (nn.Flatten, nn.Identity)  # allowed before the first layer


@dataclass(frozen=True)
class Link:
    """A linear layer, and the slope of the function before it; None for the first."""

    layer: nn.Linear
    slope: Slope | None


def chain(model: nn.Module) -> list[Link]:
    """Return a model's layers from input to output.

    Raises:
        SpecError: the model is no chain of linear layers and functions whose slope follows from their output; names the
            layer.
    """
    links: list[Link] = []
    slope: Slope | None = None
    for name, module in _modules(model, ""):
        if _has_hooks(module):
            raise _misfit(name, module, "has a hook, which other sites do not know")
        if type(module) is nn.Linear:
            if links and slope is None:
                slope = SLOPES[nn.Identity]
            if not all(parameter.requires_grad for parameter in module.parameters()):
                raise _misfit(name, module, "is frozen")
            links.append(Link(module, slope))
            slope = None
        elif not links and isinstance(module, SHAPING):
            continue
        elif type(module) in SLOPES and links and slope is None:
            slope = SLOPES[type(module)]
        else:
            raise _misfit(name, module, "does not fit here")
    if not links or slope is not None:
        raise SpecError("method.name", "edad needs a model that ends in a linear layer", code="method-does-not-fit")
    held = Counter(parameter for link in links for parameter in link.layer.parameters())
    for name, parameter in model.named_parameters():
        if held[parameter] != 1:
            problem = "is used in more than one layer" if held[parameter] else "is in no layer"
            raise SpecError(
                "method.name", f"edad does not fit this model: {name} {problem}", code="method-does-not-fit"
            )
    return links


def _modules(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of nested sequences in the order of their calls."""
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for key, child in module.named_modules(remove_duplicate=False):
        if key and "." not in key:
            yield from _modules(child, f"{name}.{key}" if name else key)


def _has_hooks(module: nn.Module) -> bool:
    """Return whether hooks may change a module's output or gradients."""
    kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(kinds) or any(map(has_hooks, module.parameters()))


def _misfit(name: str, module: nn.Module, why: str) -> SpecError:
    allowed = ", ".join(kind.__name__ for kind in SLOPES)
    return SpecError(
        "method.name",
        f"edad does not fit this model: layer {name or 'the model itself'} ({type(module).__name__}) {why}; expected a "
        f"sequence of Linear, with {allowed} between",
        code="edad-misfit",
    )


class Edad(EveryBatch):
    """Send activations and the last layer's deltas, and compute the other deltas everywhere: exact, for chains."""

    sends_rows_as_they_are: ClassVar[str] = "the aggregator and all other sites"
    needs_weights: ClassVar[bool] = True

    name: Literal["edad"]
    wire: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    """Precision on the wire; int8 would round small activations to 0, and with them their slopes."""

    def check_model(self, model: nn.Module) -> None:
        """Check that a model is a chain.

        Raises:
            SpecError: it is none.
        """
        chain(model)

    def route(self, dense: Route, bias: str | None, rows: int | None, sites: int) -> Route:
        """Return the route of all activations."""
        if rows is None:
            return dense
        return Route(dense.name, dense.shape, bias, captured=True, up=rows, down=rows * sites)

    def exchanges(self, routes: Sequence[Route], sites: int) -> tuple[Exchange, ...]:
        """Return the exchange of all activations and the last deltas."""
        activations = [Slot(r.name, r.up or 0, (r.matrix[1] - (r.bias is not None),)) for r in routes]
        up = (*activations, replace(activations[-1], widths=(routes[-1].matrix[0],)))
        down = tuple(replace(slot, rows=slot.rows * sites) for slot in up)
        return (Exchange(MessageLayout(up, aligned=True), MessageLayout(down, aligned=True)),)

    def method(self, routes: tuple[Route, ...], model: nn.Module, seed: int) -> Method:
        """Return the propagation of deltas through the model's weights."""
        return EdadMethod(model, routes)


class EdadMethod(Method):
    """Activations of every layer and the last deltas, from which each replica computes the other deltas.

    Source: arXiv 2102.09631, Section 6 (edAD) and Eq. 3 (the recurrence of the deltas).
    """

    def __init__(self, model: nn.Module, routes: tuple[Route, ...]) -> None:
        self._links = chain(model)
        self._routes = routes

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Send every layer's activations, and the deltas of the last."""
        factors = [value for value in gradients if isinstance(value, Factor)]
        activations = [
            factor.activation[:, : link.layer.in_features] for factor, link in zip(factors, self._links, strict=True)
        ]
        yield (*activations, factors[-1].delta)
        return state

    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Concatenate; deltas include the weights of sites."""
        parts = shares(contributions)
        payloads = [contribution.payload for contribution in contributions]
        activations = [torch.cat([as_matrix(value) for value in values]) for values in zip(*payloads, strict=True)]
        scaled = [as_matrix(payload[-1]) * part for payload, part in zip(payloads, parts, strict=True)]
        update = (*activations[:-1], torch.cat(scaled))
        for route, value in zip(self._routes, self.gradients([update]), strict=True):
            if not norm(value) < MAX_NORM:  # the product of finite numbers may overflow
                raise NonFiniteError(f"the pooled gradient of {route.name}")
        return update, state

    def gradients(self, updates: Sequence[Payload]) -> Payload:
        """Propagate the last deltas through the current weights: Δ ← (Δ W) ⊙ φ′."""
        dtype = self._links[0].layer.weight.dtype  # the model's, which may differ from the wire's
        *activations, delta = (as_matrix(value).to(dtype) for value in updates[0])
        values: list[Factor] = []
        for link, route, activation in zip(
            reversed(self._links), reversed(self._routes), reversed(activations), strict=True
        ):
            factor = Factor(delta, activation)
            values.insert(0, factor.with_ones() if route.bias is not None else factor)
            if link.slope is not None:
                delta = (delta @ link.layer.weight.detach()) * link.slope(activation)
        return tuple(values)
