"""Values that are one but for how they are written."""

from __future__ import annotations

from collections.abc import Iterable

from rankdad.common.spec.table_schema import spelling
from rankdad.local.data.profile import ordered


def respelled(levels: Iterable[str]) -> list[list[str]]:
    """Return groups of values that differ only in how they are written, such as Case and case, stage II and stage-II.

    See `spelling`.
    """
    groups: dict[str, list[str]] = {}
    for level in ordered(set(levels)):
        groups.setdefault(spelling(level), []).append(level)
    return [group for group in groups.values() if len(group) > 1]
