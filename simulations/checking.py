"""`rankdad check` and `rankdad verify`: what would be sent, and whether what comes of it is right.

Nothing is trained, and no process is started.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from rankdad.common.capture import FactorCapture
from rankdad.common.documents import validate
from rankdad.common.errors import SpecError
from rankdad.common.factors import Factor
from rankdad.common.messages import Kind, Message, Step
from rankdad.common.methods import Contribution, Method, State, method_for
from rankdad.common.methods.rank_dad import is_small
from rankdad.common.plan import Plan, make_plan
from rankdad.common.policy import Policy
from rankdad.common.protocol import pack, step_bytes, unpack
from rankdad.common.replica import Replica
from rankdad.common.routes import Payload, Route, gather, scatter
from rankdad.common.run.batches import parts
from rankdad.common.seeds import derive
from rankdad.common.spec import PowerSgd, RankDad, RunSpec
from rankdad.common.tasks import TaskSpec
from rankdad.local.admission import admitted, check_steps
from rankdad.local.data import Samples, SiteData
from rankdad.local.losses import mean_loss
from rankdad.remote.view import size
from rankdad.simulations.footprint import WINDOW, footprint

EXACT = frozenset({"dsgd", "dad", "edad"})
TOLERANCE = {"float32": 2e-5, "float64": 1e-10}  # of an exact method, relative to the gradient; products of many rows
ROUNDING = {"float32": 2e-5, "bfloat16": 1e-2, "float16": 2e-3, "int8": 5e-2}  # of a wire
RANK = 4  # of methods beside the spec's own, where that has none


def check_policy(policy: Policy, spec: RunSpec, plan: Plan, data: Sequence[SiteData]) -> None:
    """Check a run of all these sites as each of them would.

    Raises:
        PolicyError: one of them would refuse it.
    """
    policy.check(spec, plan)
    for own in data:
        admitted(policy, spec, plan, own)
    sizes: list[int] = []  # of even batches, which a site alone does not know
    for splits in zip(*(own.splits for own in data), strict=True):
        counts = [len(split.train) for split in splits]
        most = math.ceil(max(counts) / spec.training.step_size)
        sizes += [size for count in counts for size in parts(count, most)]
    if spec.training.batches == "even":
        check_steps(policy, spec, plan, sizes)


def show_plan(spec: RunSpec, plan: Plan, console: Console) -> None:
    """Print how every parameter travels, and how large a step's body is in each direction."""
    table = Table("parameter", "shape", "route", "reducer", "residual", "rows", "bytes up", "bytes down")
    sizes = [_slot_bytes(plan, up=True), _slot_bytes(plan, up=False)]
    for route in plan.routes:
        name = f"{route.name} + {route.bias}" if route.bias else route.name
        shape = " × ".join(map(str, route.shape))
        table.add_row(name, shape, *_words(spec, route), *(f"{size[route.name]:,}" for size in sizes))
    console.print(table)
    for warning in plan.warnings:
        console.print(f"warning: {warning}", highlight=False)
    up, down = step_bytes(plan, up=True), step_bytes(plan, up=False)
    console.print(
        f"{spec.method.name}, {len(plan.sites)} sites: at most {up:,} bytes up and {down:,} down per site and step, "
        f"{2 * plan.dense_bytes / (up + down):.1f} times fewer than full gradients ({plan.dense_bytes:,})",
        highlight=False,
    )
    kept = footprint(plan)
    console.print(
        f"the aggregator's ledger: at most {kept.step:,} bytes a step and {kept.epoch:,} an epoch, of which "
        f"{kept.step_update:,} and {kept.epoch_update:,} stay; contributions are gone after {WINDOW} steps. With "
        f"--retention tail at most {size(kept.tail())}, checkpoints included, and {size(kept.epoch)} for each epoch "
        f"that ends within {WINDOW} steps",
        highlight=False,
    )


def _slot_bytes(plan: Plan, *, up: bool) -> dict[str, int]:
    """Return each parameter's bytes, all exchanges of a step together."""
    sizes = dict.fromkeys((route.name for route in plan.routes), 0)
    for exchange in range(len(plan.exchanges)):
        for slot in plan.layout(exchange, up=up).slots:
            sizes[slot.name] += slot.size(plan.wire)
    return sizes


def _words(spec: RunSpec, route: Route) -> tuple[str, str, str, str]:
    """Say how a parameter travels, what reduces it, how its residual is kept, and its rows up and down."""
    if route.up is None:
        return "dense", "–", "–", "–"
    how = "factor" if route.captured else "reduced gradient"
    rows = str(route.up) if route.up == route.down else f"{route.up}, {'dense' if route.down is None else route.down}"
    if not isinstance(spec.method, RankDad):
        return how, "–", "dense" if getattr(spec.method, "feedback", False) else "–", rows
    kept = f"{route.residual} rows" if route.residual else "dense"
    reducer = spec.method.reducer
    if reducer == "auto":
        small = not route.captured and is_small(torch.empty(route.matrix, device="meta"), route.up)
        reducer = "exact" if small else "block"
    return how, reducer, "–" if spec.method.feedback == "none" else kept, rows


@dataclass(frozen=True)
class Deviation:
    """One parameter's distributed gradient against autograd on the pooled batch.

    Args:
        name: of the parameter.
        error: norm of the difference over the norm of the pooled gradient.
        optimal: the same of the best matrix of the method's rank; 0 for a dense route or an exact method.
        rank: effective rank of what came back; None for a matrix.
        dense: whether sites send the whole matrix.
    """

    name: str
    error: float
    optimal: float
    rank: int | None
    dense: bool


@dataclass(frozen=True)
class Verification:
    """One method's first step on the user's own model and data.

    Args:
        method: its name.
        deviations: of every route.
        up: bytes that a site sends, the mean over sites.
        down: bytes that a site receives.
        norms: of each site's gradient.
    """

    method: str
    deviations: tuple[Deviation, ...]
    up: float
    down: int
    norms: tuple[float, ...]

    def is_exact(self, dtype: str) -> bool:
        """Whether every deviation is rounding error."""
        return all(deviation.error <= TOLERANCE[dtype] for deviation in self.deviations)

    def is_right(self, dtype: str, wire: str) -> bool:
        """Whether all that travels dense is rounding error, the wire's included; everything in an exact method."""
        if self.method in EXACT:
            return self.is_exact(dtype)
        most = max(TOLERANCE[dtype], ROUNDING.get(wire, 0.0))
        return all(deviation.error <= most for deviation in self.deviations if deviation.dense)


def verify(
    spec: RunSpec,
    data: Mapping[str, Samples],
    allowed_factories: Collection[str] = (),
    weights: Path | None = None,
) -> tuple[list[Verification], list[str]]:
    """Take one batch of every site through each method's first step, bytes and all, without training.

    Args:
        spec: the run; its own method is verified as it stands, the others at its rank.
        data: training samples of every site, by name.
        allowed_factories: model factories that the caller permits.
        weights: folder of the pretrained weights that the spec names.

    Returns:
        What was found of each method, and a sentence for each that does not fit the model.
    """
    rank = getattr(spec.method, "rank", RANK)
    methods: list[dict[str, object]] = [{"name": name} for name in ("dsgd", "dad", "edad", "top-rows")]
    methods += [{"name": name, "rank": rank} for name in ("rank-dad", "powersgd")]
    own = spec.method.model_dump(mode="json")
    found: list[Verification] = []
    misfits: list[str] = []
    for method in (own if method["name"] == own["name"] else method for method in methods):
        try:
            found.append(_verify_one(_with_method(spec, method), data, allowed_factories, weights))
        except SpecError as error:
            if method is own:
                raise
            misfits.append(f"{method['name']} is left out: {error}")
    return found, misfits


def _with_method(spec: RunSpec, method: Mapping[str, object]) -> RunSpec:
    wire = {"wire": spec.training.dtype} if method["name"] in EXACT else {}
    return validate(RunSpec, spec.model_dump(mode="json") | {"method": {**method, **wire}})


def _verify_one(
    spec: RunSpec, data: Mapping[str, Samples], allowed_factories: Collection[str], folder: Path | None
) -> Verification:
    replica = Replica(spec, allowed_factories, weights=folder)
    replica.model.eval()  # without dropout and batch statistics, which no pooled batch would share
    plan = make_plan(spec, replica.model)
    method = method_for(spec, plan.routes, replica.model)
    batches = [data[site].take(torch.arange(min(spec.training.batch_size, len(data[site])))) for site in plan.sites]
    gradients = [_gradients(spec.task, plan, replica, batch) for batch in batches]
    norms = [_norm(scatter(plan.routes, own).values()) for own in gradients]
    weights = [float(len(batch)) for batch in batches]
    updates, up, down = _exchange_all(plan, method, gradients, weights)
    applied = method.gradients(updates)
    pooled = _pooled(spec.task, replica, batches)
    deviations = tuple(
        _deviation(spec, route, value, pooled) for route, value in zip(plan.routes, applied, strict=True)
    )
    return Verification(spec.method.name, deviations, up, down, tuple(norms))


def _exchange_all(
    plan: Plan, method: Method, gradients: list[Payload], weights: list[float]
) -> tuple[list[Payload], float, int]:
    """Take all sites through one step: the updates of its exchanges, a site's mean bytes up, and its bytes down."""
    steps = [
        method.step(own, weight / sum(weights), State(), derive(plan.seed, "site", index, 0))
        for index, (own, weight) in enumerate(zip(gradients, weights, strict=True))
    ]
    payloads = [next(step) for step in steps]
    updates: list[Payload] = []
    up = down = 0
    for exchange in range(len(plan.exchanges)):
        bodies = [
            pack(Message(Kind.STEP, exchange, Step(weight, 0.0, 0.0, payload), exchange), plan, up=True)
            for weight, payload in zip(weights, payloads, strict=True)
        ]
        received = [_step(unpack(body, plan, up=True)) for body in bodies]
        contributions = [Contribution(step.weight, step.payload) for step in received]
        payload, _ = method.aggregate(exchange, contributions, State(), derive(plan.seed, "aggregator", exchange))
        body = pack(Message(Kind.STEP, exchange, Step(sum(weights), 0.0, 0.0, payload), exchange), plan, up=False)
        updates.append(_step(unpack(body, plan, up=False)).payload)
        up, down = up + sum(map(len, bodies)), down + len(body)
        if exchange < len(plan.exchanges) - 1:
            payloads = [step.send(updates[-1]) for step in steps]
    return updates, up / len(steps), down


def _step(message: Message) -> Step:
    assert isinstance(message.body, Step)
    return message.body


def _gradients(task: TaskSpec, plan: Plan, replica: Replica, batch: Samples) -> Payload:
    with FactorCapture(replica.model, only=plan.factor_names) as capture:
        capture.backward(mean_loss(task, replica.model(batch.inputs), batch.labels))
    return gather(plan.routes, capture.factors(), capture.dense(), next(replica.model.parameters()))


def _pooled(task: TaskSpec, replica: Replica, batches: list[Samples]) -> dict[str, Tensor]:
    """Return autograd's gradients of the mean loss over all batches together."""
    replica.model.zero_grad(set_to_none=True)
    inputs, labels = torch.cat([b.inputs for b in batches]), torch.cat([b.labels for b in batches])
    mean_loss(task, replica.model(inputs), labels).backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in replica.model.named_parameters()
        if p.requires_grad
    }


def _deviation(spec: RunSpec, route: Route, value: Factor | Tensor, pooled: Mapping[str, Tensor]) -> Deviation:
    found = scatter((route,), (value,))
    size = _norm(pooled[name] for name in found)
    error = _norm(found[name] - pooled[name] for name in found)
    optimal = 0.0
    if isinstance(spec.method, RankDad | PowerSgd) and route.up is not None:
        matrix = pooled[route.name].reshape(route.shape[0], -1)
        if route.bias is not None:
            matrix = torch.cat([matrix, pooled[route.bias][:, None]], dim=1)
        optimal = float(torch.linalg.svdvals(matrix.double())[spec.method.rank :].square().sum().sqrt())
    name = f"{route.name} + {route.bias}" if route.bias else route.name
    rank = value.rows if isinstance(value, Factor) else None
    return Deviation(name, error / size if size else error, optimal / size if size else 0.0, rank, route.up is None)


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(torch.linalg.vector_norm(t, dtype=torch.float64)) ** 2 for t in tensors))


def show_verification(spec: RunSpec, found: list[Verification], console: Console) -> bool:
    """Print every method's deviations, and return whether the exact methods are exact."""
    right = True
    for verification in found:
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
        if exact:
            console.print("exact: equal to the pooled gradient" if fine else "NOT EXACT", highlight=False)
        elif not fine:
            console.print("WRONG: what travels dense is not the pooled gradient", highlight=False)
        elif any(deviation.optimal for deviation in verification.deviations):
            worst = max((d.error / d.optimal for d in verification.deviations if d.optimal > 1e-6), default=1.0)
            console.print(
                f"reduced: at most {worst:.3f} times the error of the best matrix of its rank", highlight=False
            )
    return right
