"""`python -m benchmarks low-rank`: a step of `LowRank`, and of our hook, beside PyTorch's own `powerSGD_hook`.

All train in the same processes, a step of each in turn, so that whatever else the machine does slows all of them.
"""

from __future__ import annotations

import gc
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.multiprocessing import get_context
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.turns import NETWORKS
from rankdad.distributed.hook import LowRankState, low_rank_hook
from rankdad.distributed.low_rank import LowRank

TCP_INFO, BYTES_ACKED = 11, 120  # of Linux: the option, and where in its answer are the bytes that the other end has
ONE_BUCKET = 1000  # megabytes: over gloo, powerSGD_hook's second exchanges of several buckets may come in another order
WARM_UP = 10
PATIENCE = timedelta(seconds=120)

Backward = Callable[[Tensor, Tensor], None]


@dataclass
class Contender:
    """One way to train.

    Args:
        name: in the table.
        model: that it trains.
        backward: leaves gradients in the model.
        lr: of plain SGD with momentum 0.9.
    """

    name: str
    model: nn.Module
    backward: Backward
    lr: float
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=self.lr, momentum=0.9)

    def step(self, x: Tensor, y: Tensor) -> None:
        """Take a step."""
        self._optimizer.zero_grad()
        self.backward(x, y)
        self._optimizer.step()

    def measure(self, x: Tensor, y: Tensor) -> None:
        """Take a step and record its time."""
        dist.barrier()
        before, began, busy = sent_bytes(), perf_counter(), process_time()
        self.step(x, y)
        self.seconds.append(perf_counter() - began)
        self.cpu_seconds.append(process_time() - busy)
        self.sent.append(sent_bytes() - before)


def contenders(
    make: Callable[[], nn.Module], rank: int, lr: float, wires: Sequence[str] = ("float32",)
) -> Iterator[Contender]:
    """Return LowRank, our hook and PyTorch's, each with a model of its own.

    Args:
        make: the same model each time.
        rank: of all of them.
        lr: of all of them.
        wires: of LowRank and our hook, one after the other.
    """
    for wire in wires:
        yield _by_rows(make(), rank, lr, wire)
    hooks: dict[str, tuple[Callable[[nn.Module], Any], Callable[..., Any]]] = {
        **{
            _named("low_rank_hook", wire): (partial(LowRankState, rank=rank, wire=wire), low_rank_hook)
            for wire in wires
        },
        "powerSGD_hook": (lambda _: PowerSGDState(None, rank, start_powerSGD_iter=2), powerSGD_hook),
    }
    for name, (state, hook) in hooks.items():
        yield hooked(name, make(), state, hook, lr)


def _by_rows(model: nn.Module, rank: int, lr: float, wire: str) -> Contender:
    sync = LowRank(model, rank=rank, wire=wire)

    def backward(x: Tensor, y: Tensor) -> None:
        sync.backward(F.cross_entropy(model(x), y), weight=len(y))

    return Contender(_named("LowRank", wire), model, backward, lr)


def _named(name: str, wire: str) -> str:
    return name if wire == "float32" else f"{name}, {wire}"


def hooked(
    name: str, model: nn.Module, state: Callable[[nn.Module], Any], hook: Callable[..., Any], lr: float
) -> Contender:
    """Return DistributedDataParallel with a communication hook."""
    ddp = DistributedDataParallel(model, bucket_cap_mb=ONE_BUCKET)
    ddp.register_comm_hook(state(model), hook)

    def backward(x: Tensor, y: Tensor) -> None:
        F.cross_entropy(ddp(x), y).backward()

    return Contender(name, model, backward, lr)


def sent_bytes() -> int:
    """Return how many bytes this process's TCP connections have carried to their other ends so far."""
    total = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            if not str(descriptor.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                    found = connection.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 256)
                    total += struct.unpack_from("<Q", found, BYTES_ACKED)[0] if len(found) >= BYTES_ACKED + 8 else 0
        except OSError:  # closed meanwhile
            continue
    return total


def _rank(
    place: int, places: int, port: int, network: str, rank: int, batch: int | None, steps: int, answers: Any
) -> None:
    torch.set_num_threads(1)
    with _group(place, places, port):
        measured = _measured(place, network, rank, batch, steps)
        if not place:
            answers.put(measured)


def _measured(place: int, network: str, rank: int, batch: int | None, steps: int) -> list[tuple[Any, ...]]:
    """Return of each method its name, and the seconds, CPU seconds and bytes of all its steps."""
    make, draw = NETWORKS[network]

    def seeded() -> nn.Module:
        torch.manual_seed(0)
        return make()

    found = list(contenders(seeded, rank, 0.01, ("float32", "int8")))
    generator = torch.Generator().manual_seed(place)
    for _ in range(WARM_UP + steps):
        x, y = draw(generator, batch)
        for contender in found:
            contender.measure(x, y)
    return [(c.name, c.seconds, c.cpu_seconds, c.sent) for c in found]


@contextmanager
def _group(place: int, places: int, port: int) -> Iterator[None]:
    store = TCPStore("127.0.0.1", port, places, is_master=not place)
    dist.init_process_group("gloo", store=store, rank=place, world_size=places, timeout=PATIENCE)
    yield
    dist.barrier()
    gc.collect()  # references to the group keep its threads, which abort at exit
    dist.destroy_process_group()


def bench_low_rank(network: str, places: int, rank: int, batch: int | None, steps: int, console: Console) -> None:
    """Print a step's milliseconds and bytes at rank 0.

    Args:
        network: one of `benchmarks.turns`.
        places: ranks of the process group.
        rank: of all methods.
        batch: samples of a rank's step; None for the network's own.
        steps: measured of each.
        console: to print to.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    answers = get_context("spawn").SimpleQueue()
    spawn(_rank, (places, port, network, rank, batch, steps, answers), places)
    measured = [(name, *(values[WARM_UP:] for values in others)) for name, *others in answers.get()]
    table = Table(title=f"{network}, {places} ranks of one thread, rank {rank}, medians of {steps} steps")
    for column in ("method", "ms a step", "CPU ms a step", "kB sent by a rank", "over powerSGD_hook", "its CPU"):
        table.add_column(column, justify="left" if column == "method" else "right")
    _, yardstick, cpu_yardstick, _ = measured[-1]
    for name, seconds, cpu, sent in measured:
        ratio = median(own / other for own, other in zip(seconds, yardstick, strict=True))
        busy = median(own / other for own, other in zip(cpu, cpu_yardstick, strict=True))
        numbers = (1e3 * median(seconds), 1e3 * median(cpu), median(sent) / 1e3, ratio, busy)
        table.add_row(name, *(f"{number:.{1 + 2 * (place > 2)}f}" for place, number in enumerate(numbers)))
    console.print(table)
