"""Patterns of names: * matches any characters, ? a single one; [*] and [?] are literal."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable

MAX_PATTERNS = 100  # per list, because each is compared with every column
MARK = re.compile(r"\[([*?])\]|[*?]")


def is_pattern(written: str) -> bool:
    """Return whether a name is a pattern."""
    return any(mark[1] is None for mark in MARK.finditer(written))


def literal(written: str) -> str:
    """Return the name without escapes, given one that is no pattern."""
    return MARK.sub(lambda mark: mark[1] or mark[0], written)


def escaped(name: str) -> str:
    """Escape a name for lists of patterns."""
    return re.sub(r"[*?]", r"[\g<0>]", name)


def fits(name: str, written: str) -> bool:
    """Return whether a name matches a written name or pattern."""
    return fnmatch.fnmatchcase(name, _as_in_a_shell(written))


def _as_in_a_shell(written: str) -> str:
    return re.sub(r"\[(?![*?]\])", "[[]", written)  # other brackets are literal


class Entries:
    """Names and patterns of a schema: `name in entries` tells whether one of them matches.

    Args:
        written: names and patterns; there may be as many as columns.
    """

    def __init__(self, written: Iterable[str]) -> None:
        names, patterns = set[str](), list[re.Pattern[str]]()
        for one in written:
            if is_pattern(one):
                patterns.append(re.compile(fnmatch.translate(_as_in_a_shell(one))))
            else:
                names.add(literal(one))
        self._names, self._patterns = names, patterns

    def __contains__(self, name: str) -> bool:
        return name in self._names or any(pattern.match(name) for pattern in self._patterns)


def first_without(written: Iterable[str], names: Collection[str]) -> str | None:
    """Return the first entry that matches none of these names; None if each matches one."""
    known = frozenset(names)
    for one in written:
        if not (any(map(Entries([one]).__contains__, known)) if is_pattern(one) else literal(one) in known):
            return one
    return None
