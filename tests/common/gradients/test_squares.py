"""Means of squared gradients: exact whatever form the gradient has, and the same for every method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankdad.common.gradients.factors import Factor
from rankdad.common.gradients.routes import Route
from rankdad.common.gradients.squares import Squares, energy, pooled_squares, problem_of, squares_of
from rankdad.common.gradients.wire import as_received
from tests.common.gradients.steps import BATCHES, batch_of, prepare, site_gradients
from tests.conftest import examples

METHODS: list[dict[str, Any]] = [
    {"name": "dsgd", "exchanges": "per-tensor"},
    {"name": "dad"},
    {"name": "edad"},
    {"name": "rank-dad", "rank": 2},
    {"name": "rank-dad", "rank": 2, "feedback": "none"},
    {"name": "rank-dad", "preset": "authors"},
    {"name": "powersgd", "rank": 2},
    {"name": "top-rows"},
]


@settings(max_examples=examples(50))
@given(
    n=st.integers(0, 12), out=st.integers(2, 9), columns=st.integers(2, 9), bias=st.booleans(), seed=st.integers(0, 99)
)
def test_means_are_those_of_the_gradient_that_is_not_formed(
    n: int, out: int, columns: int, bias: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    delta, activation = (torch.randn(n, k, generator=generator, dtype=torch.float64) for k in (out, columns))
    factor = Factor(delta, activation)
    route = Route("weight", (out, columns), "bias" if bias else None, captured=True, up=3)
    (found,) = squares_of([route], (factor.with_ones() if bias else factor,))
    squared = factor.gradient() ** 2
    assert torch.allclose(found.rows, squared.mean(1), rtol=1e-9, atol=1e-12)
    assert torch.allclose(found.columns, squared.mean(0), rtol=1e-9, atol=1e-12)
    assert energy(found) == pytest.approx(float(squared.sum()), rel=1e-9, abs=1e-12)
    assert problem_of(found, 1e-6) == ""


def test_vectors_have_no_squares() -> None:
    routes = [Route("bias", (7,)), Route("row", (1, 7)), Route("column", (7, 1)), Route("gain", ())]
    assert squares_of(routes, (torch.ones(1, 7), torch.ones(1, 7), torch.ones(7, 1), torch.ones(1, 1))) == ()


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_every_method_tells_the_same_squares(method: dict[str, Any]) -> None:
    """Weighted by samples, a site without any among them: what autograd's gradients at each site say, to rounding."""
    plan, replica, _ = prepare(method, "float64", hidden=(64, 64))
    batches = [batch_of(size, i, "float64") for i, size in enumerate(BATCHES)]
    payloads = [site_gradients(plan, replica, batch) for batch in batches]
    empty = squares_of(plan.routes, site_gradients(plan, replica, batches[0]))
    shares = [size / sum(BATCHES) for size in BATCHES] + [0.0]
    found = pooled_squares([squares_of(plan.routes, payload) for payload in payloads] + [empty], shares)
    expected = []
    for share, batch in zip(shares, batches, strict=False):
        replica.model.zero_grad()
        torch.nn.functional.cross_entropy(replica.model(batch[0]), batch[1]).backward()
        expected.append([share * p.grad**2 for p in replica.model.parameters() if p.ndim > 1 and p.grad is not None])
    for squares, of_sites in zip(found, zip(*expected, strict=True), strict=True):
        squared = torch.stack(of_sites).sum(dim=0)
        assert torch.allclose(squares.rows, squared.mean(1), rtol=1e-9, atol=1e-18)
        assert torch.allclose(squares.columns, squared.mean(0), rtol=1e-9, atol=1e-18)


@settings(max_examples=examples(50))
@given(
    spread=st.floats(0, 6), size=st.sampled_from([1e-15, 1.0, 1e15]), width=st.integers(1, 200), seed=st.integers(0, 99)
)
def test_eight_bits_keep_magnitudes_of_every_size(spread: float, size: float, width: int, seed: int) -> None:
    """To 4.5 % of each, nine powers of ten below a block's largest; 0 stays 0 and nothing else becomes it."""
    generator = torch.Generator().manual_seed(seed)
    sent = size * torch.exp(spread * torch.rand(2, width, generator=generator))
    sent[0, seed % width] = 0.0
    found = as_received(sent, "log8")
    assert torch.equal(found == 0, sent == 0)
    assert torch.allclose(found, sent, rtol=0.045, atol=0)


@pytest.mark.parametrize(
    ("squares", "words"),
    [
        (Squares(torch.tensor([1.0, -1.0]), torch.zeros(3)), "a negative number"),
        (Squares(torch.tensor([2.0, 4.0]), torch.tensor([3.0, 3.0, 9.0])), "a mean of 3 over rows and 5 over columns"),
        (Squares(torch.tensor([2.0, 4.0]), torch.tensor([2.0, 3.0, 4.0])), ""),
    ],
)
def test_means_of_no_matrix_are_told(squares: Squares, words: str) -> None:
    found = problem_of(squares, 1e-3)
    assert found.startswith(words)
    assert bool(found) == bool(words)
