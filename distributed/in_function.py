"""What a function's passes leave in `.grad`: their gradients, or its `zero_grad`, or what cannot be told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.utils.hooks import RemovableHandle

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
            name: _Followed(parameters[name], zero, self._await_end) for name, zero in self.gradients.items()
        }
        self._tasks = set[int]()  # of autograd, whose ends are awaited
        self._exchanged = ""  # name of a parameter

    def close(self) -> None:
        """Stop to follow what becomes of them."""
        for one in self._followed.values():
            one.close()

    def _await_end(self) -> None:
        """Look at all gradients once when the present pass has ended, after DistributedDataParallel's exchange."""
        task, engine = torch._C._current_graph_task_id(), torch.autograd.Variable._execution_engine
        if task not in self._tasks:
            self._tasks.add(task)
            engine.queue_callback(lambda: engine.queue_callback(self._compare))  # that is put between them

    def _compare(self) -> None:
        moved = (name for name, one in self._followed.items() if one.passes and not one.is_as_left())
        self._exchanged = self._exchanged or next(moved, "")

    def left(self, found: Mapping[str, Tensor | None]) -> tuple[dict[str, Tensor], set[str]]:
        """Return the gradients of the passes, and the names of parameters whose earlier ones were taken away.

        Raises:
            UserError: the passes have exchanged gradients, or `.grad` was changed otherwise, while it had a gradient
                from before.
        """
        if self._exchanged:
            problem = f"{self._exchanged}: DistributedDataParallel has exchanged gradients in the function, without "
            problem += "weights: run it within its no_sync, or call the model itself"
            raise UserError(problem, code="exchanged-in-function", field=self._exchanged)
        gradients, zeroed = dict[str, Tensor](), set[str]()
        for name, gradient in found.items():
            one, before = self._followed[name], self.gradients[name]
            if before is not None:
                one.look()
                if one.changed or (gradient is not None and gradient.requires_grad):  # of `create_graph`
                    raise _changed(name)
                if one.zeroed:
                    zeroed.add(name)
            if gradient is not None and (before is None or one.zeroed or one.passes):
                gradients[name] = gradient.detach()
        return gradients, zeroed


class _Followed:
    """A `.grad` and what follows it: passes add to it, or `zero_grad` takes it away.

    Args:
        parameter: with hooks until `close`.
        zero: its `.grad`; without one, what passes leave there may be changed.
        added: called when a pass has added to it.

    Attributes:
        passes: that have added a gradient.
        zeroed: whether it was taken away.
        changed: whether it was changed otherwise.
    """

    def __init__(self, parameter: Tensor, zero: Tensor | None, added: Callable[[], None]) -> None:
        self.passes, self.zeroed, self.changed = 0, False, False
        self._parameter, self._added = parameter, added
        self._expected = (zero, 0 if zero is None else zero._version)
        self._hooks: list[RemovableHandle] = []
        if parameter.requires_grad:
            self._hooks.append(parameter.register_post_accumulate_grad_hook(_Behind(self)))
        if zero is not None and parameter.requires_grad:
            self._hooks.append(parameter.register_hook(lambda _: self.look()))

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def is_as_left(self) -> bool:
        """Return whether `.grad` is what the last pass has left."""
        gradient, (expected, version) = self._parameter.grad, self._expected
        return gradient is expected and (gradient is None or gradient._version == version)

    def look(self) -> None:
        """Compare `.grad` with what the last pass has left."""
        if self._parameter.grad is None:
            self.zeroed = True
        elif not self.is_as_left():
            self.changed = True

    def add(self) -> None:
        """Note what a pass has left."""
        gradient = self._parameter.grad
        self.passes += 1
        self._expected = (gradient, 0 if gradient is None else gradient._version)
        self._added()


class _Behind:
    """A hook that sees `.grad` after each pass."""

    only_looks = True  # see `common.lowrank.layers.has_hooks`

    def __init__(self, followed: _Followed) -> None:
        self._followed = followed

    def __call__(self, _: Tensor) -> None:
        self._followed.add()


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
