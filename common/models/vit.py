"""A vision transformer, built from linear layers whose factors can be captured."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankdad.common.errors import SpecError
from rankdad.common.models.channels import channels_first
from rankdad.common.spec.model import Transformer, Vit

SPREAD = 0.02 * 3**0.5  # of a uniform distribution with a standard deviation of 0.02


class Patches(nn.Module):
    """Cut images [n, channels, height, width] into patches [n, patches, channels · size²]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Return the patches, row by row."""
        n, channels, height, width = x.shape
        x = x.reshape(n, channels, height // self.size, self.size, width // self.size, self.size)
        return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


class Attention(nn.Module):
    """Self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head = heads, width // heads
        self.project = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, turn: tuple[Tensor, Tensor] | None = None, *, causal: bool = False
    ) -> Tensor:
        """Return tokens [n, tokens, width] for tokens of the same shape.

        Args:
            x: the tokens.
            mask: of those to attend to, bool [n, 1, 1, tokens]; None for all.
            turn: cosines and sines [tokens, width / heads / 2] of rotary positions.
            causal: whether to attend to earlier tokens only.
        """
        n, tokens, _ = x.shape
        parts = self.project(x).reshape(n, tokens, 3, self.heads, self.head).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        if turn is not None:
            query, key = _turned(query, *turn), _turned(key, *turn)
        attended = F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)
        merged: Tensor = self.merge(attended.transpose(1, 2).flatten(2))
        return merged


def _turned(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)


class Block(nn.Module):
    """Attention and a hidden layer, each with normalisation before and a residual connection."""

    def __init__(self, spec: Vit | Transformer) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(spec.width), nn.LayerNorm(spec.width)
        self.attention = Attention(spec.width, spec.heads)
        self.widen = nn.Linear(spec.width, spec.expansion * spec.width)
        self.narrow = nn.Linear(spec.expansion * spec.width, spec.width)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, turn: tuple[Tensor, Tensor] | None = None, *, causal: bool = False
    ) -> Tensor:
        """Return tokens [n, tokens, width] for tokens of the same shape; see `Attention.forward`."""
        x = x + self.dropout(self.attention(self.norm1(x), mask, turn, causal=causal))
        hidden: Tensor = self.dropout(self.narrow(F.gelu(self.widen(self.norm2(x)))))
        return x + hidden


class VisionTransformer(nn.Module):
    """Patches with positions, blocks, and a linear layer on the class token or on the mean of all patches.

    Random weights are uniform, because normal ones may differ in the last bit between processors.
    """

    def __init__(self, spec: Vit, layout: nn.Module, channels: int, patches: int, outputs: int) -> None:
        super().__init__()
        self.patches = nn.Sequential(layout, Patches(spec.patch))
        self.embed = nn.Linear(channels * spec.patch**2, spec.width)
        token = spec.pooling == "class"
        self.token = nn.Parameter(torch.empty(spec.width).uniform_(-SPREAD, SPREAD)) if token else None
        self.positions = nn.Parameter(torch.empty(patches + token, spec.width).uniform_(-SPREAD, SPREAD))
        self.dropout = nn.Dropout(spec.dropout)
        self.blocks = nn.Sequential(*(Block(spec) for _ in range(spec.depth)))
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs [n, outputs] of images."""
        tokens = self.embed(self.patches(x))
        if self.token is not None:
            tokens = torch.cat([self.token.to(tokens).expand(tokens.shape[0], 1, -1), tokens], dim=1)
        tokens = self.blocks(self.dropout(tokens + self.positions))
        pooled = tokens.mean(dim=1) if self.token is None else tokens[:, 0]
        logits: Tensor = self.head(self.norm(pooled))
        return logits


def vit(spec: Vit, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build a vision transformer.

    Raises:
        SpecError: inputs are not images, or do not consist of whole patches.
    """
    layout, (channels, height, width) = channels_first(spec, shape)
    if height % spec.patch or width % spec.patch:
        raise SpecError(
            "model.patch",
            f"got {spec.patch}, expected a divisor of both {height} and {width} (data.shape)",
            code="patch-does-not-divide",
        )
    return VisionTransformer(spec, layout, channels, height * width // spec.patch**2, outputs)
