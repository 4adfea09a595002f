"""A rank that trains by `LowRank` or the hook, so many steps at a time as its input asks for: see `benchmarks.against`.

It is run as a script, with a tree of rankdad on PYTHONPATH that may be an earlier one: of ours it imports no more than
what both have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from rankdad.distributed.hook import LowRankState, low_rank_hook
from rankdad.distributed.low_rank import LowRank

PATIENCE = timedelta(seconds=300)
TOKENS, LENGTH = 256, 64  # of GPT-2: bytes of text
Batch = Callable[[torch.Generator, int | None], tuple[Tensor, Tensor]]


class Block(nn.Module):
    """A layer of GPT-2: attention and a perceptron, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mixed, self.projected = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, [samples, length, width]."""
        parts = self.mixed(self.norms[0](x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projected(attended.transpose(1, 2).flatten(-2))
        output: Tensor = x + self.narrow(F.gelu(self.wide(self.norms[1](x))))
        return output


class Gpt2(nn.Module):
    """GPT-2, by default of two layers, 128 wide; its layers are Linear, and embedding and output share their weight."""

    def __init__(self, tokens: int = TOKENS, width: int = 128, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(LENGTH, width)
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of the next tokens, [samples · length, tokens]."""
        x = self.tokens(tokens) + self.places.weight
        return F.linear(self.norm(self.layers(x)), self.tokens.weight).flatten(0, 1)


def perceptron(*widths: int) -> nn.Module:
    """Return a multilayer perceptron with ReLU."""
    layers = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def numbers(inputs: int) -> Batch:
    """Return what draws samples of so many numbers, 64 without a count, of ten classes."""
    return lambda g, n: (torch.randn(n or 64, inputs, generator=g), torch.randint(10, (n or 64,), generator=g))


def text(generator: torch.Generator, count: int | None) -> tuple[Tensor, Tensor]:
    """Draw texts, sixteen without a count, and what follows each token."""
    drawn = torch.randint(TOKENS, (count or 16, LENGTH + 1), generator=generator)
    return drawn[:, :-1], drawn[:, 1:].flatten()


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Batch]] = {
    "784-1024-1024-10": (lambda: perceptron(784, 1024, 1024, 10), numbers(784)),
    "6×256": (lambda: perceptron(64, *[256] * 6, 10), numbers(64)),
    "GPT-2": (Gpt2, text),
}
WAYS = ("LowRank", "low_rank_hook")


def backward_of(way: str, model: nn.Module) -> Callable[[Tensor, Tensor], None]:
    """Return what leaves gradients of all ranks in a model."""
    if way == "LowRank":
        sync = LowRank(model, rank=4, wire="float32")
        return lambda x, y: sync.backward(F.cross_entropy(model(x), y), weight=len(y))
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(LowRankState(model, rank=4, wire="float32"), low_rank_hook)
    return lambda x, y: F.cross_entropy(ddp(x), y).backward()


def main(network: str, way: str, rank: int, port: int) -> None:
    """Take steps; print after each turn the milliseconds of one."""
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=PATIENCE)
    torch.manual_seed(0)
    make, batch = NETWORKS[network]
    model, generator = make(), torch.Generator().manual_seed(rank)
    backward = backward_of(way, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for line in sys.stdin:
        batches = [batch(generator, None) for _ in range(int(line))]
        dist.barrier()
        began = perf_counter()
        for x, y in batches:
            optimizer.zero_grad()
            backward(x, y)
            optimizer.step()
        print(1e3 * (perf_counter() - began) / len(batches), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
