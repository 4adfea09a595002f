"""Hooks that change gradients act as they do without a capture; what copies and saves a model meets no trace of it."""

from __future__ import annotations

import copy
import gc
import io
import resource
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.protocol.routing import choose_routes
from tests.common.lowrank.test_capture import Model, check, linear, total, x
from tests.conftest import run_spec

MASK = torch.tensor([[1.0, 0.0, 1.0, 0.0]] * 4)


def halved_mask(gradient: Tensor) -> Tensor:
    return gradient * MASK.to(gradient) / 2


def masks_own_gradient(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(MASK.to(parameter))


def doubles_half(gradient: Tensor) -> Tensor:
    return gradient * torch.tensor([2.0, 0.0, 1.0, -1.0]).to(gradient)


def layers(**options: Any) -> Any:
    return nn.Sequential(linear(**options), nn.Tanh(), linear())


def with_tensor_hook(name: str = "0.weight", hook: Callable[[Tensor], Tensor] = halved_mask) -> nn.Module:
    model = layers()
    model.get_parameter(name).register_hook(hook)
    return model  # type: ignore[no-any-return]


def with_post_accumulate_hook() -> nn.Module:
    model = layers()
    model.get_parameter("0.weight").register_post_accumulate_grad_hook(masks_own_gradient)
    return model  # type: ignore[no-any-return]


def with_hook_of_output(**options: Any) -> nn.Module:
    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(doubles_half)

    model = layers(**options)
    model[0].register_forward_hook(hook)
    return model  # type: ignore[no-any-return]


def times(factor: float) -> Callable[[nn.Module, Any, Any], Any]:
    """A hook of a module that multiplies the gradients of its inputs."""
    return lambda module, inputs, outputs: tuple(None if one is None else factor * one for one in inputs)


def with_full_backward_hooks() -> nn.Module:
    model = layers()
    model[2].register_full_backward_hook(times(3))
    model[2].register_full_backward_pre_hook(lambda module, outputs: (doubles_half(outputs[0]),))
    return model  # type: ignore[no-any-return]


def with_older_backward_hook() -> nn.Module:
    model = layers()
    model[0].register_backward_hook(times(5))
    return model  # type: ignore[no-any-return]


def in_reentrant_checkpoint() -> nn.Module:
    return Model(lambda m, x: checkpoint(m.a, x.requires_grad_(), use_reentrant=True), a=with_hook_of_output())


def hooked_in_forward() -> nn.Module:
    def run(model: Any, x: Tensor) -> Tensor:
        y: Tensor = model.a(x)
        y.register_hook(doubles_half)
        return y.tanh()

    return Model(run, a=linear(bias=False))


HOOKED: dict[str, tuple[Callable[[], nn.Module], str]] = {  # and the weights that have a factor all the same
    "tensor hook": (with_tensor_hook, "2.weight"),
    "post-accumulate hook": (with_post_accumulate_hook, "2.weight"),
    "bias": (partial(with_tensor_hook, "0.bias", doubles_half), "0.weight 2.weight"),
    "output": (with_hook_of_output, "2.weight"),
    "output, without bias": (partial(with_hook_of_output, bias=False), "2.weight"),
    "output, in forward": (hooked_in_forward, ""),
    "output, in a reentrant checkpoint": (in_reentrant_checkpoint, "a.2.weight"),
    "full backward hooks": (with_full_backward_hooks, "0.weight 2.weight"),
    "older backward hook": (with_older_backward_hook, "2.weight"),
}


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize("name", HOOKED)
@pytest.mark.parametrize("passes", ["c", "l", "clc", "lc"])
def test_hooks_act_as_in_plain_pytorch(name: str, passes: str) -> None:
    torch.manual_seed(0)
    make, weights = HOOKED[name]
    capture = check(make().double(), torch.randn(5, 4, dtype=torch.float64), passes=passes)
    assert capture.factors().keys() == set(weights.split())


def test_a_hook_that_comes_within_a_capture_acts_too() -> None:
    model, inputs = layers().double(), torch.randn(5, 4, dtype=torch.float64)
    weight = model.get_parameter("0.weight")
    first, second = total(model(inputs)), total(model(2 * inputs))
    expected = torch.autograd.grad(first, weight, retain_graph=True)[0]
    expected = expected + halved_mask(torch.autograd.grad(second, weight)[0])
    with FactorCapture(model) as capture:
        capture.backward(total(model(inputs)))
        loss = total(model(2 * inputs))
        weight.register_hook(halved_mask)
        capture.backward(loss)
    assert capture.factors().keys() == {"2.weight"}
    torch.testing.assert_close(capture.dense()["0.weight"], expected)


@pytest.mark.parametrize("method", ["rank-dad", "powersgd", "dad", "top-k", "dsgd"])
def test_hooked_parameters_travel_dense_in_a_run(method: str) -> None:
    own: dict[str, dict[str, Any]] = {"rank-dad": {"rank": 2}, "powersgd": {"rank": 2}, "top-k": {"density": 0.1}}
    spec = run_spec(method={"name": method, **own.get(method, {})})
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    before = {route.name: route for route in choose_routes(spec, model)[0]}
    model.get_parameter("2.weight").register_hook(lambda gradient: gradient * 0)
    model.get_parameter("4.bias").register_post_accumulate_grad_hook(lambda parameter: None)
    routes, warnings = choose_routes(spec, model)
    after = {route.name: route for route in routes}
    assert after["2.weight"].dense
    assert {"2.bias", "4.bias"} <= after.keys()
    assert before["2.weight"].dense == (method == "dsgd")
    assert any("2" in warning for warning in warnings)


def test_frozen_between_forward_and_backward_has_no_gradient() -> None:
    model = layers()
    for way in "cl":
        with FactorCapture(model) as capture:
            loss = total(model(*x(5, 4)))
            model[0].requires_grad_(False)
            capture.backward(loss) if way == "c" else loss.backward()
            capture.backward(total(model(*x(5, 4))))
        assert capture.factors().keys() == {"2.weight"}
        assert capture.dense().keys() == {"2.bias"}
        model.requires_grad_(True)


def test_two_losses_of_one_forward_pass_add_up() -> None:
    model, inputs = nn.Sequential(linear(), nn.ReLU(inplace=True), linear()).double(), torch.randn(5, 4).double()
    outputs = model(inputs)
    weights = dict(model.named_parameters())
    expected = torch.autograd.grad(outputs.sin().sum() + outputs.square().sum(), list(weights.values()))
    with FactorCapture(model) as capture:
        outputs = model(inputs)
        capture.backward(outputs.sin().sum(), retain_graph=True)
        capture.backward(outputs.square().sum())
    found = capture.dense() | {name: factor.gradient() for name, factor in capture.factors().items()}
    assert capture.factors()["0.weight"].rows == 10
    for name, value in zip(weights, expected, strict=True):
        torch.testing.assert_close(found[name], value)


def megabytes() -> float:
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def wide() -> nn.Sequential:
    return nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.ReLU())])


@pytest.mark.slow
def test_forward_passes_without_backward_and_steps_of_a_copy_keep_no_memory() -> None:
    model, inputs = wide(), torch.randn(64, 256)
    model(inputs).sum().backward()
    with FactorCapture(model, plain=False) as capture:
        copied = copy.deepcopy(model)
        for _ in range(3):
            copied(inputs).sum().backward()
            model(inputs)
        before = megabytes()
        for _ in range(60):  # of 0.4 MB each
            model(inputs)
            copied(inputs).sum().backward()
            model(inputs).sum().backward()
        assert megabytes() - before < 10
        capture.backward(model(inputs).sum())
    assert {factor.rows for factor in capture.factors().values()} == {64}


def test_a_model_is_copied_averaged_and_saved_while_a_pass_is_open() -> None:
    model, inputs = layers(), torch.randn(5, 4)
    with FactorCapture(model) as capture:
        loss = total(model(inputs))
        copies = [copy.deepcopy(model), AveragedModel(model).module, copy.copy(model)]
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        copies.append(torch.load(saved, weights_only=False))
        for each in (copies[0], copies[1], copies[3]):
            total(each(inputs)).backward()
        capture.backward(loss)
    assert {factor.rows for factor in capture.factors().values()} == {5}
    for each in copies:
        assert torch.equal(each(inputs), model(inputs))
    assert b"rankdad" not in saved.getvalue()  # who loads it needs none


def test_a_capture_that_is_let_go_of_takes_its_hooks_along() -> None:
    model = linear()
    capture = FactorCapture(model)
    capture.__enter__()
    loss = total(model(*x(5, 4)))
    assert model._forward_hooks
    del capture
    assert not model._forward_hooks
    loss.backward()
    assert model.weight.grad is not None
