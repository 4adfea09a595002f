"""`LowRank` of a pipeline's stages and of experts, beside one device; and adjoints of collectives in forward passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collectives
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn import functional as F

from rankdad.distributed.low_rank import LowRank
from tests.distributed.nets import batches_of, error, perceptron, place, pooled
from tests.ranks import run_ranks

PLANS: tuple[dict[str, ParallelStyle], ...] = (
    {"0": ColwiseParallel(output_layouts=Replicate())},
    {"0": ColwiseParallel(), "2": RowwiseParallel()},
)


def stages() -> list[nn.Sequential]:
    layers = list(perceptron())
    return [nn.Sequential(*layers[:3]), nn.Sequential(*layers[3:])]


def piped(kind: type[PipelineScheduleSingle], mesh: DeviceMesh, rank: int | None) -> float:
    """Return the largest error of a stage's gradients in three steps."""
    group = mesh["pipeline"].get_group()
    number, names = dist.get_rank(group), mesh.mesh_dim_names or ()
    module, single = stages()[number], perceptron()
    if "tensor" in names:
        parallelize_module(module, mesh["tensor"], PLANS[number])
    sync = LowRank(module, rank=rank, wire="float64", group=mesh["data"])
    worst = 0.0
    stage = PipelineStage(module, number, 2, torch.device("cpu"), group=group)
    schedule = kind(stage, 2, loss_fn=F.cross_entropy)
    for step in range(3):
        batches = batches_of((8, 4), step)
        x, y = batches[mesh["data"].get_local_rank()]

        def passes(x: Tensor = x, y: Tensor = y) -> None:
            schedule.step(x) if not number else schedule.step(target=y)

        module.zero_grad()
        sync.backward(passes, weight=len(y))
        found = {name: whole(p.grad) for name, p in module.named_parameters() if p.grad is not None}
        offset = 3 * number
        expected = {
            f"{int(name[0]) - offset}{name[1:]}": value
            for name, value in pooled(single, batches).items()
            if int(name[0]) // 3 == number
        }
        worst = max(worst, error(found, expected))
    sync.close()
    return worst


def whole(gradient: Tensor) -> Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def all_pipelines(shape: tuple[int, ...], names: tuple[str, ...]) -> list[float]:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return [piped(kind, mesh, rank) for kind in (ScheduleGPipe, Schedule1F1B) for rank in (None, 1000)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("names", [("pipeline", "data"), ("pipeline", "data", "tensor")])
def test_stages_of_a_pipeline_equal_one_device(names: tuple[str, ...]) -> None:
    for found in run_ranks(2 ** len(names), all_pipelines, (2,) * len(names), names):
        assert 0 < max(found) <= 1e-5, found


class Mixture(nn.Module):
    """Two experts, one for each token; at this rank both, or one, whose tokens come from all ranks of a group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dense = nn.ModuleDict({"first": nn.Linear(60, 40), "gate": nn.Linear(40, 2), "last": nn.Linear(40, 3)})
        experts = [nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 40)) for _ in range(2)]
        self.group, self.own = group, range(2) if group is None else [dist.get_rank(group)]
        self.experts = nn.ModuleDict({str(number): experts[number] for number in self.own})

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dense["first"](x).tanh()
        gates = self.dense["gate"](hidden).softmax(dim=1)
        chosen = gates.argmax(dim=1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=2)
        sent = hidden[order]
        if self.group is None:
            parts = zip(self.experts.values(), sent.split(counts.tolist()), strict=True)
            back = torch.cat([expert(tokens) for expert, tokens in parts])
        else:
            there = torch.empty_like(counts)
            dist.all_to_all_single(there, counts, group=self.group)
            tokens = exchanged(sent, there.tolist(), counts.tolist(), self.group)
            (expert,) = self.experts.values()
            back = exchanged(expert(tokens), counts.tolist(), there.tolist(), self.group)
        mixed = back[order.argsort()] * gates.gather(1, chosen[:, None])
        result: Tensor = self.dense["last"](hidden + mixed)
        return result


def exchanged(rows: Tensor, received: list[int], sent: list[int], group: dist.ProcessGroup | None) -> Tensor:
    """Return the rows that all ranks of a group send here; uneven numbers."""
    output = rows.new_empty(sum(received), rows.shape[1])
    result: Tensor = collectives.all_to_all_single(output, rows, received, sent, group=group)
    return result


def mixed() -> tuple[float, list[int]]:
    """Return the largest error of three steps' gradients, and how many tokens this rank's expert had."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "expert"))
    model, single = Mixture(mesh["expert"].get_group()), Mixture()
    dense, experts = LowRank(model.dense, rank=None), LowRank(model.experts, rank=None, group=mesh["data"])
    worst, tokens = 0.0, list[int]()
    model.experts[str(*model.own)].register_forward_hook(lambda module, args, output: tokens.append(len(output)))
    for step in range(3):
        batches = batches_of((9, 4, 6, 12), step)
        x, y = batches[place()]
        total = sum(len(labels) for _, labels in batches)

        def passes(x: Tensor = x, y: Tensor = y) -> None:
            F.cross_entropy(model(x), y, reduction="sum").backward()

        model.zero_grad()
        dense.backward(
            lambda: experts.backward(passes, weight=len(y), total=total),  # noqa: B023
            weight=len(y),
            total=total,
        )
        expected = pooled(single, batches)
        found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        assert found.keys() == dict(model.named_parameters()).keys()
        worst = max(worst, error(found, {name: expected[name] for name in found}))
    return worst, tokens


@pytest.mark.exhaustive
def test_experts_with_uneven_tokens_equal_one_device() -> None:
    ranks = run_ranks(4, mixed)
    assert 0 < max(worst for worst, _ in ranks) <= 1e-5, ranks
    assert len({tuple(tokens) for _, tokens in ranks}) == 4


def _to_all(x: Tensor) -> Tensor:
    sent = [(place() + other) % 3 + (other == 1) for other in range(3)]
    received = [(place() + other) % 3 + (place() == 1) for other in range(3)]
    assert len(x) == sum(sent)
    return exchanged(x, received, sent, dist.group.WORLD)


COLLECTIVES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[int], int]]] = {
    "broadcast": (lambda x: collectives.broadcast(x.clone(), 1), lambda rank: 4),
    "reduce": (lambda x: collectives.reduce(x.clone(), 1), lambda rank: 4),
    "all-reduce": (lambda x: collectives.all_reduce(x.clone()), lambda rank: 4),
    "gather": (lambda x: torch.stack(collectives.gather(x, 1)), lambda rank: 4),
    "scatter": (lambda x: collectives.scatter(list(x.chunk(3)), 1), lambda rank: 6),
    "all-gather": (lambda x: torch.stack(collectives.all_gather(x)), lambda rank: 4),
    "all-to-all": (_to_all, lambda rank: 4),
}


def adjoints() -> dict[str, float]:
    """Return, of each collective C, the error of ⟨C x, y⟩ = ⟨x, Cᵀ y⟩, over all ranks."""
    found = {}
    for name, (collective, rows) in COLLECTIVES.items():
        generator = torch.Generator().manual_seed(place())
        x = torch.randn(rows(place()), 5, generator=generator, dtype=torch.float64, requires_grad=True)
        output = collective(x)
        y = torch.randn(output.shape, generator=generator, dtype=torch.float64) * (name != "reduce" or place() == 1)
        output.backward(y)
        assert x.grad is not None
        sides = torch.stack([(output.detach() * y).sum(), (x.detach() * x.grad).sum()])
        dist.all_reduce(sides)
        found[name] = float((sides[0] - sides[1]).abs() / sides[0].abs())
    return found


@pytest.mark.slow
def test_collectives_of_forward_passes_have_their_adjoints() -> None:
    for found in run_ranks(3, adjoints):
        assert found.keys() == COLLECTIVES.keys()
        assert max(found.values()) < 1e-12, found
