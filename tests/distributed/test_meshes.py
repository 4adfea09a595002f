"""`LowRank` of models divided over device meshes: equal to one device where nothing is left out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from rankdad.common.errors import NonFiniteError, RankdadError
from rankdad.distributed.low_rank import LowRank
from tests.distributed.nets import batches_of, error, loss_of, perceptron, place, pooled
from tests.ranks import run_ranks

SIZES = (8, 3, 0, 5)
WHOLE = {4: "four whole models", 2: "two whole models, twice"}
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


def all_three(model: nn.Module, mesh: DeviceMesh) -> None:
    only_tensor(model, mesh)
    shard(model, mesh["replicate", "shard"])


# Layouts on four ranks: the dimensions of the mesh, those with different batches, and how models are divided.
LAYOUTS: dict[str, tuple[dict[str, int], tuple[str, ...] | None, Divide]] = {
    "fully_shard": ({"data": 4}, None, shard),
    "replicate x shard": ({"replicate": 2, "shard": 2}, None, shard),
    "tensor": ({"data": 2, "tensor": 2}, ("data",), lambda model, mesh: tensor_parallel(model, mesh["tensor"])),
    "shard x tensor": ({"data": 2, "tensor": 2}, ("data",), both),
    WHOLE[4]: ({"data": 4}, None, lambda model, mesh: None),
    WHOLE[2]: ({"data": 2, "tensor": 2}, ("data",), lambda model, mesh: None),
    "shard within, exchange across": ({"far": 2, "near": 2}, None, lambda model, mesh: shard(model, mesh["near"])),
}


def whole(model: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {n: (g.full_tensor() if isinstance(g, DTensor) else g).clone() for n, g in sorted(found.items())}


def step_by_step(layout: str, rank: int | None, *, after: bool = False) -> float:
    """Return the largest error of three steps' gradients against those of the pooled batch on one device."""
    dimensions, names, divide = (LAYOUTS | EIGHT)[layout]
    mesh = init_device_mesh("cpu", tuple(dimensions.values()), mesh_dim_names=tuple(dimensions))
    model, single = perceptron(), perceptron()
    if not after:
        divide(model, mesh)
    sync = LowRank(model, rank=rank, wire="float64", group=mesh[names] if names else None)
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


EIGHT = {
    "replicate x shard x tensor": ({"replicate": 2, "shard": 2, "tensor": 2}, ("replicate", "shard"), all_three),
}


def all_steps(layout: str) -> list[float]:
    return [step_by_step(layout, rank, after=after) for rank in (None, 1000) for after in (False, True)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", [*LAYOUTS, *EIGHT])
def test_divided_models_equal_one_device_wrapped_before_or_after(layout: str) -> None:
    for found in run_ranks(8 if layout in EIGHT else 4, all_steps, layout):
        assert 0 < max(found) <= 1e-5, found


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(50, 60, sparse=True), nn.Linear(60, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(x + self.words.weight[: len(x)])
        return result


def in_half_precision() -> list[tuple[float, bool, float]]:
    """Return errors of two batches as one, whether gradients are float32, and the error of torch alone after it."""
    mesh, found = init_device_mesh("cpu", (2,)), []
    for reduced in (torch.float32, None):
        model, single, batches = perceptron(), perceptron(), batches_of((8, 3, 5, 2), 0)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
        for part in (model[0], model[3], model):
            fully_shard(part, mesh=mesh, mp_policy=policy)
        with LowRank(model, rank=None) as sync:
            for last, batch in enumerate(batches[place() :: 2]):
                sync.backward(loss_of(model, batch).float(), weight=len(batch[1]), exchange=bool(last))
        worst = error(whole(model), dict(sorted(pooled(single, batches).items())))
        alike = all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
        model.zero_grad()
        loss_of(model, batches[0]).backward()
        own = dict(sorted(pooled(single, batches[:1]).items()))
        found.append((worst, alike, error(whole(model), own)))
    return found


@pytest.mark.slow
def test_mixed_precision_and_torchs_own_exchange_after_close() -> None:
    for found in run_ranks(2, in_half_precision):
        for worst, alike, after in found:
            assert worst < 0.02  # bfloat16 has 8 bits
            assert alike
            assert after < 0.02


Said = tuple[str, str, str]


def said(attempt: Callable[[], object]) -> Said:
    """Return code, field and sentence of what is raised."""
    try:
        attempt()
    except RankdadError as raised:
        return raised.code, raised.field or "", str(raised)
    return "", "", ""


def made(divide: Divide, mesh: DeviceMesh, group: DeviceMesh | None, model: nn.Module | None = None) -> LowRank:
    model = perceptron() if model is None else model
    divide(model, mesh)
    return LowRank(model, rank=4, group=group)


def only_tensor(model: nn.Module, mesh: DeviceMesh) -> None:
    tensor_parallel(model, mesh["tensor"])


def hooked(model: nn.Module, mesh: DeviceMesh) -> None:
    shard(model, mesh["data"])
    model.get_parameter("0.weight").register_hook(lambda gradient: gradient)


def failing(divide: Divide, mesh: DeviceMesh, name: str) -> dict[str, Said]:
    """Return what is raised in steps of which one rank's weight, and then a gradient, is wrong, and after each."""
    model = perceptron()
    divide(model, mesh)
    sync = LowRank(model, rank=4, group=mesh["data"])
    own = batches_of((8, 3), 0)[dist.get_rank(sync._group)]

    def step(weight: float = 8) -> Said:
        loss = loss_of(model, own)
        return said(lambda: sync.backward(loss, weight=weight))

    found = {f"{name}: weight": step(-1.0 if place() == 2 else 8), f"{name}: after it": step()}
    fails = mock.patch.object(sync._site, "step", side_effect=NonFiniteError("w"))
    with fails if place() == 1 else nullcontext():
        found[f"{name}: gradient"] = step()
    return found | {f"{name}: after both": step()}


def refused() -> dict[str, Said]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    group = mesh["data"]
    found = {
        "all ranks, tensor parallel": said(lambda: made(only_tensor, mesh, None)),
        "tensor ranks": said(lambda: made(both, mesh, mesh["tensor"])),
        "half of the data": said(lambda: made(shard, mesh, group)),
        "hook": said(lambda: made(hooked, mesh, group)),
        "sparse": said(lambda: made(lambda m, mesh: fully_shard(m, mesh=mesh["data"]), mesh, group, Words())),
        "option at one rank": said(lambda: LowRank(perceptron(), rank=4 + (place() == 3), group=group)),
        "model of a half": said(lambda: LowRank(nn.Linear(60, 3, bias=place() < 2), group=group)),
    }
    found |= failing(only_tensor, mesh, "tensor") | failing(both, mesh, "both")
    model, batch = perceptron(), batches_of((8,), 0)[0]
    sync = LowRank(model, rank=4, group=group)
    sync.backward(loss_of(model, batch), exchange=False)
    shard(model, group)
    return found | {"between": said(lambda: sync.backward(loss_of(model, batch)))}


@pytest.mark.exhaustive
def test_mistakes_are_one_sentence_at_every_rank() -> None:
    ranks = run_ranks(4, refused)
    assert ranks == [ranks[0]] * 4
    steps = {
        "weight": ("weight-out-of-range", "weight"),
        "after it": ("", ""),
        "gradient": ("not-finite", "w"),
        "after both": ("", ""),
    }
    wrong = ("all ranks, tensor parallel", "tensor ranks", "half of the data")
    assert {name: each[:2] for name, each in ranks[0].items()} == {
        **dict.fromkeys(wrong, ("mesh-does-not-fit", "0.weight")),
        "hook": ("hook-lost", "0.weight"),
        "sparse": ("sparse-divided", "words.weight"),
        "option at one rank": ("ranks-disagree", "rank"),
        "model of a half": ("ranks-disagree", "model"),
        **{f"{name}: {step}": each for name in ("tensor", "both") for step, each in steps.items()},
        "between": ("divided-in-step", "model"),
    }
    assert "rank 2: " in ranks[0]["both: weight"][2]


def trained(
    layout: str, rank: int, steps: int, folder: str = "", *, stop: int = 0, resume: bool = False
) -> list[float]:
    """Return the losses of the pooled batch at each step; write a checkpoint after some steps, or begin with one."""
    dimensions, names, divide = LAYOUTS[layout]
    mesh = init_device_mesh("cpu", tuple(dimensions.values()), mesh_dim_names=tuple(dimensions))
    model = perceptron()
    divide(model, mesh)
    sync, losses = LowRank(model, rank=rank, group=mesh[names] if names else None), list[float]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if resume:
        weights = {"model": model.state_dict()}
        load(weights, checkpoint_id=folder + "/model")
        sync.load(folder + "/sync")
    place, places = dist.get_rank(sync._group), dist.get_world_size(sync._group)
    for step in range(stop if resume else 0, steps):
        if step == stop and folder and not resume:
            save({"model": model.state_dict()}, checkpoint_id=folder + "/model")
            sync.save(folder + "/sync")
        x, y = (torch.cat(parts) for parts in zip(*batches_of((8,) * 4, step % 20), strict=True))
        loss = loss_of(model, (x.chunk(places)[place], y.chunk(places)[place]))
        optimizer.zero_grad()
        sync.backward(loss, weight=32 / places)
        optimizer.step()
        total = loss.detach() / places
        dist.all_reduce(total, group=sync._group)
        losses.append(float(total))
    sync.close()
    return losses


def curves(folder: str) -> dict[str, Any]:
    """Return losses in all layouts, of runs broken off in one and resumed in another, and what `load` refuses."""
    found: dict[str, Any] = {layout: trained(layout, 4, 300) for layout in LAYOUTS}
    for old in ("fully_shard", "tensor"):
        trained(old, 4, 30, f"{folder}/{old}", stop=20)
        resumed = {new: trained(new, 4, 30, f"{folder}/{old}", stop=20, resume=True) for new in LAYOUTS}
        found |= {f"{old} to {new}": losses for new, losses in resumed.items()}
    sync = LowRank(perceptron(), rank=3)
    places = {"options": "tensor/sync", "nothing": "nowhere", "another": "tensor/model", "noise": "noise"}
    for name, path in places.items():
        try:
            sync.load(f"{folder}/{path}")
        except RankdadError as raised:
            found[name] = raised.code, raised.field
    return found


@pytest.mark.exhaustive
def test_reduced_runs_end_as_undivided_ones_and_resume_on_other_meshes(tmp_path: Path) -> None:
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / "model.safetensors").write_bytes(b"\x40" + bytes(7) + b"{]" * 40)
    found, *others = run_ranks(4, curves, str(tmp_path))
    assert all(other == found for other in others)
    for layout, (_, names, _) in LAYOUTS.items():
        alike = found[WHOLE[2 if names else 4]]
        ends = [sum(losses[-20:]) / 20 for losses in (found[layout], alike)]
        assert abs(ends[0] / ends[1] - 1) <= 0.01, (layout, ends)
        assert names or found[layout] == alike  # bit for bit
        for old in ("fully_shard", "tensor"):
            resumed, undisturbed = found[f"{old} to {layout}"], found[old][20:30]
            if bool(names) == (old == "tensor") and layout != WHOLE[2]:
                assert resumed == undisturbed, (old, layout)
            assert max(abs(a / b - 1) for a, b in zip(resumed, undisturbed, strict=True)) <= 0.005, (old, layout)
    assert found["options"] == ("checkpoint-does-not-fit", "rank")
    assert found["nothing"][0] == found["noise"][0] == "checkpoint-unreadable"
    assert found["another"][0] == "checkpoint-malformed"
    assert not list((tmp_path / "tensor" / "sync").glob(".metadata"))  # which would be a pickle
