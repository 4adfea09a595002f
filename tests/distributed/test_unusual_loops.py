"""Loops that mix what `LowRank` takes: the gradient of the pooled batch, or one error at all ranks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from rankdad.common.errors import RankdadError
from rankdad.distributed.low_rank import LowRank
from tests.distributed.nets import Batch, batches_of, error, grads, loss_of, perceptron, place, pooled
from tests.ranks import run_ranks

SIZES, MORE = (5, 3), (2, 7)  # of two ranks' batches


class Same(torch.autograd.Function):
    """A custom function: a graph with one has a whole backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *deltas: Tensor) -> Tensor:
        return deltas[0]


same: Callable[[Tensor], Tensor] = Same.apply


class Convolved(nn.Module):
    """A convolution before a perceptron; `again` computes that once more in backward passes."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again, self.first, self.rest = again, nn.Conv1d(1, 1, 3, padding=1).double(), perceptron(torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x[:, None])[:, 0]
        found: Tensor = checkpoint(self.rest, x, use_reentrant=True) if self.again else self.rest(x)
        return found


def _means(model: nn.Module, batch: Batch) -> Callable[[], None]:
    return lambda: loss_of(model, batch).backward()


def mixed(model: nn.Module, own: Batch, more: Batch, order: str) -> None:
    """Exchange a loss and a function's passes together."""
    sync = LowRank(model, rank=None)
    both: dict[str, tuple[Any, int]] = {
        "loss": (loss_of(model, own), len(own[1])),
        "function": (_means(model, more), len(more[1])),
    }
    for last, name in enumerate(order.split()):
        loss, weight = both[name]
        sync.backward(loss, weight=weight, exchange=bool(last))


def accumulated(model: nn.Module, own: Batch, more: Batch, kind: str) -> None:
    """Accumulate as loops of `fully_shard` do: it exchanges in the last pass."""
    fully_shard(model)
    assert isinstance(model, FSDPModule)
    sync = LowRank(model, rank=None)
    for last, batch in enumerate((own, more)):
        model.set_requires_gradient_sync(bool(last))
        logits = model(batch[0])
        loss = F.cross_entropy(same(logits) if kind == "custom" else logits, batch[1])
        sync.backward(loss, weight=len(batch[1]), exchange=bool(last))


def reduced(model: nn.Module, own: Batch, more: Batch, kind: str) -> None:
    """Run the first pass of a model whose gradients `fully_shard` would reduce in another dtype in a function."""
    fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    x, y = (torch.cat(parts) for parts in zip(own, more, strict=True))
    LowRank(model, rank=None).backward(_means(model, (x, y)), weight=len(y))


def divided_later(model: nn.Module, own: Batch, more: Batch, kind: str) -> None:
    """Divide a layer before the LowRank is made, and the rest afterwards."""
    assert isinstance(model, nn.Sequential)
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    fully_shard(model[3], mp_policy=policy)
    sync = LowRank(model, rank=None)
    x, y = (torch.cat(parts) for parts in zip(own, more, strict=True))
    fully_shard(model, mp_policy=policy)
    for each in (loss_of(model, (x, y)), _means(model, (x, y))):
        model.zero_grad()
        sync.backward(each, weight=len(y))
        gc.collect()


def in_function(model: nn.Module, own: Batch, more: Batch, kind: str) -> None:
    """Zero gradients, or take a step, within the function."""
    sync, optimizer = LowRank(model, rank=None), torch.optim.SGD(model.parameters(), 0.1 if kind == "step" else 0.0)
    x, y = (torch.cat(parts) for parts in zip(own, more, strict=True))

    def passes() -> None:
        optimizer.zero_grad(set_to_none=kind != "in place")
        loss_of(model, (x, y)).backward()
        if kind == "step":
            optimizer.step()

    for _ in range(2):
        if kind == "again":
            sync.backward(lambda: sync.backward(loss_of(model, own)), weight=1)
        sync.backward(passes, weight=len(y), scaler=GradScaler("cpu") if kind == "scaler" else None)


def outer(model: nn.Module, own: Batch, more: Batch, kind: str) -> None:
    """Compute losses through DistributedDataParallel around the model, by which ranks would have equal weights."""
    head = nn.Linear(3, 3).double() if kind == "more" else nn.Identity()
    inner: nn.Module = nn.Sequential(model, head)
    if kind == "compiled":
        model.compile(backend="aot_eager")
    ddp = DistributedDataParallel(Methods(model) if kind == "methods" else inner, static_graph=kind == "static")
    sync = LowRank(model, rank=None)
    x, y = (torch.cat(parts) for parts in zip(own, more, strict=True))
    loss = F.cross_entropy(ddp(x), y)
    sync.backward(loss.backward if kind in ("function", "compiled", "methods") else loss, weight=len(y))
    if kind == "collected":
        del sync
        gc.collect()
    else:
        sync.close()
    assert ddp.require_backward_grad_sync


class Methods(nn.Module):
    """Calls the layers of a model, not the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        inner: Any = self.model
        found: Tensor = inner.rest(inner.first(x[:, None])[:, 0])
        return found


class Settled(torch.autograd.Function):
    """The identity, whose backward pass asks for gradients of the model's layers that are none of the loss."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, model: nn.Sequential) -> Tensor:
        ctx.model = model
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *deltas: Tensor) -> tuple[Tensor, None]:
        with torch.enable_grad():
            probe = torch.ones(2, 60, dtype=torch.float64, requires_grad=True)
            torch.autograd.grad(ctx.model[:3](probe).sum(), probe)
        return deltas[0], None


settled: Callable[[Tensor, nn.Sequential], Tensor] = Settled.apply


class Tied(nn.Module):
    """A layer whose weight is used once more, within reentrant checkpointing."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again, self.layers = again, perceptron(torch.float64)

    def _again(self, x: Tensor) -> Tensor:
        middle: Any = self.layers[3]
        found: Tensor = self.layers[4:](middle(F.linear(middle(x), middle.weight.T)))
        return found

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layers[:3](x)
        found: Tensor = checkpoint(self._again, hidden, use_reentrant=True) if self.again else self._again(hidden)
        return found


def within(model: nn.Module, own: Batch, more: Batch, kind: str) -> None:
    """Run passes of other losses within the backward pass, or of layers whose weights are used twice there."""
    sync = LowRank(model, rank=None)
    x, y = (torch.cat(parts) for parts in zip(own, more, strict=True))
    if kind == "tied":
        sync.backward(loss_of(model, (x, y)), weight=len(y))
        return
    assert isinstance(model, nn.Sequential)
    hidden = model[:3](x)
    if kind == "hook":
        hidden.register_hook(lambda delta: Settled.backward(_Of(model), delta)[0])
    sync.backward(F.cross_entropy(model[3:](settled(hidden, model) if kind == "custom" else hidden), y), weight=len(y))


class _Of:
    def __init__(self, model: nn.Sequential) -> None:
        self.model = model


def beside_shards(model: nn.Module, own: Batch, more: Batch, kind: str) -> None:
    """Compute one loss of a LowRank's model and of one that `fully_shard` alone exchanges."""
    assert isinstance(model, nn.Sequential)
    sync = LowRank(model, rank=None)
    head = nn.Linear(3, 3, bias=False).double()
    with torch.no_grad():
        head.weight.copy_(torch.eye(3))
    fully_shard(head)
    x, y = (torch.cat(parts) for parts in zip(own, more, strict=True))
    sync.backward(F.cross_entropy(head(model(x)), y), weight=len(y))
    assert head.weight.grad is not None


def hooked(model: nn.Module, own: Batch, more: Batch, kind: str) -> None:
    """Change a layer's output by a hook that was put before that of the LowRank."""
    assert isinstance(model, nn.Sequential)
    sync = LowRank(model, rank=None)
    model[3].register_forward_hook(lambda layer, args, output: 2 * output, prepend=True)
    x, y = (torch.cat(parts) for parts in zip(own, more, strict=True))
    sync.backward(loss_of(model, (x, y)), weight=len(y))


def by_hand(model: nn.Module, own: Batch, more: Batch, kind: str) -> None:
    """Add gradients by hand in the function, beside those of another exchange."""
    sync, (x, y) = LowRank(model, rank=None), own
    sync.backward(loss_of(model, more), weight=len(more[1]))

    def passes() -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad.clone()
        loss_of(model, (x, y)).backward()

    sync.backward(passes, weight=len(y))


def in_buffer(model: nn.Module, own: Batch, more: Batch, kind: str) -> None:
    """Keep all `.grad` as views of one buffer."""
    sync = LowRank(model, rank=None)
    buffer = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for parameter, view in zip(model.parameters(), buffer.split([p.numel() for p in model.parameters()]), strict=True):
        parameter.grad = view.view_as(parameter)
    x, y = (torch.cat(parts) for parts in zip(own, more, strict=True))
    sync.backward(loss_of(model, (x, y)), weight=len(y))
    assert torch.equal(buffer, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))


def half(model: nn.Module, own: Batch, more: Batch, kind: str) -> None:
    """Scale one batch of two, or pass the total at one rank of two, or change the model's dtype."""
    sync = LowRank(model, rank=None)
    if kind == "dtype":
        model.float()
        sync.backward(loss_of(model, (own[0].float(), own[1])), weight=len(own[1]))
    elif kind == "total":
        sync.backward(loss_of(model, own), weight=len(own[1]), total=None if place() else 8.0)
    else:
        sync.backward(loss_of(model, own), weight=len(own[1]), exchange=False)
        sync.backward(loss_of(model, more), weight=len(more[1]), scaler=GradScaler("cpu"))


def two_models(model: nn.Module, own: Batch, more: Batch, kind: str) -> None:
    """Compute one loss of two models, each with a LowRank, and of tensors of neither."""
    assert isinstance(model, nn.Sequential)
    first, second = model[:3], model[3:]
    syncs = [LowRank(first, rank=None), LowRank(second, rank=None)]
    x, y = (torch.cat(parts) for parts in zip(own, more, strict=True))
    x.requires_grad_()
    offset = nn.Parameter(x.new_zeros(3))
    middle = first(x)
    loss = F.cross_entropy(second(same(middle) if kind == "custom" else middle) + offset, y)
    if kind == "functions":
        for sync in syncs:
            sync.backward(lambda: loss.backward(retain_graph=True), weight=len(y))
    elif kind == "nested":
        syncs[0].backward(lambda: syncs[1].backward(loss, weight=len(y)), weight=len(y))
    else:
        for last, sync in enumerate(syncs):
            sync.backward(loss, weight=len(y), retain_graph=not last)
    assert x.grad is not None
    assert offset.grad is not None


def swap(model: nn.Module) -> None:
    """Give one layer another forward pass."""
    assert isinstance(model, nn.Sequential)
    layer: Any = model[3]
    layer.forward = lambda source: 2 * F.linear(source, layer.weight, layer.bias)


def swapped(model: nn.Module, own: Batch, more: Batch, kind: str) -> None:
    """Train a model with such a layer."""
    sync = LowRank(model, rank=None) if kind == "later" else None
    swap(model)
    sync = sync or LowRank(model, rank=None)
    x, y = (torch.cat(parts) for parts in zip(own, more, strict=True))
    sync.backward(loss_of(model, (x, y)), weight=len(y))


def sums_and_means(model: nn.Module, own: Batch, more: Batch, kind: str) -> None:
    """Add a mean, then a sum."""
    sync = LowRank(model, rank=None)
    sync.backward(loss_of(model, own), weight=len(own[1]), exchange=False)
    sync.backward(loss_of(model, more), weight=len(more[1]), total=17)


LOOPS: dict[str, tuple[Callable[[nn.Module, Batch, Batch, str], None], str]] = {
    "a loss, then a function": (mixed, "loss function"),
    "a function, then a loss": (mixed, "function loss"),
    "fully_shard accumulates": (accumulated, "plain"),
    "fully_shard with a custom function": (accumulated, "custom"),
    "fully_shard with another dtype": (reduced, ""),
    "fully_shard again": (divided_later, ""),
    "zero_grad in the function": (in_function, "zero_grad"),
    "zero_grad in the function, in place": (in_function, "in place"),
    "a function without the scaler": (in_function, "scaler"),
    "a step in the function": (in_function, "step"),
    "backward in its own function": (in_function, "again"),
    "DDP": (outer, "loss"),
    "DDP, reentrant": (outer, "loss"),
    "DDP, a function": (outer, "function"),
    "DDP, a function, compiled": (outer, "compiled"),
    "DDP, a function, methods": (outer, "methods"),
    "DDP, static": (outer, "static"),
    "DDP, collected": (outer, "collected"),
    "DDP of more": (outer, "more"),
    "two models": (two_models, "plain"),
    "two models, a custom function": (two_models, "custom"),
    "two models, functions": (two_models, "functions"),
    "two models, nested": (two_models, "nested"),
    "another forward": (swapped, ""),
    "another forward, later": (swapped, "later"),
    "sums and means": (sums_and_means, ""),
    "grad in a custom function": (within, "custom"),
    "grad in a tensor's hook": (within, "hook"),
    "tied in a checkpoint": (within, "tied"),
    "another model's shards": (beside_shards, ""),
    "hooked before": (hooked, ""),
    "by hand in the function": (by_hand, ""),
    "in a buffer": (in_buffer, ""),
    "half scaled": (half, "scaler"),
    "half a total": (half, "total"),
    "another dtype": (half, "dtype"),
}
REFUSED = {
    "zero_grad in the function, in place": "gradient-changed-in-function",
    "a function without the scaler": "loss-not-scaled",
    "a step in the function": "stepped-in-backward",
    "backward in its own function": "backward-in-function",
    "sums and means": "sums-and-means",
    "DDP of more": "ddp-of-more",
    "DDP, a function, compiled": "exchanged-in-function",
    "DDP, a function, methods": "exchanged-in-function",
    "by hand in the function": "gradient-changed-in-function",
    "half scaled": "scaled-and-unscaled",
    "half a total": "sums-and-means",
    "another dtype": "parameter-replaced",
}


def _made(name: str, again: bool) -> nn.Module:
    if "tied" in name:
        return Tied(again)
    return Convolved(again) if "DDP" in name else perceptron(torch.float64)


def all_loops() -> dict[str, float | str]:
    """Return the error of each loop, or the code of what it raised."""
    found = dict[str, float | str]()
    for name, (loop, kind) in LOOPS.items():
        model = _made(name, "reentrant" in name or "tied" in name)
        own, more = (batches_of(sizes, step, torch.float64) for step, sizes in enumerate((SIZES, MORE)))
        try:
            loop(model, own[place()], more[place()], kind)
        except RankdadError as raised:
            found[name] = raised.code
            continue
        gradients = {n: g.full_tensor() if isinstance(g, DTensor) else g for n, g in grads(model).items()}
        whole = _made(name, again=False)
        if "forward" in name or "hooked" in name:
            swap(whole)
        found[name] = error(gradients, pooled(whole, [*own, *more]))
    return found


@pytest.mark.slow
def test_any_loop_has_the_pooled_gradient_or_one_error_at_all_ranks() -> None:
    for found in run_ranks(2, all_loops):
        assert {name: value for name, value in found.items() if isinstance(value, str)} == REFUSED
        assert max(value for value in found.values() if isinstance(value, float)) <= 1e-10
