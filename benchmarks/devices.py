"""`python -m benchmarks devices`: the parts of a `LowRank` step on a device, in bfloat16.

Two ranks share the device; with a GPU for each, they exchange over NCCL. Times end when the device has finished.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.multiprocessing import get_context
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F

from benchmarks.low_rank import PATIENCE
from benchmarks.networks import FeedForward, Recurrent, VisionTransformer
from benchmarks.turns import LENGTH, TOKENS, Gpt2
from rankdad.distributed.low_rank import LowRank

PLACES, WARM_UP, SAMPLES = 2, 3, 64
PARTS = ("backward", "with capture", "reduction", "exchange", "step")
Draw = Callable[[str], tuple[Tensor, Tensor]]


def images(*shape: int) -> Draw:
    """Return a function that draws inputs of a shape, and labels of ten classes."""
    return lambda device: (torch.randn(SAMPLES, *shape, device=device), torch.arange(SAMPLES, device=device) % 10)


def texts(tokens: int, samples: int) -> Draw:
    """Return a function that draws texts and their next tokens."""

    def draw(device: str) -> tuple[Tensor, Tensor]:
        drawn = torch.randint(tokens, (samples, LENGTH + 1), device=device)
        return drawn[:, :-1].contiguous(), drawn[:, 1:].flatten()

    return draw


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Draw]] = {
    "784-1024-1024-10": (FeedForward, images(784)),
    "GRU 512-256": (Recurrent, images(256, 12)),
    "ViT 128 × 12": (VisionTransformer, images(49, 48)),
    "GPT-2 of 2 layers": (Gpt2, texts(TOKENS, 16)),
    "GPT-2 small": (partial(Gpt2, 50_257, 768, 12, 12), texts(50_257, 8)),
}


class Watches:
    """The seconds of a step's parts.

    Args:
        device: finishes its work at the end of each part.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._step: dict[str, float] = {}
        self.steps: list[dict[str, float]] = []

    def begin(self) -> None:
        """Begin a step."""
        self._step = dict.fromkeys(PARTS, 0.0)
        self.steps.append(self._step)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the seconds of a part."""
        began = self._now()
        yield
        self._step[part] += self._now() - began

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Time a method of an object from now on."""
        method = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.time(part):
                return method(*args, **kwargs)

        setattr(owner, name, timed)

    def watch_steps(self, owner: Any, part: str) -> None:
        """Time both halves of a method's steps from now on."""
        step = owner.step

        def timed(*args: Any) -> Any:
            work = step(*args)
            with self.time(part):
                sent = next(work)
            answer = yield sent
            with self.time(part):
                try:
                    work.send(answer)
                except StopIteration as stop:
                    return stop.value

        owner.step = timed

    def _now(self) -> float:
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)
        return perf_counter()


def _rank(place: int, port: int, kind: str, networks: tuple[str, ...], rank: int, steps: int, answers: Any) -> None:
    torch.set_num_threads(1)
    alone = kind != "cpu" and torch.cuda.device_count() >= PLACES
    device = kind if kind == "cpu" else f"cuda:{place * alone}"
    store = TCPStore("127.0.0.1", port, PLACES, is_master=not place)
    backend = "nccl" if alone else "gloo"
    dist.init_process_group(backend, store=store, rank=place, world_size=PLACES, timeout=PATIENCE)
    for name in networks:
        medians = _measured(name, device, rank, steps)
        if not place:
            answers.put((name, medians))
    dist.barrier()
    dist.destroy_process_group()


def _measured(name: str, device: str, rank: int, steps: int) -> dict[str, float]:
    """Return the median seconds of each part."""
    make, draw = NETWORKS[name]
    torch.manual_seed(0)
    model, (x, y) = make().to(device), draw(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    plain, watches = Watches(device), Watches(device)

    def loss() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            return F.cross_entropy(model(x).float(), y)

    for _ in range(WARM_UP + steps):  # before there is a capture
        own = loss()
        plain.begin()
        with plain.time("backward"):
            own.backward()
    with LowRank(model, rank=rank) as sync:
        watches.watch(sync._batches, "take", "with capture")
        watches.watch_steps(sync._site, "reduction")
        for method in ("pack", "received", "ended"):
            watches.watch(sync._exchange, method, "exchange")
        for _ in range(WARM_UP + steps):
            watches.begin()
            with watches.time("step"):
                sync.backward(loss(), weight=len(x))
                optimizer.step()
    found = {part: median(step[part] for step in watches.steps[WARM_UP:]) for part in PARTS}
    return found | {"backward": median(step["backward"] for step in plain.steps[WARM_UP:])}


def bench_devices(device: str, networks: tuple[str, ...], rank: int, steps: int, console: Console) -> None:
    """Print the milliseconds of a step's parts at rank 0.

    Args:
        device: "cpu" or "cuda".
        networks: of `NETWORKS`.
        rank: of LowRank.
        steps: measured of each.
        console: to print to.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    answers = get_context("spawn").SimpleQueue()
    what = device if device == "cpu" else torch.cuda.get_device_name(0)
    title = f"{what}, {PLACES} ranks, bfloat16, rank {rank}: milliseconds, medians of {steps} steps"
    table = Table("network", *PARTS, title=title)
    spawn(_rank, (port, device, networks, rank, steps, answers), PLACES)
    for _ in networks:
        name, medians = answers.get()
        table.add_row(name, *(f"{1e3 * medians[part]:.2f}" for part in PARTS))
    console.print(table)
