"""`python -m benchmarks mesh`: `LowRank` of models divided over meshes of four ranks, beside torch's own exchange.

Exactness is the largest error of a parameter's gradient at `rank=None`, against one device with the pooled batch.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.multiprocessing import get_context
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F

from benchmarks.low_rank import _group, sent_bytes
from rankdad.distributed.low_rank import LowRank

PLACES, WIDTH, DEPTH, BATCH = 4, 256, 6, 16
WARM_UP = 3
COLUMNS = ("layout", "error, rank None", "torch: kB", "rank None: kB", "rank 4: kB", "int8, rank 8: kB")
TIMES = ("torch: ms", "rank 4: ms")


@dataclass(frozen=True)
class Layout:
    """A division of the model.

    Args:
        sizes: of the mesh's dimensions, by name; that of the pipeline comes first.
        data: the dimensions with different batches.
        shard: the dimensions that `fully_shard` divides over.
    """

    sizes: dict[str, int]
    data: tuple[str, ...]
    shard: tuple[str, ...] = ()


LAYOUTS = {
    "whole models": Layout({"data": 4}, ("data",)),
    "fully_shard": Layout({"data": 4}, ("data",), ("data",)),
    "fully_shard, replicate 2 x shard 2": Layout({"far": 2, "near": 2}, ("far", "near"), ("far", "near")),
    "fully_shard in pairs, LowRank over all": Layout({"far": 2, "near": 2}, ("far", "near"), ("near",)),
    "data 2 x tensor 2": Layout({"data": 2, "tensor": 2}, ("data",)),
    "fully_shard 2 x tensor 2": Layout({"data": 2, "tensor": 2}, ("data",), ("data",)),
    "pipeline 2 x data 2": Layout({"pipeline": 2, "data": 2}, ("data",)),
}


def whole_model() -> nn.Sequential:
    """Return the model of one device: six layers, 256 wide."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))


class Divided:
    """The part of a model at this rank, and one way to exchange its gradients.

    Args:
        layout: of the model.
        options: of `LowRank`; None for torch's own exchange.
    """

    def __init__(self, layout: Layout, options: dict[str, Any] | None) -> None:
        mesh = init_device_mesh("cpu", tuple(layout.sizes.values()), mesh_dim_names=tuple(layout.sizes))
        self._mesh = mesh
        self.module = whole_model()
        if "pipeline" in layout.sizes:
            half = len(self.module) // 2
            self._first = not mesh["pipeline"].get_local_rank()
            part = self.module[:half] if self._first else self.module[half:]  # layers keep their names
            assert isinstance(part, nn.Sequential)
            self.module = part
        if "tensor" in layout.sizes:
            plan: dict[str, ParallelStyle] = {
                str(2 * layer): RowwiseParallel() if layer % 2 else ColwiseParallel() for layer in range(DEPTH)
            }
            parallelize_module(self.module, mesh["tensor"], plan)
        if layout.shard:
            for part in (*self.module, self.module):
                if any(True for _ in part.parameters()):
                    fully_shard(part, mesh=mesh[layout.shard])
        data = mesh[layout.data]
        self._all = len(layout.data) > 1 or layout.sizes.get("data") == PLACES
        self._group = dist.group.WORLD if self._all else data.get_group()
        self._sync = None if options is None else LowRank(self.module, group=None if self._all else data, **options)
        self._schedule = self._staged() if "pipeline" in layout.sizes else None
        self._optimizer = torch.optim.SGD(self.module.parameters(), lr=0.01)

    def _staged(self) -> ScheduleGPipe:
        group = self._mesh["pipeline"].get_group()
        stage = PipelineStage(self.module, dist.get_rank(group), 2, torch.device("cpu"), group=group)
        return ScheduleGPipe(stage, 2, loss_fn=F.mse_loss)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return this rank's batch."""
        x, y = pooled(step)
        places = dist.get_world_size(self._group)
        place = dist.get_rank(self._group)
        return x.chunk(places)[place], y.chunk(places)[place]

    def backward(self, step: int) -> None:
        """Leave the gradients of a step."""
        x, y = self.batch(step)
        self._optimizer.zero_grad()
        schedule = self._schedule
        if schedule is not None:
            self._take(lambda: schedule.step(x) if self._first else schedule.step(target=y))
        elif self._sync is not None:
            self._sync.backward(F.mse_loss(self.module(x), y), weight=len(x))
        else:
            self._take(lambda: F.mse_loss(self.module(x), y).backward())

    def _take(self, passes: Callable[[], object]) -> None:
        if self._sync is not None:
            self._sync.backward(passes)
            return
        passes()
        if isinstance(self.module, FSDPModule):
            return  # has exchanged them
        gradients = [local(p.grad) for p in self.module.parameters() if p.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]) / dist.get_world_size(self._group)
        dist.all_reduce(flat, group=self._group)
        for own, summed in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
            own.copy_(summed.view_as(own))

    def step(self, step: int) -> tuple[float, int]:
        """Take a step; return its seconds and the bytes that this rank has sent."""
        dist.barrier()
        before, began = sent_bytes(), perf_counter()
        self.backward(step)
        self._optimizer.step()
        return perf_counter() - began, sent_bytes() - before

    def error(self) -> float:
        """Return the largest error of a parameter's gradient, over its norm."""
        self.backward(0)
        single, (x, y) = whole_model(), pooled(0)
        F.mse_loss(single(x), y).backward()
        worst = 0.0
        for name, parameter in self.module.named_parameters():
            expected = single.get_parameter(name).grad
            assert parameter.grad is not None
            assert expected is not None
            found = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
            worst = max(worst, float((found - expected).norm() / expected.norm()))
        return worst

    def close(self) -> None:
        """Let the model go."""
        if self._sync is not None:
            self._sync.close()


def local(gradient: Tensor) -> Tensor:
    """Return this rank's part of a gradient."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def pooled(step: int) -> tuple[Tensor, Tensor]:
    """Return the batch of all ranks together."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(PLACES * BATCH, WIDTH, generator=generator)
    return x, x.roll(1, dims=1).relu()


def _rank(place: int, places: int, port: int, steps: int, answers: Any) -> None:
    torch.set_num_threads(1)
    with _group(place, places, port):
        answers.put((place, {name: _measured(layout, steps) for name, layout in LAYOUTS.items()}))


def _measured(layout: Layout, steps: int) -> dict[str, float]:
    """Return what a layout's columns show of this rank."""
    ways: dict[str, dict[str, Any] | None] = {
        "torch": None,
        "rank None": {"rank": None},
        "rank 4": {"rank": 4, "wire": "float32"},
        "int8, rank 8": {},
    }
    found = dict[str, float]()
    for name, options in ways.items():
        divided = Divided(layout, options)
        error = divided.error()
        if name == "rank None":
            found["error, rank None"] = error
        taken = [divided.step(step) for step in range(WARM_UP + steps)][WARM_UP:]
        found[f"{name}: ms"] = 1e3 * median(seconds for seconds, _ in taken)
        found[f"{name}: kB"] = median(sent for _, sent in taken) / 1e3
        divided.close()
    return found


def bench_mesh(steps: int, console: Console) -> float:
    """Print the table of layouts; return the largest error.

    Args:
        steps: measured of each layout and way.
        console: to print to.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    answers = get_context("spawn").SimpleQueue()
    spawn(_rank, (PLACES, port, steps, answers), PLACES)
    ranks = [answers.get()[1] for _ in range(PLACES)]
    title = f"six layers, {WIDTH} wide, four ranks of one thread, batches of {PLACES * BATCH}; kB sent by the mean rank"
    table = Table(title=f"{title} in a step, medians of {steps}")
    for column in (*COLUMNS, *TIMES):
        table.add_column(column, justify="left" if column == "layout" else "right")
    worst = 0.0
    for name in LAYOUTS:
        error = max(rank[name]["error, rank None"] for rank in ranks)
        means = [fmean(rank[name][column] for rank in ranks) for column in (*COLUMNS[2:], *TIMES)]
        table.add_row(
            name,
            f"{error:.1e}",
            *(f"{mean:.{int('ms' in column)}f}" for column, mean in zip((*COLUMNS[2:], *TIMES), means, strict=True)),
        )
        worst = max(worst, error)
    console.print(table)
    return worst
