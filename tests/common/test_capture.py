"""Factors against autograd: captured products are the gradients, and hooks leave no trace."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from common.capture import FactorCapture

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13}


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_captured(capture: FactorCapture, expected: dict[str, Tensor]) -> None:
    found = {name: factor.gradient() for name, factor in capture.factors().items()} | capture.dense()
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        error = torch.linalg.vector_norm(found[name] - gradient)
        assert error <= TOLERANCE[gradient.dtype] * torch.linalg.vector_norm(gradient), name


class Twice(nn.Module):
    """One layer used twice, one by keyword, a functional use, an in-place activation, and a part without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared = nn.Linear(5, 7), nn.Linear(7, 7, bias=False)
        self.norm, self.last = nn.LayerNorm(7), nn.Linear(7, 3)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(input=x), inplace=True)
        x = self.shared(torch.tanh(self.shared(x)))
        with torch.no_grad():
            self.last(x)
        logits: Tensor = self.last(self.norm(self.frozen(x)))
        return logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("partial", [True, False])
@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 9), positions=st.integers(1, 4), seed=st.integers(0, 99))
def test_product_is_autograds_gradient(dtype: torch.dtype, partial: bool, rows: int, positions: int, seed: int) -> None:
    torch.manual_seed(seed)
    model = Twice().to(dtype)
    x = torch.randn(rows, positions, 5, dtype=dtype)
    model(x).square().sum().backward()
    expected = gradients(model)
    with FactorCapture(model) as capture:
        loss = model(x).square().sum()
        if partial:
            capture.backward(loss)
            assert model.first.weight.grad is None  # not formed: that is what the partial pass saves
        else:
            loss.backward()
    assert_captured(capture, expected)


def test_passes_in_one_context_add_up() -> None:
    model = Twice()
    x = torch.randn(6, 5)
    for half in x.split(3):
        model(half).sum().backward()
    expected = gradients(model)
    with FactorCapture(model) as capture:
        for half in x.split(3):
            capture.backward(model(half).sum())
    assert_captured(capture, expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_counts_once(reentrant: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    x = torch.randn(3, 4, requires_grad=True)
    model(x).sum().backward()
    expected = gradients(model)
    with FactorCapture(model) as capture:
        loss = checkpoint(model, x, use_reentrant=reentrant).sum()
        capture.backward(loss)
    assert_captured(capture, expected)


def test_tied_weights_and_subclasses_travel_dense() -> None:
    class Scaled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    tied = nn.Linear(4, 4)
    model = nn.Sequential(tied, nn.Linear(4, 4, bias=False), Scaled(4, 4))
    model[1].weight = tied.weight
    x = torch.randn(3, 4)
    model(x).sum().backward()
    expected = gradients(model)
    with FactorCapture(model) as capture:
        model(x).sum().backward()
    assert capture.factors() == {}
    assert_captured(capture, expected)


def test_an_input_changed_in_place_is_an_error() -> None:
    layer = nn.Linear(4, 4)
    x = torch.randn(3, 4)
    with FactorCapture(layer) as capture:
        loss = layer(x).sum()
        x.zero_()
        with pytest.raises(RuntimeError, match="changed in place"):
            capture.backward(loss)


def test_hooks_leave_no_trace() -> None:
    model = Twice()
    with FactorCapture(model) as capture:
        capture.backward(model(torch.randn(3, 5)).sum())
    rows = {name: factor.rows for name, factor in capture.factors().items()}
    model(torch.randn(3, 5)).sum().backward()
    assert {name: factor.rows for name, factor in capture.factors().items()} == rows
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())
