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
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.parametrize import is_parametrized
from torch.utils.hooks import RemovableHandle

from rankdad.common.gradients.factors import Factor, concatenate


def linear_layers(model: nn.Module) -> dict[str, tuple[nn.Linear, str | None]]:
    """Return the layers whose weight's gradient is a factor: weight name → (module, name of its bias).

    Left out are frozen weights, weights that several modules hold (tied), and subclasses of Linear, whose forward may
    do something else.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    holders = _holders(model)
    layers: dict[str, tuple[nn.Linear, str | None]] = {}
    for module in model.modules():
        if type(module) is not nn.Linear or module.weight not in names:
            continue
        if module.weight.requires_grad and holders[module.weight] == 1:
            bias = module.bias
            has_bias = bias is not None and bias.requires_grad and holders[bias] == 1
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
    return reasons


def _holders(model: nn.Module) -> Counter[Tensor]:
    """Count the modules that hold each parameter; a module in several places of the model counts once."""
    return Counter(parameter for module in model.modules() for parameter in module.parameters(recurse=False))


class FactorCapture:
    """Capture a model's gradients as factors, around its forward and backward passes.

    Several passes in one context add up, as gradients do. Forward passes without gradients leave nothing behind. Each
    A is held until its backward pass, also where checkpointing would compute it again.

    Args:
        model: its weights' `.grad` is cleared on entry.
        only: names of the weights to capture; None captures every layer that has a factor.

    Example:
        >>> model = nn.Linear(5, 2)
        >>> inputs, labels = torch.randn(8, 5), torch.randn(8, 2)
        >>> with FactorCapture(model) as capture:
        ...     capture.backward(nn.functional.mse_loss(model(inputs), labels))
        >>> factor = capture.factors()["weight"]
        >>> factor.delta.shape, factor.activation.shape, factor.gradient().shape
        (torch.Size([8, 2]), torch.Size([8, 5]), torch.Size([2, 5]))
        >>> list(capture.dense())
        ['bias']

    Source: arXiv 2102.09631, Section 3 (A and Δ as held by automatic differentiation).
    """

    def __init__(self, model: nn.Module, only: Container[str] | None = None) -> None:
        layers = {name: module for name, (module, _) in linear_layers(model).items() if only is None or name in only}
        self._model = model
        self._modules = list(layers.values())
        self._names: dict[Tensor, str] = {module.weight: name for name, module in layers.items()}
        self._pairs: dict[str, list[Factor]] = {}
        self._counted: Counter[str] = Counter()  # the pairs of earlier passes
        # Every use of a layer, by the output's node: its edge, and the input's node.
        self._uses: dict[Node, tuple[GradientEdge, Node | None]] = {}
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> FactorCapture:
        self._model.zero_grad(set_to_none=True)
        self._pairs, self._counted = {name: [] for name in self._names.values()}, Counter()
        # Before all other hooks, which may replace the output.
        self._hooks = [m.register_forward_hook(self._note, prepend=True, with_kwargs=True) for m in self._modules]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._uses = [], {}

    def _note(self, module: nn.Linear, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        """Note a use of a layer, and hook its output: one pair of rows follows in the backward pass.

        Args:
            module: the layer.
            args: A [..., in] first, unless it is in `kwargs`.
            kwargs: A under `input`, if it was given by name.
            output: [..., out]; Δ has its shape. All axes but the last become rows, n in the layer's own order.
        """
        name = self._names.get(module.weight)  # None where functional_call has put another tensor in its place
        if name not in self._pairs or not output.requires_grad:
            return
        source: Tensor = args[0] if args else kwargs["input"]
        activation = source.detach().to(output.dtype)  # autocast rounds the layer's input too
        version, pairs, dtype = activation._version, self._pairs[name], module.weight.dtype

        def keep(delta: Tensor) -> None:
            if activation._version != version:
                raise RuntimeError(f"the input of {name} was changed in place after the layer had used it")
            matrices = (torch.atleast_2d(m.detach()).flatten(0, -2).to(dtype) for m in (delta, activation.conj()))
            pairs.append(Factor(*matrices))

        # An in-place activation gives the output another edge, and cuts a view (which inputs beyond two dimensions
        # give) from the graph altogether: so the edge is taken now, and of the tensor behind the view.
        made = output if output._base is None else output._base
        edge = get_gradient_edge(made)
        self._uses[edge.node] = edge, get_gradient_edge(source).node if source.requires_grad else None
        made.register_hook(keep)

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass without forming the gradients that the factors replace: a third less to compute.

        `loss.backward()` captures the same factors, with one exception: a weight that the model also uses outside its
        layer, or in an `autograd.grad` of its forward pass. Only this method notices that, and makes the weight dense.
        """
        graph = self._graph(loss)
        edges = [edge for node, (edge, _) in self._uses.items() if node in graph]
        waiting = {node: use for node, use in self._uses.items() if node not in graph}
        for name, pairs in list(self._pairs.items()):
            weight = self._model.get_parameter(name)
            if weight.grad is None:  # then what is not counted comes from an autograd.grad within the forward pass
                del pairs[self._counted[name] :]
            if get_gradient_edge(weight).node in graph:  # used outside its layer: dense from here on
                del self._pairs[name]
                weight.grad = concatenate(pairs).gradient() if pairs else weight.grad
        # A function written in Python may run layers in its backward pass, as reentrant checkpointing does, and put
        # their gradients into `.grad`: a partial pass might leave it out.
        if not edges or any(isinstance(node, BackwardCFunction) for node in graph):
            loss.backward()
        else:
            rest = [p for name, p in self._model.named_parameters() if p.requires_grad and name not in self._pairs]
            gradients = torch.autograd.grad(loss, [*map(get_gradient_edge, rest), *edges], allow_unused=True)
            for parameter, gradient in zip(rest, gradients, strict=False):
                if gradient is not None:
                    gradient = gradient.to_dense()  # an embedding's may be sparse
                    parameter.grad = gradient if parameter.grad is None else gradient + parameter.grad
        self._uses = waiting  # without what checkpointing has computed again
        for name, pairs in self._pairs.items():
            if pairs:
                self._counted[name], self._model.get_parameter(name).grad = len(pairs), None

    def _graph(self, loss: Tensor) -> set[Node]:
        """Collect the nodes behind a loss, without those between a noted layer and its weight."""
        nodes: set[Node] = set()
        stack = [loss.grad_fn]
        while stack:
            node = stack.pop()
            if node is None or node in nodes:
                continue
            nodes.add(node)
            stack.extend([self._uses[node][1]] if node in self._uses else [n for n, _ in node.next_functions])
        return nodes

    def factors(self) -> dict[str, Factor]:
        """Return the factors by weight name, Δ [n, out] and A [n, in]; a layer that was not used has none."""
        return {name: concatenate(pairs) for name, pairs in self._pairs.items() if pairs}

    def dense(self) -> dict[str, Tensor]:
        """Return the gradients of all other parameters, each in its own shape; an unused parameter has none."""
        return {
            name: parameter.grad.to_dense()
            for name, parameter in self._model.named_parameters()
            if parameter.grad is not None and not self._pairs.get(name)
        }
