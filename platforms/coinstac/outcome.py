"""Which of two classes is the outcome, whose risk is predicted: the one named, or the one that is no control."""

from __future__ import annotations

from collections.abc import Sequence

from rankdad.common.data.levels import outcome_of
from rankdad.common.spec.table_schema import spelling
from rankdad.platforms.coinstac.fields import FIELDS
from rankdad.platforms.coinstac.form import FormError

POSITIVE = FIELDS["positive"]


def outcome_last(values: Sequence[str], positive: str = "") -> tuple[list[str], bool]:
    """Return classes with the outcome as the last of two, and whether nothing but their order says which it is.

    Args:
        values: of the column that is predicted.
        positive: the outcome as the owner writes it; empty where it does not.

    Raises:
        FormError: the outcome is none of the values, or there are more than two.
    """
    listed = ", ".join(values)
    if positive and len(values) > 2:
        said = f"got {positive}, but the column has {len(values)} values ({listed}): leave it empty"
        raise FormError(POSITIVE.problem(said, code="outcome-of-several"))
    if positive and (named := same(values, positive)) is None:
        said = f"got {positive}, expected one of the column's values: {listed}"
        raise FormError(POSITIVE.problem(said, code="outcome-unknown"))
    if len(values) != 2:
        return list(values), False
    if positive:
        return sorted(values, key=lambda value: value == named), False
    outcome = outcome_of(values)
    if outcome is None:
        return list(values), True
    return sorted(values, key=lambda value: value == outcome), False


def same(values: Sequence[str], positive: str) -> str | None:
    """Return the value that the owner means, however it is written; None if it is none of them."""
    alike = [value for value in values if spelling(value) == spelling(positive)]
    return positive if positive in values else alike[0] if len(alike) == 1 else None
