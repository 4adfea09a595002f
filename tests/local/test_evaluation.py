"""Outputs of a network for an evaluation's samples."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankdad.local.evaluation import outputs_of


class Flattens(nn.Module):
    """A network that takes no empty batch, as MONAI's ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return two outputs of each sample."""
        flat: torch.Tensor = self.layer(x.view(x.shape[0], -1))
        return flat


@pytest.mark.parametrize("samples", [0, 3])
def test_a_set_without_samples_is_not_given_to_the_network(samples: int) -> None:
    assert outputs_of(Flattens(), torch.zeros(samples, 2, 2), 2).shape == (samples, 2)
