"""Linear layers in compiled graphs, where an operator in the backward pass replaces hooks, which would break the graph.

The operator takes only tensors, so a capture is found by the address of a weight; it listens only while it runs a
backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Listener = Callable[[Tensor, Tensor], bool]  # returns whether it keeps them
_listeners: dict[int, Listener] = {}  # during a backward pass, by the address of a weight


@contextmanager
def listening(listeners: Mapping[int, Listener]) -> Iterator[None]:
    """Pass Δ [n, out] and A [n, in] of compiled layers to listeners; weights of those kept get a gradient of zeros.

    Args:
        listeners: by the address of a weight.
    """
    _listeners.update(listeners)
    try:
        yield
    finally:
        for place in listeners:
            _listeners.pop(place, None)


def linear(source: Tensor, weight: Tensor, bias: Tensor | None, *, transposed: bool) -> Tensor:
    """Return a linear layer's output, [..., out].

    Args:
        source: [..., in].
        weight: [out, in], or [in, out] if transposed.
        bias: [out], or None.
        transposed: whether the weight is.
    """
    output: Tensor = _Linear.apply(source, weight, bias, transposed)  # type: ignore[no-untyped-call]
    return output


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
        ctx.save_for_backward(source, weight)
        ctx.transposed, ctx.bias = transposed, None if bias is None else bias.dtype
        return F.linear(source, weight.T if transposed else weight, bias)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        source, weight = ctx.saved_tensors
        rows, activation = delta.reshape(-1, delta.shape[-1]), source.reshape(-1, source.shape[-1]).to(delta.dtype)
        matrix = weight.to(delta.dtype)
        before = (
            (delta @ (matrix.T if ctx.transposed else matrix)).to(source.dtype) if ctx.needs_input_grad[0] else None
        )
        own = None
        if ctx.needs_input_grad[1]:
            unlike = torch.empty(0)  # the compiler would merge equal calls, and one would not be captured
            own = torch.ops.rankdad.weight_gradient(rows, activation, weight, ctx.transposed, unlike)
        bias = rows.sum(dim=0).to(ctx.bias) if ctx.bias is not None and ctx.needs_input_grad[2] else None
        return before, own, bias, None


@torch.library.custom_op(
    "rankdad::weight_gradient",
    mutates_args=(),
    schema="(Tensor delta, Tensor activation, Tensor weight, bool transposed, Tensor unlike) -> Tensor",
)
def _weight_gradient(delta: Tensor, activation: Tensor, weight: Tensor, transposed: bool, unlike: Tensor) -> Tensor:  # noqa: ARG001
    listener = _listeners.get(weight.data_ptr())
    if listener is not None and listener(delta.clone(), activation.clone()):  # graphs reuse their buffers
        return torch.zeros_like(weight)
    gradient = activation.T @ delta if transposed else delta.T @ activation
    return gradient.to(weight.dtype)


@_weight_gradient.register_fake
def _(delta: Tensor, activation: Tensor, weight: Tensor, transposed: bool, unlike: Tensor) -> Tensor:  # noqa: ARG001
    return torch.empty_like(weight)
