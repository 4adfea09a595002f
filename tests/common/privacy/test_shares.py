"""No patient has more than a share of what flows back in a step; where nobody would have, nothing changes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from rankdad.common.privacy.shares import limit, scales

SIZES = st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e9)), min_size=1, max_size=40)


@given(SIZES, st.integers(2, 8), st.integers(1, 5))
def test_nobody_has_more_than_one_part_of_what_is_left(sizes: list[float], sharing: int, visits: int) -> None:
    """Rows of one patient count together; who has less than the limit keeps all of it, and the limit is the largest."""
    deltas = torch.tensor(sizes, dtype=torch.float64)[:, None] * torch.tensor([[0.6, -0.8]], dtype=torch.float64)
    people = torch.arange(len(sizes)) // visits
    found = scales(deltas, people, sharing)
    before, after = (
        torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, people, one.norm(dim=1))
        for one in (deltas, deltas if found is None else deltas * found)
    )
    assert float(after.max()) <= float(after.sum()) / sharing * (1 + 1e-6) + 1e-300
    most = limit(before, sharing)
    assert torch.allclose(after, before.clamp(max=most), rtol=1e-6, atol=0)
    if found is None:
        assert float(before.max()) <= float(before.sum()) / sharing * (1 + 1e-6) + 1e-300


def test_one_patient_on_the_wrong_side_counts_as_much_as_the_next_two() -> None:
    sums = torch.tensor([1.0, 1e-3, 4e-4, 1e-4], dtype=torch.float64)
    assert float(limit(sums, 3)) == 5e-4, "of the two largest, with the rest a third for each"
    assert float(limit(sums[:2], 3)) == 0, "two are too few"
    assert scales(sums[:, None], torch.arange(4), 1) is None


def test_a_class_that_one_patient_alone_is_on_the_wrong_side_of_is_no_row_of_theirs() -> None:
    """Of three classes: three patients share what flows back, and the third class's row would be of the last alone."""
    deltas = torch.tensor([[-1.0, 1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 1.0, -1.0], [0.1, 0.0, -0.1]])
    found = scales(deltas, torch.arange(4), 3)
    assert found is not None
    left = (deltas * found).abs()
    assert float(left[2, 2] / left[:, 2].sum()) <= 0.8 + 1e-3
    assert float(left.norm(dim=1).max() / left.norm(dim=1).sum()) <= 1 / 3 + 1e-6
