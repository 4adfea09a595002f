"""Captures the factors of a model's backward pass: Δ and A of each layer.

A forward hook notes a layer's input A, and adds a hook to its output tensor, which receives Δ. A full backward hook of
the module would fail with in-place activations, and mix several uses of a module.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from rankdad.common.lowrank.compiled import Listener, listening
from rankdad.common.lowrank.factors import Factor, concatenate
from rankdad.common.lowrank.forward_hooks import hook_layers
from rankdad.common.lowrank.layers import (
    check_layout,
    declared_layout,
    has_hooks,
    is_followed,
    layout_of,
    linear_layers,
)
from rankdad.common.lowrank.nodes import accumulate, is_compiled, is_python, is_sharding, leaf, metadata, runs_passes
from rankdad.common.lowrank.pairs import Pair, apart, each, is_all, places


@dataclass(frozen=True, slots=True)
class _Use:
    """A layer's use in a forward pass, stored in the metadata of its output's node.

    Args:
        name: of the layer's weight.
        output: index of the layer's output among the node's.
        source: the input's node, if there is one.
        hooks: of the output.
    """

    name: str
    output: int
    source: Node | None
    hooks: Mapping[int, object]


class FactorCapture:
    """Capture a model's gradients as factors, around its forward and backward passes.

    Several passes in one context add up, as gradients do. Each A is kept as long as the graph of its forward pass, even
    with checkpointing. Copies of the model are not captured. A weight whose gradient is changed by a hook on it or on
    its layer's output becomes dense. In compiled graphs only `backward` captures, if the model was first called within
    the context.

    Args:
        model: `.grad` of its weights is cleared on entry.
        only: names of the weights to capture; None for every layer with a factor.
        layers: `linear_layers` of the model before its weights were sharded.
        parameters: of a sharded model, the whole tensors used by its passes, by name.
        plain: whether `loss.backward()` captures, too, not only `backward`.

    Attributes:
        biases: of the captured weights' layers, by weight name.
        people: patient of each entry of a layer's first axis in later passes, int64 [samples]; None if not needed.

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
        plain: bool = True,
    ) -> None:
        layers = linear_layers(model) if layers is None else layers
        captured = {name: module for name, (module, _) in layers.items() if only is None or name in only}
        self.biases = {name: layers[name][1] for name in captured}
        self._parameters = dict(model.named_parameters()) if parameters is None else parameters
        self._modules = list(captured.values())
        self._transposed = {name for name, module in captured.items() if layout_of(module) == "in-out"}
        # Another layout of a square weight has no other shapes, and would go unnoticed.
        self._unchecked = {
            name for name, module in captured.items() if declared_layout(module) and len(set(module.weight.shape)) == 1
        }
        self._names: dict[Tensor, str] = {self._parameters[name]: name for name in captured}
        self._pairs = dict[str, list[Pair]]()
        self.people: Tensor | None = None
        self._counted: Counter[str] = Counter()  # pairs of earlier passes
        self._key = object()  # marks this capture's uses in the metadata of nodes, which may outlive it
        self._listens = self._plain = plain
        self._remove: Callable[[], object] = _nothing

    def __enter__(self) -> FactorCapture:
        self.begin()
        self._remove = weakref.finalize(self, _remove, hook_layers(self._modules, weakref.ref(self)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def begin(self) -> None:
        """Drop everything captured so far."""
        for parameter in self._parameters.values():
            parameter.grad = None
        self._counted = Counter()
        self._pairs = {name: [] for name in self._names.values()}

    def note(self, module: nn.Linear, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        """Note a use of a layer, and hook its output; the backward pass then yields one pair of rows.

        Args:
            module: the layer.
            args: A [..., in] first, unless it is in `kwargs`.
            kwargs: A under `input`, if it was passed by name.
            output: [..., out], the shape of Δ. All axes but the last become rows, in the layer's order.
        """
        name = self._names.get(module.weight)  # None if functional_call has replaced the weight
        if name not in self._pairs or not output.requires_grad or not module.weight.requires_grad:
            return
        source: Tensor = args[0] if args else kwargs["input"]
        if name in self._unchecked:
            check_layout(module, name, source, output, transposed=name in self._transposed)
            self._unchecked.remove(name)
        activation = source.detach().to(output.dtype)  # autocast rounds the layer's input too
        version, dtype, reference = activation._version, module.weight.dtype, weakref.ref(self)
        is_learned = source.requires_grad and (source.is_leaf or (source._base is not None and source._base.is_leaf))
        # An in-place activation changes the output's edge, and cuts a view (for inputs beyond two dimensions) from the
        # graph. So the edge is taken now, from the tensor behind the view.
        made = output if output._base is None else output._base
        people = self.people

        def keep(delta: Tensor) -> None:
            capture = reference()
            if capture is None or not capture._listens or name not in capture._pairs:
                return
            if activation._version != version:
                raise RuntimeError(f"the input of {name} was changed in place after the layer had used it")
            weight = capture._parameters[name]
            if _are_others(hooks) or has_hooks(weight):  # they will change Δ or the gradient
                capture._leave(name)
            elif weight.requires_grad:
                held = activation.clone() if is_learned else activation  # a step in its hook changes it
                matrices = (torch.atleast_2d(m.detach()).flatten(0, -2).to(dtype) for m in (delta, held.conj()))
                factor = Factor(*(reversed([*matrices]) if name in capture._transposed else matrices))
                people_of, task = each(people, factor.rows, len(delta)), torch._C._current_graph_task_id()
                capture._pairs[name].append(Pair(name, factor, people_of, task, delta.dtype))

        made.register_hook(keep)
        hooks: Mapping[int, object] = made._backward_hooks or {}
        edge = get_gradient_edge(made)
        before = get_gradient_edge(source).node if source.requires_grad else None
        metadata(edge.node)[self._key] = _Use(name, edge.output_nr, before, hooks)

    def backward(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Run the backward pass without computing the gradients that factors replace, which saves a third.

        `loss.backward()` captures the same factors, except for a weight that is also used outside its layer, or in an
        `autograd.grad` of the forward pass. Only this method detects that, and makes the weight dense.

        Args:
            loss: of passes within this context.
            retain_graph: whether another loss uses the same forward pass.
        """
        nodes, uses, compiled = self._graph(loss)
        changed = {use.name for _, use in uses if _are_others(use.hooks)}
        noted = {use.name for _, use in uses}
        shared = Counter(self._parameters[name].data_ptr() for name in self._pairs) if compiled else Counter[int]()
        for name, pairs in list(self._pairs.items()):
            weight = self._parameters[name]
            if weight.grad is None:  # otherwise the rest comes from an autograd.grad in the forward pass
                del pairs[self._counted[name] :]
            edge = get_gradient_edge(weight).node if weight.requires_grad else None
            shares = shared[weight.data_ptr()] > 1  # compiled layers are found by their weights' addresses
            if edge in nodes or (edge in compiled and (name in noted or shares)):  # used outside its layer
                changed.add(name)
            if name in changed or has_hooks(weight):
                self._leave(name)
        uses = [(node, use) for node, use in uses if use.name in self._pairs]
        # A custom function may run layers in its backward pass, as reentrant checkpointing does, and add to their
        # `.grad`, which a partial pass might miss.
        rest = [p for n, p in self._parameters.items() if p.requires_grad and n not in self._pairs]
        ours = set(map(id, self._parameters.values()))
        others = [one for node in nodes | compiled if (one := leaf(node)) is not None and id(one) not in ours]
        outside = [one for one in others if not is_followed(one)]  # those have a pass of their own
        self._listens, taken, alone = True, dict[str, list[Factor]](), list[int]()
        here = list[int]()  # autograd's number of the pass, first

        def note_pass(_: object) -> None:
            here.append(torch._C._current_graph_task_id())

        try:
            with (
                nullcontext() if loss.grad_fn is None else loss.grad_fn.register_prehook(note_pass),
                listening(self._listeners(noted, taken, here) if compiled else {}),
            ):
                sharded_outside = any(isinstance(one, nn.Parameter) for one in outside) and any(map(is_sharding, nodes))
                if sharded_outside or any(map(runs_passes, nodes)):
                    loss.backward(retain_graph=retain_graph)
                elif any(map(is_python, nodes)) or not uses:
                    rest = [p for p in self._parameters.values() if p.requires_grad]
                    self._partial(loss, rest, outside, (), retain_graph=retain_graph)
                else:
                    edges = [GradientEdge(node, use.output) for node, use in uses]
                    self._partial(loss, rest, outside, edges, retain_graph=retain_graph)
                    alone = here[:1]
        finally:
            self._listens = self._plain
        self._leave_used(taken)
        for name in list(self._pairs):
            self._settle(name, alone)

    def own(self) -> None:
        """Copy what was captured, so that the caller may change tensors of past passes in place.

        Raises:
            RuntimeError: something has changed already.
        """
        for pairs in self._pairs.values():
            pairs[:] = [one.owned() for one in pairs]

    def _settle(self, name: str, alone: Sequence[int]) -> None:
        """Keep a weight's factors in place of its `.grad`, or leave it dense if that has more.

        Passes within the backward pass, such as reentrant checkpointing's, put factors into `.grad`, too, with what
        else they compute. Those of `autograd.grad` do not, and their factors are no gradient.

        Args:
            name: of the weight.
            alone: the pass, if any, whose factors are not in `.grad`.
        """
        pairs, weight = self._pairs[name], self._parameters[name]
        twice = [one for one in pairs[self._counted[name] :] if one.task is not None and one.task not in alone]
        whole = weight.grad
        if twice and (whole is None or not is_all(twice, whole)):
            pairs[:] = [one for one in pairs if not any(one is other for other in twice)]
        else:
            whole = None
        self._counted[name] = len(pairs)
        if whole is not None:
            self._leave(name)
        elif pairs:
            weight.grad = None

    def _listeners(
        self, noted: Container[str], compiled: dict[str, list[Factor]], here: Sequence[int]
    ) -> dict[int, Listener]:
        """Return the receivers of compiled layers' factors in a pass, by the addresses of their weights.

        Args:
            noted: names of layers that were not compiled.
            compiled: receives the factors, by name.
            here: holds autograd's number of the pass once it runs; not of passes within it.
        """

        def keep(name: str, *matrices: Tensor) -> bool:
            if torch._C._current_graph_task_id() not in here[:1]:  # but in a pass within it
                return False
            weight = self._parameters[name]
            delta, activation = (matrix.detach().to(weight.dtype) for matrix in matrices)
            factor = Factor(activation, delta) if name in self._transposed else Factor(delta, activation)
            compiled.setdefault(name, []).append(factor)
            self._pairs[name].append(Pair(name, factor, None, None, weight.dtype))
            return True

        return {self._parameters[name].data_ptr(): partial(keep, name) for name in self._pairs if name not in noted}

    def _leave_used(self, compiled: Mapping[str, list[Factor]]) -> None:
        """Make weights dense that are also used outside their compiled layers: their gradient is not all zeros."""
        for name, factors in compiled.items():
            weight = self._parameters[name]
            if weight.grad is not None and bool(weight.grad.count_nonzero()):
                weight.grad = weight.grad + concatenate(factors).gradient()
                self._leave(name)

    def _partial(
        self,
        loss: Tensor,
        rest: Sequence[Tensor],
        outside: Sequence[Tensor],
        edges: Sequence[GradientEdge],
        *,
        retain_graph: bool,
    ) -> None:
        """Run a backward pass to the layers' outputs, and to leaves of the graph, adding to their `.grad`.

        Hooks of DistributedDataParallel do not exchange gradients of `rest`, but those of `outside`.
        """
        inputs = [*map(get_gradient_edge, (*rest, *outside)), *edges]
        gradients = torch.autograd.grad(loss, inputs, retain_graph=retain_graph, allow_unused=True)
        held = places(pair for pairs in self._pairs.values() for pair in pairs)
        of_leaves = zip((*rest, *outside), gradients, strict=False)
        found = [(one, apart(gradient, held)) for one, gradient in of_leaves if gradient is not None]
        plain = {id(one) for one in outside if not one._backward_hooks}  # which have met the gradient already
        plain -= {id(one) for one, gradient in found if gradient.is_sparse}
        accumulate([pair for pair in found if id(pair[0]) in plain])
        for parameter, gradient in found:
            if id(parameter) not in plain:
                parameter.grad = _sum(parameter.grad, gradient)
                for hook in list((parameter._post_accumulate_grad_hooks or {}).values()):
                    hook(parameter)

    def _leave(self, name: str) -> None:
        """Make a weight dense from now on, and add its captured factors to its `.grad`."""
        pairs, weight = self._pairs.pop(name)[: self._counted[name]], self._parameters[name]
        if pairs:
            weight.grad = _sum(weight.grad, concatenate([one.factor for one in pairs]).gradient())

    def _graph(self, loss: Tensor) -> tuple[set[Node], list[tuple[Node, _Use]], set[Node]]:
        """Return a loss's nodes without those between a captured layer and its weight, the layers' uses, and the nodes
        of parameters that compiled graphs use.
        """
        nodes: set[Node] = set()
        compiled: set[Node] = set()
        uses: list[tuple[Node, _Use]] = []
        stack = [loss.grad_fn]
        while stack:
            node = stack.pop()
            if node is None or node in nodes:
                continue
            nodes.add(node)
            use: _Use | None = metadata(node).get(self._key)
            if use is None:
                before = [one for one, _ in node.next_functions if one is not None]
                if is_compiled(node):
                    compiled.update(one for one in before if hasattr(one, "variable"))
                    before = [one for one in before if one not in compiled]
                stack.extend(before)
            else:
                uses.append((node, use))
                stack.append(use.source)
        return nodes, uses, compiled

    def factors(self, only: Container[str] | None = None) -> dict[str, Factor]:
        """Return the factors by weight name, Δ [n, out] and A [n, in]; unused layers have none.

        Args:
            only: names of weights; None for all, as in `dense`.
        """
        asked = {name: pairs for name, pairs in self._pairs.items() if only is None or name in only}
        return {name: concatenate([one.factor for one in pairs]) for name, pairs in asked.items() if pairs}

    def parts(self, name: str) -> list[tuple[Factor, Tensor | None]]:
        """Return a captured weight's factors by pass, each with the patient of each row, int64 [n].

        Patients are None if a layer's first axis is not samples.
        """
        return [(one.factor, one.people) for one in self._pairs.get(name, ())]

    def dense(self, only: Container[str] | None = None) -> dict[str, Tensor]:
        """Return the gradients of all other parameters in their own shapes; unused parameters have none."""
        return {
            name: parameter.grad.to_dense()
            for name, parameter in self._parameters.items()
            if (only is None or name in only) and parameter.grad is not None and not self._pairs.get(name)
        }


def _are_others(hooks: Mapping[int, Any]) -> bool:
    """Return whether hooks other than the capture's may change Δ; those of sharding do not."""
    return sum(not str(getattr(hook, "__module__", "")).startswith("torch.distributed.") for hook in hooks.values()) > 1


def _nothing() -> None: ...


def _remove(hooks: Iterable[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


def _sum(total: Tensor | None, gradient: Tensor) -> Tensor:
    """Add a gradient to a sum; the result is sparse if all are."""
    if total is None:
        return gradient
    return gradient + total if gradient.layout == total.layout else gradient.to_dense() + total.to_dense()
