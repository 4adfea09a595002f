"""SPI against torch.linalg.svd on the dense gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from common.factors import Factor, concatenate, norm
from common.reduction.spi import spi

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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dense", [False, True])
@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 20),
    out=st.integers(1, 24),
    columns=st.integers(1, 24),
    rank=st.integers(1, 30),
    seed=st.integers(0, 999),
)
def test_error_is_within_a_thousandth_of_optimal(
    dtype: torch.dtype, dense: bool, n: int, out: int, columns: int, rank: int, seed: int
) -> None:
    factor = factor_of(n, out, columns, seed, dtype)
    gradient = factor.gradient()
    reduced = spi(gradient if dense else factor, rank, seed=seed, iterations=100)
    size = float(torch.linalg.vector_norm(gradient.double()))
    assert error(reduced, gradient) <= 1.001 * optimal_error(gradient, rank) + 1e-5 * size
    assert reduced.rows <= min(rank, n, out, columns)
    identity = torch.eye(reduced.rows, dtype=dtype)
    assert torch.allclose(reduced.activation @ reduced.activation.T, identity, atol=1e-4)
    found = torch.linalg.vector_norm(reduced.delta, dim=1)
    exact = torch.linalg.svdvals(gradient.double())[: reduced.rows].to(dtype)
    assert torch.allclose(found / exact[0], exact / exact[0], atol=1e-3)


def test_an_independent_deflation_would_fail_here() -> None:
    """A binary head: rows of Δ sum to zero, so the rank is one and everything after σ₁ is noise."""
    factor = factor_of(64, 2, 100, 0, torch.float32, decay=1.0)
    head = Factor(torch.stack([factor.delta[:, 0], -factor.delta[:, 0]], dim=1), factor.activation)
    reduced = spi(head, 2)
    assert reduced.rows == 1
    assert error(reduced, head.gradient()) <= 1e-6 * norm(head)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scale_does_not_matter(scale: float) -> None:
    factor = factor_of(30, 40, 50, 1, torch.float32)
    scaled = Factor(factor.delta * scale, factor.activation)
    reduced = spi(scaled, 5)
    assert error(reduced, scaled.gradient()) <= 1.01 * optimal_error(scaled.gradient(), 5)


@pytest.mark.parametrize(
    "factor",
    [
        Factor(torch.zeros(4, 5), torch.randn(4, 6)),
        Factor(torch.zeros(0, 5), torch.zeros(0, 6)),
    ],
    ids=["zero", "no rows"],
)
def test_nothing_reduces_to_no_rows(factor: Factor) -> None:
    reduced = spi(factor, 3)
    assert reduced.rows == 0
    assert reduced.shape == (5, 6)
    assert torch.equal(reduced.gradient(), torch.zeros(5, 6))


def test_duplicate_rows_have_rank_one() -> None:
    factor = Factor(torch.ones(6, 4), torch.arange(5.0).repeat(6, 1))
    assert spi(factor, 4).rows == 1


def test_tolerance_cuts_the_effective_rank() -> None:
    gradient = torch.diag(torch.tensor([1.0, 0.5, 0.1, 0.01]))
    assert spi(gradient, 4, tolerance=0.05, iterations=100).rows == 3


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


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_number_is_a_named_error(bad: float) -> None:
    delta = torch.ones(3, 4)
    delta[1, 2] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        spi(Factor(delta, torch.ones(3, 5)), 2)
    with pytest.raises(ValueError, match="rank"):
        spi(Factor(torch.ones(3, 4), torch.ones(3, 5)), 0)


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_concatenation_adds_products(sizes: list[int], seed: int) -> None:
    factors = [factor_of(n, 4, 3, seed + i, torch.float64) for i, n in enumerate(sizes)]
    total = sum((factor.gradient() for factor in factors), torch.zeros(4, 3, dtype=torch.float64))
    assert torch.allclose(concatenate(factors).gradient(), total, atol=1e-12)
    assert norm(concatenate(factors)) == pytest.approx(float(torch.linalg.vector_norm(total)), abs=1e-9)
