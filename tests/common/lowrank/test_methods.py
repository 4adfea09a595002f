"""What a method applies, against autograd on the pooled batch: no trainer, no wire."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rankdad.common.errors import NonFiniteError, SpecError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.routes import Payload, scatter
from rankdad.common.methods import MethodState
from rankdad.common.methods.base import all_received
from rankdad.common.methods.rank_dad import RankDad
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.replica import Replica
from tests.common.lowrank.steps import (
    BATCHES,
    TOLERANCE,
    assert_equal,
    batch_of,
    exchange,
    matrix_of,
    pooled_gradients,
    prepare,
    site_gradients,
)
from tests.conftest import examples, run_spec, sampled


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spec", [{"name": "dsgd"}, {"name": "dad"}, {"name": "edad"}])
@settings(max_examples=examples(10))
@given(sizes=st.tuples(*[st.integers(1, 8)] * 3), seed=st.integers(0, 99))
def test_exact_methods_equal_the_pooled_batch(
    spec: dict[str, str], dtype: str, sizes: tuple[int, ...], seed: int
) -> None:
    plan, replica, method = prepare(spec, dtype)
    batches = [batch_of(size, seed + i, dtype) for i, size in enumerate(sizes)]
    gradients = [(float(len(batch[1])), site_gradients(plan, replica, batch)) for batch in batches]
    assert any(isinstance(value, Factor) for value in gradients[0][1]) == (spec["name"] != "dsgd")
    update, _, _ = exchange(method, gradients, [MethodState(), MethodState(), MethodState()], MethodState())
    assert_equal(scatter(plan.routes, update), pooled_gradients(replica, batches), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("feedback", ["none", "both"])
def test_rank_dad_at_full_rank_equals_the_pooled_batch(feedback: str, dtype: str) -> None:
    """16 rows in all: no rank above 16 is needed, whatever the layer's size."""
    method_spec = {"name": "rank-dad", "rank": 16, "feedback": feedback, "iterations": 200}
    plan, replica, method = prepare(method_spec, dtype)
    assert plan.factor_names == {"3.weight"}
    batches = [batch_of(size, i, dtype) for i, size in enumerate(BATCHES)]
    gradients = [(float(len(batch[1])), site_gradients(plan, replica, batch)) for batch in batches]
    update, _, _ = exchange(method, gradients, [MethodState(), MethodState(), MethodState()], MethodState())
    tolerance = {"float32": 1e-5, "float64": 1e-11}[dtype]
    assert_equal(scatter(plan.routes, update), pooled_gradients(replica, batches), tolerance)


class Layers(nn.Module):
    """One of each kind: convolution, embedding, recurrence, attention, normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.gru = nn.GRU(16, 16, bidirectional=True, batch_first=True)
        self.last = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(self.embed(x).mT).mT)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        logits: Tensor = self.last(self.gru(x)[0].mean(dim=1))
        return logits


def layers() -> nn.Module:
    return Layers()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reducer", "dtype"),
    sampled(itertools.product(["auto", "block", "exact", "spi"], ["float32", "float64"]), every=4),
)
@settings(max_examples=examples(4))
@given(tokens=st.lists(st.integers(0, 19), min_size=6, max_size=6))
def test_every_kind_of_layer_is_reduced_and_exact_at_full_rank(reducer: str, dtype: str, tokens: list[int]) -> None:
    """A rank just below what would send the layer dense; two samples a site keep the gradients' rank below it."""
    factory = "tests.common.lowrank.test_methods:layers"
    spec = run_spec(
        data={"shape": [3], "tokens": 20},
        model={"name": "factory", "factory": factory},
        method={"name": "rank-dad", "rank": 7, "reducer": reducer, "iterations": 200, "wire": dtype},
        training={"dtype": dtype, "batch_size": 4},
    )
    replica = Replica(spec, [factory])
    plan = make_plan(spec, replica.model)
    reduced = {route.name for route in plan.routes if route.up is not None}
    assert {"embed.weight", "conv.weight", "attention.in_proj_weight", "gru.weight_hh_l0_reverse"} <= reduced
    assert {route.name for route in plan.routes if route.up is None} >= {"norm.weight", "gru.bias_ih_l0"}
    method = spec.method.method(plan.routes, replica.model, spec.seed)
    batches = [(torch.tensor([tokens[:3]]), torch.tensor([0])), (torch.tensor([tokens[3:]]), torch.tensor([1]))]
    gradients = [(1.0, site_gradients(plan, replica, batch)) for batch in batches]
    update, _, _ = exchange(method, gradients, [MethodState(), MethodState()], MethodState())
    tolerance = {"float32": 1e-5, "float64": 1e-9}[dtype]
    assert_equal(scatter(plan.routes, update), pooled_gradients(replica, batches), tolerance)


def test_powersgd_with_all_directions_is_exact_and_finds_back_from_zero() -> None:
    """Rank 16 holds 16 rows; a step without gradient must not leave directions of zero behind."""
    plan, replica, method = prepare({"name": "powersgd", "rank": 16}, "float64")
    assert {route.name for route in plan.routes if route.up} == {"3.weight"}
    batches = [batch_of(size, i, "float64") for i, size in enumerate(BATCHES)]
    gradients = [(float(len(batch[1])), site_gradients(plan, replica, batch)) for batch in batches]
    nothing: list[tuple[float, Payload]] = [
        (weight, tuple(torch.zeros_like(matrix_of(value)) for value in payload)) for weight, payload in gradients
    ]
    states, aggregator = [MethodState(), MethodState(), MethodState()], MethodState()
    for own in (gradients, nothing, gradients):
        update, states, aggregator = exchange(method, own, states, aggregator)
    assert_equal(scatter(plan.routes, update), pooled_gradients(replica, batches), 1e-9)


def unfit(kind: str) -> nn.Module:
    linear = nn.Linear(6, 6)
    layers: dict[str, list[nn.Module]] = {
        "gelu": [nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 3)],
        "norm": [nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3)],
        "frozen": [nn.Linear(6, 6).requires_grad_(False), nn.ReLU(), nn.Linear(6, 3)],
        "twice": [linear, nn.ReLU(), linear, nn.ReLU(), nn.Linear(6, 3)],
        "end": [nn.Linear(6, 3), nn.Tanh()],
        "shared": [nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)],
        "extra": [nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)],
    }
    model = nn.Sequential(*layers[kind])
    if kind == "shared":
        layers[kind][2].bias = layers[kind][0].bias
    if kind == "extra":
        model.scale = nn.Parameter(torch.ones(1))
    return model


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("gelu", r"layer 1 \(GELU\)"),
        ("norm", r"layer 1 \(LayerNorm\)"),
        ("frozen", r"layer 0 \(Linear\) is frozen"),
        ("twice", "more than one layer"),
        ("end", "ends in a linear layer"),
        ("shared", r"0\.bias is used in more than one layer"),
        ("extra", "scale is in no layer"),
    ],
)
def test_edad_refuses_a_model_that_is_no_chain_and_names_the_layer(kind: str, reason: str) -> None:
    factory = "tests.common.lowrank.test_methods:unfit"
    model = {"name": "factory", "factory": factory, "arguments": {"kind": kind}}
    spec = run_spec(model=model, method={"name": "edad"})
    with pytest.raises(SpecError, match=reason) as error:
        make_plan(spec, Replica(spec, [factory]).model)
    assert error.value.field == "method.name"


@pytest.mark.parametrize("kind", ["relu", "tanh"])
def test_edad_propagates_through_weights_as_they_are(kind: str) -> None:
    """After a step, too: slopes of each function against autograd."""
    spec = run_spec(
        model={"name": "mlp", "hidden": [7, 5], "activation": kind},
        method={"name": "edad", "wire": "float64"},
        training={"dtype": "float64"},
    )
    replica = Replica(spec)
    plan = make_plan(spec, replica.model)
    method = spec.method.method(plan.routes, replica.model, spec.seed)
    for step in range(3):
        batches = [batch_of(size, 3 * step + i, "float64") for i, size in enumerate(BATCHES)]
        gradients = [(float(len(batch[1])), site_gradients(plan, replica, batch)) for batch in batches]
        update, _, _ = exchange(method, gradients, [MethodState(), MethodState(), MethodState()], MethodState())
        assert_equal(scatter(plan.routes, update), pooled_gradients(replica, batches), 1e-12)
        replica.apply(scatter(plan.routes, update))


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (
            {"preset": "converged", "rank": 2, "feedback": "both"},
            "the preset converged has feedback none, but feedback",
        ),
        ({"preset": "paper", "rank": 2}, r"method\.preset"),
    ],
)
def test_what_a_preset_of_the_paper_does_not_have_is_refused(method: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        run_spec(method={"name": "rank-dad", **method})


def test_the_preset_converged_is_what_the_paper_says() -> None:
    converged = run_spec(method={"name": "rank-dad", "rank": 2, "preset": "converged"}).method
    assert isinstance(converged, RankDad)
    assert (converged.reducer, converged.feedback, converged.iterations) == ("spi", "none", 40)


def test_nan_in_a_gradient_is_named_before_it_is_reduced() -> None:
    plan, replica, method = prepare({"name": "rank-dad", "rank": 2}, "float32")
    gradients = site_gradients(plan, replica, batch_of(4, 0, "float32"))
    at = next(i for i, route in enumerate(plan.routes) if route.name == "3.weight")
    value = gradients[at]
    assert isinstance(value, Factor)
    value.delta[1, 1] = float("nan")
    with pytest.raises(NonFiniteError, match=r"3\.weight"):
        next(method.step(gradients, 0.5, MethodState(), 0))


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_a_limit_on_rows_also_holds_for_matrices(wire: str) -> None:
    """A matrix that is smaller than its factors was sent whole, or the run refused. What is not sent follows later."""
    plan, replica, method = prepare({"name": "rank-dad", "rank": 8, "wire": wire}, "float32", hidden=(8,))
    gradients = site_gradients(plan, replica, batch_of(8, 0, "float32"))
    assert all(route.dense for route in plan.routes)
    for most in (1, 2):
        state, total = MethodState(), [torch.zeros_like(matrix_of(value)) for value in gradients]
        for step in range(1, 21):
            taken = method.step(gradients, 1.0, state, step, most)
            sent = next(taken)
            for route, value in zip(plan.routes, sent, strict=True):
                assert isinstance(value, Tensor)
                limit = 8 if route.units <= 2 * most else min(most, route.shorter)
                assert torch.linalg.matrix_rank(value, rtol=1e-5) <= limit
            total = [one + matrix_of(value) for one, value in zip(total, all_received(sent, wire), strict=True)]
            with pytest.raises(StopIteration) as end:
                taken.send(sent)
            state = end.value.value
            for route, own, gradient in zip(plan.routes, total, gradients, strict=True):
                kept = state.residuals.get(route.name, torch.zeros_like(own))
                torch.testing.assert_close(own + matrix_of(kept), step * matrix_of(gradient), atol=1e-4, rtol=1e-4)
        whole = max(route.units for route in plan.routes) <= 2 * most
        assert any(matrix_of(own).norm() > 1e-6 for own in state.residuals.values()) != (whole and wire == "float32")
