"""Capture of factors: what a model's backward pass holds anyway, Δ and A of each layer.

A forward hook notes a layer's input A and puts a hook on its output tensor, which receives Δ. A module's own
full-backward hook would not do: it breaks with in-place activations, and mixes the uses of a module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from common.factors import Factor, concatenate


def linear_layers(model: nn.Module) -> dict[str, tuple[nn.Linear, str | None]]:
    """Return the layers whose weight's gradient is a factor: weight name → (module, name of its bias).

    Left out are frozen weights, weights that stand in the model more than once (tied), and subclasses of Linear, whose
    forward may do something else.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    places = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    found: dict[str, tuple[nn.Linear, str | None]] = {}
    for module in model.modules():
        if type(module) is not nn.Linear or module.weight not in names:
            continue
        if module.weight.requires_grad and places[id(module.weight)] == 1:
            bias = module.bias
            own = bias is not None and bias.requires_grad and places[id(bias)] == 1
            found[names[module.weight]] = (module, names[bias] if own else None)
    return found


class FactorCapture:
    """Capture a model's gradients as factors, around its forward and backward passes.

    Several passes in one context add up, as gradients do. Forward passes without gradients leave nothing behind.

    Args:
        model: its weights' `.grad` is cleared on entry.
        only: names of the weights to capture; None captures every layer that has a factor.

    Source: arXiv 2102.09631, Section 3 (A and Δ as held by automatic differentiation).
    """

    def __init__(self, model: nn.Module, only: Container[str] | None = None) -> None:
        layers = linear_layers(model)
        self._model = model
        self._modules = {module: name for name, (module, _) in layers.items() if only is None or name in only}
        self._pairs: dict[str, list[Factor]] = {name: [] for name in self._modules.values()}
        self._edges: dict[str, list[GradientEdge]] = {}
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> FactorCapture:
        self._model.zero_grad(set_to_none=True)
        self._hooks = [module.register_forward_hook(self._note, with_kwargs=True) for module in self._modules]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._edges = [], {}

    def _note(self, module: nn.Linear, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        if not output.requires_grad:
            return
        name = self._modules[module]
        activation: Tensor = (args[0] if args else kwargs["input"]).detach()
        version = activation._version
        output_size, dtype = output.shape[-1], next(module.parameters()).dtype

        def keep(delta: Tensor) -> None:
            if activation._version != version:
                raise RuntimeError(f"the input of {name} was changed in place after the layer had used it")
            rows = Factor(
                delta.detach().reshape(-1, output_size).to(dtype),
                activation.reshape(-1, activation.shape[-1]).to(dtype),
            )
            self._pairs[name].append(rows)

        # An in-place activation gives the output another edge, and cuts a view (which inputs beyond two dimensions
        # give) from the graph altogether: so the edge is taken now, and of the tensor behind the view.
        made = output if output._base is None or output._base.numel() != output.numel() else output._base
        self._edges.setdefault(name, []).append(get_gradient_edge(made))
        made.register_hook(keep)

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass without forming the gradients that the factors replace: a third less to compute.

        `loss.backward()` captures the same.
        """
        rest = [p for name, p in self._model.named_parameters() if p.requires_grad and name not in self._pairs]
        edges = [edge for edges in self._edges.values() for edge in edges]
        self._edges = {}
        if not edges:
            loss.backward()
            return
        inputs = [*map(get_gradient_edge, rest), *edges]
        gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
        for parameter, gradient in zip(rest, gradients, strict=False):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def factors(self) -> dict[str, Factor]:
        """Return the factors by weight name, Δ [n, out] and A [n, in]; a layer that was not used has none."""
        return {name: concatenate(pairs) for name, pairs in self._pairs.items() if pairs}

    def dense(self) -> dict[str, Tensor]:
        """Return the gradients of all other parameters, each in its own shape; an unused parameter has none."""
        return {
            name: parameter.grad
            for name, parameter in self._model.named_parameters()
            if parameter.grad is not None and name not in self._pairs
        }
