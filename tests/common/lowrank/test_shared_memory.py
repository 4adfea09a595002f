"""Factors are views of what autograd computes: what changes it in place changes no factor, or is an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankdad.common.lowrank.capture import FactorCapture


class Net(nn.Module):
    """A perceptron whose second layer's output is added to a parameter, and to `beside`."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.place = nn.Linear(5, 4), nn.Linear(4, 4), nn.Parameter(torch.zeros(6, 4))
        self.rest = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))

    def forward(self, x: Tensor, beside: Tensor | float = 0.0) -> Tensor:
        output: Tensor = self.b(torch.tanh(self.a(x))) + self.place + beside
        return output


Passes = Callable[[Net, Tensor, Callable[[Tensor], None]], None]


def scaled(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.1)


def moved(leaf: Tensor) -> None:
    leaf.data.add_(1.0)


def refilled(model: Net, x: Tensor, backward: Callable[[Tensor], None]) -> None:
    buffer = torch.empty_like(x)
    for times in (1, 2):
        backward(model(buffer.copy_(times * x)).square().sum())


def latent(model: Net, x: Tensor, backward: Callable[[Tensor], None]) -> None:
    own = x.clone().requires_grad_()
    own.register_post_accumulate_grad_hook(moved)
    backward(model(own.view(6, 5)).square().sum())


def added(model: Net, x: Tensor, backward: Callable[[Tensor], None]) -> None:
    beside = torch.zeros(6, 4, requires_grad=True)
    for _ in range(2):
        backward(model(x, beside).square().sum())


def state(model: Net, x: Tensor, backward: Callable[[Tensor], None]) -> None:
    kept = x[:, :4] * model.place.detach().cos()
    for _ in range(2):
        output = model.b(torch.tanh(kept + model.place))
        backward(output.square().sum())
        kept = output.detach().zero_()
    hidden = torch.tanh(model.a(x))
    backward(model.b(hidden).square().sum())
    hidden.detach().zero_()


def zeroed(model: Net, x: Tensor, backward: Callable[[Tensor], None]) -> None:
    beside = torch.zeros(6, 4, requires_grad=True)
    beside.register_post_accumulate_grad_hook(scaled)
    backward(model(x, beside).square().sum())


def clamped(model: Net, x: Tensor, backward: Callable[[Tensor], None]) -> None:
    beside = torch.zeros(6, 4, requires_grad=True).clone()
    beside.register_hook(lambda delta: delta.clamp_(-0.01, 0.01))
    backward(model(x, beside).square().sum())


def twice_compiled(model: Net, x: Tensor, backward: Callable[[Tensor], None]) -> None:
    def loss(rest: nn.Module, x: Tensor) -> Tensor:
        labels = torch.arange(6) % 3
        return F.cross_entropy(rest(x), labels) + F.cross_entropy(rest(x), labels)

    backward(torch.compile(loss, backend="aot_eager")(model.rest, x))


def grad_in_a_hook(model: Net, x: Tensor, backward: Callable[[Tensor], None]) -> None:
    compiled = torch.compile(model.rest, backend="aot_eager")
    output = compiled(x)

    def probe(_: Tensor) -> None:
        with torch.enable_grad():
            other = torch.ones(2, 5, requires_grad=True)
            torch.autograd.grad(compiled(other).sum(), other)

    output.register_hook(probe)
    backward(output.square().sum())


def found(passes: Passes, *, plain: bool) -> dict[str, Tensor]:
    """Return the gradients of a model after some passes: by autograd alone, or by a capture."""
    torch.manual_seed(0)
    torch._dynamo.reset()  # it takes no notice of hooks added since
    model, x = Net(), torch.randn(6, 5)
    model.place.register_post_accumulate_grad_hook(scaled)
    if plain:
        passes(model, x, lambda loss: loss.backward())
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    with FactorCapture(model) as capture:

        def backward(loss: Tensor) -> None:
            capture.backward(loss)
            capture.own()

        passes(model, x, backward)
        return {name: factor.gradient() for name, factor in capture.factors().items()} | capture.dense()


CASES = (refilled, latent, state, added, zeroed, twice_compiled, grad_in_a_hook)


@pytest.mark.filterwarnings("ignore")  # of torch's own, while it compiles
@pytest.mark.parametrize("passes", CASES)
def test_what_changes_memory_changes_no_factor(passes: Passes) -> None:
    expected, own = found(passes, plain=True), found(passes, plain=False)
    assert own.keys() == expected.keys()
    for name, gradient in expected.items():
        assert F.cosine_similarity(own[name].flatten(), gradient.flatten(), dim=0) > 1 - 1e-6, name
        torch.testing.assert_close(own[name], gradient, rtol=1e-5, atol=1e-5)


def test_a_gradient_that_a_hook_changes_in_place_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"b\.weight was changed in place"):
        found(clamped, plain=False)
