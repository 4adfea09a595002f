"""Text from others, shown to a person: never an instruction to the terminal."""

from __future__ import annotations


def visible(text: str, limit: int = 500) -> str:
    """Return a text as one line in which every character shows: control characters, line breaks and marks of direction
    are written as escapes, and what is beyond the limit is cut.
    """
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
