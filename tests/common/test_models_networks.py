"""Every network, for every task: its shapes, its factors, its presets, and what is said where it does not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankdad.common.lowrank.routes import scatter
from rankdad.common.methods import MethodState
from rankdad.common.models import build_model
from rankdad.common.protocol.plan import make_plan
from rankdad.common.protocol.routing import choose_routes
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from tests.common.faults import fault
from tests.common.lowrank.steps import BATCHES, assert_equal, exchange, pooled_gradients, site_gradients
from tests.common.lowrank.test_capture import check
from tests.conftest import run_spec, sampled

TASKS: dict[str, tuple[dict[str, Any], int]] = {
    "classification": ({"name": "classification", "classes": 3}, 3),
    "multi-label": ({"name": "multi-label", "labels": 4}, 4),
    "regression": ({"name": "regression"}, 1),
}
NETWORKS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "linear": ({"name": "linear"}, (6,)),
    "mlp": ({"name": "mlp", "hidden": [8]}, (2, 3)),
    "gru": ({"name": "gru", "hidden": [6, 5]}, (7, 4)),
    "gru, mean": ({"name": "gru", "hidden": [6], "pooling": "mean", "dropout": 0.1}, (7, 4)),
    "lstm": ({"name": "lstm", "hidden": [6, 5]}, (7, 4)),
    "lstm, mean": ({"name": "lstm", "hidden": [6], "pooling": "mean"}, (7, 4)),
    "vit": ({"name": "vit", "width": 8, "depth": 2, "heads": 2, "patch": 4}, (3, 8, 12)),
    "vit, mean": ({"name": "vit", "width": 8, "depth": 1, "heads": 1, "patch": 2, "pooling": "mean"}, (4, 6)),
    "cnn": ({"name": "cnn", "filters": [8, 12]}, (3, 8, 10)),
    "cnn, last": ({"name": "cnn", "filters": [8], "convolutions": 2, "dropout": 0.1}, (8, 10, 3)),
    "cnn3d": ({"name": "cnn3d", "filters": [8, 4], "kernel": 1}, (6, 5, 4)),
    "cnn3d, channels": ({"name": "cnn3d", "filters": [4]}, (2, 6, 5, 6)),
}
every_network = pytest.mark.parametrize("network", NETWORKS)


def spec_of(network: str, task: str = "classification", dtype: str = "float64", **changes: Any) -> RunSpec:
    model, shape = NETWORKS[network]
    changes = {"method": {"name": "rank-dad", "rank": 1, "wire": dtype}} | changes
    return run_spec(model=model, data={"shape": list(shape)}, task=TASKS[task][0], training={"dtype": dtype}, **changes)


def inputs_of(spec: RunSpec, count: int) -> Tensor:
    torch.manual_seed(count)
    if spec.data.tokens is not None:
        return torch.randint(spec.data.tokens, (count, *spec.data.shape))
    x = torch.randn(count, *spec.data.shape, dtype=getattr(torch, spec.training.dtype))
    if spec.model.name in ("gru", "lstm"):
        x[::2, -2:] = torch.nan
        x[1, :] = torch.nan
    return x


@pytest.mark.parametrize(("network", "task"), sampled(((n, t) for t in TASKS for n in NETWORKS), every=5))
def test_outputs_are_as_wide_as_the_task(network: str, task: str) -> None:
    spec = spec_of(network, task, "float32")
    model = build_model(spec)
    assert model(inputs_of(spec, 5)).shape == (5, TASKS[task][1])
    routes, warnings = choose_routes(spec, model)
    trained = {name for name, _ in model.named_parameters()}
    assert {route.name for route in routes} | {route.bias for route in routes if route.bias} == trained
    assert not [warning for warning in warnings if "factor" in warning]


@every_network
def test_gradients_are_autograds_and_linear_layers_have_factors(network: str) -> None:
    spec = spec_of(network)
    model = build_model(spec).eval()  # dropout would draw other values in each pass
    capture = check(model, inputs_of(spec, 5), passes="clc")
    linear = {f"{name}.weight" for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    assert capture.factors().keys() == linear
    found = capture.dense() | {name: factor.gradient() for name, factor in capture.factors().items()}
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(gradient.abs().max() > 0 and gradient.isfinite().all() for gradient in found.values())


@every_network
def test_half_precision_computes_nearly_the_same(network: str) -> None:
    spec = spec_of(network, dtype="float32")
    model, x = build_model(spec).eval(), inputs_of(spec, 5)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(x)
    torch.testing.assert_close(outputs.float(), model(x), rtol=0.05, atol=0.05)
    outputs.float().sin().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@every_network
def test_sites_of_unequal_size_train_as_one(network: str) -> None:
    spec = spec_of(network, method={"name": "dad", "wire": "float64"})
    assert_update_is_of_the_pooled_batch(spec)


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_recurrent_layers_train_by_captured_factors(name: str) -> None:
    """Two frames of 16 samples: no rank above 32 is needed."""
    spec = run_spec(
        model={"name": name, "hidden": [64]},
        data={"shape": [2, 40]},
        method={"name": "rank-dad", "rank": 32, "reducer": "exact", "wire": "float64"},
        training={"dtype": "float64"},
    )
    captured = assert_update_is_of_the_pooled_batch(spec)
    assert captured == {"layers.0.input.weight", "layers.0.state.weight"}


def assert_update_is_of_the_pooled_batch(spec: RunSpec) -> frozenset[str]:
    replica = Replica(spec)
    replica.model.eval()
    plan = make_plan(spec, replica.model)
    batches = [(inputs_of(spec, size), torch.arange(size) % 3) for size in BATCHES]
    gradients = [(float(len(labels)), site_gradients(plan, replica, (x, labels))) for x, labels in batches]
    method = spec.method.method(plan.routes, replica.model, spec.seed)
    update, _, _ = exchange(method, gradients, [MethodState(), MethodState(), MethodState()], MethodState())
    assert_equal(scatter(plan.routes, update), pooled_gradients(replica, batches), 1e-11)
    return plan.factor_names


@pytest.mark.parametrize(
    ("network", "space"),
    [
        ({"name": "vit", "width": 8, "depth": 1, "heads": 2, "patch": 4}, (8, 12)),
        ({"name": "cnn", "filters": [8]}, (8, 12)),
        ({"name": "cnn3d", "filters": [8]}, (6, 8, 10)),
    ],
)
def test_layouts_of_one_image_give_one_output(network: dict[str, Any], space: tuple[int, ...]) -> None:
    for channels in (1, 3):
        first = torch.randn(2, channels, *space)
        layouts = {(channels, *space): first, (*space, channels): first.movedim(1, -1)}
        if channels == 1:
            layouts[space] = first[:, 0]
        outputs = [build_model(run_spec(model=network, data={"shape": list(s)}))(x) for s, x in layouts.items()]
        for output in outputs:
            torch.testing.assert_close(output, outputs[0])


def test_channels_can_stand_where_the_shape_does_not_tell() -> None:
    network = {"name": "cnn", "filters": [8]}
    for channels, filters in (("first", 5), ("last", 6)):
        model = build_model(run_spec(model=network | {"channels": channels}, data={"shape": [5, 7, 6]}))
        assert model.get_parameter("1.weight").shape[1] == filters


def test_patches_are_those_of_a_convolution_with_strides() -> None:
    spec = spec_of("vit")
    model, x = build_model(spec), inputs_of(spec, 2)
    embed = model.get_submodule("embed")
    assert isinstance(embed, nn.Linear)
    expected = F.conv2d(x, embed.weight.reshape(8, 3, 4, 4), embed.bias, stride=4).flatten(2).mT
    torch.testing.assert_close(embed(model.get_submodule("patches")(x)), expected)


@pytest.mark.parametrize(
    ("model", "shape", "code", "field"),
    [
        ({"name": "gru", "hidden": [4]}, [6], "shape-does-not-fit", "model.name"),
        ({"name": "vit", "preset": "small"}, [64], "shape-mismatch", "model.name"),
        ({"name": "cnn3d", "preset": "small"}, [8, 8], "shape-mismatch", "model.name"),
        ({"name": "vit", "preset": "small"}, [3, 30, 32], "patch-does-not-divide", "model.patch"),
        ({"name": "cnn", "preset": "small"}, [8, 8, 8], "channels-unknown", "model.channels"),
        ({"name": "cnn", "preset": "small"}, [3, 3, 3], "channels-unknown", "model.channels"),
        ({"name": "cnn", "preset": "small"}, [3, 32], "too-many-blocks", "model.filters"),
        ({"name": "cnn", "filters": [4], "kernel": 2}, [8, 8], "field-invalid", "model.kernel"),
        ({"name": "gru", "hidden": []}, [8, 8], "field-invalid", "model.hidden"),
        ({"name": "gru", "hidden": [0]}, [8, 8], "field-invalid", "model.hidden[0]"),
        ({"name": "gru"}, [8, 8], "field-missing", "model.hidden"),
        ({"name": "gru", "preset": "deep"}, [8, 8], "field-invalid", "model"),
        ({"name": "vit", "width": 10, "depth": 1, "heads": 4, "patch": 2}, [8, 8], "field-invalid", "model.heads"),
        ({"name": "linear", "preset": "small"}, [8], "field-unknown", "model.preset"),
        ({"name": "vit", "preset": "paper", "depth": 6}, [8, 8], "field-invalid", "model"),
    ],
)
def test_what_does_not_fit_is_named(model: dict[str, Any], shape: list[int], code: str, field: str) -> None:
    assert fault(lambda: build_model(run_spec(model=model, data={"shape": shape})))[:2] == (code, field)


@pytest.mark.parametrize(
    ("model", "shape", "sizes"),
    [
        ({"name": "mlp", "preset": "paper"}, [8], {"hidden": (1024, 1024)}),
        ({"name": "gru", "preset": "paper"}, [8, 8], {"hidden": (512, 256)}),
        ({"name": "lstm", "preset": "small", "hidden": [128, 64]}, [8, 8], {"hidden": (128, 64)}),
        ({"name": "vit", "preset": "paper"}, [3, 224, 224], {"width": 128, "depth": 12, "patch": 32, "heads": 4}),
        ({"name": "cnn", "preset": "deep", "dropout": 0.1}, [8, 8], {"convolutions": 2, "dropout": 0.1}),
        ({"name": "cnn3d", "preset": "deep"}, [16, 16, 16], {"filters": (32, 64, 128, 256, 256)}),
    ],
)
def test_presets_fill_what_is_not_given(model: dict[str, Any], shape: list[int], sizes: dict[str, object]) -> None:
    spec = run_spec(model=model, data={"shape": shape})
    assert {field: getattr(spec.model, field) for field in sizes} == sizes
    assert RunSpec.model_validate_json(spec.model_dump_json()).sha256() == spec.sha256()


def test_the_papers_transformer_has_fifty_tokens() -> None:
    model = build_model(run_spec(model={"name": "vit", "preset": "paper"}, data={"shape": [3, 224, 224]}))
    assert model.get_parameter("positions").shape == (50, 128)


@pytest.mark.parametrize("network", ["mlp", "gru", "cnn", "vit"])
def test_initial_weights_follow_from_the_seed_alone(network: str) -> None:
    weights = list[Tensor]()
    for seed in (0, 0, 1):
        torch.manual_seed(len(weights))
        model = build_model(spec_of(network, seed=seed))
        weights.append(torch.cat([p.detach().flatten() for name, p in model.named_parameters() if "norm" not in name]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
