"""Random projections: those of the pooled gradient, whatever form gradients have and whatever a method leaves out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.routes import Route
from rankdad.common.lowrank.wire import as_received
from rankdad.common.projections import least_norm, pooled_projections, projections_of
from tests.common.lowrank.steps import BATCHES, batch_of, pooled_gradients, prepare, site_gradients
from tests.conftest import examples

METHODS: list[dict[str, Any]] = [
    {"name": "dsgd"},
    {"name": "dad"},
    {"name": "edad"},
    {"name": "rank-dad", "rank": 2},
    {"name": "rank-dad", "rank": 2, "feedback": "none"},
    {"name": "powersgd", "rank": 2},
]


@settings(max_examples=examples(50))
@given(
    n=st.integers(0, 12), out=st.integers(2, 9), columns=st.integers(2, 9), bias=st.booleans(), seed=st.integers(0, 99)
)
def test_projections_are_those_of_the_gradient_that_is_not_formed(
    n: int, out: int, columns: int, bias: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    delta, activation = (torch.randn(n, k, generator=generator, dtype=torch.float64) for k in (out, columns))
    factor = Factor(delta, activation)
    route = Route("weight", (out, columns), "bias" if bias else None, captured=True, up=3)
    (found,) = projections_of([route], (factor.with_ones() if bias else factor,), seed)
    (formed,) = projections_of([Route("weight", (out, columns))], (factor.gradient(),), seed)
    for own, other in zip(found, formed, strict=True):
        assert torch.allclose(own, other, rtol=1e-9, atol=1e-12)
    assert least_norm([found]) <= float(torch.linalg.matrix_norm(factor.gradient(), ord=2)) * (1 + 1e-9) + 1e-12


def test_squares_of_projections_are_in_the_mean_those_of_rows_and_columns() -> None:
    """Of 4,000 draws: as far off as draws are, and signs of rows and of columns are drawn apart."""
    gradient = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradient[:, 2] *= 10
    route = Route("weight", (3, 5))
    drawn = [projections_of([route], (gradient,), seed)[0] for seed in range(4_000)]
    for place, dimension in ((0, 1), (1, 0)):
        squares = torch.stack([each[place] for each in drawn]).square()
        error = squares.std(0) / len(drawn) ** 0.5
        assert ((squares.mean(0) - gradient.square().mean(dimension)).abs() <= 5 * error + 1e-12).all()


def test_vectors_have_no_projections() -> None:
    routes = [Route("bias", (7,)), Route("row", (1, 7)), Route("column", (7, 1)), Route("gain", ())]
    assert projections_of(routes, (torch.ones(1, 7), torch.ones(1, 7), torch.ones(7, 1), torch.ones(1, 1)), 0) == ()


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_every_method_tells_the_projections_of_the_pooled_gradient(method: dict[str, Any]) -> None:
    """Weighted by samples, a site without any among them: those of what autograd says of all batches as one."""
    plan, replica, _ = prepare(method, "float64", hidden=(64, 64))
    batches = [batch_of(size, i, "float64") for i, size in enumerate(BATCHES)]
    sent = [projections_of(plan.routes, site_gradients(plan, replica, batch), 7) for batch in (*batches, batches[0])]
    found = pooled_projections(sent, [size / sum(BATCHES) for size in BATCHES] + [0.0])
    whole = pooled_gradients(replica, batches)
    routes = [route for route in plan.routes if route.projected is not None]
    plain = [Route(route.name, route.projected or ()) for route in routes]
    expected = projections_of(plain, tuple(whole[route.name] for route in routes), 7)
    for own, other in zip(found, expected, strict=True):
        assert torch.allclose(own.rows, other.rows, rtol=1e-9, atol=1e-15)
        assert torch.allclose(own.columns, other.columns, rtol=1e-9, atol=1e-15)


@settings(max_examples=examples(50))
@given(
    spread=st.floats(0, 6), size=st.sampled_from([1e-15, 1.0, 1e15]), width=st.integers(1, 200), seed=st.integers(0, 99)
)
def test_eight_bits_keep_sign_and_magnitude_of_every_size(spread: float, size: float, width: int, seed: int) -> None:
    """To 9.1 % of each, nine powers of ten below a block's largest; 0 stays 0 and nothing else becomes it."""
    generator = torch.Generator().manual_seed(seed)
    sent = size * torch.exp(spread * torch.rand(2, width, generator=generator))
    sent *= torch.randint(2, sent.shape, generator=generator) * 2 - 1
    sent[0, seed % width] = 0.0
    found = as_received([sent], "log8")[0]
    assert torch.equal(found.sign(), sent.sign())
    assert torch.allclose(found, sent, rtol=0.091, atol=0)
