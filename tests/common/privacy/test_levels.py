"""Rare values: after they are moved, no column sets apart fewer patients than the site allows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rankdad.common.preparation.rows import count_behind
from rankdad.common.privacy.levels import without_rare

NAN = float("nan")


def moved(rows: list[list[float]], levels: list[tuple[int, int]] | None = None, fewest: int = 3) -> Tensor:
    table = torch.tensor(rows, dtype=torch.float64)
    bounds = torch.tensor([[-torch.inf], [torch.inf]]).repeat(1, table.shape[1])
    return without_rare(table, levels or [], bounds, None, fewest)


def test_a_rare_level_becomes_the_most_frequent_one_and_a_frequent_one_stays() -> None:
    table = [[1.0, 0.0, 0.0]] * 5 + [[0.0, 1.0, 0.0]] * 3 + [[0.0, 0.0, 1.0]] * 2
    assert moved(table, [(0, 3)]).tolist() == [*table[:8], table[0], table[0]]
    assert moved(table, [(0, 3)], fewest=2).tolist() == table


def test_gaps_that_are_rare_are_filled_and_values_that_are_rare_are_gaps() -> None:
    table = [[1.0, NAN], [2.0, NAN], [3.0, NAN], [6.0, NAN], [NAN, 4.0], [NAN, 5.0]]
    found = moved(table)
    assert found[:, 0].tolist() == [1.0, 2.0, 3.0, 6.0, 3.0, 3.0], "their mean"
    assert found[:, 1].isnan().all()


def test_what_few_have_beyond_a_bound_becomes_the_nearest_within() -> None:
    column = torch.tensor([[3.0], [3.0], [4.0], [5.0], [6.0], [7.0], [7.0], [7.0]])
    bounds = torch.tensor([[3.0], [7.0]])
    assert without_rare(column, [], bounds, None, 3).flatten().tolist() == [4.0, 4.0, 4.0, 5.0, 6.0, 7.0, 7.0, 7.0]
    assert torch.equal(without_rare(column, [], bounds, None, 2), column)


@pytest.mark.parametrize("differ", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ["levels", "gaps", "codes"])
def test_two_columns_that_differ_by_few_patients_are_made_to_differ_by_none(kind: str, differ: int) -> None:
    """The sums of one column subtracted from those of the other would be of these few."""
    one, other = torch.arange(40) < 12, torch.arange(40) < 12 + differ
    numbers = torch.arange(80.0).reshape(40, 2)
    inputs = torch.stack([one, other], 1).float()
    levels: list[tuple[int, int]] = []
    if kind == "gaps":
        inputs = numbers.masked_fill(inputs.bool(), torch.nan)
    elif kind == "levels":
        inputs, levels = torch.stack([one, ~one, other, ~other], 1).float(), [(0, 2), (2, 2)]
    bounds = torch.tensor([[-torch.inf], [torch.inf]]).expand(2, inputs.shape[1])
    found = without_rare(inputs, levels, bounds, None, 3)
    sets = found.isnan() if kind == "gaps" else found[:, :: 2 if levels else 1] == 1
    assert int((sets[:, 0] != sets[:, 1]).sum()) == (3 if differ == 3 else 0)
    assert torch.equal(sets[:, 0], one), "nobody gets what they have not"


def test_a_column_without_a_value_is_left_beside_one_that_nearly_all_patients_have_gaps_in() -> None:
    """Each of six patients lacks one of two values; one of them has both. It went on for ever."""
    table = torch.tensor([[NAN, NAN], [NAN, 1.0]] * 5 + [[NAN, 2.0], [NAN, 3.0]])
    groups = torch.arange(6).repeat_interleave(2)
    bounds = torch.tensor([[-torch.inf], [torch.inf]]).expand(2, 2)
    assert without_rare(table, [], bounds, groups, 3)[:, 0].isnan().all()


def test_of_two_values_the_one_that_more_patients_have_is_usual_whichever_visit_comes_first() -> None:
    """Seen by one visit each, the only patient with a 1 had made it everybody's."""
    table = torch.zeros(12, 1)
    table[[5, 7]], table[11] = NAN, 1.0
    groups = torch.tensor([0] * 6 + [1] * 2 + [2] * 4)
    bounds = torch.tensor([[-torch.inf], [torch.inf]])
    found = without_rare(table, [], bounds, groups, 3)
    assert (found[table.flatten() == 0] == 0).all()


def test_visits_that_many_patients_have_differently_stay_as_they_are() -> None:
    """Each patient has a 1 in one visit and a gap in another: of the same patients, and not the same rows."""
    table, groups = torch.tensor([[0.0, NAN], [1.0, 2.0], [0.0, 3.0]] * 5), torch.arange(5).repeat_interleave(3)
    bounds = torch.tensor([[-torch.inf], [torch.inf]]).expand(2, 2)
    assert without_rare(table, [], bounds, groups, 3)[:, 0].tolist() == table[:, 0].tolist()


def test_patients_are_counted_and_not_their_rows() -> None:
    column, groups = torch.tensor([[0.0]] * 6 + [[1.0]] * 4), torch.tensor([0, 1, 2, 3, 4, 4, 5, 5, 5, 5])
    bounds = torch.tensor([[-torch.inf], [torch.inf]])
    assert not without_rare(column, [], bounds, groups, 3).any(), "one patient has all four"


@given(st.data())
def test_no_column_tells_fewer_patients_from_all_others(data: st.DataObject) -> None:
    rows, fewest = data.draw(st.integers(8, 20)), data.draw(st.integers(1, 4))
    value = st.sampled_from([0.0, 0.0, 0.0, 0.0, 1.0, 7.0, NAN])
    numbers = data.draw(st.lists(st.lists(value, min_size=2, max_size=2), min_size=rows, max_size=rows))
    chosen = data.draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, None]), min_size=rows, max_size=rows))
    table = torch.tensor(numbers, dtype=torch.float32)
    levels = torch.tensor([[NAN] * 3 if own is None else [float(own == at) for at in range(3)] for own in chosen])
    table = torch.cat([table, levels, levels[:, :1].isnan().float()], 1)
    groups = torch.tensor(data.draw(st.lists(st.integers(0, rows), min_size=rows, max_size=rows)))
    bounds = torch.tensor([[-torch.inf], [torch.inf]]).repeat(1, 6)
    bounds[:, 0] = torch.tensor([-torch.inf, 1.0])
    before = table.clone()
    found = without_rare(table, [(2, 3)], bounds, groups, fewest)
    assert table.equal(before) or table.isnan().equal(before.isnan()), "a copy"
    patients = len(groups.unique())
    for column in found.T:
        gaps = column.isnan()
        sets = [gaps, ~gaps]
        if len(values := column[~gaps].unique()) == 2:
            sets += [column == one for one in values]
        counts = [int(count_behind(one[:, None], groups)) for one in sets]
        assert all(count == 0 or count >= min(fewest, patients) for count in counts)
    assert ((found[:, 2:5].sum(1) == 1) | found[:, 2].isnan()).all(), "one level each"
