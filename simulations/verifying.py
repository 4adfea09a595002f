"""`rankdad verify`: compare each method's gradient with autograd's on the pooled batch, without training."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from rankdad.common.data import Batch, Samples
from rankdad.common.devices import CPU
from rankdad.common.documents import validate
from rankdad.common.errors import SpecError
from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.reduction.operators import leaf
from rankdad.common.lowrank.routes import Payload, Route, gather, scatter
from rankdad.common.lowrank.sparse import sparse
from rankdad.common.methods import Contribution, Method, MethodState
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Kind, Message
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.rounds.step import Step
from rankdad.common.run.replica import Replica
from rankdad.common.seeds import derive
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import TaskSpec
from rankdad.common.spec.tree import TOP, Node
from rankdad.local.losses import mean_loss

EXACT = frozenset({"dsgd", "dad", "edad"})
TOLERANCE = {"float32": 2e-5, "float64": 1e-10}  # relative error of an exact method
ROUNDING = {"float32": 2e-5, "bfloat16": 1e-2, "float16": 2e-3, "int8": 5e-2, "int4": 0.3, "int2": 0.8}  # by wire
RANK = 4  # of other methods if the spec's method has none


@dataclass(frozen=True)
class Deviation:
    """One parameter's distributed gradient against autograd on the pooled batch.

    Args:
        name: the parameter's.
        error: norm of the difference, relative to the pooled gradient.
        optimal: the same for the best matrix of the method's rank; 0 for a dense route or an exact method.
        rank: effective rank of the update; None for a matrix.
        dense: whether sites send the whole matrix.
    """

    name: str
    error: float
    optimal: float
    rank: int | None
    dense: bool


@dataclass(frozen=True)
class Verification:
    """One method's first step on the user's model and data.

    Args:
        method: the method's name.
        deviations: deviation of every route.
        up: bytes that a site sends, as the mean over sites.
        down: bytes that a site receives.
        norms: norm of each site's gradient.
        error: relative error of all parameters together.
        one_level: the same without regions; None if the run has none.
    """

    method: str
    deviations: tuple[Deviation, ...]
    up: float
    down: int
    norms: tuple[float, ...]
    error: float
    one_level: float | None = None

    def is_exact(self, dtype: str) -> bool:
        """Return whether every deviation is within rounding error."""
        return all(deviation.error <= TOLERANCE[dtype] for deviation in self.deviations)

    def is_right(self, dtype: str, wire: str) -> bool:
        """Return whether deviations of dense routes, or all of an exact method, are within rounding error."""
        if self.method in EXACT:
            return self.is_exact(dtype)
        most = max(TOLERANCE[dtype], ROUNDING.get(wire, 0.0))
        return all(deviation.error <= most for deviation in self.deviations if deviation.dense)


def verify(
    spec: RunSpec,
    data: Mapping[str, Samples],
    allowed_factories: Collection[str] = (),
    weights: Path | None = None,
    device: str = CPU,
) -> tuple[list[Verification], list[str]]:
    """Take one batch of every site through each method's first step, with packing, without training.

    Args:
        spec: the run; its method is verified unchanged, others with its rank.
        data: training samples by site.
        allowed_factories: permitted model factories.
        weights: folder of the pretrained weights that the spec names.
        device: device of the computation.

    Returns:
        A verification of each method, and a sentence for each that does not fit the model.
    """
    rank, make = getattr(spec.method, "rank", RANK), partial(Replica, device=device, weights=weights)
    methods: dict[str, dict[str, object]] = {name: {"name": name} for name in ("dsgd", "dad", "edad", "top-k")}
    methods |= {name: {"name": name, "rank": rank} for name in ("rank-dad", "powersgd")}
    methods[spec.method.name] = spec.method.model_dump(mode="json")
    verifications: list[Verification] = []
    misfits: list[str] = []
    for name, method in methods.items():
        try:
            verifications.append(
                _verify_levels(partial(make, allowed_factories=allowed_factories), _with_method(spec, method), data)
            )
        except SpecError as error:
            if name == spec.method.name:
                raise
            misfits.append(f"{name} is left out: {error}")
    return verifications, misfits


def _with_method(spec: RunSpec, method: Mapping[str, object]) -> RunSpec:
    wire = {"wire": spec.training.dtype} if method["name"] in EXACT else {}
    document = spec.model_dump(mode="json") | {"method": {**method, **wire}}
    document["record"]["spectra"] = 0  # not available for every method
    if spec.training.sends_projections:  # gradients are verified, not projections
        document["training"]["optimizer"]["second_moment"] = "elementwise"
    return validate(RunSpec, document)


def _verify_levels(make: Callable[[RunSpec], Replica], spec: RunSpec, data: Mapping[str, Samples]) -> Verification:
    """Verify a run and, if it has regions, compare it with one without."""
    found = _verify_one(make(spec), spec, data)
    if not spec.federation.regions:
        return found
    federation = spec.federation.model_copy(update={"regions": {}})
    spec = spec.model_copy(update={"federation": federation})
    flat = _verify_one(make(spec), spec, data)
    return replace(found, one_level=flat.error)


def _verify_one(replica: Replica, spec: RunSpec, data: Mapping[str, Samples]) -> Verification:
    replica.model.eval()  # dropout and batch statistics would differ from a pooled batch
    plan = make_plan(spec, replica.model)
    method = spec.method.method(plan.routes, replica.model, spec.seed)
    firsts = [torch.arange(min(spec.training.batch_size, len(data[site]))) for site in plan.sites]
    batches = [next(data[site].batches([rows], replica.device)) for site, rows in zip(plan.sites, firsts, strict=True)]
    gradients = [_gradients(spec.task, plan, replica, batch) for batch in batches]
    norms = [_norm(scatter(plan.routes, payload).values()) for payload in gradients]
    weights = [float(len(rows)) for rows in firsts]
    updates, up, down = _exchange_all(plan, spec.federation.nodes, method, gradients, weights)
    applied = method.gradients(updates)
    pooled = _pooled(spec.task, replica, batches)
    deviations = tuple(
        _deviation(spec, route, value, pooled) for route, value in zip(plan.routes, applied, strict=True)
    )
    gradient = scatter(plan.routes, applied)
    error = _norm(value - pooled[name] for name, value in gradient.items()) / (_norm(pooled.values()) or 1.0)
    return Verification(spec.method.name, deviations, up, down, tuple(norms), error)


def _exchange_all(
    plan: Plan, nodes: Mapping[str, Node], method: Method, gradients: list[Payload], weights: list[float]
) -> tuple[list[Payload], float, int]:
    """Take all sites through one step; return updates, mean bytes up, and bytes down."""
    steps = [
        method.step(payload, weight / sum(weights), MethodState(), derive(plan.seed, "site", index, 0))
        for index, (payload, weight) in enumerate(zip(gradients, weights, strict=True))
    ]
    payloads = [next(step) for step in steps]
    updates: list[Payload] = []
    up = down = 0
    for exchange in range(len(plan.exchanges)):
        bodies = [
            pack(Message(Kind.STEP, exchange, Step(weight, 0.0, 0.0, payload), exchange), plan, up=True)
            for weight, payload in zip(weights, payloads, strict=True)
        ]
        read = partial(_read, plan, str(leaf(gradients[0][0]).device))
        received = {site: read(body, up=True) for site, body in zip(plan.sites, bodies, strict=True)}
        body = _aggregated(plan, nodes, method, exchange, received, read)
        updates.append(read(body, up=False).payload)
        up, down = up + sum(map(len, bodies)), down + len(body)
        if exchange < len(plan.exchanges) - 1:
            payloads = [step.send(updates[-1]) for step in steps]
    return updates, up / len(steps), down


def _aggregated(
    plan: Plan,
    nodes: Mapping[str, Node],
    method: Method,
    exchange: int,
    received: dict[str, Step],
    read: Callable[..., Step],
) -> bytes:
    """Aggregate the sites' contributions at all levels, and return the packed update."""
    total = sum(step.weight for step in received.values())
    for node in reversed(list(nodes.values())):
        steps = [received[child] for child in node.children]
        sent, weight = [Contribution(step.weight, step.payload) for step in steps], sum(step.weight for step in steps)
        top, state = node.above is None, MethodState()
        if top:
            payload, _ = method.aggregate(exchange, sent, state, derive(plan.seed, TOP, exchange))
        else:
            seed = derive(plan.seed, "region", node.name, exchange)
            payload, _ = method.combine(exchange, sent, weight / total, state, seed)
        message = Message(Kind.STEP, exchange, Step(weight, 0.0, 0.0, payload), exchange)
        body = pack(message, plan, up=not top, region=not top)
        if not top:
            received[node.name] = read(body, up=True, region=True)
    return body


def _read(plan: Plan, device: str, body: bytes, *, up: bool, region: bool = False) -> Step:
    message = unpack(body, plan, up=up, region=region, device=device)
    assert isinstance(message.body, Step)
    return message.body


def _gradients(task: TaskSpec, plan: Plan, replica: Replica, batch: Batch) -> Payload:
    with FactorCapture(replica.model, only=plan.factor_names) as capture:
        capture.backward(mean_loss(task, replica.model(batch.inputs), batch.labels))
    return gather(plan.routes, capture.factors(), capture.dense(), next(replica.model.parameters()))


def _pooled(task: TaskSpec, replica: Replica, batches: list[Batch]) -> dict[str, Tensor]:
    """Return autograd's gradients of the mean loss over all batches."""
    replica.model.zero_grad(set_to_none=True)
    inputs, labels = torch.cat([b.inputs for b in batches]), torch.cat([b.labels for b in batches])
    mean_loss(task, replica.model(inputs), labels).backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in replica.model.named_parameters()
        if p.requires_grad
    }


def _deviation(spec: RunSpec, route: Route, value: Matrix, pooled: Mapping[str, Tensor]) -> Deviation:
    applied = scatter((route,), (value,))
    size = _norm(pooled[name] for name in applied)
    error = _norm(gradient - pooled[name] for name, gradient in applied.items())
    optimal = 0.0
    if spec.method.most_rows is not None and not spec.method.sends_rows_as_they_are and route.up is not None:
        matrix = pooled[route.name].reshape(route.shape[0], -1)
        if route.bias is not None:
            matrix = torch.cat([matrix, pooled[route.bias][:, None]], dim=1)
        optimal = float(torch.linalg.svdvals(matrix.double())[route.up :].square().sum().sqrt())
    if route.entries is not None:
        matrix = pooled[route.name].reshape(route.matrix)
        optimal = _norm([matrix - sparse(matrix, route.entries, "float64")[0]])
    name = f"{route.name} + {route.bias}" if route.bias else route.name
    rank = value.rows if isinstance(value, Factor) else None
    return Deviation(name, error / size if size else error, optimal / size if size else 0.0, rank, route.dense)


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(torch.linalg.vector_norm(t, dtype=torch.float64)) ** 2 for t in tensors))


def show_verification(spec: RunSpec, verifications: list[Verification], console: Console) -> bool:
    """Print every method's deviations; return whether all methods are right."""
    right = True
    if spec.training.sends_projections:
        console.print("bytes are without the projections of a factored second moment", highlight=False)
    for verification in verifications:
        exact, fine = verification.method in EXACT, verification.is_right(spec.training.dtype, spec.method.wire)
        right = right and fine
        table = Table("parameter", "error", "optimal", "effective rank", title=verification.method)
        for deviation in verification.deviations:
            rank = "–" if deviation.rank is None else str(deviation.rank)
            table.add_row(deviation.name, f"{deviation.error:.1e}", f"{deviation.optimal:.1e}", rank)
        console.print(table)
        norms = ", ".join(
            f"{site} {norm:.3g}" for site, norm in zip(spec.federation.sites, verification.norms, strict=True)
        )
        console.print(
            f"{verification.up:,.0f} bytes up, {verification.down:,} down per site; gradient norms: {norms}",
            highlight=False,
        )
        if verification.one_level is not None:
            levels, one = 1 + max(node.level for node in spec.federation.nodes.values()), verification.one_level
            times = f", {verification.error / one:.3f} times as much" if not exact and one else ""
            console.print(
                f"error through {levels} levels of aggregators {verification.error:.2e}{times}; through one {one:.2e}",
                highlight=False,
            )
        if exact:
            console.print("exact: equal to the pooled gradient" if fine else "NOT EXACT", highlight=False)
        elif not fine:
            console.print("WRONG: dense parts differ from the pooled gradient", highlight=False)
        elif any(deviation.optimal for deviation in verification.deviations):
            worst = max((d.error / d.optimal for d in verification.deviations if d.optimal > 1e-6), default=1.0)
            console.print(
                f"reduced: at most {worst:.3f} times the error of the best matrix of its rank or entries",
                highlight=False,
            )
    return right
