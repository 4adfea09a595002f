"""Values that are one but for how they are written."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from rankdad.common.spec.table_schema import canonical
from rankdad.local.data.profile import ordered


def respelled(levels: Iterable[str]) -> list[list[str]]:
    """Return groups of values that differ only in how they are written, such as Case and case, stage II and stage-II.

    They differ in case, in blanks, hyphens or underscores between words, in characters that are not seen, or in forms
    of one character.
    """
    groups: dict[str, list[str]] = {}
    for level in ordered(set(levels)):
        groups.setdefault(spelling(level), []).append(level)
    return [group for group in groups.values() if len(group) > 1]


def spelling(level: str) -> str:
    """Return what a value has in common with other ways to write it."""
    text = "".join(c for c in unicodedata.normalize("NFKC", level) if unicodedata.category(c) != "Cf")
    return canonical(re.sub(r"(?<=\w)[\s_-]+(?=\w)", " ", " ".join(text.split())).casefold())
