"""Which layers have factors, and in which layout their weights are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.layers import layout_of, linear_layers


@pytest.mark.parametrize(
    ("layout", "said"), [("in-out", ""), ("out-in", "Bare.low_rank_layout out-in"), ("sideways", "'sideways'")]
)
def test_a_wrong_layout_is_refused(layout: str, said: str) -> None:
    """The gradient of a square weight was wrong without a word, and a layer without a bias failed."""

    class Bare(nn.Module):
        low_rank_layout = layout

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    model, x = nn.Sequential(Bare()), torch.randn(3, 64, generator=torch.Generator().manual_seed(1))

    def gradient() -> Tensor:
        layers = linear_layers(model)
        with FactorCapture(model, layers=layers) as capture:
            capture.backward(model(x).square().sum())
        return capture.factors()["0.weight"].gradient()

    if said:
        with pytest.raises(ValueError, match=said):
            gradient()
    else:
        expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))[0]
        torch.testing.assert_close(gradient(), expected)


def test_layers_are_known_by_their_class() -> None:
    class Conv1D(nn.Linear):  # as transformers has it, of which nothing is imported
        pass

    class Child(nn.Linear):
        pass

    assert layout_of(Conv1D(2, 3)) is None  # a subclass says it itself
    Conv1D.__module__, Conv1D.__qualname__ = "transformers.pytorch_utils", "Conv1D"
    assert [layout_of(one) for one in (Conv1D(2, 3), nn.Linear(2, 3), Child(2, 3))] == ["in-out", "out-in", None]
