"""Names in which * stands for any characters and ? for one; [*] and [?] are the characters themselves."""

from __future__ import annotations

import fnmatch
import re

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
    return fnmatch.fnmatchcase(name, re.sub(r"\[(?![*?]\])", "[[]", written))  # no other brackets are special
