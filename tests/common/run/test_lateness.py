"""Which late contributions may join a step, and with what weight."""

from __future__ import annotations

import pytest

from rankdad.common.errors import ProtocolError
from rankdad.common.staleness import LeftOut, after_step, age_of, check_late, damped

LEFT_OUT: tuple[LeftOut, ...] = ((4, (0, 2)), (5, ()), (8, (0,)))


def test_a_contribution_counts_less_the_older_it_is() -> None:
    assert [damped(12.0, age) for age in (0, 1, 2, 3)] == [12.0, 6.0, 4.0, 3.0]


@pytest.mark.parametrize(("round_", "age"), [(8, 1), (5, 2), (4, 3), (3, None), (6, None), (9, None)])
def test_age_is_counted_in_steps_not_in_rounds(round_: int, age: int | None) -> None:
    assert age_of(LEFT_OUT, round_) == age


@pytest.mark.parametrize("late", [(1, 1), (2, 0), (3, 1), (4, 0)])
def test_nothing_is_late_of_a_site_that_took_part_or_of_a_step_too_long_ago(late: tuple[int, int]) -> None:
    with pytest.raises(ProtocolError, match=rf"l: {'abc'[late[1]]} took part in the step {late[0]} before"):
        check_late(LEFT_OUT, [(1, 0), late], "abc")
    check_late(LEFT_OUT, [(1, 0), (3, 0), (3, 2)], "abc")


def test_a_contribution_joins_once_and_the_oldest_step_is_forgotten() -> None:
    after = after_step(LEFT_OUT, 9, {2, 1}, [(1, 0), (3, 2)], 4)
    assert after == ((4, (0,)), (5, ()), (8, ()), (9, (1, 2)))
    assert after_step(after, 10, (), (), 3) == ((8, ()), (9, (1, 2)), (10, ()))
    assert after_step((), 10, {1}, (), 0) == ()
