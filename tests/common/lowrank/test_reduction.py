"""Every reducer against torch.linalg.svd on the dense gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankdad.common.lowrank.factors import Factor, concatenate, norm
from rankdad.common.lowrank.reduction.block import block
from rankdad.common.lowrank.reduction.exact import exact
from rankdad.common.lowrank.reduction.spi import spi
from tests.conftest import examples

Reducer = Callable[..., Factor]
REDUCERS = [
    pytest.param(partial(spi, iterations=100), id="spi"),
    pytest.param(partial(block, iterations=30), id="block"),
    pytest.param(exact, id="exact"),
]
DEFAULTS = [pytest.param(reduce, id=reduce.__name__) for reduce in (spi, block, exact)]
DTYPES = [torch.float32, torch.float64]


def factor_of(n: int, out: int, columns: int, seed: int, dtype: torch.dtype, decay: float = 0.7) -> Factor:
    generator = torch.Generator().manual_seed(seed)
    delta = torch.randn(n, out, generator=generator, dtype=torch.float64)
    activation = torch.randn(n, columns, generator=generator, dtype=torch.float64)
    scales = decay ** torch.arange(n, dtype=torch.float64)
    return Factor((delta * scales[:, None]).to(dtype), activation.to(dtype))


def optimal_error(gradient: Tensor, rank: int) -> float:
    """The Eckart-Young error."""
    return float(torch.linalg.svdvals(gradient.double())[rank:].square().sum().sqrt())


def error(reduced: Factor, gradient: Tensor) -> float:
    return float(torch.linalg.vector_norm(reduced.gradient().double() - gradient.double()))


@pytest.mark.parametrize("reduce", REDUCERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dense", [False, True])
@settings(max_examples=examples(20))
@given(
    n=st.integers(1, 20),
    out=st.integers(1, 24),
    columns=st.integers(1, 24),
    rank=st.integers(1, 30),
    seed=st.integers(0, 999),
)
@example(n=19, out=5, columns=19, rank=2, seed=5)  # spi's start lies near another component here
def test_error_is_within_a_thousandth_of_optimal(
    reduce: Reducer, dtype: torch.dtype, dense: bool, n: int, out: int, columns: int, rank: int, seed: int
) -> None:
    factor = factor_of(n, out, columns, seed, dtype)
    gradient = factor.gradient()
    reduced = reduce(gradient if dense else factor, rank)
    size = float(torch.linalg.vector_norm(gradient.double()))
    assert error(reduced, gradient) <= 1.001 * optimal_error(gradient, rank) + 1e-5 * size
    assert reduced.rows <= min(rank, n, out, columns)
    identity = torch.eye(reduced.rows, dtype=dtype)
    assert torch.allclose(reduced.activation @ reduced.activation.T, identity, atol=1e-4)
    found = torch.linalg.vector_norm(reduced.delta, dim=1)
    sigma = torch.linalg.svdvals(gradient.double())[: reduced.rows].to(dtype)
    assert torch.allclose(found / sigma[0], sigma / sigma[0], atol=1e-3)


@pytest.mark.parametrize("reduce", DEFAULTS)
def test_an_independent_deflation_would_fail_here(reduce: Reducer) -> None:
    """A binary head: rows of Δ sum to zero, so the rank is one and everything after σ₁ is noise."""
    factor = factor_of(64, 2, 100, 0, torch.float32, decay=1.0)
    head = Factor(torch.stack([factor.delta[:, 0], -factor.delta[:, 0]], dim=1), factor.activation)
    reduced = reduce(head, 2)
    assert reduced.rows == 1
    assert error(reduced, head.gradient()) <= 1e-6 * norm(head)


@pytest.mark.parametrize("reduce", DEFAULTS)
@pytest.mark.parametrize("scales", [(1e-12, 1), (1e12, 1), (1e-12, 1e-12), (1e12, 1e12), (1e-15, 1e15)])
def test_scale_does_not_matter(reduce: Reducer, scales: tuple[float, float]) -> None:
    factor = factor_of(30, 40, 50, 1, torch.float32)
    scaled = Factor(factor.delta * scales[0], factor.activation * scales[1])
    for matrix in (scaled, scaled.gradient()):
        reduced = reduce(matrix, 5)
        gradient = scaled.gradient()
        assert error(reduced, gradient) <= 1.01 * optimal_error(gradient, 5)


@pytest.mark.parametrize("reduce", REDUCERS)
@settings(max_examples=examples(20))
@given(
    rows=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    out=st.integers(2, 30),
    columns=st.integers(2, 30),
    rank=st.integers(1, 6),
    extra=st.sampled_from([0, 4]),
    seed=st.integers(0, 999),
)
def test_reducing_twice_adds_at_most_twice_the_sites_errors(
    reduce: Reducer, rows: list[int], out: int, columns: int, rank: int, extra: int, seed: int
) -> None:
    """Site and aggregator, always: error ≤ optimal + 2 Σ site errors."""
    sites = [factor_of(n, out, columns, seed + i, torch.float64) for i, n in enumerate(rows)]
    gradient = concatenate(sites).gradient()
    sent = [reduce(site, rank + extra) for site in sites]
    twice = reduce(concatenate(sent), rank)
    errors = sum(error(part, site.gradient()) for part, site in zip(sent, sites, strict=True))
    bound = optimal_error(gradient, rank) + 2 * errors
    assert error(twice, gradient) <= 1.01 * bound + 1e-9 * norm(gradient)


@pytest.mark.parametrize("reduce", DEFAULTS)
@pytest.mark.parametrize(
    "factor",
    [
        Factor(torch.zeros(4, 5), torch.randn(4, 6)),
        Factor(torch.zeros(0, 5), torch.zeros(0, 6)),
    ],
    ids=["zero", "no rows"],
)
def test_nothing_reduces_to_no_rows(reduce: Reducer, factor: Factor) -> None:
    reduced = reduce(factor, 3)
    assert reduced.rows == 0
    assert reduced.shape == (5, 6)
    assert torch.equal(reduced.gradient(), torch.zeros(5, 6))


@pytest.mark.parametrize("reduce", REDUCERS)
def test_tolerance_cuts_the_effective_rank(reduce: Reducer) -> None:
    gradient = torch.diag(torch.tensor([1.0, 0.5, 0.1, 0.01]))
    assert reduce(gradient, 4, tolerance=0.05).rows == 3


def test_the_norm_of_large_gradients_does_not_overflow() -> None:
    factor = Factor(torch.full((3, 4), 1e15), torch.full((3, 5), 1e10))
    expected = 3e25 * 20**0.5
    assert norm(factor) == pytest.approx(expected)
    assert norm(factor.gradient()) == pytest.approx(expected)


def test_seeded_and_repeatable() -> None:
    factor = factor_of(30, 40, 50, 1, torch.float32)
    first, second = spi(factor, 4, seed=7), spi(factor, 4, seed=7)
    assert torch.equal(first.delta, second.delta)
    assert torch.equal(first.activation, second.activation)


@pytest.mark.parametrize("reduce", REDUCERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_number_is_a_named_error(reduce: Reducer, bad: float) -> None:
    delta = torch.ones(3, 4)
    delta[1, 2] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        reduce(Factor(delta, torch.ones(3, 5)), 2)
    with pytest.raises(ValueError, match="rank"):
        reduce(Factor(torch.ones(3, 4), torch.ones(3, 5)), 0)


@pytest.mark.parametrize("reduce", DEFAULTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dense", [False, True])
def test_half_precision_is_reduced_in_full_and_rounded_in_the_end(
    reduce: Reducer, dtype: torch.dtype, dense: bool
) -> None:
    torch.manual_seed(0)
    factor = Factor(torch.randn(12, 20).to(dtype), torch.randn(12, 30).to(dtype))
    given_matrix = factor.gradient() if dense else factor
    found = reduce(given_matrix, 6)
    assert found.delta.dtype == found.activation.dtype == dtype
    wide = reduce(
        given_matrix.float() if isinstance(given_matrix, Tensor) else Factor(*map(Tensor.float, parts(factor))), 6
    )
    gap = torch.linalg.vector_norm(found.delta.float().T @ found.activation.float() - wide.gradient())
    assert gap <= 2 * torch.finfo(dtype).eps * torch.linalg.vector_norm(wide.gradient())
    assert reduce(Factor(factor.delta * 0, factor.activation), 6).delta.dtype == dtype


def parts(factor: Factor) -> tuple[Tensor, Tensor]:
    return factor.delta, factor.activation


@settings(max_examples=examples(25))
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_concatenation_adds_products(sizes: list[int], seed: int) -> None:
    factors = [factor_of(n, 4, 3, seed + i, torch.float64) for i, n in enumerate(sizes)]
    total = sum((factor.gradient() for factor in factors), torch.zeros(4, 3, dtype=torch.float64))
    assert torch.allclose(concatenate(factors).gradient(), total, atol=1e-12)
    assert norm(concatenate(factors)) == pytest.approx(float(torch.linalg.vector_norm(total)), abs=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_block_iteration_does_from_the_last_steps_basis(dtype: torch.dtype) -> None:
    """A gradient that has moved a little since: the error is within a hundredth of optimal; cold it is not."""
    before, moved = factor_of(64, 200, 150, 3, dtype, decay=0.95), factor_of(64, 200, 150, 4, dtype, decay=0.95)
    gradient = before.gradient() + 0.05 * moved.gradient()
    best = optimal_error(gradient, 4)
    warm = block(gradient, 4, basis=exact(before, 4).activation, iterations=1)
    cold = block(gradient, 4, iterations=1)
    assert error(warm, gradient) <= 1.01 * best < error(cold, gradient)


def test_a_basis_of_too_many_or_dependent_rows_is_no_error() -> None:
    gradient = factor_of(30, 6, 8, 1, torch.float64).gradient()
    for basis in (torch.ones(20, 8, dtype=torch.float64), torch.zeros(2, 8, dtype=torch.float64)):
        reduced = block(gradient, 3, basis=basis, iterations=30)
        assert error(reduced, gradient) <= 1.001 * optimal_error(gradient, 3)
