"""Error feedback: nothing of a gradient is lost, whatever a reduction leaves out and the wire rounds off."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.routes import Payload, gather, scatter
from rankdad.common.methods import Contribution, Method, MethodState
from rankdad.common.methods.base import received
from rankdad.common.protocol.plan import Plan
from tests.common.lowrank.steps import (
    BATCHES,
    batch_of,
    exchange,
    kept_of,
    matrix_of,
    pooled_gradients,
    prepare,
    site_gradients,
    site_step,
)
from tests.conftest import sampled

WIRES = ["float32", "float64", "bfloat16", "float16", "int8", "int4", "int2"]


@pytest.mark.parametrize(
    ("residual", "wire", "dtype"),
    sampled(itertools.product(["dense", "factors"], WIRES, ["float32", "float64"]), every=3),
)
def test_feedback_telescopes_at_the_site(dtype: str, wire: str, residual: str) -> None:
    """What was sent plus what is kept is what there was, whatever the wire rounds off; while rows are few, as rows."""
    plan, replica, method = prepare({"name": "rank-dad", "rank": 2, "wire": wire, "residual": residual}, dtype)
    at = next(i for i, route in enumerate(plan.routes) if route.captured)
    meant = torch.zeros(plan.routes[at].matrix, dtype=torch.float64)
    sent, state = meant.clone(), MethodState()
    for step in range(24 if residual == "dense" else 10):
        gradients = site_gradients(plan, replica, batch_of(8, step, dtype))
        meant += matrix_of(gradients[at]).double()
        payload, state = site_step(method, gradients, 1.0, state, step)
        assert matrix_rows(payload[at]) <= 2
        sent += matrix_of(received(payload[at], wire)).double()
    kept = state.residuals[plan.routes[at].name]
    assert isinstance(kept, Factor) == (residual == "factors")
    error = torch.linalg.vector_norm(sent + matrix_of(kept).double() - meant)
    assert error <= 1e-5 * torch.linalg.vector_norm(meant)


ALL = ((0, 1, 2),)
SOME = ((0, 1, 2), (0, 1), (0, 1), (2,))  # who takes part, step by step
SIZES = ((8, 8, 8), (8, 3, 5), (1, 8, 2), (8, 1, 0))


@pytest.mark.parametrize(
    ("method_spec", "wire", "present", "steps"),  # few, where rows are kept: many would be reduced
    [
        ({"name": "rank-dad", "residual": "dense"}, "float64", ALL, 24),
        ({"name": "rank-dad", "residual": "dense"}, "int8", ALL, 24),
        ({"name": "rank-dad", "residual": "dense", "lazy": 2.0}, "int8", ALL, 24),
        ({"name": "powersgd"}, "float64", ALL, 24),
        ({"name": "rank-dad"}, "float64", SOME, 4),
        ({"name": "rank-dad", "residual": "dense"}, "float64", SOME, 12),
        ({"name": "powersgd"}, "float64", SOME, 12),
    ],
)
def test_feedback_telescopes_through_the_aggregator_whoever_takes_part(
    method_spec: dict[str, Any], wire: str, present: tuple[tuple[int, ...], ...], steps: int
) -> None:
    """Σ applied + what is kept = Σ gradients that took part, though shares change and a site runs out.

    A site left out keeps its residual, and the others weigh more. A site reckons with the share that it has if all take
    part, and learns from the update which it really had.
    """
    plan, replica, method = prepare(method_spec | {"rank": 1, "wire": wire}, "float64")
    states, aggregator = [MethodState(), MethodState(), MethodState()], MethodState()
    pooled = applied = torch.zeros(())
    for step in range(steps):
        here, sizes = present[step % len(present)], SIZES[step % 4] if present is ALL else BATCHES
        batches = [batch_of(size, 10 * step + i, "float64") for i, size in enumerate(sizes)]
        gradients = [(float(len(batch[1])), site_gradients(plan, replica, batch)) for batch in batches]
        before = states
        update, states, aggregator = exchange_on_the_wire(plan, method, gradients, states, aggregator, here)
        assert all(states[i].residuals is before[i].residuals for i in range(3) if i not in here)
        pooled = pooled + pooled_gradients(replica, [batches[i] for i in here])["3.weight"]
        applied = applied + scatter(plan.routes, update)["3.weight"]
    kept = kept_of([*states, aggregator], "3.weight", 64)
    assert kept.norm() > 0.01 * pooled.norm()
    assert (applied + kept - pooled).norm() <= (1e-6 if present is ALL else 1e-9) * pooled.norm()


@pytest.mark.parametrize(
    ("wire", "name"),
    sampled(itertools.product(["float32", "bfloat16", "float16", "int8"], ["rank-dad", "powersgd"]), every=3),
)
def test_what_travels_dense_is_the_pooled_gradient_and_what_is_rounded_off_comes_later(name: str, wire: str) -> None:
    """Rank 5 makes the last layer dense: sums over many steps agree far better than one step does."""
    plan, replica, method = prepare({"name": name, "rank": 5, "wire": wire}, "float32", hidden=(16, 16))
    dense = {"5.bias", "5.weight"} & {route.name for route in plan.routes if route.up is None}
    assert dense
    states, aggregator = [MethodState(), MethodState(), MethodState()], MethodState()
    pooled, applied = dict.fromkeys(dense, torch.zeros(())), dict.fromkeys(dense, torch.zeros(()))
    for step in range(40):
        batches = [batch_of(size, 10 * step + i, "float32") for i, size in enumerate(BATCHES)]
        gradients = [(float(len(batch[1])), site_gradients(plan, replica, batch)) for batch in batches]
        update, states, aggregator = exchange_on_the_wire(plan, method, gradients, states, aggregator)
        exact, found = pooled_gradients(replica, batches), scatter(plan.routes, update)
        for key in dense:
            assert torch.linalg.vector_norm(found[key] - exact[key]) <= 0.05 * torch.linalg.vector_norm(exact[key])
            pooled[key], applied[key] = pooled[key] + exact[key], applied[key] + found[key]
    most = 2e-3 if name == "rank-dad" else 2e-2  # powersgd has no feedback for what the way back rounds off
    for key in dense:
        assert torch.linalg.vector_norm(applied[key] - pooled[key]) <= most * torch.linalg.vector_norm(pooled[key])


def test_powersgds_residual_stays_small_where_sites_differ() -> None:
    """One class a site: each keeps what of its own gradient was not applied, not how it differs from the others."""
    plan, replica, method = prepare({"name": "powersgd", "rank": 2, "wire": "float64"}, "float64")
    states, aggregator, sizes = [MethodState(), MethodState(), MethodState()], MethodState(), []
    for step in range(60):
        batches = [(batch_of(8, 10 * step + i, "float64")[0], torch.full((8,), i)) for i in range(3)]
        if step % 4 == 3:
            batches[2] = (batches[2][0][:0], batches[2][1][:0])
        gradients = [(float(len(batch[1])), site_gradients(plan, replica, batch)) for batch in batches]
        update, states, aggregator = exchange(method, gradients, states, aggregator)
        assert torch.allclose(scatter(plan.routes, update)["5.bias"], pooled_gradients(replica, batches)["5.bias"])
        sizes.append(max(float(torch.linalg.vector_norm(matrix_of(s.residuals["3.weight"]))) for s in states))
    assert max(sizes[40:]) < 2 * max(sizes[:20])


@pytest.mark.parametrize(
    ("residual", "reducer"),
    [("dense", "auto"), *(pytest.param("factors", own, marks=pytest.mark.slow) for own in ("auto", "spi"))],
)
def test_a_lazy_site_waits_until_enough_has_gathered(residual: str, reducer: str) -> None:
    """Of one gradient again and again k + 1 times as much has gathered after k steps of waiting: each third is sent."""
    spec = {"name": "rank-dad", "rank": 2, "lazy": 2.9, "residual": residual, "reducer": reducer}
    plan, replica, method = prepare(spec | {"wire": "float64"}, "float64", hidden=(256, 256))
    at = next(i for i, route in enumerate(plan.routes) if route.captured and route.up)
    gradient = site_gradients(plan, replica, batch_of(1, 0, "float64"))  # of rank 1: all of it is sent
    state, aggregator = [MethodState()], MethodState()
    for step in range(300 if residual == "factors" else 40):  # long enough for rows to be reduced while others wait
        update, state, aggregator = exchange(method, [(1.0, gradient)], state, aggregator)
        rows, once = update[at], matrix_of(gradient[at])
        assert isinstance(rows, Factor)
        assert (rows.rows > 0) == (step % 3 == 0), step
        if rows.rows:
            times = 3 if step else 1
            assert torch.allclose(rows.gradient(), times * once, rtol=0, atol=1e-6 * float(once.abs().max()))


def test_tolerance_holds_in_the_steps_that_reduce_the_residual_too() -> None:
    spec = {"name": "rank-dad", "rank": 8, "tolerance": 0.3, "reducer": "exact"}
    plan, replica, method = prepare(spec, "float32", hidden=(256, 256))
    at = next(i for i, route in enumerate(plan.routes) if route.residual)
    state, shrunk = MethodState(), 0
    for step in range(60):
        before, gradients = state, site_gradients(plan, replica, batch_of(8, step, "float32"))
        sent, state = site_step(method, gradients, 1.0, state, step)
        factor = sent[at]
        assert isinstance(factor, Factor)
        sizes = torch.linalg.vector_norm(factor.delta, dim=1)
        assert bool((sizes[1:] > 0.3 * sizes[0]).all())
        rows = [s.residuals[plan.routes[at].name] for s in (before, state) if s.residuals]
        shrunk += len(rows) == 2 and matrix_rows(rows[1]) < matrix_rows(rows[0])
    assert shrunk >= 2


def matrix_rows(value: Factor | Tensor) -> int:
    assert isinstance(value, Factor)
    return value.rows


def exchange_on_the_wire(
    plan: Plan,
    method: Method,
    gradients: list[tuple[float, Payload]],
    states: list[MethodState],
    aggregator: MethodState,
    present: Sequence[int] | None = None,
) -> tuple[Payload, list[MethodState], MethodState]:
    """`exchange` with every payload rounded as the wire rounds it."""

    class Rounding(Method):
        def step(
            self, gradients: Payload, share: float, state: MethodState, seed: int, most: int | None = None
        ) -> Generator[Payload, Payload, MethodState]:
            inner = method.step(gradients, share, state, seed, most)
            payload = next(inner)
            while True:
                update = yield tuple(received(value, plan.wire) for value in payload)
                try:
                    payload = inner.send(update)
                except StopIteration as stop:
                    end: MethodState = stop.value
                    return end

        def aggregate(
            self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
        ) -> tuple[Payload, MethodState]:
            update, state = method.aggregate(exchange, contributions, state, seed)
            return tuple(received(value, plan.wire) for value in update), state

        def gradients(self, updates: Sequence[Payload]) -> Payload:
            return method.gradients(updates)

        def bases(self, updates: Sequence[Payload]) -> Mapping[str, Tensor]:
            return method.bases(updates)

    return exchange(Rounding(), gradients, states, aggregator, present=present)


def test_residual_rows_never_pile_up_and_hold_nearly_all() -> None:
    """Reduced to 64 once there are too many: few rows, and little of what was meant is neither sent nor kept."""
    plan, replica, method = prepare({"name": "rank-dad", "rank": 4}, "float32", hidden=(256, 256))
    at = next(i for i, route in enumerate(plan.routes) if route.captured)
    state, rows, meant = MethodState(), [], torch.zeros(plan.routes[at].matrix)
    sent = meant.clone()
    for step in range(60):
        gradients = site_gradients(plan, replica, batch_of(8, step, "float32"))
        meant += matrix_of(gradients[at])
        update, state = site_step(method, gradients, 1.0, state, step)
        sent += matrix_of(update[at])
        kept = state.residuals[plan.routes[at].name]
        assert isinstance(kept, Factor)
        rows.append(kept.rows)
    assert max(rows) <= 192 + 4
    assert min(rows[20:]) == 64, "reduced at least once"
    forgotten = torch.linalg.vector_norm(meant - sent - matrix_of(kept))
    assert forgotten <= 0.1 * torch.linalg.vector_norm(meant)


def test_a_site_out_of_data_keeps_its_residual() -> None:
    plan, replica, method = prepare({"name": "rank-dad", "rank": 1}, "float32")
    residual = MethodState({"3.weight": Factor(torch.randn(3, 64), torch.randn(3, 65))})
    nothing = gather(plan.routes, {}, {}, next(replica.model.parameters()))
    sent, state = site_step(method, nothing, 0.0, residual, 0)
    assert all(value.rows == 0 for value in sent if isinstance(value, Factor))
    assert state.residuals is residual.residuals


@pytest.mark.parametrize("reducer", ["auto", "spi", "block", "exact"])
def test_a_site_that_may_send_fewer_rows_sends_fewer_and_keeps_the_rest(reducer: str) -> None:
    """Its policy's limit: what it leaves out comes later."""
    plan, replica, method = prepare({"name": "rank-dad", "rank": 3, "reducer": reducer}, "float64")
    at = next(i for i, route in enumerate(plan.routes) if route.captured)
    gradients = site_gradients(plan, replica, batch_of(8, 0, "float64"))
    rows = {}
    for most in (None, 2, 1):
        sent, state = site_step(method, gradients, 1.0, MethodState(), 0, most)
        rows[most] = matrix_rows(sent[at])
        kept = state.residuals[plan.routes[at].name]
        whole, found = matrix_of(gradients[at]), matrix_of(sent[at]) + matrix_of(kept)
        assert (found - whole).norm() <= 1e-9 * whole.norm()
    assert rows == {None: 3, 2: 2, 1: 1}
