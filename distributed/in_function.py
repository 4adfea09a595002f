"""What a function's passes leave in `.grad`: their gradients, or its `zero_grad`, or what cannot be told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from rankdad.common.errors import UserError


class Zeros:
    """Zeros in place of gradients during a function.

    Args:
        parameters: by name.
        kept: their gradients from before, which the function's `zero_grad` would take away.
    """

    def __init__(self, parameters: Mapping[str, Tensor], kept: Mapping[str, Tensor | None]) -> None:
        self.gradients = {name: None if own is None else torch.zeros_like(own) for name, own in kept.items()}
        self._followed = {
            name: _Followed(parameters[name], zero) for name, zero in self.gradients.items() if zero is not None
        }

    def close(self) -> None:
        """Stop to follow what becomes of them."""
        for one in self._followed.values():
            one.close()

    def left(self, found: Mapping[str, Tensor | None]) -> tuple[dict[str, Tensor], set[str]]:
        """Return the gradients of the passes, and the names of parameters whose earlier ones were taken away.

        Raises:
            UserError: `.grad` was changed otherwise, while it had a gradient from before.
        """
        gradients, zeroed = dict[str, Tensor](), set[str]()
        for name, gradient in found.items():
            one = self._followed.get(name)
            if one is not None:
                one.look(gradient)
                if one.changed or (gradient is not None and gradient.requires_grad):  # of `create_graph`
                    raise _changed(name)
                if one.zeroed:
                    zeroed.add(name)
            if gradient is not None and (one is None or one.zeroed or one.passes):
                gradients[name] = gradient.detach()
        return gradients, zeroed


class _Followed:
    """A zero in `.grad` and what follows it: passes add to it, or `zero_grad` takes it away.

    Args:
        parameter: with hooks until `close`.
        zero: its `.grad`.

    Attributes:
        passes: that have added a gradient.
        zeroed: whether it was taken away.
        changed: whether it was changed otherwise.
    """

    def __init__(self, parameter: Tensor, zero: Tensor) -> None:
        self.passes, self.zeroed, self.changed = 0, False, False
        self._expected: tuple[Tensor, int] | None = (zero, zero._version)
        behind = _Behind(self)
        self._hooks = [parameter.register_hook(lambda _: self.look(parameter.grad))]
        self._hooks.append(parameter.register_post_accumulate_grad_hook(behind))

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def look(self, gradient: Tensor | None) -> None:
        """Compare `.grad` with what the last pass has left."""
        if gradient is None:
            self.zeroed = True
        elif self._expected is None or gradient is not self._expected[0] or gradient._version != self._expected[1]:
            self.changed = True

    def added(self, gradient: Tensor | None) -> None:
        """Note what a pass has left."""
        self.passes += 1
        self._expected = None if gradient is None else (gradient, gradient._version)


class _Behind:
    """A hook that sees `.grad` after each pass."""

    only_looks = True  # see `common.lowrank.layers.has_hooks`

    def __init__(self, followed: _Followed) -> None:
        self._followed = followed

    def __call__(self, parameter: Tensor) -> None:
        self._followed.added(parameter.grad)


def _changed(name: str) -> UserError:
    problem = (
        f"{name}: the function changed .grad, or made a graph of it, beside a gradient from before: call zero_grad"
    )
    return UserError(f"{problem} before backward", code="gradient-changed-in-function", field=name)


@contextmanager
def scaling(scaler: GradScaler | None) -> Iterator[None]:
    """Check that a function scales its losses by a scaler.

    Raises:
        UserError: it does not.
    """
    if scaler is None or not scaler.is_enabled():
        yield
        return
    scaled, scale = list[bool](), scaler.scale

    def noted(outputs: Any) -> Any:
        scaled.append(True)
        return scale(outputs)

    of_scaler: dict[str, Callable[..., Any]] = vars(scaler)
    of_scaler["scale"] = noted
    try:
        yield
    finally:
        del of_scaler["scale"]
    if not scaled:
        problem = "scaler: the function scales no loss by it: call scaler.scale(loss).backward() there"
        raise UserError(problem, code="loss-not-scaled", field="scaler")
