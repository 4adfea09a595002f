"""What a function's passes leave in `.grad`: their gradients, or its `zero_grad`, or what cannot be told."""

from __future__ import annotations

from collections import Counter
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
        zeros = {name: zero for name, zero in self.gradients.items() if zero is not None}
        self._versions = {name: zero._version for name, zero in zeros.items()}
        self._added = Counter[str]()
        self._hooks = [parameters[name].register_post_accumulate_grad_hook(_Count(self._added, name)) for name in zeros]

    def close(self) -> None:
        """Stop to count what is added."""
        for hook in self._hooks:
            hook.remove()

    def left(self, found: Mapping[str, Tensor | None]) -> tuple[dict[str, Tensor], set[str]]:
        """Return the gradients of the passes, and the names of parameters whose earlier ones were taken away.

        Raises:
            UserError: `.grad` was changed otherwise, while it had a gradient from before.
        """
        gradients, zeroed = dict[str, Tensor](), set[str]()
        for name, gradient in found.items():
            zero, count = self.gradients[name], self._added[name]
            if zero is not None and gradient is not zero:
                if gradient is not None and gradient.requires_grad:  # of `create_graph`, added out of place
                    raise _changed(name)
                zeroed.add(name)
            elif zero is not None and zero._version != self._versions[name] + count:
                raise _changed(name)
            if gradient is not None and (gradient is not zero or count):
                gradients[name] = gradient.detach()
        return gradients, zeroed


class _Count:
    """A hook that counts what is added to a `.grad`."""

    only_looks = True  # see `common.lowrank.layers.has_hooks`

    def __init__(self, counts: Counter[str], name: str) -> None:
        self._counts, self._name = counts, name

    def __call__(self, _: Tensor) -> None:
        self._counts[self._name] += 1


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
