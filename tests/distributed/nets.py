"""Models, batches and comparisons that the tests of ranks share."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

Batch = tuple[Tensor, Tensor]


def perceptron(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(60, 80), nn.ReLU(), nn.LayerNorm(80), nn.Linear(80, 70), nn.Tanh(), nn.Linear(70, 3))
    return nn.Sequential(*layers).to(dtype)


def batches_of(sizes: Sequence[int], step: int, dtype: torch.dtype = torch.float32) -> list[Batch]:
    """Return every rank's batch; each rank draws the same."""
    generator = torch.Generator().manual_seed(step)
    return [
        (
            torch.randn(size, 60, generator=generator, dtype=torch.float64).to(dtype),
            torch.randint(3, (size,), generator=generator),
        )
        for size in sizes
    ]


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def pooled(model: nn.Module, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Return autograd's gradients of the pooled batch; `.grad` stays as it is."""
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(loss_of(model, (x, y)), list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


def grads(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest error of a parameter's gradient, over its norm."""
    assert found.keys() == expected.keys()
    return max(float((found[name] - value).norm() / value.norm()) for name, value in expected.items())


def digest(values: dict[str, Tensor]) -> str:
    return hashlib.sha256(b"".join(value.contiguous().numpy().tobytes() for value in values.values())).hexdigest()


def place() -> int:
    return int(dist.get_rank())
