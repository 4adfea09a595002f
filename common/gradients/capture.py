"""Capture of factors: what a model's backward pass holds anyway, Δ and A of each layer.

A forward hook notes a layer's input A and puts a hook on its output tensor, which receives Δ. A module's own
full-backward hook would not do: it breaks with in-place activations, and mixes the uses of a module.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
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
        layers: of a model whose weights are sharded, `linear_layers` before that.
        parameters: of such a model, what its passes use in place of its own, by name; their gradients are whole.

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

    def __init__(
        self,
        model: nn.Module,
        only: Container[str] | None = None,
        *,
        layers: Mapping[str, tuple[nn.Linear, str | None]] | None = None,
        parameters: Mapping[str, nn.Parameter] | None = None,
    ) -> None:
        layers = linear_layers(model) if layers is None else layers
        captured = {name: module for name, (module, _) in layers.items() if only is None or name in only}
        self._parameters = dict(model.named_parameters()) if parameters is None else parameters
        self._modules = list(captured.values())
        self._names: dict[Tensor, str] = {self._parameters[name]: name for name in captured}
        self._scale, self._pairs = 1, dict[str, list[Factor]]()
        self._counted: Counter[str] = Counter()  # the pairs of earlier passes
        # Every use of a layer, by the output's node: its edge, the input's node, and the weight's name.
        self._uses: dict[Node, tuple[GradientEdge, Node | None, str]] = {}
        self._open: Counter[str] = Counter()  # uses that the pass in hand has not come to
        self._complete: Callable[[str], None] = _nobody
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> FactorCapture:
        self.begin()
        # Before all other hooks, which may replace the output.
        self._hooks = [m.register_forward_hook(self._note, prepend=True, with_kwargs=True) for m in self._modules]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._uses = [], {}

    def begin(self, scale: int = 1) -> None:
        """Forget what was captured, for passes whose losses are multiplied by a scale, and gradients divided by it.

        Args:
            scale: a power of two, so that dividing rounds nothing off.
        """
        for parameter in self._parameters.values():
            parameter.grad = None
        self._scale, self._uses, self._counted = scale, {}, Counter()
        self._pairs = {name: [] for name in self._names.values()}

    @property
    def is_finite(self) -> bool:
        """Whether all gradients are, before they are divided by the scale."""
        deltas = [pair.delta for pairs in self._pairs.values() for pair in pairs]
        dense = [p.grad.to_dense() for p in self._parameters.values() if p.grad is not None]
        return bool(torch.stack([torch.isfinite(tensor).all() for tensor in deltas + dense]).all())

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
            self._open[name] -= 1
            if not self._open[name]:
                self._complete(name)

        # An in-place activation gives the output another edge, and cuts a view (which inputs beyond two dimensions
        # give) from the graph altogether: so the edge is taken now, and of the tensor behind the view.
        made = output if output._base is None else output._base
        edge = get_gradient_edge(made)
        self._uses[edge.node] = edge, get_gradient_edge(source).node if source.requires_grad else None, name
        made.register_hook(keep)

    def backward(self, loss: Tensor, complete: Callable[[str], None] | None = None) -> None:
        """Run the backward pass without forming the gradients that the factors replace: a third less to compute.

        While it goes on, `complete` is told the name of every parameter whose gradient this pass has made: `factors`
        and `dense` have it from then on. It hears nothing of a parameter that the pass does not come to.

        `loss.backward()` captures the same factors, with one exception: a weight that the model also uses outside its
        layer, or in an `autograd.grad` of its forward pass. Only this method notices that, and makes the weight dense.
        """
        loss = loss * self._scale if self._scale > 1 else loss
        graph = self._graph(loss)
        edges = [edge for node, (edge, *_) in self._uses.items() if node in graph]
        waiting = {node: use for node, use in self._uses.items() if node not in graph}
        for name, pairs in list(self._pairs.items()):
            weight = self._parameters[name]
            if weight.grad is None:  # then what is not counted comes from an autograd.grad within the forward pass
                del pairs[self._counted[name] :]
            if get_gradient_edge(weight).node in graph:  # used outside its layer: dense from here on
                del self._pairs[name]
                weight.grad = concatenate(pairs).gradient() if pairs else weight.grad
        # A function written in Python may run layers in its backward pass, as reentrant checkpointing does, and put
        # their gradients into `.grad`: a partial pass might leave it out.
        rest = {n: p for n, p in self._parameters.items() if p.requires_grad and n not in self._pairs}
        hooks: list[RemovableHandle] = []
        if any(map(_is_python, graph)):
            loss.backward()
        elif not edges:
            if complete is not None:
                told = complete
                hooks = [p.register_post_accumulate_grad_hook(lambda _, n=n: told(n)) for n, p in rest.items()]
            with _removed(hooks):
                loss.backward()
        else:
            added = set[str]()

            def add(name: str, gradient: Tensor) -> None:
                parameter, gradient = rest[name], gradient.to_dense()  # an embedding's may be sparse
                parameter.grad = gradient if parameter.grad is None else gradient + parameter.grad
                added.add(name)
                self._complete(name)

            if complete is not None:
                uses = (name for node, (*_, name) in self._uses.items() if node in graph)
                self._open = Counter(name for name in uses if name in self._pairs)
                self._complete = complete
                hooks = [p.register_hook(partial(add, n)) for n, p in rest.items()]
            with _removed(hooks):
                gradients = torch.autograd.grad(
                    loss, [*map(get_gradient_edge, rest.values()), *edges], allow_unused=True
                )
            self._complete = _nobody
            for name, gradient in zip(rest, gradients, strict=False):
                if gradient is not None and name not in added:
                    add(name, gradient)
        self._uses = waiting  # without what checkpointing has computed again
        for name, pairs in self._pairs.items():
            if pairs:
                self._counted[name], self._parameters[name].grad = len(pairs), None

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

    def factors(self, only: Container[str] | None = None) -> dict[str, Factor]:
        """Return the factors by weight name, Δ [n, out] and A [n, in]; a layer that was not used has none.

        Args:
            only: names of the weights that are asked for; None asks for all, as in `dense`.
        """
        asked = {name: pairs for name, pairs in self._pairs.items() if only is None or name in only}
        captured = {name: concatenate(pairs) for name, pairs in asked.items() if pairs}
        scale = self._scale
        return {name: factor.scaled(1 / scale) for name, factor in captured.items()} if scale > 1 else captured

    def dense(self, only: Container[str] | None = None) -> dict[str, Tensor]:
        """Return the gradients of all other parameters, each in its own shape; an unused parameter has none."""
        dense = {
            name: parameter.grad.to_dense()
            for name, parameter in self._parameters.items()
            if (only is None or name in only) and parameter.grad is not None and not self._pairs.get(name)
        }
        return {name: gradient / self._scale for name, gradient in dense.items()} if self._scale > 1 else dense


def _is_python(node: Node) -> bool:
    """Tell a function written in Python, other than what sharding puts before a layer to free its weights."""
    forward = getattr(type(node), "_forward_cls", None)
    return forward is not None and not str(forward.__module__).startswith("torch.distributed.fsdp.")


def _nobody(name: str) -> None:
    """Hear nothing."""


@contextlib.contextmanager
def _removed(hooks: Sequence[RemovableHandle]) -> Iterator[None]:
    """Remove hooks in the end."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
