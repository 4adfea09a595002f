"""The paper's three networks, and the shapes in which they read images."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FeedForward(nn.Sequential):
    """784-1024-1024-10, for MNIST."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


class Recurrent(nn.Module):
    """Two recurrent layers of gated units, 512 and 256 wide; the mean of the second's states is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.GRU(12, 512, batch_first=True)
        self.second = nn.GRU(512, 256, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [samples, 10] of sequences [samples, steps, 12]."""
        states: Tensor = self.second(self.first(x)[0])[0]
        logits: Tensor = self.head(states.mean(dim=1))
        return logits


class VisionTransformer(nn.Module):
    """Width 128, depth 12, 50 tokens: 49 patches, and one whose last state is classified."""

    def __init__(self, width: int = 128, depth: int = 12, heads: int = 4, patches: int = 49) -> None:
        super().__init__()
        self.embed = nn.Linear(48, width)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, patches + 1, width))
        self.layers = nn.Sequential(*(_layer(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [samples, 10] of patches [samples, 49, 48]."""
        tokens = torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], dim=1) + self.places
        logits: Tensor = self.head(self.norm(self.layers(tokens)[:, 0]))
        return logits


def _layer(width: int, heads: int) -> nn.Module:
    return nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )


def pixels(images: Tensor) -> Tensor:
    """Return bytes [samples, 28, 28] as [samples, 784] between 0 and 1."""
    return images.flatten(1).float() / 255


def sequences(images: Tensor) -> Tensor:
    """Return bytes [samples, 32, 32, 3] as sequences [samples, 256, 12] of 2 by 2 patches."""
    return _patches(images, 2)


def patches(images: Tensor) -> Tensor:
    """Return the middle of bytes [samples, 32, 32, 3] as [samples, 49, 48]: 4 by 4 patches of 28 by 28 pixels."""
    return _patches(images[:, 2:30, 2:30], 4)


def _patches(images: Tensor, size: int) -> Tensor:
    """Cut images into squares, from the left and from the top, and standardise them roughly."""
    cut = images.unfold(1, size, size).unfold(2, size, size)  # [samples, rows, columns, colours, size, size]
    return (cut.flatten(1, 2).flatten(2).float() / 255 - 0.5) / 0.25
