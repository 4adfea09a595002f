"""Which layers of a model have a factor, and what hooks of parameters have to do with it."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.parametrize import is_parametrized


def linear_layers(model: nn.Module) -> dict[str, tuple[nn.Linear, str | None]]:
    """Return the layers whose weight's gradient is a factor: weight name → (module, name of its bias).

    Left out are frozen weights, weights that several modules hold (tied), subclasses of Linear, whose forward may do
    something else, and weights and biases with hooks, which want the gradient itself.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    holders = _holders(model)
    layers: dict[str, tuple[nn.Linear, str | None]] = {}
    for module in model.modules():
        if type(module) is not nn.Linear or module.weight not in names:
            continue
        if module.weight.requires_grad and holders[module.weight] == 1 and not _is_hooked(module):
            bias = module.bias
            has_bias = bias is not None and bias.requires_grad and holders[bias] == 1 and not has_hooks(bias)
            layers[names[module.weight]] = (module, names[bias] if has_bias else None)
    return layers


def unfollowed(model: nn.Module) -> dict[str, str]:
    """Return why modules that look like Linear have no factor for a matrix that is trained: module name → reason.

    Tied and frozen weights are not listed. Nor is the projection inside MultiheadAttention, which is never called.
    """
    holders = _holders(model)
    followed: set[Tensor] = {module.weight for module, _ in linear_layers(model).values()}
    reasons: dict[str, str] = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear) or isinstance(module, NonDynamicallyQuantizableLinear):
            continue
        trained = {p for p in module.parameters() if p.requires_grad and p.dim() > 1 and holders[p] == 1}
        if trained - followed:  # the older weight_norm and spectral_norm leave the class as it is
            plain = is_parametrized(module) or type(module) is nn.Linear
            reasons[name] = "it is parametrised" if plain else f"{type(module).__name__} is a subclass of Linear"
            if type(module) is nn.Linear and _is_hooked(module):
                reasons[name] = "it has a hook on its gradient"
    return reasons


def has_hooks(parameter: Tensor) -> bool:
    """Tell whether the caller's hooks change or read a parameter's gradient."""
    return bool(parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None))


def copied(model: nn.Module) -> nn.Module:
    """Return a deep copy whose parameters have the hooks of the model's, which a copy of a tensor has not."""
    copy = deepcopy(model)
    for parameter, own in zip(model.parameters(), copy.parameters(), strict=True):
        for hook in (parameter._backward_hooks or {}).values():
            own.register_hook(hook)
        for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
            own.register_post_accumulate_grad_hook(hook)
    return copy


def _is_hooked(module: nn.Linear) -> bool:
    """Tell whether hooks of its weight, or the module's own of the older kind, change the weight's gradient alone."""
    return has_hooks(module.weight) or module._is_full_backward_hook is False


def _holders(model: nn.Module) -> Counter[Tensor]:
    """Count the modules that hold each parameter; a module in several places of the model counts once."""
    return Counter(parameter for module in model.modules() for parameter in module.parameters(recurse=False))
