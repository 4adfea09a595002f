"""What capture does not do yet: each test fails until it does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.layers import linear_layers


class Transposed(nn.Module):
    """A linear layer whose weight is [in, out], as GPT-2's Conv1D."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 4) / 3), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], 4)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="capture knows nn.Linear alone")
def test_a_layer_with_a_transposed_weight_has_a_factor() -> None:
    model = nn.Sequential(Transposed(), nn.Tanh(), nn.Linear(4, 3))
    layers: set[str] = set(linear_layers(model))
    assert layers == {"0.weight", "2.weight"}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # by dynamo itself, where it breaks the graph
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="a forward hook breaks the graph at every layer")
def test_capture_breaks_no_compiled_graph() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    inputs = torch.randn(4, 6)
    torch._dynamo.reset()
    with FactorCapture(model):
        breaks = torch._dynamo.explain(model)(inputs).graph_break_count
    torch._dynamo.reset()
    assert breaks == 0
