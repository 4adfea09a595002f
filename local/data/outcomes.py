"""Which of two classes is the outcome, whose risk is predicted."""

from __future__ import annotations

from collections.abc import Sequence

from rankdad.common.spec.table_schema import spelling

NEGATIVE = frozenset(
    {
        *("0", "no", "none", "false", "neg", "negative", "absent", "without"),
        *("con", "control", "controls", "ctl", "ctrl", "hc", "healthy", "healthy control", "healthy controls"),
        *("cn", "nl", "norm", "normal", "typical", "typically developing", "unaffected", "benign", "wild type"),
        *("alive", "survived"),
    }
)
NEGATED = ("no ", "non ", "non", "not ", "without ", "un")  # before the other value


def outcome_of(values: Sequence[str]) -> str | None:
    """Return which of two values is no control and no "no"; None if their words do not tell."""
    first, last = keys = [spelling(value) for value in values]
    negated = [{f"{word}{other}" for word in NEGATED} for other in (last, first)]
    negative = [key in NEGATIVE or key in found for key, found in zip(keys, negated, strict=True)]
    return None if negative[0] == negative[1] else values[negative.index(False)]
