"""Routes by bytes, any model covered, and the same plan everywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankdad.common.errors import PolicyError, SpecError
from rankdad.common.models import build_model
from rankdad.common.protocol.plan import Plan, make_plan
from tests.common.faults import fault
from tests.conftest import run_spec


def plan_of(method: dict[str, Any], **changes: Any) -> Plan:
    spec = run_spec(method=method, **changes)
    return make_plan(spec, build_model(spec))


DIGITS: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [1024, 1024]},
    "data": {"shape": [64]},
    "task": {"name": "classification", "classes": 10},
}


def test_the_digits_network_is_67_times_smaller_with_its_biases() -> None:
    plan = plan_of({"name": "rank-dad", "rank": 4}, **DIGITS)
    assert [(route.name, route.bias, route.up) for route in plan.routes] == [
        ("1.weight", "1.bias", 4),
        ("3.weight", "3.bias", 4),
        ("5.weight", "5.bias", 4),
    ]
    assert plan.dense_bytes == 4 * (64 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 10 + 10)
    assert plan.layout(0, up=True).payload_bytes("float32") == 4 * 4 * (65 + 1024 + 1025 + 1024 + 1025 + 10)


def test_without_feedback_at_both_ends_biases_travel_dense() -> None:
    for feedback in ("none", "site", "aggregator"):
        plan = plan_of({"name": "rank-dad", "rank": 4, "feedback": feedback}, **DIGITS)
        assert {route.name for route in plan.routes if route.up is None} == {"1.bias", "3.bias", "5.bias"}
    assert plan.dense_bytes / plan.layout(0, up=True).payload_bytes("float32") == pytest.approx(60.1, abs=0.05)


def test_a_factor_larger_than_its_matrix_travels_dense() -> None:
    plan = plan_of({"name": "rank-dad", "rank": 10}, **DIGITS)
    assert {route.name: route.up for route in plan.routes} == {
        "1.weight": 10,
        "3.weight": 10,
        "5.weight": None,
        "5.bias": None,
    }
    dad = plan_of({"name": "dad"}, **DIGITS, training={"batch_size": 32})
    assert {route.name: (route.up, route.down) for route in dad.routes} == {
        "1.weight": (32, None),
        "3.weight": (32, 96),
        "5.weight": (None, None),
        "5.bias": (None, None),
    }


class Odd(nn.Module):
    """A layer used outside its module, a normalisation with buffers, a frozen layer, a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(1, 4, 3), nn.BatchNorm1d(16)
        self.used, self.twice = nn.Linear(16, 32), nn.Linear(32, 32)
        self.frozen = nn.Linear(32, 32).requires_grad_(False)
        self.last = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x.unsqueeze(1)).flatten(1))
        x = torch.tanh(self.twice(self.used(x))) @ self.twice.weight
        logits: Tensor = self.last(self.frozen(x))
        return logits


def odd() -> nn.Module:
    return Odd()


ODD = {"name": "factory", "factory": "tests.common.protocol.test_plan:odd"}


def test_what_no_factor_covers_travels_dense_with_a_warning() -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 1}, model=ODD)
    model = build_model(spec, ["tests.common.protocol.test_plan:odd"])
    plan = make_plan(spec, model)
    assert plan.factor_names == {"used.weight"}, "the last layer's batch has more rows than its matrix is worth"
    rows = {route.name: route.up for route in plan.routes}
    assert rows["conv.weight"] == 1
    assert rows["twice.weight"] == 1, "no factor covers it, but its matrix can be reduced"
    assert plan.warnings == ("twice.weight is also used outside its layer: its factor is not used",)
    covered = {name for route in plan.routes for name in (route.name, route.bias) if name}
    assert covered == {name for name, p in model.named_parameters() if p.requires_grad}
    assert [buffer.name for buffer in plan.buffers] == [
        f"norm.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")
    ]
    assert model.training
    assert torch.equal(model.get_buffer("norm.running_mean"), torch.zeros(16))  # the probe ran on a copy


def test_the_plan_follows_from_spec_and_model_alone() -> None:
    method = {"name": "rank-dad", "rank": 2}
    torch.manual_seed(1)
    first = plan_of(method)
    torch.manual_seed(2)
    assert first == plan_of(method)
    assert first.sha256() == plan_of(method).sha256()
    assert first.sha256() != plan_of(method, seed=1).sha256()


@pytest.mark.parametrize("rank", [16, 17, 40])
@pytest.mark.parametrize("name", ["rank-dad", "powersgd"])
def test_a_rank_beyond_every_layers_sends_gradients_whole_and_says_so(name: str, rank: int) -> None:
    plan = plan_of({"name": name, "rank": rank})
    assert all(route.up is None for route in plan.routes)
    assert plan.warnings == (f"rank {rank} makes no layer smaller: all gradients are dense",)


@pytest.mark.parametrize(("solver", "warnings"), [("exact", 0), ("auto", 0), ("steps", 1)])
def test_a_run_without_steps_has_no_rank_to_warn_of(solver: str, warnings: int) -> None:
    changes = {"method": {"name": "rank-dad", "rank": 40}, "training": {"solver": solver}, "data": {"shape": [5]}}
    spec = run_spec(model={"name": "linear"}, **changes)
    assert len(make_plan(spec, build_model(spec)).warnings) == warnings


@pytest.mark.parametrize(("wire", "rows"), [("float32", 2), ("int8", None)])
def test_factor_or_dense_is_a_matter_of_bytes_on_this_wire(wire: str, rows: int | None) -> None:
    """A 3 × 7 matrix: 2 rows are 20 numbers of 21, but in int8 their four scales are 16 bytes and the matrix's 12."""
    plan = plan_of({"name": "rank-dad", "rank": 2, "wire": wire}, model={"name": "mlp", "hidden": []})
    assert plan.routes[0].up == rows


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def scaled() -> nn.Module:
    return nn.Sequential(Scaled(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))


def test_a_layer_that_capture_cannot_follow_is_named_and_reduced_from_its_dense_gradient() -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 1}, model={"name": "factory", "factory": f"{__name__}:scaled"})
    plan = make_plan(spec, scaled())
    assert plan.warnings == ("0: its factor is not used, Scaled is a subclass of Linear",)
    assert plan.factor_names == {"2.weight"}
    assert {route.name for route in plan.routes if route.up} == {"0.weight", "2.weight", "4.weight"}


def no_module() -> int:
    return 3


def breaks(size: int) -> nn.Module:
    raise RuntimeError(f"no such size: {size}")


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nowhere.at_all:make", "model.factory"),
        (f"{__name__}:missing", "model.factory"),
        (f"{__name__}:no_module", "model.factory"),
        (f"{__name__}:breaks", "model.arguments"),
    ],
)
def test_a_bad_factory_names_its_field(function: str, field: str) -> None:
    model = {"name": "factory", "factory": function, "arguments": {"size": 3} if "breaks" in function else {}}
    assert fault(lambda: build_model(run_spec(model=model), [function]))[1] == field


def test_a_factory_that_is_not_allowed_is_not_even_imported() -> None:
    with pytest.raises(PolicyError, match="not allowed here"):
        build_model(run_spec(model={"name": "factory", "factory": "os:getcwd"}))


@pytest.mark.parametrize("changes", [{"data": {"shape": [5]}}, {"task": {"name": "classification", "classes": 4}}])
def test_a_model_that_does_not_fit_data_or_task_is_a_spec_error(changes: dict[str, Any]) -> None:
    model = build_model(run_spec())
    with pytest.raises(SpecError, match="model"):
        make_plan(run_spec(**changes), model)
