"""Gradients of a rank's backward passes between two exchanges, as factors and matrices, without changing `.grad`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from rankdad.common.errors import NonFiniteError, UserError
from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.factors import Factor, Matrix, concatenate
from rankdad.common.lowrank.layers import linear_layers
from rankdad.common.lowrank.routes import Payload, Route, gather
from rankdad.common.meshes import Division, Part, local, local_factor, local_gradient
from rankdad.distributed.agreement import mixed
from rankdad.distributed.in_function import Zeros, scaling


class Batches:
    """The gradient of one batch's mean loss, or the weighted mean of several.

    Args:
        model: has hooks on its linear layers until `close`.
        routes: of its parameters.
        division: of the model between ranks.
        reduced: whether all are reduced to few rows. A layer whose factor was larger than its matrix is then no longer
            captured, which saves time; otherwise a smaller batch may follow, whose factor saves bytes.
    """

    def __init__(self, model: nn.Module, routes: tuple[Route, ...], division: Division, *, reduced: bool) -> None:
        self._model, self._reduced = model, reduced
        self._large = set[str]()  # names of layers that are no longer captured
        self._in_function = False
        self.follow(routes, division)
        self._capture = self._captured()
        self.clear()

    def follow(self, routes: tuple[Route, ...], division: Division) -> None:
        """Change the routes; forward passes use them after the next `clear`."""
        self._routes, self._anew = routes, True
        self._division, self._parameters = division, division.passing

    def divide(self, division: Division) -> None:
        """Follow a model that has been divided between ranks; the next backward pass captures no factors."""
        self._anew = True
        self.follow(self._routes, division)
        self.clear()

    def clear(self) -> None:
        """Drop the added gradients, and start to capture."""
        kept = self._grads()
        if self._anew:
            self.close()
            self._capture = self._captured()
        self._capture.begin()
        self._set_grads(kept)
        self._held: dict[str, Tensor | None] = {}  # sums of dense gradients
        self._by_function: dict[str, Tensor] = {}  # those of captured weights that functions' passes have left
        self.weight, self._unit, self._sums, self._scaled = 0.0, 1.0, False, False

    @property
    def captured(self) -> Collection[str]:
        """Names of the weights whose factors the next batch yields."""
        return self._capture.biases.keys() - self._large

    def close(self) -> None:
        """Remove the hooks."""
        self._capture.__exit__(None, None, None)

    def check_idle(self) -> None:
        """Check that no function's passes are under way.

        Raises:
            UserError: they are.
        """
        if self._in_function:
            problem = "backward was called within the function that it was given: call loss.backward() there"
            raise UserError(problem, code="backward-in-function", field="loss")

    def take(
        self,
        loss: Tensor | Callable[[], object] | None,
        weight: float,
        scaler: GradScaler | None,
        *,
        sums: bool,
        retain_graph: bool,
        waits: bool,
    ) -> None:
        """Add the gradient of a loss, or of a function's passes; see `add` and `run`.

        What waits for other batches is copied: the caller may change tensors of its pass.

        Raises:
            NonFiniteError: the loss is NaN or infinite.
        """
        if not isinstance(loss, Tensor):
            assert loss is not None
            with scaling(scaler if weight else None):
                self.run(loss, weight, sums=sums, scaled=scaler is not None)
            return
        self.add(
            loss if scaler is None else scaler.scale(loss),
            weight,
            sums=sums,
            scaled=scaler is not None,
            retain_graph=retain_graph,
        )
        if waits:
            self._capture.own()
        if weight and scaler is None and not bool(torch.isfinite(loss.detach())):
            raise NonFiniteError("the loss")

    def add(
        self, loss: Tensor, weight: float, *, sums: bool = False, scaled: bool = False, retain_graph: bool = False
    ) -> None:
        """Run a batch's backward pass and add its gradient, without changing `.grad`.

        Args:
            loss: the mean over the batch.
            weight: of the batch; 0 for a pass that only takes part in collectives.
            sums: whether it is the sum instead.
            scaled: whether it is scaled.
            retain_graph: whether another loss uses the same forward pass.
        """
        times = self._begun(weight, sums=sums, scaled=scaled)
        kept, own = self._grads(), self._own_grads()
        self._set_grads(self._held)
        try:
            before = self._versions()
            self._capture.backward(loss if times == 1 else loss * times, retain_graph=retain_graph)
            self._held = self._grads()
            self._check_unmoved(before)
            self._check_own(own)
        finally:
            self._set_grads(kept)
        self.weight += weight

    def run(self, passes: Callable[[], object], weight: float, *, sums: bool = False, scaled: bool = False) -> None:
        """Add the gradients that a function's passes leave in `.grad`; see `add`.

        `.grad` does not change, unless the function calls `zero_grad`.

        Raises:
            UserError: the function has exchanged gradients that `fully_shard` has gathered, taken a step, or changed
                `.grad` otherwise.
        """
        times = self._begun(weight, sums=sums, scaled=scaled)
        kept, versions, own = self._grads(), self._versions(), self._own_grads()
        zeros = Zeros(self._parameters, kept)
        self._set_grads(zeros.gradients)
        self._in_function = True
        try:
            passes()
            found, zeroed = zeros.left(self._grads())
            self._check_unmoved(versions)
            self._check_own(own)
            kept |= dict.fromkeys(zeroed)
        finally:
            self._in_function = False
            zeros.close()
            self._set_grads(kept)
        for name, gradient in found.items() if times else ():
            sums_of: dict[str, Any] = self._by_function if name in self._capture.biases else self._held
            held, own_part = sums_of.get(name), gradient * times
            sums_of[name] = own_part if held is None else held + own_part
        self.weight += weight

    def _begun(self, weight: float, *, sums: bool, scaled: bool) -> float:
        """Return the number to multiply a batch's gradient by; a single batch is not scaled.

        Raises:
            UserError: one batch has the sum of its losses, and an earlier one the mean, or the other way round; or only
                one of them is scaled.
        """
        self._division.hold()
        if not self.weight:
            self._unit, self._sums, self._scaled = 1.0 if sums else weight or 1.0, sums, scaled
        elif weight and sums != self._sums:
            raise mixed()
        elif weight and scaled != self._scaled:
            problem = "scaler: some batches of one exchange are scaled: pass it for all of them, or for none"
            raise UserError(problem, code="scaled-and-unscaled", field="scaler")
        return float(bool(weight)) if sums else weight / self._unit

    def _versions(self) -> list[int]:
        # A frozen one may follow others in its forward pass, as a momentum encoder does.
        return [part.own._version * part.own.requires_grad for part in self._division.parts.values()]

    def _own_grads(self) -> dict[str, tuple[Tensor | None, int]]:
        """Return `.grad` of the parameters that `fully_shard` gathers, and its version."""
        parts = self._division.parts.items()
        own = {name: part.own.grad for name, part in parts if part.own is not part.whole}
        return {name: (grad, 0 if grad is None else local(grad)._version) for name, grad in own.items()}

    def _check_own(self, before: Mapping[str, tuple[Tensor | None, int]]) -> None:
        """Check that no pass has put a gradient into `.grad` of a parameter that `fully_shard` gathers.

        Raises:
            UserError: one has; names the parameter.
        """
        for name, (grad, version) in self._own_grads().items():
            if grad is not None and (grad is not before[name][0] or version != before[name][1]):
                problem = f"{name}: a pass put a gradient into .grad of this part: use it in its block's forward pass"
                problem += " alone, without a penalty; divide the stages of a pipeline by tensor parallel"
                raise UserError(problem, code="exchanged-in-passes", field=name)

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
        try:
            factors, dense = self._gradients(names) if self.weight else ({}, {})
        finally:
            self._set_grads(kept)
        times = self._times(scale)
        payload = tuple(_placed(value, times, like) for value in gather(self._routes, factors, dense, like))
        return payload, frozenset(factors.keys() | dense.keys())

    def _gradients(self, names: Collection[str]) -> tuple[dict[str, Factor], dict[str, Tensor]]:
        """Return this rank's gradients, as factors and matrices."""
        whole = self._capture.dense(names)
        dense = {name: local_gradient(gradient, self._parameters[name]) for name, gradient in whole.items()}
        factors = dict[str, Factor]()
        for route in self._routes:
            parts = [local_factor(part, self._parameters[route.name]) for part, _ in self._capture.parts(route.name)]
            rows, (out, columns) = sum(part.rows for part in parts), route.matrix
            if parts and (route.dense or rows * (out + columns) > out * columns):  # a product copies no row
                dense[route.name] = sum(part.gradient() for part in parts)  # type: ignore[assignment]
                if self._reduced:
                    self._anew = True
                    self._large.add(route.name)
            elif parts:
                factors[route.name] = concatenate(parts)
        for name, gradient in self._by_function.items():
            own = factors.pop(name).gradient() if name in factors else dense.get(name)
            added = local_gradient(gradient, self._parameters[name])
            dense[name] = added if own is None else own + added
        return factors, dense

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
        layers = linear_layers(self._model)
        capture = FactorCapture(self._model, only=followed, layers=layers, parameters=self._parameters, plain=False)
        return capture.__enter__()

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
    parts: Mapping[str, Part],
    routes: tuple[Route, ...],
    update: Payload,
    scale: float,
    used: Collection[str],
) -> None:
    """Add an update to `.grad`, with each parameter's shape, strides, dtype and device.

    Args:
        parts: this rank's part of each parameter.
        routes: of the update.
        update: payload, the same at all ranks.
        scale: to multiply it by.
        used: parameters with a gradient at some rank; `.grad` of the others does not change.
    """
    for route, value in zip(routes, update, strict=True):
        matrix = _scaled(value, scale)
        for name in route.names:
            if name in used:
                _add(parts[name], _rows(route, matrix, name, parts[name].rows))


def _rows(route: Route, value: Matrix, name: str, rows: slice) -> Tensor:
    """Return rows of the gradient of a route's parameter, which is its weight or its bias."""
    columns = slice(None) if route.bias is None else slice(-1)
    if isinstance(value, Factor):
        delta = value.delta[:, rows]
        return value.activation[:, -1] @ delta if name == route.bias else delta.T @ value.activation[:, columns]
    if len(route.shape) < 2:  # one row
        return value[0, rows] if route.shape else value
    return value[rows, -1] if name == route.bias else value[rows, columns]


def _scaled(value: Matrix, scale: float) -> Matrix:
    if scale == 1:
        return value
    return value.scaled(scale) if isinstance(value, Factor) else value * scale


def _add(part: Part, gradient: Tensor) -> None:
    shaped, before = part.gradient(gradient), part.own.grad
    with torch.no_grad():
        if before is None or before.requires_grad or before.is_sparse:
            part.own.grad = shaped if before is None else before + shaped
        else:  # in place, as by autograd: it may be a view of a buffer
            before.add_(shaped)
