"""`python -m benchmarks settings`: `LowRank`'s options beside PyTorch's own hook and exact gradients.

Three tables: a step's bytes by number of ranks, a small language model, and the loop of the first tutorial.
"""

from __future__ import annotations

import socket
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.multiprocessing import get_context
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.low_rank import ONE_BUCKET, WARM_UP, _group, sent_bytes
from rankdad.distributed.hook import LowRankState, low_rank_hook
from rankdad.distributed.low_rank import LowRank

CONTEXT, SEQUENCES = 64, 16
TABLES = ("bytes", "language", "loop")
LAST = 50  # steps whose mean loss is printed
TUTORIAL: tuple[dict[str, Any], ...] = (
    {"rank": None},
    {"rank": 8, "wire": "int8"},
    {"rank": 4, "wire": "int8"},
    {"rank": 4, "wire": "float32"},
    {"rank": 2, "wire": "float32"},
)


def gpt(dropout: float) -> nn.Module:
    """Return Hugging Face's GPT-2 of two layers, 128 wide, over bytes.

    Args:
        dropout: probability at the architecture's three places; 0.1 is its own.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=256,
        n_positions=CONTEXT,
        n_embd=128,
        n_layer=2,
        n_head=4,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        resid_pdrop=dropout,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config)


def deep() -> nn.Module:
    """Six layers, 256 wide."""
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())))


@dataclass
class Way:
    """One way to train, and what its steps took.

    Args:
        name: in the table.
        model: that it trains with AdamW.
        backward: leaves the gradients of a loss in the model.
        call: what computes the outputs: the model, or what wraps it.
    """

    name: str
    model: nn.Module
    backward: Callable[[Tensor], None]
    call: nn.Module
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, x: Tensor, y: Tensor) -> None:
        """Take a step, and note its loss, seconds and bytes."""
        torch.distributed.barrier()
        before, began = sent_bytes(), perf_counter()
        self._optimizer.zero_grad()
        said = self.call(x)
        loss = F.cross_entropy(getattr(said, "logits", said).flatten(0, -2), y.flatten())
        self.backward(loss)
        self._optimizer.step()
        self.losses.append(loss.item())
        self.seconds.append(perf_counter() - began)
        self.sent.append(sent_bytes() - before)


def by_rows(make: Callable[[], nn.Module], name: str, **options: Any) -> Way:
    """Return a model that `LowRank` trains, in float32 if nothing else is named."""
    model = make()
    sync = LowRank(model, **{"wire": "float32"} | options)
    return Way(name, model, partial(_send, sync), model)


def _send(sync: LowRank, loss: Tensor) -> None:
    sync.backward(loss, weight=1)


def by_hook(make: Callable[[], nn.Module], name: str, state: Any = None, hook: Any = None) -> Way:
    """Return a model in DistributedDataParallel, with a communication hook or without."""
    model = make()
    ddp = DistributedDataParallel(model, bucket_cap_mb=ONE_BUCKET)
    if hook is not None:
        ddp.register_comm_hook(state(model), hook)
    return Way(name, model, Tensor.backward, ddp)


def _power(rank: int) -> Callable[[nn.Module], Any]:
    return lambda _: PowerSGDState(None, rank, start_powerSGD_iter=2)


def _ours(rank: int) -> Callable[[nn.Module], Any]:
    return lambda model: LowRankState(model, rank=rank, wire="float32")


def ways_by_ranks(make: Callable[[], nn.Module], places: int) -> Iterator[Way]:
    """All send at rank 4 but the last, LowRank as it comes."""
    yield by_hook(make, "DistributedDataParallel")
    yield by_hook(make, "powerSGD_hook", _power(4), powerSGD_hook)
    yield by_hook(make, "low_rank_hook", _ours(4), low_rank_hook)
    yield by_rows(make, "LowRank", rank=4)
    yield by_rows(make, "LowRank, gathering", rank=4, gather_up_to=places)
    yield by_rows(make, "LowRank, rank None", rank=None)
    yield by_rows(make, "LowRank, rank 8, int8", wire=None)


def ways_of_language(make: Callable[[], nn.Module], places: int) -> Iterator[Way]:
    """From exact gradients to few rows; of more than two ranks also what gathering would reach."""
    for rank in (4, 8):
        yield by_hook(make, f"powerSGD_hook, rank {rank}", _power(rank), powerSGD_hook)
    yield by_hook(make, "DistributedDataParallel")
    if places > 2:
        yield by_rows(make, "LowRank, rank 4, gathering", rank=4, gather_up_to=places)
    rows = ((4, "float32"), (8, "int8"), (16, "int4"), (16, "int8"))
    for rank, wire in rows:
        yield by_rows(make, f"LowRank, rank {rank}, {wire}", rank=rank, wire=wire)


def _library() -> Tensor:
    """The modules of Python's standard library, one after the other."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)


def _batches(kind: str, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    text = _library() if kind == "language" else torch.empty(0)
    while True:
        if kind == "language":
            starts = torch.randint(len(text) - CONTEXT - 1, (SEQUENCES, 1), generator=generator)
            drawn = text[starts + torch.arange(CONTEXT + 1)].long()
            yield drawn[:, :-1], drawn[:, 1:]
        else:
            yield torch.randn(16, 256, generator=generator), torch.randint(256, (16,), generator=generator)


def _rank(place: int, places: int, port: int, kind: str, steps: int, seed: int, dropout: float, answers: Any) -> None:
    torch.set_num_threads(1)

    def make() -> nn.Module:
        torch.manual_seed(seed)
        return gpt(dropout) if kind == "language" else deep()

    with _group(place, places, port):
        found = list((ways_of_language if kind == "language" else ways_by_ranks)(make, places))
        batches = _batches(kind, torch.Generator().manual_seed(1000 * seed + place))
        for number, (x, y) in zip(range(steps), batches, strict=False):
            for way in found:
                torch.manual_seed((1 + seed) * 10**6 + places * number + place)  # the same dropout in all ways
                way.step(x, y)
        answers.put([(way.name, way.losses, way.seconds, way.sent) for way in found])
        del found


def _loop(place: int, places: int, port: int, seed: int, options: dict[str, Any], answers: Any) -> None:
    """Train as docs/tutorials/low_rank.py does."""
    from sklearn.datasets import load_digits

    torch.set_num_threads(1)
    torch.manual_seed(10 * seed + place)
    images, labels = load_digits(return_X_y=True)
    everything, truth = torch.from_numpy(images).float() / 16, torch.from_numpy(labels)
    x, y = everything[place::places], truth[place::places]
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    with _group(place, places, port):
        sync = LowRank(model, **options)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(5):
            for batch in torch.randperm(len(x)).split(32):
                optimizer.zero_grad()
                sync.backward(F.cross_entropy(model(x[batch]), y[batch]), weight=len(batch))
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        with torch.no_grad():
            said = model(everything)
        right = (said.argmax(1) == truth).float().mean().item()
        answers.put((sum(part.bytes or 0 for part in sync.describe()), F.cross_entropy(said, truth).item(), right))
        del sync


def _run(work: Callable[..., None], places: int, *words: Any) -> list[Any]:
    """Return what all ranks answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    answers = get_context("spawn").Manager().Queue()
    spawn(work, (places, port, *words, answers), places)
    return [answers.get() for _ in range(places)]


def bench_settings(
    tables: list[str], ranks: list[int], seeds: int, steps: int, dropout: float, console: Console, places: int = 2
) -> None:
    """Print the tables.

    Args:
        tables: some of `TABLES`.
        ranks: numbers of ranks of the first table.
        seeds: of the other two.
        steps: of the language model.
        dropout: of the language model.
        console: to print to.
        places: ranks of the language model.
    """
    for name in tables:
        match name:
            case "bytes":
                console.print(_bytes(ranks))
            case "language":
                for table in _language(places, seeds, steps, dropout):  # a seed takes ten minutes
                    console.print(table)
            case _:
                console.print(_digits(seeds))


def _bytes(ranks: list[int]) -> Table:
    table = Table("way", *(f"{places} ranks: kB (busiest)" for places in ranks), title="six layers, 256 wide, rank 4")
    columns = [_run(_rank, places, "deep", WARM_UP + 10, 0, 0.0) for places in ranks]
    for place, (name, *_) in enumerate(columns[0][0]):
        sent = [[median(rank[place][3][WARM_UP:]) / 1e3 for rank in answers] for answers in columns]
        table.add_row(name, *(f"{fmean(of_ranks):.0f} ({max(of_ranks):.0f})" for of_ranks in sent))
    return table


def _language(places: int, seeds: int, steps: int, dropout: float) -> Iterator[Table]:
    """Yield the table after each seed."""
    runs = list[Any]()
    for seed in range(seeds):
        runs.append(_run(_rank, places, "language", steps, seed, dropout))
        yield _compared(runs, f"GPT-2 of bytes, {places} ranks, {steps} steps, dropout {dropout}")


def _compared(runs: list[Any], title: str) -> Table:
    table = Table("way", "kB", "loss", "over powerSGD_hook's time", title=title)
    for place, (name, *_) in enumerate(runs[0][0]):
        losses = [fmean(fmean(rank[place][1][-LAST:]) for rank in run) for run in runs]
        times = [
            median(own / other for own, other in zip(run[0][place][2][WARM_UP:], run[0][0][2][WARM_UP:], strict=True))
            for run in runs
        ]
        table.add_row(
            name,
            f"{fmean(median(run[0][place][3][WARM_UP:]) for run in runs) / 1e3:.1f}",
            ", ".join(f"{loss:.3f}" for loss in losses),
            ", ".join(f"{time:.2f}" for time in times),
        )
    return table


def _digits(seeds: int) -> Table:
    table = Table("options", "bytes", "loss", "accuracy", title="the loop of docs/tutorials/low_rank.py")
    for options in TUTORIAL:
        ends = [_run(_loop, 2, seed, options)[0] for seed in range(seeds)]
        words = ", ".join(f"{key}={value!r}" for key, value in options.items())
        numbers = (", ".join(f"{end[column]:.4f}" for end in ends) for column in (1, 2))
        table.add_row(words, f"{ends[0][0]:,}", *numbers)
    return table
