"""Hooks on layers, which note their uses, and in compiled graphs replace them."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules import module as every_module
from torch.utils.hooks import RemovableHandle

from rankdad.common.lowrank.compiled import linear
from rankdad.common.lowrank.layers import layout_of


class Capture(Protocol):
    """What takes notes of uses: see `rankdad.common.lowrank.capture`."""

    def note(self, module: nn.Linear, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        """Note a use of a layer."""


class _ForwardHook:
    """A layer's hook with a weak reference to its capture.

    Args:
        capture: takes notes.
        forward: of the layer's class.
    """

    def __init__(self, capture: weakref.ref[Any], forward: Callable[..., Any]) -> None:
        self._capture, self._forward = capture, forward

    def __call__(
        self, module: nn.Linear, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> Tensor | None:
        if "forward" in vars(module) or not self._has_own_output(module):  # it may compute anything
            return None
        if torch.compiler.is_compiling():
            if hasattr(module.weight, "device_mesh"):  # a DTensor, for which our operator has no rule: it is dense
                return None
            source, bias = args[0] if args else kwargs["input"], getattr(module, "bias", None)
            return linear(source, module.weight, bias, transposed=layout_of(module) == "in-out")
        capture: Capture | None = self._capture()
        if capture is not None:
            capture.note(module, args, kwargs, output)
        return None

    def _has_own_output(self, module: nn.Module) -> bool:
        """Return whether the output is of the layer's own computation: nothing has replaced either since."""
        if type(module).forward is not self._forward or every_module._global_forward_hooks:
            return False
        if module._is_full_backward_hook is False:  # an older hook on its node
            return False
        return isinstance(next(iter(module._forward_hooks.values()), self), _ForwardHook)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Make copies and saved models call a no-op of the standard library instead."""
        return getattr, (contextlib.AbstractContextManager, "__exit__")


def hook_layers(layers: Iterable[nn.Module], capture: weakref.ref[Any]) -> list[RemovableHandle]:
    """Hook layers before all other hooks, which may replace the output.

    Args:
        layers: to follow.
        capture: notes their uses.
    """
    return [
        layer.register_forward_hook(_ForwardHook(capture, type(layer).forward), prepend=True, with_kwargs=True)
        for layer in layers
    ]
