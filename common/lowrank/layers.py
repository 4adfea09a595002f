"""Finds the layers of a model that have a factor, and hooks on parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.parametrize import is_parametrized

Layout = Literal["out-in", "in-out"]
DIFFERS = 0.05  # of a custom layer's output, relatively: more than bfloat16 rounds
LAYOUTS: Mapping[str, Layout] = MappingProxyType(  # of weights, by class: as Linear has it, or transposed
    {"torch.nn.modules.linear.Linear": "out-in", "transformers.pytorch_utils.Conv1D": "in-out"}
)


def layout_of(module: nn.Module) -> Layout | None:
    """Return the layout of a linear layer's weight, [out, in] or [in, out]; None for other modules.

    A custom class declares it with the attribute `low_rank_layout`. Subclasses, whose forward may differ, declare it
    themselves. It must have `weight`, may have `bias`, and multiplies its input's last axis by the weight.

    Raises:
        ValueError: the attribute has another value.
    """
    kind, own = _class_of(module), declared_layout(module)
    if own is not None and own not in get_args(Layout):
        raise ValueError(f"{kind.__qualname__}.low_rank_layout: got {own!r}, expected 'out-in' or 'in-out'")
    return own or LAYOUTS.get(f"{kind.__module__}.{kind.__qualname__}")


def declared_layout(module: nn.Module) -> Layout | None:
    """Return the layout that a module's own class declares; None for others."""
    return vars(_class_of(module)).get("low_rank_layout")


def _class_of(module: nn.Module) -> type[nn.Module]:
    """Return a module's class; `fully_shard` gives it another one, with the former one as its base."""
    return next(each for each in type(module).__mro__ if "FSDPModule" not in {base.__name__ for base in each.__mro__})


def linear_layers(model: nn.Module) -> dict[str, tuple[nn.Linear, str | None]]:
    """Return the layers whose weight's gradient is a factor: weight name → (module, name of its bias).

    Excluded are frozen and tied weights, subclasses of Linear, whose forward may differ, and weights and biases with
    hooks, which need the gradient itself. The bias of a layer with weight [in, out] is not a column of the matrix.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    holders = _holders(model)
    layers: dict[str, tuple[nn.Linear, str | None]] = {}
    for module in model.modules():
        layout = layout_of(module)
        if layout is None:
            continue
        layer = cast(nn.Linear, module)  # or a module that declares a layout
        weight, bias = layer.weight, cast(nn.Parameter | None, getattr(layer, "bias", None))
        if weight not in names or not weight.requires_grad or holders[weight] > 1 or _is_hooked(layer):
            continue
        has_bias = bias is not None and bias.requires_grad and holders[bias] == 1 and not has_hooks(bias)
        layers[names[weight]] = (layer, names[bias] if bias is not None and has_bias and layout == "out-in" else None)
    return layers


def uncaptured_layers(model: nn.Module) -> dict[str, str]:
    """Return why modules that look like Linear have no factor for a trained matrix: module name → reason.

    Tied and frozen weights are not listed, nor is the projection inside MultiheadAttention, which is never called.
    """
    holders = _holders(model)
    followed: set[Tensor] = {module.weight for module, _ in linear_layers(model).values()}
    reasons: dict[str, str] = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear) or isinstance(module, NonDynamicallyQuantizableLinear):
            continue
        trained = {p for p in module.parameters() if p.requires_grad and p.dim() > 1 and holders[p] == 1}
        if trained - followed:  # the older weight_norm and spectral_norm keep the class
            plain = is_parametrized(module) or type(module) is nn.Linear
            reasons[name] = "it is parametrised" if plain else f"{type(module).__name__} is a subclass of Linear"
            if type(module) is nn.Linear and _is_hooked(module):
                reasons[name] = "it has a hook on its gradient"
    return reasons


def has_hooks(parameter: Tensor) -> bool:
    """Tell whether the caller's hooks change or read a parameter's gradient."""
    return bool(parameter._backward_hooks) or any(not _only_looks(hook) for hook in _hooks_behind(parameter))


def is_followed(parameter: Tensor) -> bool:
    """Return whether a `LowRank` exchanges a parameter's gradient by passes of its own."""
    return any(getattr(hook, "has_own_passes", False) for hook in _hooks_behind(parameter))


def _hooks_behind(parameter: Tensor) -> Iterable[Any]:
    """Return the hooks that follow once a gradient is in `.grad`."""
    return (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()


def _only_looks(hook: object) -> bool:
    """Tell a hook of our own, which leaves gradients alone: see `rankdad.distributed.watching.PlainBackward`."""
    return getattr(hook, "only_looks", False)


def copied(model: nn.Module) -> nn.Module:
    """Return a deep copy whose parameters keep their hooks."""
    copy = deepcopy(model)
    for parameter, own in zip(model.parameters(), copy.parameters(), strict=True):
        for hook in (parameter._backward_hooks or {}).values():
            own.register_hook(hook)
        for hook in (hook for hook in _hooks_behind(parameter) if not _only_looks(hook)):
            own.register_post_accumulate_grad_hook(hook)
    return copy


def _is_hooked(module: nn.Linear) -> bool:
    """Return whether hooks of the weight, or older hooks of the module, change only the weight's gradient.

    Another `forward` of this module alone may do anything, too.
    """
    return has_hooks(module.weight) or module._is_full_backward_hook is False or "forward" in vars(module)


def _holders(model: nn.Module) -> Counter[Tensor]:
    """Count the modules that hold each parameter; a module that occurs several times counts once."""
    return Counter(parameter for module in model.modules() for parameter in module.parameters(recurse=False))


def check_layout(module: nn.Linear, name: str, source: Tensor, output: Tensor, *, transposed: bool) -> None:
    """Check that a custom layer multiplies its input by its weight as it declares.

    Raises:
        ValueError: it does not.
    """
    with torch.no_grad():
        weight = module.weight if transposed else module.weight.T
        expected = source.to(weight.dtype) @ weight
        bias = getattr(module, "bias", None)
        expected = expected if bias is None else expected + bias
        if (expected - output).norm() > DIFFERS * expected.norm():
            declared = f"{type(module).__name__}.low_rank_layout {'in-out' if transposed else 'out-in'}"
            raise ValueError(f"{name}: the layer's output is not its input times its weight as {declared} says")
