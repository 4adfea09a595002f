"""Gradients of a rank's backward passes between two exchanges, as factors and matrices, without changing `.grad`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from rankdad.common.errors import UserError
from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.factors import Factor, Matrix, concatenate
from rankdad.common.lowrank.layers import linear_layers
from rankdad.common.lowrank.routes import Payload, Route, gather
from rankdad.common.run.optimizer import laid_out_as


class Batches:
    """The gradient of one batch's mean loss, or the weighted mean of several.

    Args:
        model: has hooks on its linear layers until `close`.
        routes: of its parameters.
        reduced: whether all are reduced to few rows. A layer whose factor was larger than its matrix is then no longer
            captured, which saves time; otherwise a smaller batch may follow, whose factor saves bytes.
    """

    def __init__(self, model: nn.Module, routes: tuple[Route, ...], *, reduced: bool) -> None:
        self._model, self._reduced = model, reduced
        self._large = set[str]()  # names of layers that are no longer captured
        self.follow(routes)
        self._capture = self._captured()
        self.clear()

    def follow(self, routes: tuple[Route, ...]) -> None:
        """Change the routes; forward passes use them after the next `clear`."""
        self._routes, self._anew = routes, True
        self._parameters = dict(self._model.named_parameters())

    def clear(self) -> None:
        """Drop the added gradients, and start to capture."""
        kept = self._grads()
        if self._anew:
            self.close()
            self._capture = self._captured()
        self._capture.begin()
        self._set_grads(kept)
        self._held: dict[str, Tensor | None] = {}  # sums of dense gradients
        self.weight, self._unit = 0.0, 1.0

    def close(self) -> None:
        """Remove the hooks."""
        self._capture.__exit__(None, None, None)

    def add(self, loss: Tensor, weight: float, *, retain_graph: bool = False) -> None:
        """Run a batch's backward pass and add its gradient, without changing `.grad`.

        Args:
            loss: the mean over the batch.
            weight: of the batch, above 0.
            retain_graph: whether another loss uses the same forward pass.
        """
        self._unit = self._unit if self.weight else weight  # a single batch is not scaled
        kept = self._grads()
        self._set_grads(self._held)
        try:
            before = self._versions()
            scaled = loss if weight == self._unit else loss * (weight / self._unit)
            self._capture.backward(scaled, retain_graph=retain_graph)
            self._held = self._grads()
            self._check_unmoved(before)
        finally:
            self._set_grads(kept)
        self.weight += weight

    def _versions(self) -> list[int]:
        return [parameter._version for parameter in self._parameters.values()]

    def _check_unmoved(self, before: list[int]) -> None:
        """Check that the backward pass changed no weight, as an optimizer's step in a hook would.

        Raises:
            UserError: it did; names the weight.
        """
        for name, old, new in zip(self._parameters, before, self._versions(), strict=True):
            if old != new:
                problem = (
                    f"{name} was changed in its backward pass, as by an optimizer's step in a hook, which uses the"
                )
                problem += " gradient of one rank alone: take the step after backward"
                raise UserError(problem, code="stepped-in-backward", field=name)

    def payload(self, like: Tensor, scale: float) -> tuple[Payload, frozenset[str]]:
        """Return the gradient of the weighted mean in the routes' order; empty factors and zeros if nothing was added.

        Args:
            like: a tensor with the dtype and device of the result.
            scale: of the losses; the result is divided by it.

        Returns:
            The payload, and the names of the parameters that have a gradient.
        """
        names = {name for route in self._routes for name in route.names}
        kept = self._grads()
        self._set_grads(self._held)
        factors, dense = dict[str, Factor](), self._capture.dense(names)
        for route in self._routes:
            parts = [factor for factor, _ in self._capture.parts(route.name)]
            rows, (out, columns) = sum(part.rows for part in parts), route.matrix
            if parts and (route.dense or rows * (out + columns) > out * columns):  # a product copies no row
                dense[route.name] = sum(part.gradient() for part in parts)  # type: ignore[assignment]
                if self._reduced:
                    self._anew = True
                    self._large.add(route.name)
            elif parts:
                factors[route.name] = concatenate(parts)
        self._set_grads(kept)
        times = self._times(scale)
        payload = tuple(_placed(value, times, like) for value in gather(self._routes, factors, dense, like))
        return payload, frozenset(factors.keys() | dense.keys())

    def sparse(self, names: Collection[str], like: Tensor, scale: float) -> dict[str, Tensor]:
        """Return the sparse gradients of these parameters, coalesced; arguments as for `payload`."""
        times = self._times(scale)
        found = {name: gradient for name in names if (gradient := self._held.get(name)) is not None}
        sparse = {name: value if value.is_sparse else value.to_sparse(1) for name, value in found.items()}
        return {name: (value.coalesce() * times).to(like) for name, value in sparse.items()}

    def _times(self, scale: float) -> float:
        return self._unit / (self.weight * scale) if self.weight else 1.0

    def _captured(self) -> FactorCapture:
        self._anew = False
        # Those that are linear layers' weights.
        followed = {route.name for route in self._routes if route.up is not None} - self._large
        layers = linear_layers(self._model, transposed=True)
        return FactorCapture(self._model, only=followed, layers=layers, plain=False).__enter__()

    def _grads(self) -> dict[str, Tensor | None]:
        return {name: parameter.grad for name, parameter in self._parameters.items()}

    def _set_grads(self, gradients: Mapping[str, Tensor | None]) -> None:
        for name, parameter in self._parameters.items():
            gradient = gradients.get(name)  # a changed shape is refused later
            parameter.grad = gradient if gradient is None or gradient.shape == parameter.shape else None


def _placed(value: Matrix, times: float, like: Tensor) -> Matrix:
    if isinstance(value, Factor):
        delta = value.delta.to(like)
        return Factor(delta if times == 1 else delta * times, value.activation.to(like))
    matrix = value.to(like)
    return matrix if times == 1 else matrix * times


def add_gradients(
    parameters: Mapping[str, nn.Parameter],
    routes: tuple[Route, ...],
    update: Payload,
    scale: float,
    used: Collection[str],
) -> None:
    """Add an update to `.grad`, with each parameter's shape, strides, dtype and device.

    Args:
        parameters: by name.
        routes: of the update.
        update: payload, the same at all ranks.
        scale: to multiply it by.
        used: parameters with a gradient at some rank; `.grad` of the others does not change.
    """
    for route, value in zip(routes, update, strict=True):
        matrix = _scaled(value, scale)
        gradients: dict[str, Tensor] = {}
        if route.bias is None:
            gradients[route.name] = matrix.gradient() if isinstance(matrix, Factor) else matrix
        elif isinstance(matrix, Factor):  # avoids a copy without the bias's column
            gradients[route.name] = matrix.delta.T @ matrix.activation[:, :-1]
            gradients[route.bias] = matrix.activation[:, -1] @ matrix.delta
        else:
            gradients[route.name], gradients[route.bias] = matrix[:, :-1], matrix[:, -1]
        for name, gradient in gradients.items():
            if name in used:
                _add(parameters[name], gradient)


def _scaled(value: Matrix, scale: float) -> Matrix:
    if scale == 1:
        return value
    return value.scaled(scale) if isinstance(value, Factor) else value * scale


def _add(parameter: nn.Parameter, gradient: Tensor) -> None:
    shaped = laid_out_as(parameter, gradient)
    with torch.no_grad():
        parameter.grad = shaped if parameter.grad is None else parameter.grad + shaped
