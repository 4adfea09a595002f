"""One step of all sites and the aggregator, without trainer or wire: what the tests of methods are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.reduction.feedback import interpolate_residual
from rankdad.common.lowrank.routes import Payload, gather
from rankdad.common.methods import Contribution, Method, MethodState
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.run.replica import Replica
from tests.conftest import run_spec

BATCHES = (8, 3, 5)


TOLERANCE = {"float32": 2e-6, "float64": 1e-13}


def prepare(method: dict[str, Any], dtype: str, hidden: tuple[int, ...] = (64, 64)) -> tuple[Plan, Replica, Method]:
    spec = run_spec(
        model={"name": "mlp", "hidden": list(hidden)}, method={"wire": dtype} | method, training={"dtype": dtype}
    )
    replica = Replica(spec)
    plan = make_plan(spec, replica.model)
    return plan, replica, spec.method.method(plan.routes, replica.model, spec.seed)


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
    method: Method,
    gradients: list[tuple[float, Payload]],
    states: list[MethodState],
    aggregator: MethodState,
    seed: int = 0,
    present: Sequence[int] | None = None,
) -> tuple[Payload, list[MethodState], MethodState]:
    """One step of all sites, or of those present, and the aggregator, in as many exchanges as the method takes."""
    present = range(len(gradients)) if present is None else present
    total = sum(weight for weight, _ in gradients)
    steps = [
        method.step(gradient, weight / total, state, seed=seed + i)
        for i, ((weight, gradient), state) in enumerate(zip(gradients, states, strict=True))
    ]
    payloads, updates = [next(step) for step in steps], list[Payload]()
    while True:
        sent = [Contribution(gradients[site][0], payloads[site]) for site in present]
        update, aggregator = method.aggregate(len(updates), sent, aggregator, seed + 99)
        updates.append(update)
        payloads, ends = [], []
        for step in steps:
            try:
                payloads.append(step.send(update))
            except StopIteration as stop:
                ends.append(stop.value)
        if ends:
            assert len(ends) == len(steps)
            more = total / sum(gradients[site][0] for site in present)
            parts = [more if site in present else 0.0 for site in range(len(gradients))]
            new = [
                MethodState(interpolate_residual(old.residuals, end.residuals, part), end.bases)
                for old, end, part in zip(states, ends, parts, strict=True)
            ]
            return method.gradients(updates), new, aggregator


def site_step(
    method: Method, gradients: Payload, share: float, state: MethodState, seed: int, most: int | None = None
) -> tuple[Payload, MethodState]:
    """What a site sends in its only exchange, and what it keeps if that comes back."""
    step = method.step(gradients, share, state, seed, most)
    sent = next(step)
    try:
        step.send(sent)
    except StopIteration as end:
        return sent, end.value
    raise AssertionError("another exchange follows")


def kept_of(states: Sequence[MethodState], name: str, columns: int) -> Tensor:
    """The sum of what sites and aggregator keep of a weight, without its bias's column."""
    residuals = [state.residuals[name] for state in states if name in state.residuals]
    return torch.stack([matrix_of(residual)[:, :columns] for residual in residuals]).sum(dim=0)


def matrix_of(value: Factor | Tensor) -> Tensor:
    return value.gradient() if isinstance(value, Factor) else value


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    whole = torch.cat([gradient.flatten() for gradient in expected.values()]).norm()
    for name, gradient in expected.items():
        size = torch.maximum(gradient.norm(), 0.1 * whole)  # a bias's rows may cancel out to nearly nothing
        error = torch.linalg.vector_norm(found[name] - gradient) / size
        assert error <= tolerance, (name, float(error))
