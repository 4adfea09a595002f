"""The reducers' promises on factors captured in training, and the command that measures them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from typer.testing import CliRunner

from benchmarks import networks
from benchmarks.cli import app
from benchmarks.reduce import METHODS, NETWORKS, REDUCERS, bench_reduce, error, optimal_error
from rankdad.common.data import Samples
from rankdad.common.errors import UserError
from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.reduction.block import block
from rankdad.common.lowrank.reduction.exact import exact
from rankdad.common.lowrank.reduction.spi import spi
from rankdad.common.lowrank.routes import Payload, gather, scatter
from rankdad.common.methods import Contribution, MethodState
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.simulations.sources import Digits
from tests.conftest import SHARED, run_spec

SITES = ("alpha", "beta", "gamma", "delta")
BATCH = 64
MOMENTS = (0, 20, 60)  # steps whose gradients are looked at: the spectrum falls off faster and faster
SEEDS = range(10)
ROUNDING = 1e-6  # of the gradient's norm, where the best matrix is the gradient itself


def digits() -> Samples:
    pool = Digits(name="digits").load()
    return Samples(torch.from_numpy(pool.x).float() / 16, torch.from_numpy(pool.y).long())


def run_on_digits(method: dict[str, Any], seed: int = 0) -> RunSpec:
    return run_spec(
        seed=seed,
        task={"name": "classification", "classes": 10},
        model={"name": "mlp", "hidden": [256, 256]},
        data={"shape": [64]},
        method=method,
        training={"batch_size": BATCH, "optimizer": {"name": "adam", "lr": 1e-3}},
        federation={"sites": list(SITES)},
    )


def batches(seed: int) -> Iterator[Samples]:
    samples, generator = digits(), torch.Generator().manual_seed(seed)
    while True:
        yield samples.take(torch.randint(len(samples), (BATCH,), generator=generator))


@pytest.fixture(scope="module")
def captured() -> list[tuple[Factor, Tensor]]:
    """Factors of all three layers at several moments, with their products."""
    torch.set_num_threads(1)
    replica = Replica(run_on_digits({"name": "dsgd"}))
    factors: list[Factor] = []
    for step, batch in zip(range(max(MOMENTS) + 1), batches(0), strict=False):
        with FactorCapture(replica.model) as capture:
            F.cross_entropy(replica.model(batch.inputs), batch.labels).backward()
        if step in MOMENTS:
            factors += [factor.with_ones() for factor in capture.factors().values()]
        replica.apply({name: p.grad for name, p in replica.model.named_parameters() if p.grad is not None})
    return [(factor, factor.gradient()) for factor in factors]


def train(method: dict[str, Any], seed: int, steps: int) -> Iterator[tuple[list[Payload], Payload]]:
    """Train at four sites: every step's gradients of all sites, and what was applied."""
    spec = run_on_digits(method, seed)
    replica = Replica(spec)
    plan = make_plan(spec, replica.model)
    rules = spec.method.method(plan.routes, replica.model, spec.seed)
    states, aggregator, source = [MethodState() for _ in SITES], MethodState(), batches(seed)
    for step in range(steps):
        gradients, exchanges = list[Payload](), []
        for site, state in enumerate(states):
            batch = next(source)
            with FactorCapture(replica.model, only=plan.factor_names) as capture:
                capture.backward(F.cross_entropy(replica.model(batch.inputs), batch.labels))
            like = next(replica.model.parameters())
            gradients.append(gather(plan.routes, capture.factors(), capture.dense(), like))
            exchanges.append(rules.step(gradients[-1], 1 / len(SITES), state, len(SITES) * step + site))
        sent = [Contribution(float(BATCH), next(exchange)) for exchange in exchanges]
        update, aggregator = rules.aggregate(0, sent, aggregator, step)
        for site, exchange in enumerate(exchanges):
            with pytest.raises(StopIteration) as end:
                exchange.send(update)
            states[site] = end.value.value
        applied = rules.gradients([update])
        yield gradients, applied
        replica.apply(scatter(plan.routes, applied))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 4, 10])
def test_every_reducer_is_within_a_hundredth_of_optimal(captured: list[tuple[Factor, Tensor]], rank: int) -> None:
    for factor, gradient in captured:
        size = float(torch.linalg.vector_norm(gradient))
        most = 1.01 * optimal_error(gradient, rank) + ROUNDING * size
        assert error(exact(factor, rank), gradient) <= most
        for seed in SEEDS:
            for matrix in (factor, gradient):
                assert error(spi(matrix, rank, seed=seed), gradient) <= most, seed
                assert error(block(matrix, rank, seed=seed), gradient) <= most, seed


@pytest.mark.exhaustive
@pytest.mark.parametrize("reducer", ["auto", "exact", "spi"])
@pytest.mark.parametrize("rank", [1, 4, 10])
def test_both_reductions_together_are_within_a_seventh_of_optimal(reducer: str, rank: int) -> None:
    """Without feedback, so that no residual makes up for what is lost."""
    method = {"name": "rank-dad", "rank": rank, "reducer": reducer, "feedback": "none"}
    for seed in (1, 2):
        for step, (gradients, applied) in enumerate(train(method, seed, 31)):
            for at, found in enumerate(applied):
                if step % 5 == 0 and isinstance(found, Factor):
                    pooled = sum(dense(own[at]) for own in gradients) / len(SITES)
                    assert isinstance(pooled, Tensor)
                    size = float(torch.linalg.vector_norm(pooled))
                    most = 8 / 7 * optimal_error(pooled, rank) + ROUNDING * size
                    assert error(found, pooled) <= most, (seed, step, at)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_networks_read_their_images(name: str) -> None:
    network = NETWORKS[name]
    images = torch.arange(2 * 32 * 32 * 3).remainder(256).to(torch.uint8).reshape(2, 32, 32, 3)
    inputs = network.inputs(images[:, :28, :28, 0] if name == "ff" else images)
    assert tuple(inputs.shape) == (2, *network.shape)
    assert getattr(networks, network.factory)()(inputs).shape == (2, 10)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_command_measures_what_it_has_data_for(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    images, labels = generator.integers(0, 256, (300, 28, 28), dtype=np.uint8), generator.integers(0, 10, 300)
    np.savez(tmp_path / "mnist.npz", x_train=images, y_train=labels)
    options = ["--networks", "ff,vit", "--ranks", "2", "--steps", "1", "--data", str(tmp_path)]
    result = CliRunner().invoke(app, ["reduce", *options])
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(f"{tmp_path / 'cifar10_subset.npz'}: does not exist")
    assert str(result.exception).endswith("--networks ff")
    for method in METHODS:
        assert f"| ff | 2 | {method} | " in result.output
    for shape in ("1024 × 785", "1024 × 1025"):
        assert f"| ff | 1 of {shape} | 64 | 2 | " in result.output


@pytest.mark.exhaustive
@pytest.mark.shared_data
def test_reductions_on_the_papers_network() -> None:
    if not (SHARED / "mnist.npz").exists():
        pytest.skip(f"{SHARED / 'mnist.npz'} is not there")
    costs, qualities = bench_reduce(["ff"], [4], 3, 1, SHARED)
    assert [cost.method for cost in costs] == list(METHODS)
    assert {quality.shape for quality in qualities} == {(1024, 785), (1024, 1025), (10, 1025)}
    for quality in qualities:
        errors = dict(zip(REDUCERS, quality.errors, strict=True))
        assert errors["exact"] <= 1.0001
        assert errors["block"] <= 1.01
        assert min(quality.errors) >= 0.9999


def dense(value: Factor | Tensor) -> Tensor:
    return value.gradient() if isinstance(value, Factor) else value
