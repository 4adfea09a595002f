"""Bytes and rows of unequal length over a process group."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from rankdad.common.collectives import all_gather_bytes, all_gather_rows, broadcast_bytes
from tests.ranks import run_ranks

MESSAGES = [b"first", b"", bytes(100_000)]


def exchanged() -> tuple[list[bytes], bytes, bytes, list[list[float]]]:
    rank = dist.get_rank()
    rows = all_gather_rows(torch.full((rank, 2), float(rank)))
    return (
        all_gather_bytes(MESSAGES[rank]),
        broadcast_bytes(MESSAGES[2 - rank]),
        broadcast_bytes(b""),
        [r.tolist() for r in rows],
    )


@pytest.mark.slow
def test_bytes_and_rows_of_unequal_length_arrive_at_the_ranks_that_expect_them() -> None:
    ranks = run_ranks(3, exchanged)
    assert [gathered for gathered, _, _, _ in ranks] == [MESSAGES] * 3
    assert [broadcast for _, broadcast, _, _ in ranks] == [MESSAGES[2]] * 3
    assert [empty for _, _, empty, _ in ranks] == [b""] * 3
    assert [rows for _, _, _, rows in ranks] == [[[], [[1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]]] * 3
