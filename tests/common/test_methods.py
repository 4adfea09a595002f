"""What a method applies, against autograd on the pooled batch: no trainer, no wire."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from common.capture import FactorCapture
from common.errors import NonFiniteError
from common.factors import Factor
from common.methods import Method, State, Weighted, method_for, rank_dad
from common.plan import Payload, Plan, gather, make_plan, scatter
from common.reduction.spi import spi
from common.replica import Replica
from tests.conftest import run_spec

BATCHES = (8, 3, 5)
TOLERANCE = {"float32": 2e-6, "float64": 1e-13}


def prepare(method: dict[str, Any], dtype: str, hidden: tuple[int, ...] = (64, 64)) -> tuple[Plan, Replica, Method]:
    spec = run_spec(
        model={"name": "mlp", "hidden": list(hidden)}, method={"wire": dtype} | method, training={"dtype": dtype}
    )
    replica = Replica(spec)
    plan = make_plan(spec, replica.model)
    return plan, replica, method_for(spec, plan)


def batch_of(size: int, seed: int, dtype: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 6, generator=generator, dtype=torch.float64).to(getattr(torch, dtype))
    return x, torch.randint(3, (size,), generator=generator)


def site_gradients(plan: Plan, replica: Replica, batch: tuple[Tensor, Tensor]) -> Payload:
    with FactorCapture(replica.model, only=plan.factor_names) as capture:
        capture.backward(F.cross_entropy(replica.model(batch[0]), batch[1]))
    return gather(plan.routes, capture.factors(), capture.dense(), next(replica.model.parameters()))


def pooled_gradients(replica: Replica, batches: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    replica.model.zero_grad(set_to_none=True)
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    F.cross_entropy(replica.model(x), y).backward()
    return {name: p.grad.clone() for name, p in replica.model.named_parameters() if p.grad is not None}


def exchange(
    method: Method, gradients: list[tuple[float, Payload]], states: list[State], aggregator: State
) -> tuple[Payload, list[State], State]:
    """One round of all sites and the aggregator."""
    total = sum(weight for weight, _ in gradients)
    steps = [
        method.step(gradient, weight / total, state, seed=i)
        for i, ((weight, gradient), state) in enumerate(zip(gradients, states, strict=True))
    ]
    sent = [Weighted(weight, next(step)) for (weight, _), step in zip(gradients, steps, strict=True)]
    update, aggregator = method.aggregate(sent, aggregator, 99)
    ends = []
    for step in steps:
        try:
            step.send(update)
        except StopIteration as stop:
            ends.append(stop.value)
    assert len(ends) == len(steps)
    return ends[0][0], [state for _, state in ends], aggregator


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        error = torch.linalg.vector_norm(found[name] - gradient) / torch.linalg.vector_norm(gradient)
        assert error <= tolerance, (name, float(error))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["dsgd", "dad"])
@settings(max_examples=10, deadline=None)
@given(sizes=st.tuples(*[st.integers(1, 8)] * 3), seed=st.integers(0, 99))
def test_exact_methods_equal_the_pooled_batch(name: str, dtype: str, sizes: tuple[int, ...], seed: int) -> None:
    plan, replica, method = prepare({"name": name}, dtype)
    batches = [batch_of(size, seed + i, dtype) for i, size in enumerate(sizes)]
    gradients = [(float(len(batch[1])), site_gradients(plan, replica, batch)) for batch in batches]
    assert any(isinstance(value, Factor) for value in gradients[0][1]) == (name == "dad")
    update, _, _ = exchange(method, gradients, [State(), State(), State()], State())
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
    update, _, _ = exchange(method, gradients, [State(), State(), State()], State())
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


@pytest.mark.parametrize("reducer", ["spi", "block", "exact"])
def test_every_kind_of_layer_is_reduced_and_exact_at_full_rank(reducer: str) -> None:
    """A rank just below what would send the layer dense; two samples a site keep the gradients' rank below it."""
    factory = "tests.common.test_methods:layers"
    spec = run_spec(
        data={"shape": [3], "tokens": 20},
        model={"name": "factory", "factory": factory},
        method={"name": "rank-dad", "rank": 7, "reducer": reducer, "iterations": 200, "wire": "float64"},
        training={"dtype": "float64", "batch_size": 4},
    )
    replica = Replica(spec, [factory])
    plan = make_plan(spec, replica.model)
    reduced = {route.name for route in plan.routes if route.up is not None}
    assert {"embed.weight", "conv.weight", "attention.in_proj_weight", "gru.weight_hh_l0_reverse"} <= reduced
    assert {route.name for route in plan.routes if route.up is None} >= {"norm.weight", "gru.bias_ih_l0"}
    method = method_for(spec, plan)
    batches = [(torch.tensor([[3 * i, 3 * i + 1, 3 * i + 2]]), torch.tensor([i])) for i in range(2)]
    gradients = [(1.0, site_gradients(plan, replica, batch)) for batch in batches]
    update, _, _ = exchange(method, gradients, [State(), State()], State())
    assert_equal(scatter(plan.routes, update), pooled_gradients(replica, batches), 1e-9)


def test_the_plain_mean_of_unequal_sites_is_wrong() -> None:
    """What weighting is for: unweighted, the same batches are off by more than a tenth."""
    plan, replica, method = prepare({"name": "dad"}, "float64")
    batches = [batch_of(size, i, "float64") for i, size in enumerate((8, 1, 2))]
    gradients = [(1.0, site_gradients(plan, replica, batch)) for batch in batches]
    update, _, _ = exchange(method, gradients, [State(), State(), State()], State())
    found, expected = scatter(plan.routes, update), pooled_gradients(replica, batches)
    errors = [torch.linalg.vector_norm(found[n] - g) / torch.linalg.vector_norm(g) for n, g in expected.items()]
    assert max(errors) > 0.1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wire", ["float32", "float64", "bfloat16", "float16"])
def test_feedback_telescopes_at_the_site(dtype: str, wire: str) -> None:
    """What was sent plus what is kept is what there was, whatever the wire rounds off."""
    plan, replica, method = prepare({"name": "rank-dad", "rank": 2, "wire": wire}, dtype)
    at = next(i for i, route in enumerate(plan.routes) if route.captured)
    meant = torch.zeros(plan.routes[at].matrix, dtype=torch.float64)
    sent, state = meant.clone(), State()
    for step in range(50):
        gradients = site_gradients(plan, replica, batch_of(8, step, dtype))
        value = gradients[at]
        assert isinstance(value, Factor)
        meant += value.gradient().double()
        exchange_ = method.step(gradients, 1.0, state, step)
        factor = next(exchange_)[at]
        assert isinstance(factor, Factor)
        assert factor.rows <= 2
        on_wire: torch.dtype = getattr(torch, wire)
        decoded = Factor(factor.delta.to(on_wire).double(), factor.activation.to(on_wire).double())
        sent += decoded.gradient()
        with pytest.raises(StopIteration) as end:
            exchange_.send(gradients)
        state = end.value.value[1]
    kept = state.residuals[plan.routes[at].name].double()
    assert torch.linalg.vector_norm(sent + kept - meant) <= 1e-5 * torch.linalg.vector_norm(meant)


def test_feedback_telescopes_through_the_aggregator() -> None:
    """Σ applied + what aggregator and sites keep = Σ pooled gradients, though shares change from step to step."""
    plan, replica, method = prepare({"name": "rank-dad", "rank": 1, "wire": "float64"}, "float64")
    states = [State(), State(), State()]
    aggregator = State()
    pooled = applied = torch.zeros(())
    for step in range(50):
        sizes = ((8, 8, 8), (8, 3, 5), (1, 8, 2), (8, 1, 1))[step % 4]
        batches = [batch_of(size, 10 * step + i, "float64") for i, size in enumerate(sizes)]
        gradients = [(float(len(batch[1])), site_gradients(plan, replica, batch)) for batch in batches]
        update, states, aggregator = exchange(method, gradients, states, aggregator)
        pooled = pooled + pooled_gradients(replica, batches)["3.weight"]
        applied = applied + scatter(plan.routes, update)["3.weight"]
    kept = sum((state.residuals["3.weight"] for state in states), aggregator.residuals["3.weight"])[:, :-1]
    assert torch.linalg.vector_norm(kept) > 0.01 * torch.linalg.vector_norm(pooled)
    assert torch.linalg.vector_norm(applied + kept - pooled) <= 1e-10 * torch.linalg.vector_norm(pooled)


def test_nan_in_a_gradient_is_named_before_it_is_reduced() -> None:
    plan, replica, method = prepare({"name": "rank-dad", "rank": 2}, "float32")
    gradients = site_gradients(plan, replica, batch_of(4, 0, "float32"))
    at = next(i for i, route in enumerate(plan.routes) if route.name == "3.weight")
    value = gradients[at]
    assert isinstance(value, Factor)
    value.delta[1, 1] = float("nan")
    with pytest.raises(NonFiniteError, match=r"3\.weight"):
        next(method.step(gradients, 0.5, State(), 0))


def test_a_site_out_of_data_keeps_its_residual() -> None:
    plan, replica, method = prepare({"name": "rank-dad", "rank": 1}, "float32")
    residual = State({"3.weight": torch.randn(64, 65)})
    nothing = gather(plan.routes, {}, {}, next(replica.model.parameters()))
    step = method.step(nothing, 0.0, residual, 0)
    sent = next(step)
    assert all(value.rows == 0 for value in sent if isinstance(value, Factor))
    with pytest.raises(StopIteration) as end:
        step.send(sent)
    assert end.value.value[1].residuals is residual.residuals


def test_spi_runs_at_every_site_and_again_at_the_aggregator(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, replica, method = prepare({"name": "rank-dad", "rank": 2}, "float32", hidden=(64, 64, 64))
    calls: list[int] = []

    def counted(matrix: Factor | Tensor, rank: int, **options: Any) -> Factor:
        calls.append(rank)
        return spi(matrix, rank, **options)

    monkeypatch.setattr(rank_dad, "spi", counted)
    gradients = [(4.0, site_gradients(plan, replica, batch_of(4, i, "float32"))) for i in range(3)]
    exchange(method, gradients, [State(), State(), State()], State())
    assert {route.name for route in plan.routes if route.up} == {"1.weight", "3.weight", "5.weight", "7.weight"}
    assert calls == [2] * 4 * (3 + 1)  # four layers, at three sites and the aggregator
