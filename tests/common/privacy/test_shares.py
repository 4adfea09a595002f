"""No patient has more than a share of what flows back in a step; where nobody would have, nothing changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from hypothesis import given
from hypothesis import strategies as st

from rankdad.common.privacy.shares import OF_OUTPUT, OF_SUMS, limit, scales, shared_units

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
    most = limit(before[:, None], sharing)
    assert torch.allclose(after, before.clamp(max=most), rtol=1e-6, atol=0)
    if found is None:
        assert float(before.max()) <= float(before.sum()) / sharing * (1 + 1e-6) + 1e-300


def test_one_patient_on_the_wrong_side_counts_as_much_as_the_next_two() -> None:
    sums = torch.tensor([1.0, 1e-3, 4e-4, 1e-4], dtype=torch.float64)
    assert float(limit(sums[:, None], 3)) == 5e-4, "of the two largest, with the rest a third for each"
    assert float(limit(sums[:2, None], 3)) == 0, "two are too few"
    assert scales(sums[:, None], torch.arange(4), 1) is None


def test_a_class_that_one_patient_alone_is_on_the_wrong_side_of_is_no_row_of_theirs() -> None:
    """Of three classes: three patients share what flows back, and the third class's row would be of the last alone."""
    deltas = torch.tensor([[-1.0, 1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 1.0, -1.0], [0.1, 0.0, -0.1]])
    found = scales(deltas, torch.arange(4), 3)
    assert found is not None
    left = (deltas * found).abs()
    assert float(left[2, 2] / left[:, 2].sum()) <= 0.8 + 1e-3
    assert float(left.norm(dim=1).max() / left.norm(dim=1).sum()) <= 1 / 3 + 1e-6


Gathered = Callable[[torch.Tensor], tuple[torch.Tensor, int]]


def at_ranks(deltas: torch.Tensor, people: torch.Tensor, ranks: int, sharing: int = 1) -> torch.Tensor:
    """What is left of a layer's rows where so many ranks share them, each in a thread of its own."""
    everyone, shown = threading.Barrier(ranks), list[torch.Tensor]([torch.zeros(0)] * ranks)

    def at(rank: int) -> torch.Tensor:
        def gathered(rows: torch.Tensor) -> tuple[torch.Tensor, int]:
            shown[rank] = rows
            everyone.wait(5)
            found = torch.cat(shown), sum(len(rows) for rows in shown[:rank])
            everyone.wait(5)
            return found

        found = shared_units(deltas[rank::ranks], people[rank::ranks], gathered, sharing)
        return deltas[rank::ranks] if found is None else found

    left = deltas.clone()
    with ThreadPoolExecutor(ranks) as pool:
        for rank, found in enumerate(pool.map(at, range(ranks))):
            left[rank::ranks] = found
    return left


def most_of_sums(deltas: torch.Tensor, people: torch.Tensor) -> torch.Tensor:
    """How much each patient has at most of the squares of a weighted sum of units, by eigenvalues."""
    own = torch.stack([deltas[people == one].T @ deltas[people == one] for one in people.unique()])
    sizes, sides = torch.linalg.eigh(own.sum(0))
    sides = sides[:, sizes > sizes[-1] * 1e-12] / sizes[sizes > sizes[-1] * 1e-12].sqrt()
    return torch.linalg.matrix_norm(sides.T @ own @ sides, 2) if sides.numel() else torch.zeros(len(own))


@given(st.integers(0, 2**31), st.integers(2, 40), st.integers(1, 12), st.integers(1, 3), st.integers(1, 3))
def test_a_unit_is_not_nearly_all_one_patients(seed: int, patients: int, units: int, visits: int, ranks: int) -> None:
    """Of a random network, some of whose units answer to few: rows of one patient count together, at whatever rank."""
    generator = torch.Generator().manual_seed(seed)
    people = torch.arange(patients).repeat_interleave(visits)
    inner = torch.randn(len(people), units, generator=generator, dtype=torch.float64)
    deltas = torch.randn(len(people), 1, generator=generator, dtype=torch.float64) * (inner > 0.5)
    left = at_ranks(deltas, people, ranks)
    if 2 * int(torch.linalg.matrix_rank(deltas)) <= patients:
        assert float(most_of_sums(left, people).max()) <= OF_SUMS + 1e-3
        within = bool((most_of_sums(deltas, people) <= OF_SUMS).all())
    else:
        each = torch.zeros(2, patients, units, dtype=torch.float64)
        each[0].index_add_(0, people, deltas.abs())
        each[1].index_add_(0, people, left.abs())
        shares = each / each.sum(1, keepdim=True).clamp(min=1e-300)
        assert float(shares[1].max()) <= OF_OUTPUT + 1e-6
        within = bool((shares[0] <= OF_OUTPUT).all())
    if within:
        assert torch.equal(left, deltas), "nobody has too much: not a bit changes"


@given(st.integers(0, 2**31), st.integers(3, 40), st.integers(1, 3), st.integers(1, 3))
def test_nobody_has_more_than_a_third_of_a_unit(seed: int, patients: int, visits: int, ranks: int) -> None:
    """Of a layer that is no output, with as many units as patients: what is left of each unit is several patients'."""
    generator = torch.Generator().manual_seed(seed)
    people = torch.arange(patients).repeat_interleave(visits)
    deltas = torch.randn(len(people), patients, generator=generator, dtype=torch.float64)
    deltas *= torch.randn(len(people), patients, generator=generator) > 0.8
    left = at_ranks(deltas, people, ranks, 3)
    before, after = (
        torch.zeros(patients, patients).double().index_add_(0, people, one.abs()) for one in (deltas, left)
    )
    if 2 * int(torch.linalg.matrix_rank(left)) > patients:
        assert bool((after.amax(0) <= after.sum(0) / 3 * (1 + 1e-6)).all())
    within = before.amax(0) <= before.sum(0) / 3
    if within.all() and 2 * int(torch.linalg.matrix_rank(deltas)) > patients:
        assert torch.equal(left, deltas), "nobody has too much: not a bit changes"


def test_the_difference_of_two_units_of_many_is_nobodys_where_few_differ() -> None:
    """Eight units and eleven patients, but all units answer to all, or to all but the first."""
    generator = torch.Generator().manual_seed(0)
    deltas = torch.randn(11, 1, generator=generator) * torch.randn(1, 8, generator=generator)
    deltas[0, ::2] = 0
    left = at_ranks(deltas, torch.arange(11), 2)
    assert not left[0].any()
    assert torch.equal(left[1:], deltas[1:])


def test_a_unit_of_one_patient_alone_is_nobodys() -> None:
    deltas = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.5, 3.0]])
    assert at_ranks(deltas, torch.arange(3), 1).tolist() == [[1.0, 0.0], [2.0, 0.0], [0.5, 0.0]]
    assert at_ranks(deltas, torch.arange(3), 1, 3).tolist() == [[0.5, 0.0], [0.5, 0.0], [0.5, 0.0]]
