"""Names in which * stands for any characters and ? for one; [*] and [?] are the characters themselves."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable

MAX_PATTERNS = 100  # in one list: each of them is compared with every column
MARK = re.compile(r"\[([*?])\]|[*?]")


def is_pattern(written: str) -> bool:
    """Tell whether a name stands for others."""
    return any(mark[1] is None for mark in MARK.finditer(written))


def literal(written: str) -> str:
    """Return the name that is written without patterns."""
    return MARK.sub(lambda mark: mark[1] or mark[0], written)


def escaped(name: str) -> str:
    """Return how a name is written where patterns may stand."""
    return re.sub(r"[*?]", r"[\g<0>]", name)


def fits(name: str, written: str) -> bool:
    """Tell whether a written name, with or without * and ?, stands for another."""
    return fnmatch.fnmatchcase(name, _as_in_a_shell(written))


def _as_in_a_shell(written: str) -> str:
    return re.sub(r"\[(?![*?]\])", "[[]", written)  # no other brackets are special


class Entries:
    """Names and patterns as a schema lists them: `name in entries` tells whether one of them stands for a name.

    Args:
        written: of which there may be as many as names.
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
    """Return the first entry that stands for none of these names; None if each stands for some."""
    known = frozenset(names)
    for one in written:
        if not (any(map(Entries([one]).__contains__, known)) if is_pattern(one) else literal(one) in known):
            return one
    return None
