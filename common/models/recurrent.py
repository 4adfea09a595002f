"""Recurrent networks for series, built from linear layers whose factors can be captured.

Inputs are multiplied for all frames at once, states frame by frame. Gates are in torch's order, so that weights of its
layers fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from rankdad.common.errors import SpecError
from rankdad.common.spec.model import Gru, Lstm

MAX_STEPS = 10_000  # sequential steps: torch frees a longer graph recursively and would overflow the stack


class Layer(nn.Module):
    """One recurrent layer: the linear maps of input and state to the gates."""

    gates: int

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(inputs, self.gates * hidden)
        self.state = nn.Linear(hidden, self.gates * hidden)


class GruLayer(Layer):
    """Gated recurrent units."""

    gates = 3

    def forward(self, series: Tensor, valid: Sequence[Tensor] | None) -> list[Tensor]:
        """Return the state after every frame, [n, hidden] each.

        Args:
            series: [time, n, inputs].
            valid: for every frame, whether it is no padding [n, 1]; None without padding.
        """
        hidden = self.state.in_features
        gated, proposed = (part.unbind() for part in self.input(series).split([2 * hidden, hidden], dim=-1))
        state, states = gated[0].new_zeros(gated[0].shape[0], hidden), list[Tensor]()
        for step in range(len(gated)):
            from_state, from_reset = self.state(state).split([2 * hidden, hidden], dim=-1)
            reset, keep = (gated[step] + from_state).sigmoid().chunk(2, dim=-1)
            new = torch.addcmul(proposed[step], reset, from_reset).tanh().lerp(state, keep)
            state = new if valid is None else torch.where(valid[step], new, state)
            states.append(state)
        return states


class LstmLayer(Layer):
    """Long short-term memory."""

    gates = 4

    def forward(self, series: Tensor, valid: Sequence[Tensor] | None) -> list[Tensor]:
        """Return the state after every frame, as `GruLayer.forward`."""
        projected = self.input(series).unbind()
        state = projected[0].new_zeros(projected[0].shape[0], self.state.in_features)
        cell, states = state, list[Tensor]()
        for step, from_input in enumerate(projected):
            write, forget, value, read = (from_input + self.state(state)).chunk(4, dim=-1)
            new_cell = torch.addcmul(forget.sigmoid() * cell, write.sigmoid(), value.tanh())
            new = read.sigmoid() * new_cell.tanh()
            cell = new_cell if valid is None else torch.where(valid[step], new_cell, cell)
            state = new if valid is None else torch.where(valid[step], new, state)
            states.append(state)
        return states


class RecurrentNetwork(nn.Module):
    """Stacked layers, and a linear one on the last state or on the mean of all states."""

    def __init__(self, spec: Gru | Lstm, features: int, outputs: int) -> None:
        super().__init__()
        kind = GruLayer if isinstance(spec, Gru) else LstmLayer
        self.layers = nn.ModuleList(kind(*widths) for widths in pairwise((features, *spec.hidden)))
        self.dropout = nn.Dropout(spec.dropout)
        self.head = nn.Linear(spec.hidden[-1], outputs)
        self.mean = spec.pooling == "mean"

    def forward(self, series: Tensor) -> Tensor:
        """Return outputs [n, outputs] for series [n, time, features], padded with frames of NaN."""
        series = series.transpose(0, 1)
        present = ~series.isnan().all(dim=-1, keepdim=True)
        padded = not present.all()
        if padded:
            numbers = torch.arange(1, len(series) + 1, device=series.device)[:, None, None]
            frames = max(1, int((present * numbers).amax()))  # length of the longest series
            present = present[:frames]
            series = series[:frames].masked_fill(~present, 0)  # 0 times NaN would be NaN in gradients
        valid = present.unbind() if padded else None
        states = list[Tensor]()
        for layer in self.layers:
            states = layer(self.dropout(torch.stack(states)) if states else series, valid)
        if not self.mean:
            pooled = states[-1]
        elif padded:
            pooled = torch.stack(states).masked_fill(~present, 0).sum(dim=0) / present.sum(dim=0).clamp_min(1)
        else:
            pooled = torch.stack(states).mean(dim=0)
        logits: Tensor = self.head(self.dropout(pooled))
        return logits


def recurrent(spec: Gru | Lstm, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build a recurrent network.

    Raises:
        SpecError: inputs are not series, or too long.
    """
    if len(shape) != 2:
        raise SpecError(
            "model.name",
            f"{spec.name} expected series [time, features], got data.shape {list(shape)}",
            code="shape-does-not-fit",
        )
    if shape[0] * len(spec.hidden) > MAX_STEPS:
        raise SpecError(
            "data.shape",
            f"got {shape[0]} frames for {len(spec.hidden)} layers of {spec.name}, expected a product of at most "
            f"{MAX_STEPS:,}: use fewer frames per second, or shorter pieces",
            code="series-too-long",
        )
    return RecurrentNetwork(spec, shape[1], outputs)
