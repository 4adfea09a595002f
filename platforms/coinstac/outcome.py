"""The outcome of two classes, whose risk is predicted: the named one, or the one that is not a control."""

from __future__ import annotations

from collections.abc import Sequence

from rankdad.common.data.levels import outcome_of
from rankdad.common.spec.table_schema import spelling
from rankdad.platforms.coinstac.fields import FIELDS
from rankdad.platforms.coinstac.form import FormError

POSITIVE = FIELDS["positive"]


def outcome_last(values: Sequence[str], positive: str = "") -> tuple[list[str], bool]:
    """Order classes with the outcome as the last of two; return whether only the alphabet decided.

    Args:
        values: values of the label.
        positive: the owner's outcome, or "".

    Raises:
        FormError: the outcome is not a value, or there are more than two values.
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
    """Return the value that matches the owner's spelling; None if there is none."""
    alike = [value for value in values if spelling(value) == spelling(positive)]
    return positive if positive in values else alike[0] if len(alike) == 1 else None
