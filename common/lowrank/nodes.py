"""The nodes of autograd's graph, and their leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node


def metadata(node: Node) -> dict[object, Any]:
    """Return the metadata of a node, which live as long as the node, unlike its Python object."""
    metadata: dict[object, Any] = node.metadata  # type: ignore[assignment]  # torch's stubs have a method
    return metadata


def is_python(node: Node) -> bool:
    """Return whether a node is a custom function, other than sharding's for freeing weights."""
    return getattr(type(node), "_forward_cls", None) is not None and not is_sharding(node)


def is_sharding(node: Node) -> bool:
    """Return whether a node is of `fully_shard`, which exchanges gradients at the end of whole passes."""
    forward = getattr(type(node), "_forward_cls", None)
    return forward is not None and str(forward.__module__).startswith("torch.distributed.fsdp.")


def runs_passes(node: Node) -> bool:
    """Return whether a node runs passes of its own and refuses partial ones: reentrant checkpointing."""
    return "CheckpointFunction" in type(node).__name__


def leaf(node: Node) -> Tensor | None:
    """Return the tensor in whose `.grad` a node puts its gradient, if it is such a node."""
    leaf: Tensor | None = getattr(node, "variable", None)
    return leaf


def accumulate(gradients: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Put gradients into `.grad` of leaves as a backward pass does, so that DistributedDataParallel exchanges them."""
    if gradients:
        with torch.enable_grad():
            views = [leaf.view_as(leaf) for leaf, _ in gradients]
        torch.autograd.backward(views, [gradient for _, gradient in gradients])


def is_compiled(node: Node) -> bool:
    """Return whether a node is a whole compiled graph."""
    forward = getattr(type(node), "_forward_cls", None)
    return forward is not None and str(forward.__module__).startswith("torch._functorch.")
