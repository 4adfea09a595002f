"""Networks that a specification names as a factory."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def masked() -> nn.Module:
    model = normalised()
    model.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
    return model


class Now(nn.Module):
    """A layer that is used by its module, then outside it, then without its bias; another that begins as zeros."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.calls = kind, 0
        self.first, self.middle, self.last = nn.Linear(6, 48), nn.Linear(48, 48), nn.Linear(48, 3)
        if kind == "zeros":
            nn.init.zeros_(self.last.weight)
        if kind == "channels last":
            self.conv = nn.Conv2d(2, 4, 2)
            self.conv.weight.data = self.conv.weight.data.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        if self.kind == "channels last":
            x = torch.cat([x, self.conv(x.reshape(-1, 2, 3, 1).expand(-1, 2, 3, 2)).flatten(1)], dim=1)[:, :6]
        x = torch.relu(self.first(x))
        outside = {"outside": self.calls > 2, "zeros": True}.get(self.kind, False)
        x = x + nn.functional.linear(x, self.middle.weight) if outside else x + self.middle(x)
        if self.kind == "zeros":
            x = x + self.middle(x)
        logits: Tensor = self.last(torch.relu(x))
        return logits


def now(kind: str) -> nn.Module:
    return Now(kind)


class Root(nn.Module):
    """A finite loss whose gradient is not: the slope of a square root at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 3), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x) + self.scale.abs().sqrt()
        return logits


def root() -> nn.Module:
    return Root()
