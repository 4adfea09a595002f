"""Numbers as bytes: what is packed comes back, and bytes that hold something else are refused."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankdad.common.metrics.tally_codec import MAX_SUM
from rankdad.common.protocol.arrays import pack_counts, pack_sums, unpack_counts, unpack_sums


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_what_is_packed_comes_back(rows: int, columns: int, data: st.DataObject) -> None:
    counts = [[data.draw(st.integers(0, 2**32 - 1)) for _ in range(columns)] for _ in range(rows)]
    assert unpack_counts(pack_counts(counts), rows, columns) == tuple(map(tuple, counts))
    drawn = [[data.draw(st.floats(-1e300, 1e300)) for _ in range(columns)] for _ in range(rows)]
    sums = torch.tensor(drawn, dtype=torch.float64).reshape(rows, columns)
    assert torch.equal(unpack_sums(pack_sums(sums), rows, columns), sums)


def test_the_bytes_are_little_endian_row_by_row() -> None:
    assert pack_counts([(1, 2), (3, 256)]) == bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 1, 0, 0])
    assert pack_sums(torch.tensor([[1.0, 2.0]]).t()) == pack_sums(torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("count", [-1, 2**32])
def test_a_count_that_does_not_fit_is_not_sent_as_another(count: int) -> None:
    with pytest.raises(OverflowError):
        pack_counts([(count,)])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 2 * MAX_SUM, -2 * MAX_SUM])
def test_numbers_that_do_not_add_up_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match=r"NaN or beyond 1e\+300"):
        unpack_sums(pack_sums(torch.tensor([0.0, number], dtype=torch.float64)), 1, 2)


@given(st.binary(max_size=80), st.integers(0, 3), st.integers(0, 3))
def test_any_bytes_are_numbers_or_refused(data: bytes, rows: int, columns: int) -> None:
    with contextlib.suppress(ValueError):
        assert len(unpack_counts(data, rows, columns)) == rows
        assert len(data) == 4 * rows * columns
    with contextlib.suppress(ValueError):
        found = unpack_sums(data, rows, columns)
        assert found.shape == (rows, columns)
        assert bool(found.isfinite().all())
        assert len(data) == 8 * rows * columns


def test_what_comes_back_is_nobody_elses_memory() -> None:
    found = unpack_sums(data := bytes(16), 1, 2)
    found += 1
    assert data == bytes(16)
