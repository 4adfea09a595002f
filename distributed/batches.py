"""What a rank's backward passes leave between two exchanges: factors and dense gradients, aside from `.grad`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rankdad.common.gradients.capture import FactorCapture
from rankdad.common.gradients.factors import Factor, Matrix
from rankdad.common.gradients.routes import Payload, Route, gather
from rankdad.distributed.exchange import smaller


class Batches:
    """The gradient of one batch's mean loss, or the weighted mean of several.

    Args:
        model: hooks on its linear layers stay until `close`.
        routes: how its parameters travel.
    """

    def __init__(self, model: nn.Module, routes: tuple[Route, ...]) -> None:
        self._model, self._routes = model, routes
        self._followed = {route.name for route in routes if route.up is not None}  # as far as they are linear layers'
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._capture = FactorCapture(model, only=())
        self.clear()

    def clear(self) -> None:
        """Forget what was added, and capture what comes."""
        self._capture.__exit__(None, None, None)
        kept = self._grads()
        self._capture = FactorCapture(self._model, only=self._followed)
        self._capture.__enter__()
        self._set_grads(kept)
        self._held: dict[str, Tensor | None] = {}  # dense gradients so far
        self.weight, self._unit = 0.0, 1.0

    def close(self) -> None:
        """Remove the hooks."""
        self._capture.__exit__(None, None, None)

    def add(self, loss: Tensor, weight: float) -> None:
        """Add a batch's gradient: run its backward pass, and leave `.grad` as it is.

        Args:
            loss: the mean over the batch.
            weight: of the batch, above 0.
        """
        self._unit = self._unit if self.weight else weight  # one batch alone is not multiplied by anything
        kept = self._grads()
        self._set_grads(self._held)
        try:
            self._capture.backward(loss if weight == self._unit else loss * (weight / self._unit))
            self._held = self._grads()
        finally:
            self._set_grads(kept)
        self.weight += weight

    def payload(self, like: Tensor, scale: float) -> Payload:
        """Return the gradient of the weighted mean in the routes' order; without rows, or zeros, if nothing was added.

        Args:
            like: a tensor of the dtype and device that gradients are to have.
            scale: by which the losses were multiplied.
        """
        kept = self._grads()
        self._set_grads(self._held)
        factors, dense = self._capture.factors(), self._capture.dense()
        self._set_grads(kept)
        times = self._unit / (self.weight * scale) if self.weight else 1.0
        return tuple(_placed(smaller(value), times, like) for value in gather(self._routes, factors, dense, like))

    def _grads(self) -> dict[str, Tensor | None]:
        return {name: parameter.grad for name, parameter in self._parameters.items()}

    def _set_grads(self, gradients: Mapping[str, Tensor | None]) -> None:
        for name, parameter in self._parameters.items():
            parameter.grad = gradients.get(name)


def _placed(value: Matrix, times: float, like: Tensor) -> Matrix:
    if isinstance(value, Factor):
        delta = value.delta.to(like)
        return Factor(delta if times == 1 else delta * times, value.activation.to(like))
    matrix = value.to(like)
    return matrix if times == 1 else matrix * times


def add_gradients(
    parameters: Mapping[str, nn.Parameter], routes: tuple[Route, ...], update: Payload, scale: float
) -> None:
    """Add an update to `.grad`, each parameter's in its own shape, dtype and place.

    Args:
        parameters: by name.
        routes: of the update.
        update: what all ranks apply.
        scale: to multiply it by.
    """
    for route, value in zip(routes, update, strict=True):
        matrix = _scaled(value, scale)
        if route.folded is None:
            _add(parameters[route.name], matrix.gradient() if isinstance(matrix, Factor) else matrix)
        elif isinstance(matrix, Factor):  # without a copy to cut off the bias's column
            _add(parameters[route.name], matrix.delta.T @ matrix.activation[:, :-1])
            _add(parameters[route.folded], matrix.activation[:, -1] @ matrix.delta)
        else:
            _add(parameters[route.name], matrix[:, :-1])
            _add(parameters[route.folded], matrix[:, -1])


def _scaled(value: Matrix, scale: float) -> Matrix:
    if scale == 1:
        return value
    return value.scaled(scale) if isinstance(value, Factor) else value * scale


def _add(parameter: nn.Parameter, gradient: Tensor) -> None:
    shaped = gradient.reshape(parameter.shape).to(parameter)
    with torch.no_grad():
        parameter.grad = shaped.contiguous() if parameter.grad is None else parameter.grad + shaped
