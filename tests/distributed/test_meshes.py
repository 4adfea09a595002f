"""`LowRank` of models divided over device meshes: equal to one device where nothing is left out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from rankdad.common.errors import NonFiniteError, RankdadError
from rankdad.distributed.low_rank import LowRank
from tests.distributed.nets import batches_of, error, loss_of, perceptron, place, pooled
from tests.ranks import run_ranks

SIZES = (8, 3, 0, 5)
Divide = Callable[[nn.Module, DeviceMesh], object]


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    for part in (model[0], model[3], model):  # type: ignore[index]
        fully_shard(part, mesh=mesh)


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    plan = {"0": ColwiseParallel(output_layouts=Replicate()), "3": ColwiseParallel(), "5": RowwiseParallel()}
    parallelize_module(model, mesh, plan)


def both(model: nn.Module, mesh: DeviceMesh) -> None:
    tensor_parallel(model, mesh["tensor"])
    shard(model, mesh["data"])


# Layouts on four ranks: names of the mesh's dimensions and their sizes, those with different batches, how it is divided.
LAYOUTS: dict[str, tuple[dict[str, int], tuple[str, ...] | None, Divide]] = {
    "fully_shard": ({"data": 4}, None, shard),
    "replicate x shard": ({"replicate": 2, "shard": 2}, None, shard),
    "tensor": ({"data": 2, "tensor": 2}, ("data",), lambda model, mesh: tensor_parallel(model, mesh["tensor"])),
    "shard x tensor": ({"data": 2, "tensor": 2}, ("data",), both),
    "shard within, exchange across": ({"far": 2, "near": 2}, None, lambda model, mesh: shard(model, mesh["near"])),
}


def whole(model: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {n: (g.full_tensor() if isinstance(g, DTensor) else g).clone() for n, g in sorted(found.items())}


def step_by_step(layout: str, rank: int | None, *, after: bool = False) -> float:
    """Return the largest error of three steps' gradients against those of the pooled batch on one device."""
    dimensions, names, divide = LAYOUTS[layout]
    mesh = init_device_mesh("cpu", tuple(dimensions.values()), mesh_dim_names=tuple(dimensions))
    model, single = perceptron(), perceptron()
    if not after:
        divide(model, mesh)
    sync = LowRank(model, rank=rank, group=mesh[names] if names else None)
    if after:
        divide(model, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = torch.optim.SGD(single.parameters(), lr=0.1)
    places, worst = dist.get_world_size(sync._group), 0.0
    for step in range(3):
        batches = batches_of(SIZES[:places], step)
        own = batches[dist.get_rank(sync._group)]
        optimizer.zero_grad()
        sync.backward(loss_of(model, own), weight=len(own[1]))
        expected = pooled(single, batches)
        for name, parameter in single.named_parameters():
            parameter.grad = expected[name]
        if "tensor" not in dimensions:  # torch clips no mixture of meshes
            for each in (model, single):
                nn.utils.clip_grad_norm_(each.parameters(), 0.1)
        worst = max(worst, error(whole(model), whole(single)))
        optimizer.step()
        reference.step()
    sync.close()
    return worst


def all_steps(layout: str) -> list[float]:
    return [step_by_step(layout, rank, after=after) for rank in (None, 1000) for after in (False, True)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", LAYOUTS)
def test_divided_models_equal_one_device_wrapped_before_or_after(layout: str) -> None:
    for found in run_ranks(4, all_steps, layout):
        assert 0 < max(found) <= 1e-5, found


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(50, 60, sparse=True), nn.Linear(60, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(x + self.words.weight[: len(x)])
        return result


def refused() -> dict[str, tuple[str, str, str]]:
    """Return code, field and sentence of what each mistake raises."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    group, found = mesh["data"], dict[str, tuple[str, str, str]]()

    def says(name: str, attempt: Callable[[], object]) -> None:
        found[name] = ("", "", "")
        try:
            attempt()
        except RankdadError as raised:
            found[name] = raised.code, raised.field or "", str(raised)

    def made(divide: Divide, group: DeviceMesh | None, model: nn.Module | None = None) -> LowRank:
        model = perceptron() if model is None else model
        divide(model, mesh)
        return LowRank(model, rank=4, group=group)

    def tensor(model: nn.Module, mesh: DeviceMesh) -> None:
        tensor_parallel(model, mesh["tensor"])

    def hooked(model: nn.Module, mesh: DeviceMesh) -> None:
        shard(model, mesh["data"])
        model.get_parameter("0.weight").register_hook(lambda gradient: gradient)

    says("all ranks, tensor parallel", lambda: made(tensor, None))
    says("tensor ranks", lambda: made(both, mesh["tensor"]))
    says("half of the data", lambda: made(lambda m, _: shard(m, mesh), group))
    says("hook", lambda: made(hooked, group))
    says("sparse", lambda: made(lambda m, mesh: fully_shard(m, mesh=mesh["data"]), group, Words()))
    says("option at one rank", lambda: LowRank(perceptron(), rank=4 + (place() == 3), group=group))
    says("model of a half", lambda: LowRank(nn.Linear(60, 3, bias=place() < 2), group=group))
    batches = batches_of((8, 3), 0)
    for name, divide in {"": tensor, " sharded": both}.items():
        model = perceptron()
        divide(model, mesh)
        sync = LowRank(model, rank=4, group=group)
        own = batches[dist.get_rank(sync._group)]
        loss = loss_of(model, own)
        says("weight" + name, lambda: sync.backward(loss, weight=-1.0 if place() == 2 else 8))
        says("after" + name, lambda: sync.backward(loss_of(model, own), weight=8))
        if not name:
            fails = mock.patch.object(sync._site, "step", side_effect=NonFiniteError("w"))
            with fails if place() == 1 else nullcontext():
                says("gradient", lambda: sync.backward(loss_of(model, own), weight=8))
            says("after it", lambda: sync.backward(loss_of(model, own), weight=8))
    model = perceptron()
    sync = LowRank(model, rank=4, group=group)
    sync.backward(loss_of(model, batches[0]), exchange=False)
    shard(model, group)
    says("between", lambda: sync.backward(loss_of(model, batches[0])))
    return found


@pytest.mark.exhaustive
def test_mistakes_are_one_sentence_at_every_rank() -> None:
    ranks = run_ranks(4, refused)
    assert ranks == [ranks[0]] * 4
    assert {name: each[:2] for name, each in ranks[0].items()} == {
        **dict.fromkeys(
            ("all ranks, tensor parallel", "tensor ranks", "half of the data"), ("mesh-does-not-fit", "0.weight")
        ),
        "hook": ("hook-lost", "0.weight"),
        "sparse": ("sparse-divided", "words.weight"),
        "option at one rank": ("ranks-disagree", "rank"),
        "model of a half": ("ranks-disagree", "model"),
        **dict.fromkeys(("weight", "weight sharded"), ("weight-out-of-range", "weight")),
        **dict.fromkeys(("after", "after sharded", "after it"), ("", "")),
        "gradient": ("not-finite", "w"),
        "between": ("divided-in-step", "model"),
    }
    assert "rank 2: " in ranks[0]["weight"][2]
