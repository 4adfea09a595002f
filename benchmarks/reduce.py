"""`python -m benchmarks reduce`: cost of a reduction relative to the backward pass, and its distance from optimal.

One site of four trains each of the paper's networks, with every method in turn; the other sites send the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.networks import patches, pixels, sequences
from rankdad.common.data import Batch, Samples
from rankdad.common.data.npz import read_arrays
from rankdad.common.documents import validate
from rankdad.common.errors import DataError, UserError
from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.reduction.block import block
from rankdad.common.lowrank.reduction.exact import exact
from rankdad.common.lowrank.reduction.spi import spi
from rankdad.common.lowrank.routes import Payload, gather, scatter
from rankdad.common.methods import Contribution, Method, MethodState
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.run.replica import Replica
from rankdad.common.seeds import derive
from rankdad.common.spec import RunSpec

SITES, BATCH = 4, 64
WARM_UP = 3  # steps left out of every figure: a residual kept as rows is then reduced for the first time
PATIENCE = 0.5  # seconds for the repetitions of one reducer on one matrix
MAX_REPETITIONS = 9
FOLLOWED = 8  # last steps over which PowerSGD turns its directions towards the gradient


@dataclass(frozen=True)
class Network:
    """One of the networks, as a factory of `benchmarks.networks`, and its data.

    Args:
        factory: name of the module class.
        file: npz file with `x_train` and `y_train`.
        inputs: how the network reads the file's images.
        shape: of one input.
        steps: how many are measured without a word from the caller.
    """

    factory: str
    file: str
    inputs: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    steps: int


NETWORKS = {
    "ff": Network("FeedForward", "mnist.npz", pixels, (784,), 42),
    "gru": Network("Recurrent", "cifar10_subset.npz", sequences, (256, 12), 4),
    "vit": Network("VisionTransformer", "cifar10_subset.npz", patches, (49, 48), 6),
}
METHODS: dict[str, dict[str, str]] = {
    "rank-dad": {"name": "rank-dad"},
    "rank-dad, spi": {"name": "rank-dad", "reducer": "spi"},
    "rank-dad, block": {"name": "rank-dad", "reducer": "block"},
    "rank-dad, exact": {"name": "rank-dad", "reducer": "exact"},
    "rank-dad, no feedback": {"name": "rank-dad", "feedback": "none"},
    "rank-dad, dense residual": {"name": "rank-dad", "residual": "dense"},
    "PowerSGD": {"name": "powersgd"},
}
REDUCERS = ("spi", "block", "block, warm", "exact", "PowerSGD, warm")


@dataclass
class Contender:
    """One method at one rank, training a replica of its own.

    Args:
        name: in the table.
        rank: of the method.
        replica: that it trains.
        plan: of its run.
        method: what is timed.
        site: the method's state there.
        aggregator: the same of the aggregator.
        backward: seconds of autograd's backward pass, step by step.
        gathering: seconds from there to the payload's order, biases folded in, step by step.
        reduction: seconds of all that the method does at the site, step by step.
        gradients: of the last two steps.
    """

    name: str
    rank: int
    replica: Replica
    plan: Plan
    method: Method
    site: MethodState = field(default_factory=MethodState)
    aggregator: MethodState = field(default_factory=MethodState)
    backward: list[float] = field(default_factory=list)
    gathering: list[float] = field(default_factory=list)
    reduction: list[float] = field(default_factory=list)
    gradients: list[Payload] = field(default_factory=list)

    def step(self, batch: Batch) -> None:
        """Take one step as one of equal sites."""
        model = self.replica.model
        with FactorCapture(model, only=self.plan.factor_names) as capture:
            loss = F.cross_entropy(model(batch.inputs), batch.labels)
            began = perf_counter()
            loss.backward()  # the capture's own leaves out the products that factors replace
            self.backward.append(perf_counter() - began)
        began = perf_counter()
        own = gather(self.plan.routes, capture.factors(), capture.dense(), next(model.parameters()))
        self.gathering.append(perf_counter() - began)
        began = perf_counter()
        applied, waited = self._exchange(own)
        self.reduction.append(perf_counter() - began - waited)
        self.gradients = [*self.gradients[-1:], own]
        self.replica.apply(scatter(self.plan.routes, applied))

    def _exchange(self, own: Payload) -> tuple[Payload, float]:
        """Return the pooled gradients, and the seconds of aggregation."""
        seed = derive(self.plan.seed, "site", 0, len(self.reduction))
        exchange = self.method.step(own, 1 / SITES, self.site, seed)
        payload, updates, waited = next(exchange), list[Payload](), 0.0
        while True:
            began = perf_counter()
            contributions = [Contribution(1.0, payload)] * SITES
            update, self.aggregator = self.method.aggregate(len(updates), contributions, self.aggregator, seed)
            updates.append(update)
            waited += perf_counter() - began
            try:
                payload = exchange.send(update)
            except StopIteration as stop:
                self.site = stop.value
                return self.method.gradients(updates), waited


@dataclass(frozen=True)
class Costs:
    """What a method's reduction costs at the site.

    Args:
        network: where.
        rank: of the method.
        method: its name in the table.
        gathering: mean milliseconds in which a step's gradients are put in order, biases folded in.
        reduction: mean milliseconds of the method, from there to what is sent, and after the update.
        backward: mean milliseconds of autograd's backward pass in the same steps.
        typical: the median of the same, where the machine was busy with something else.
    """

    network: str
    rank: int
    method: str
    gathering: float
    reduction: float
    backward: float
    typical: float

    @property
    def ratio(self) -> float:
        """Reduction over backward pass."""
        return self.reduction / self.backward


@dataclass(frozen=True)
class Quality:
    """How the reducers do on all matrices of one shape in a network.

    Args:
        network: where.
        shape: [out, columns].
        count: how many matrices.
        rows: of the factor that was captured; None for a dense gradient.
        rank: to which they are reduced.
        errors: worst error over optimal error of each of `REDUCERS`.
        milliseconds: mean of each of `REDUCERS`.
    """

    network: str
    shape: tuple[int, int]
    count: int
    rows: int | None
    rank: int
    errors: tuple[float, ...]
    milliseconds: tuple[float, ...]


def bench_reduce(
    networks: Sequence[str], ranks: Sequence[int], steps: int | None, threads: int, data: Path
) -> tuple[list[Costs], list[Quality]]:
    """Measure, and print both tables (Markdown).

    Args:
        networks: names in `NETWORKS`.
        ranks: of the methods.
        steps: measured of each network; None takes each one's own number.
        threads: of tensor operations.
        data: folder of the data files.

    Raises:
        UserError: a data file is missing; what can do without it has been measured.
    """
    torch.set_num_threads(threads)
    missing = {file for network in NETWORKS.values() if not (data / (file := network.file)).exists()}
    costs: list[Costs] = []
    qualities: list[Quality] = []
    for name in networks:
        if NETWORKS[name].file not in missing:
            found = _measure(name, NETWORKS[name], ranks, steps or NETWORKS[name].steps, data)
            costs, qualities = costs + found[0], qualities + found[1]
    if costs:
        _show(costs, qualities)
    _complain(networks, missing, data)
    return costs, qualities


def _complain(networks: Sequence[str], missing: set[str], data: Path) -> None:
    """Name the first missing file that the networks need, and the networks that do without."""
    file = next((NETWORKS[name].file for name in networks if NETWORKS[name].file in missing), None)
    if file is not None:
        without = ",".join(name for name, network in NETWORKS.items() if network.file not in missing)
        hint = f", or measure what needs no such file: --networks {without}" if without else ""
        raise UserError(f"{data / file}: does not exist; pass its folder with --data{hint}", code="file-missing")


def _measure(
    name: str, network: Network, ranks: Sequence[int], steps: int, data: Path
) -> tuple[list[Costs], list[Quality]]:
    """Train with every method on the same batches; return their costs, and the reducers' quality on the last gradients.

    One method after the other: side by side they would push each other's weights and states out of the caches.
    """
    samples = _samples(data / network.file)
    costs, qualities = list[Costs](), list[Quality]()
    for rank in ranks:
        for kind in METHODS:
            contender = _contender(network, kind, rank)
            generator = torch.Generator().manual_seed(derive("batches"))
            followed: dict[str, Tensor] = {}  # PowerSGD's directions without feedback, by parameter
            for step in range(WARM_UP + steps):
                batch = next(samples.batches([torch.randint(len(samples), (BATCH,), generator=generator)]))
                contender.step(Batch(network.inputs(batch.inputs), batch.labels))
                if kind == "rank-dad" and WARM_UP + steps - FOLLOWED <= step < WARM_UP + steps - 1:
                    _follow(contender, followed)
            costs.append(_costs(name, contender))
            if kind == "rank-dad":
                qualities += _qualities(name, contender, followed)
    return costs, qualities


def _costs(network: str, contender: Contender) -> Costs:
    gathering, reduction, backward = (
        [1e3 * seconds for seconds in times[WARM_UP:]]
        for times in (contender.gathering, contender.reduction, contender.backward)
    )
    means = fmean(gathering), fmean(reduction), fmean(backward)
    return Costs(network, contender.rank, contender.name, *means, median(backward))


def _samples(path: Path) -> Samples:
    arrays = read_arrays(path, ("x_train", "y_train"))
    if len(arrays) < 2:
        raise DataError(path, "expected the arrays x_train and y_train", code="array-missing")
    return Samples(torch.from_numpy(arrays["x_train"]), torch.from_numpy(arrays["y_train"]).reshape(-1).long())


def _factory(network: Network) -> str:
    return f"benchmarks.networks:{network.factory}"


def _run(network: Network, method: Mapping[str, object]) -> RunSpec:
    document: dict[str, Any] = {
        "name": "reduce",
        "task": {"name": "classification", "classes": 10},
        "model": {"name": "factory", "factory": _factory(network)},
        "data": {"shape": list(network.shape)},
        "training": {"epochs": 1, "batch_size": BATCH, "optimizer": {"name": "adam", "lr": 1e-4}},
        "method": dict(method),
        "federation": {"sites": [f"site-{i + 1}" for i in range(SITES)]},
    }
    return validate(RunSpec, document)


def _contender(network: Network, kind: str, rank: int) -> Contender:
    spec = _run(network, METHODS[kind] | {"rank": rank})
    replica = Replica(spec, [_factory(network)])
    plan = make_plan(spec, replica.model)
    return Contender(kind, rank, replica, plan, spec.method.method(plan.routes, replica.model, spec.seed))


def _reduced(contender: Contender, payload: Payload) -> dict[str, Matrix]:
    """Return the gradients of the routes that are reduced at all, by parameter."""
    return {
        route.name: value for route, value in zip(contender.plan.routes, payload, strict=True) if route.up is not None
    }


def _follow(contender: Contender, followed: dict[str, Tensor]) -> None:
    """Take PowerSGD's directions one step further."""
    for name, value in _reduced(contender, contender.gradients[-1]).items():
        matrix = _dense(value)
        if name not in followed:
            generator = torch.Generator().manual_seed(derive("powersgd", name))
            followed[name] = torch.randn(contender.rank, matrix.shape[1], generator=generator)
        followed[name] = _power_step(matrix, followed[name]).activation


def _power_step(matrix: Tensor, directions: Tensor) -> Factor:
    """Return PowerSGD's approximation from the last step's Qᵀ: both halves, orthonormal P̂ first."""
    left = torch.linalg.qr((directions @ matrix.T).T)[0].T
    return Factor(left, left @ matrix)


def _qualities(network: str, contender: Contender, followed: Mapping[str, Tensor]) -> list[Quality]:
    """Compare the reducers on the last gradients, matrices of one shape together."""
    before, last = (_reduced(contender, payload) for payload in contender.gradients)
    shapes: dict[tuple[int, int], list[str]] = {}
    for name, value in last.items():
        shapes.setdefault((value.shape[0], value.shape[1]), []).append(name)
    found = []
    for shape, names in shapes.items():
        rank, value = contender.rank, last[names[0]]
        measured = [_compare(last[name], before[name], followed[name], rank) for name in names]
        errors = tuple(max(column) for column in zip(*(errors for errors, _ in measured), strict=True))
        times = tuple(fmean(column) for column in zip(*(times for _, times in measured), strict=True))
        rows = value.rows if isinstance(value, Factor) else None
        found.append(Quality(network, shape, len(names), rows, rank, errors, times))
    return found


def _compare(matrix: Matrix, before: Matrix, directions: Tensor, rank: int) -> tuple[list[float], list[float]]:
    """Return each reducer's error over the optimal one, and its milliseconds."""
    dense, basis = _dense(matrix), exact(before, rank).activation
    reducers: tuple[Callable[[], Factor], ...] = (
        lambda: spi(matrix, rank),
        lambda: block(matrix, rank),
        lambda: block(matrix, rank, basis=basis, iterations=1),
        lambda: exact(matrix, rank),
        lambda: _power_step(dense, directions),  # as published: on the gradient that autograd has formed
    )
    optimal = optimal_error(dense, rank)
    errors, times = [], []
    for reducer in reducers:
        reduced, milliseconds = _timed(reducer)
        errors.append(error(reduced, dense) / optimal if optimal else math.inf)
        times.append(milliseconds)
    return errors, times


def optimal_error(dense: Tensor, rank: int) -> float:
    """Return the Frobenius error of the best matrix of a rank (Eckart and Young 1936)."""
    return float(torch.linalg.vector_norm(torch.linalg.svdvals(dense.double())[rank:]))


def error(reduced: Factor, dense: Tensor) -> float:
    """Return the Frobenius error of a reduced factor."""
    return float(torch.linalg.vector_norm(reduced.delta.double().T @ reduced.activation.double() - dense))


def _timed(function: Callable[[], Factor]) -> tuple[Factor, float]:
    """Return a result, and the median milliseconds that it takes."""
    result, times = function(), list[float]()
    while len(times) < MAX_REPETITIONS and sum(times) < PATIENCE:
        began = perf_counter()
        result = function()
        times.append(perf_counter() - began)
    return result, 1e3 * median(times)


def _dense(matrix: Matrix) -> Tensor:
    return matrix.gradient() if isinstance(matrix, Factor) else matrix


def _show(costs: Sequence[Costs], qualities: Sequence[Quality]) -> None:
    print(f"A site's reduction in one step, batch {BATCH}: milliseconds (mean), beside autograd's backward pass\n")
    _print_row("network", "rank", "method", "gathering", "reduction", "backward (median)", "reduction / backward")
    _print_row(*["---"] * 7)
    for cost in costs:
        backward, ratio = f"{cost.backward:.1f} ({cost.typical:.1f})", f"{100 * cost.ratio:.1f} %"
        own = cost.network, cost.rank, cost.method
        _print_row(*own, f"{cost.gathering:.2f}", f"{cost.reduction:.2f}", backward, ratio)
    print("\nError over optimal (worst of the matrices of one shape) / milliseconds (mean of them)\n")
    _print_row("network", "matrix", "rows", "rank", *REDUCERS)
    _print_row(*["---"] * (4 + len(REDUCERS)))
    for quality in qualities:
        matrix = f"{quality.count} of {quality.shape[0]} × {quality.shape[1]}"
        cells = map("{:.4f} / {:.2f}".format, quality.errors, quality.milliseconds)
        _print_row(quality.network, matrix, quality.rows or "dense", quality.rank, *cells)


def _print_row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
