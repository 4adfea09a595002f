"""Names with * and ?: what they stand for, and how a name with such characters of its own is written."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rankdad.common.spec.patterns import escaped, fits, is_pattern, literal

NAMES = st.text(alphabet="*?[]!a-b\\\n", max_size=12)


@given(NAMES, NAMES)
def test_a_name_is_written_in_one_way_that_stands_for_it_alone(name: str, other: str) -> None:
    written = escaped(name)
    assert not is_pattern(written)
    assert literal(written) == name
    assert fits(other, written) == (other == name)
    assert fits(name, written)


@given(NAMES, NAMES, NAMES)
def test_a_star_stands_for_anything_and_a_question_mark_for_one_character(start: str, middle: str, end: str) -> None:
    assume(not (start.endswith("[") and end.startswith("]")))  # which makes [*] or [?]
    assert fits(start + middle + end, f"{escaped(start)}*{escaped(end)}")
    assert fits(start + middle + end, escaped(start) + "?" * len(middle) + escaped(end))
    assert not fits(start + end, f"{escaped(start)}?{escaped(end)}")


@pytest.mark.parametrize(("written", "is_one"), [("a", False), ("volume [mm3]", False), ("a[*]", False), ("a*", True)])
def test_brackets_alone_mean_nothing(written: str, is_one: bool) -> None:
    assert is_pattern(written) == is_one
