"""Values of a column: their order, different spellings, and which of two is the outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    """Return the outcome among two values, such as "yes" or "case"; None if their words do not tell."""
    first, last = keys = [spelling(value) for value in values]
    negated = [{f"{word}{other}" for word in NEGATED} for other in (last, first)]
    negative = [key in NEGATIVE or key in found for key, found in zip(keys, negated, strict=True)]
    return None if negative[0] == negative[1] else values[negative.index(False)]


def respelled(levels: Iterable[str]) -> list[list[str]]:
    """Return groups of values that differ only in spelling, such as Case and case; see `spelling`."""
    groups: dict[str, list[str]] = {}
    for level in ordered(set(levels)):
        groups.setdefault(spelling(level), []).append(level)
    return [group for group in groups.values() if len(group) > 1]


def ordered(levels: Iterable[str]) -> list[str]:
    """Sort values as numbers, then alphabetically."""

    def key(level: str) -> tuple[bool, float, str, str]:
        try:
            return False, float(level), "", level
        except ValueError:
            return True, 0.0, level.casefold(), level  # deterministic also for "m" and "M"

    return sorted(levels, key=key)
