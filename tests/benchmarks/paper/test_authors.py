"""The paper's methods that are plug-ins of the benchmarks: what they compute, and that commands find them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.paper.authors import Authors, published
from benchmarks.paper.top_rows import TopRows
from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.layers import linear_layers
from rankdad.common.lowrank.reduction.spi import spi
from rankdad.common.lowrank.routes import Payload, Route, gather, scatter
from rankdad.common.methods import Contribution, MethodOptions, MethodState
from tests.benchmarks.paper.plugged import ROOT, with_plugins
from tests.common.lowrank.test_reduction import error, factor_of, optimal_error

Batch = tuple[Tensor, Tensor]


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).double()


def batches() -> list[Batch]:
    torch.manual_seed(1)
    return [(torch.randn(size, 6, dtype=torch.float64), torch.randint(3, (size,))) for size in (8, 3, 5)]


def routes_of(options: MethodOptions, model: nn.Module) -> tuple[Route, ...]:
    layers = linear_layers(model)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    weights = [options.route(Route(name, shapes[name]), layers[name][1], 8, 3) for name in layers]
    biases = {bias for _, bias in layers.values()} - {route.bias for route in weights}
    return (*weights, *(Route(name, shapes[name]) for name in shapes if name in biases))


def gradients_of(model: nn.Module, routes: tuple[Route, ...], batch: Batch) -> Payload:
    with FactorCapture(model, only={route.name for route in routes if route.captured}) as capture:
        capture.backward(F.cross_entropy(model(batch[0]), batch[1]))
    return gather(routes, capture.factors(), capture.dense(), next(model.parameters()))


def stepped(options: MethodOptions, model: nn.Module) -> tuple[tuple[Route, ...], Payload, dict[str, Tensor]]:
    """Return routes, what is applied, and what comes of it by parameter, of one step of three sites."""
    routes = routes_of(options, model)
    method = options.method(routes, model, 0)
    sent = list[Contribution]()
    for x, y in batches():
        step = method.step(gradients_of(model, routes, (x, y)), len(y) / 16, MethodState(), 0)
        sent.append(Contribution(float(len(y)), next(step)))
    applied = method.gradients([method.aggregate(0, sent, MethodState(), 0)[0]])
    return routes, applied, scatter(routes, applied)


def pooled(model: nn.Module, of: list[Batch]) -> dict[str, Tensor]:
    model.zero_grad()
    x, y = (torch.cat(parts) for parts in zip(*of, strict=True))
    F.cross_entropy(model(x), y).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_top_rows_is_the_gradient_of_the_first_samples() -> None:
    """Over the whole batch's size: a mean to which most samples contribute nothing; biases are exact."""
    model = net()
    _, _, found = stepped(TopRows(name="top-rows", rows=2), model)
    first, whole = pooled(model, [(x[:2], y[:2]) for x, y in batches()]), pooled(model, batches())
    for name in ("2.weight", "0.weight"):
        assert torch.allclose(found[name], first[name] * 6 / 16)
    assert torch.allclose(found["2.bias"], whole["2.bias"])


def test_the_authors_take_the_bias_from_the_reduced_rows() -> None:
    """Weights as good as nine rows make them; biases far from the pooled gradient's, as their code's are."""
    model = net()
    routes, applied, found = stepped(Authors(name="authors"), model)
    whole = pooled(model, batches())
    assert found.keys() == whole.keys()
    at = next(i for i, route in enumerate(routes) if route.name == "2.weight")
    value, route = applied[at], routes[at]
    assert isinstance(value, Factor)
    assert (route.bias, route.up) == ("2.bias", 9)
    assert torch.allclose(found["2.bias"], value.delta.sum(dim=0), rtol=0, atol=1e-14)
    assert torch.linalg.vector_norm(found["2.weight"] - whole["2.weight"]) < 0.3 * whole["2.weight"].norm()
    assert torch.linalg.vector_norm(found["2.bias"] - whole["2.bias"]) > 0.5 * whole["2.bias"].norm()


def test_the_authors_column_of_ones_does_not_travel() -> None:
    options = Authors(name="authors", rank=4)
    (layout,) = {exchange.up for exchange in options.exchanges(routes_of(options, net()), 3)}
    assert {slot.name: (slot.rows, slot.widths) for slot in layout.slots}["2.weight"] == (3, (64, 64))


TOP_ROWS_FIT = """
from benchmarks.paper.sizes import sizes_of
assert all(row.fits for size in (16, 64) for row in sizes_of("top-rows", {"name": "top-rows", "rows": 3}, size))
"""


@pytest.mark.slow
def test_bytes_of_top_rows_are_the_formulas() -> None:
    with_plugins("-c", TOP_ROWS_FIT)


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["authors", "top-rows"])
def test_commands_know_them_where_their_folder_is_on_the_path(tmp_path: Path, method: str) -> None:
    policy = {"methods": [method], "unreduced_factors": True, "rows_per_rank": None}
    changes = {"run.method": {"name": method}, "run.training.epochs": 2, "simulation.policy": policy}
    words = (word for key, value in changes.items() for word in ("--set", f"{key}={json.dumps(value)}"))
    spec = ROOT / "simulations" / "specs" / "digits.json"
    with_plugins("-m", "rankdad", "simulate", str(spec), "--output", str(tmp_path / "run"), *words)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["method"] == method
    assert len(set(summary["weights_sha256"].values())) == 1


def recurrence(g: Tensor, rank: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """The authors' recurrence on the dense matrix, as eq. 5 writes it: one explicit deflated operator per component."""
    generator = torch.Generator().manual_seed(seed)
    pairs: list[tuple[Tensor, Tensor]] = []
    vectors: list[Tensor] = []
    for _ in range(rank):
        b = torch.rand(len(g), generator=generator, dtype=torch.float64)
        deflated = g @ g.T
        for vector, (q, _) in zip(vectors, pairs, strict=True):
            deflated = deflated - q.norm() ** 2 * torch.outer(vector, vector)
        for _ in range(5):
            b = deflated @ b
            b = b / b.norm()
        sigma = (g.T @ b).norm()
        if sigma.isnan():
            return pairs
        if len(pairs) >= 2 and (b - vectors[-1]).norm() < 1e-3:
            return pairs[:-1]
        vectors.append(b)
        pairs.append((sigma * b, g.T @ b / sigma))
    return pairs[:-1]


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(("n", "decay"), [(30, 0.7), (30, 0.95), (4, 0.9), (1, 1.0)])
def test_published_is_the_authors_recurrence(dense: bool, n: int, decay: float) -> None:
    factor = factor_of(n, 20, 15, 3, torch.float64, decay)
    found = published(factor.gradient() if dense else factor, 10, seed=7)
    expected = recurrence(factor.gradient(), 10, 7)
    well = min(len(expected), n - 1)  # components of rounding errors are nobody's
    assert found.rows <= 9
    for row, (q, p) in enumerate(expected[:well]):
        assert torch.allclose(found.delta[row], q, rtol=0, atol=1e-10 * float(expected[0][0].norm()))
        assert torch.allclose(found.activation[row], p, rtol=0, atol=1e-10)


def test_what_published_gets_wrong() -> None:
    """A tenth row is lost, rows are not orthogonal, and five iterations leave an error that convergence does not."""
    factor = factor_of(30, 24, 24, 0, torch.float64, 0.95)
    found, best = published(factor, 10), optimal_error(factor.gradient(), 9)
    gram = found.activation @ found.activation.T
    assert found.rows == 9
    assert float((gram - torch.eye(9)).abs().max()) > 1e-2
    assert error(found, factor.gradient()) > 1.02 * best
    assert error(spi(factor, 9, iterations=100), factor.gradient()) < 1.001 * best


def test_published_ends_where_directions_coincide_and_survives_a_zero_matrix() -> None:
    assert published(Factor(torch.zeros(3, 5), torch.ones(3, 4)), 10).rows == 0
    equal = torch.diag(torch.tensor([4.0, 2.0, 1.0, 1.0, 1.0], dtype=torch.float64))
    deflated = published(equal, 10, tolerance=1.5)  # any two unit vectors at an acute angle coincide
    assert deflated.rows < 9
