"""Capture in compiled graphs: no graph is broken, and what comes of them is what autograd has."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.compiled import listening
from rankdad.common.lowrank.layers import linear_layers
from tests.conftest import sampled

pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by dynamo itself


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Turned(nn.Module):
    """A layer whose weight is [in, out], as GPT-2's Conv1D."""

    low_rank_layout = "in-out"

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(5, 4) / 3), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], 4)


class Penalised(nn.Module):
    """The first weight is used outside its layer, too; the second layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.second(torch.tanh(self.second(self.first(x))))
        return hidden + self.first.weight.square().mean()


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3, bias=False))


def turned() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), Turned(), nn.GELU(), nn.Linear(4, 3))


def shared() -> nn.Module:
    """Two weights in the same memory: an operator cannot tell them apart."""
    first, second = nn.Linear(5, 5).double(), nn.Linear(5, 5).double()
    second.weight.data = first.weight.data
    return nn.Sequential(nn.Linear(6, 5), first, nn.Tanh(), second)


def grads(model: Any, x: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(x).square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


CAPTURED: list[tuple[Callable[[], nn.Module], set[str]]] = [
    (turned, {"0.weight", "2.weight", "4.weight"}),
    (plain, {"0.weight", "2.weight"}),
    (Penalised, {"second.weight"}),
    (shared, {"0.weight"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "captured", "listens"), sampled([(*case, own) for own in (False, True) for case in CAPTURED], every=2)
)
def test_one_graph_has_factors_of_all_layers(make: Callable[[], nn.Module], captured: set[str], listens: bool) -> None:
    torch.manual_seed(0)
    model, x = make().double(), torch.randn(4, 2, 6, dtype=torch.float64)
    expected = grads(model, x)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    layers = linear_layers(model)
    with FactorCapture(model, layers=layers, plain=listens) as capture:
        for passes in (1, 2):
            capture.begin()
            for _ in range(passes):
                capture.backward(compiled(x).square().sum())
            assert capture.factors().keys() == captured
            found = {name: factor.gradient() for name, factor in capture.factors().items()} | capture.dense()
            for name, gradient in expected.items():
                assert torch.allclose(found[name], passes * gradient, rtol=1e-12, atol=1e-13), name
        capture.begin()
        compiled(x).square().sum().backward()  # not by the capture: dense, and right
        assert not capture.factors()
        found = capture.dense()
    assert all(torch.allclose(found[name], gradient, rtol=1e-12, atol=1e-13) for name, gradient in expected.items())
    again = grads(compiled, x)  # the graph stays as it was compiled, and nobody listens
    assert all(torch.allclose(again[f"_orig_mod.{name}"], expected[name], atol=1e-13) for name in expected)


def test_what_a_graph_writes_over_after_the_operator_has_been_kept() -> None:
    torch.manual_seed(0)
    delta, activation, weight = torch.randn(4, 3), torch.randn(4, 5), torch.randn(3, 5)
    expected, kept = [delta.clone(), activation.clone()], list[Tensor]()

    def keep(*matrices: Tensor) -> bool:
        kept.extend(matrices)
        return True

    with listening({weight.data_ptr(): keep}):
        torch.ops.rankdad.weight_gradient(delta, activation, weight, False, torch.empty(0))
    delta.zero_()  # as inductor does, which plans the memory of a whole graph
    activation.zero_()
    assert all(map(torch.equal, kept, expected))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it starts inductor
def test_the_default_backend_has_the_same_gradients() -> None:
    torch.manual_seed(0)
    layers = (nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    model, x = nn.Sequential(*layers), torch.randn(32, 64)
    expected = grads(model, x)
    compiled = torch.compile(model, fullgraph=True)
    with FactorCapture(model) as capture:
        capture.backward(compiled(x).square().sum())
        found = {name: factor.gradient() for name, factor in capture.factors().items()} | capture.dense()
    assert {"0.weight", "2.weight", "4.weight"} == capture.factors().keys()
    for name, gradient in expected.items():
        assert torch.linalg.vector_norm(found[name] - gradient) <= 1e-5 * torch.linalg.vector_norm(gradient), name


def test_capture_breaks_no_graph() -> None:
    model = plain()
    with FactorCapture(model):
        assert torch._dynamo.explain(model)(torch.randn(4, 6)).graph_break_count == 0


def test_a_layer_that_is_called_beside_its_graph_too_is_dense() -> None:
    model, x = nn.Sequential(nn.Linear(6, 6)).double(), torch.randn(4, 6, dtype=torch.float64)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    expected = grads(nn.Sequential(model, model), x)
    with FactorCapture(model) as capture:
        capture.backward(model(compiled(x)).square().sum())
    found = {name: factor.gradient() for name, factor in capture.factors().items()} | capture.dense()
    assert all(torch.allclose(found[name], expected[f"0.{name}"], rtol=1e-12) for name in ("0.weight", "0.bias"))


def test_a_layer_whose_output_a_hook_has_replaced_before_keeps_that_and_is_dense() -> None:
    model, x = plain(), torch.randn(4, 6)
    with FactorCapture(model, plain=False) as capture:
        model.get_submodule("2").register_forward_hook(lambda layer, args, output: 2 * output, prepend=True)
        output = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
        capture.backward(output.sum())
    assert torch.equal(output, model(x))
    assert (set(capture.factors()), set(capture.dense())) == ({"0.weight"}, {"0.bias", "2.weight"})


def test_a_layer_with_another_forward_keeps_it_and_is_dense() -> None:
    model, x = plain(), torch.randn(4, 6)
    layer: Any = model.get_submodule("2")
    with FactorCapture(model, plain=False) as capture:
        layer.forward = lambda source: 2 * nn.functional.linear(source, layer.weight)
        output = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
        capture.backward(output.sum())
    assert torch.equal(output, model(x))
    assert (set(capture.factors()), set(capture.dense())) == ({"0.weight"}, {"0.bias", "2.weight"})
