"""Transformers for texts, built from linear layers whose factors can be captured."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankdad.common.errors import SpecError
from rankdad.common.models.vit import SPREAD, Block
from rankdad.common.spec.model import Transformer
from rankdad.common.spec.text import PADDING

LONGEST = 10_000.0  # in tokens, of the waves of rotary positions


class TextTransformer(nn.Module):
    """Tokens with positions, blocks, and a linear layer.

    An encoder attends to all tokens of a text, and its last layer sees their mean. A decoder attends to earlier tokens
    only, and has outputs for each. Padding changes no output. Random weights are uniform, because normal ones may
    differ in the last bit between processors.

    Args:
        spec: of the network.
        tokens: number of distinct tokens.
        length: largest number of tokens of a text.
        outputs: width of the last layer; None for a decoder, whose outputs are logits of the next token.
    """

    def __init__(self, spec: Transformer, tokens: int, length: int, outputs: int | None) -> None:
        super().__init__()
        self.causal = outputs is None
        self.embed = nn.Embedding(tokens, spec.width)
        nn.init.uniform_(self.embed.weight, -SPREAD, SPREAD)
        learned = spec.positions == "learned"
        self.positions = nn.Parameter(torch.empty(length, spec.width).uniform_(-SPREAD, SPREAD)) if learned else None
        self.turned = 0 if learned else spec.width // spec.heads
        self.dropout = nn.Dropout(spec.dropout)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.depth))
        self.norm = nn.LayerNorm(spec.width)
        tied = self.causal and spec.tied
        self.head = None if tied else nn.Linear(spec.width, tokens if outputs is None else outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs [n, outputs] of tokens [n, length], or a decoder's, [n, length, tokens]."""
        present = (x != PADDING) | (
            torch.arange(x.shape[1], device=x.device) == 0
        )  # so that a mean is one of something
        if x.is_cpu and not torch.compiler.is_compiling():  # padding that all texts share costs nothing
            longest = int(present.any(0).nonzero().max()) + 1
            x, present = x[:, :longest], present[:, :longest]
        hidden = self.embed(x)
        if self.positions is not None:
            hidden = hidden + self.positions[: x.shape[1]]
        hidden, turn = self.dropout(hidden), turns(x.shape[1], self.turned, hidden) if self.turned else None
        mask = None if self.causal else present[:, None, None, :]
        for block in self.blocks:
            hidden = block(hidden, mask, turn, causal=self.causal)
        if self.causal:
            hidden = self.norm(hidden)
            logits: Tensor = F.linear(hidden, self.embed.weight) if self.head is None else self.head(hidden)
            return logits
        weights = present.to(hidden.dtype)[:, :, None]
        pooled = (hidden * weights).sum(1) / weights.sum(1)
        assert self.head is not None
        outputs: Tensor = self.head(self.norm(pooled))
        return outputs


def turns(length: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of rotary positions, [length, width / 2], in the dtype of `like`.

    Source: Su 2021, arXiv 2104.09864.
    """
    rates = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(LONGEST) / width))
    angles = torch.outer(torch.arange(length, dtype=torch.float64), rates)
    return angles.cos().to(like), angles.sin().to(like)


def transformer(spec: Transformer, tokens: int | None, length: int, outputs: int | None) -> nn.Module:
    """Build a transformer; see `TextTransformer`.

    Raises:
        SpecError: inputs are not tokens.
    """
    if tokens is None:
        raise SpecError(
            "model.name",
            "transformer reads tokens, expected the data reader text, or npz with data.tokens",
            code="shape-does-not-fit",
        )
    return TextTransformer(spec, tokens, length, outputs)
