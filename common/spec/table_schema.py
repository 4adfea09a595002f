"""Names and values in the columns of tables: what the schemas of several readers have in common."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, Field

PositiveInt = Annotated[int, Field(ge=1, le=1_000_000_000)]
Shape = Annotated[tuple[PositiveInt, ...], Field(max_length=16)]
FileName = Annotated[str, Field(pattern=r"^[\w][\w.-]*$")]
# Letters of other alphabets that look like Latin ones, as a keyboard that was not switched writes them.
LOOKALIKES = str.maketrans("авекмнорстухіαβεζηικνορτυχı", "abekmhopctyxiabezhiknoptyxi")
COLUMN = r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]{0,198}[^\s\x00-\x1f\x7f])?$"


def composed(text: str) -> str:
    """Return text with one character for each letter with its accents, however it was written (Unicode's NFC)."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


Column = Annotated[
    str, BeforeValidator(lambda given: composed(given) if isinstance(given, str) else given), Field(pattern=COLUMN)
]


def canonical(value: object) -> str:
    """Return a cell's value as the text by which it is compared: 1, "1", " 1.0" and "01" are the same."""
    text = composed(str(value).strip())
    if len(text) > 18:  # digits that a float would lose
        return text
    if re.fullmatch(r"[+-]?[0-9]+(\.0*)?", text):
        return str(int(text.partition(".")[0]))
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        number = float(text)
        return str(int(number)) if number.is_integer() else repr(number)
    return text


def spelling(text: str) -> str:
    """Return what a value has in common with other ways to write it.

    They differ in case, in blanks, hyphens or underscores between words, in characters that are not seen, in forms of
    one character, or in letters of another alphabet that look alike.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
        seen = (str(unicodedata.decimal(c, c)) for c in text if unicodedata.category(c) != "Cf")
        text = "".join(seen).casefold().replace("i\u0307", "i")
        text = text.translate(LOOKALIKES)
    words = " ".join(text.split()).casefold()
    return canonical(re.sub(r"(?<=\w)[\s_\-\u2010-\u2015\u2212]+(?=\w)", " ", words))


def _level(given: object) -> object:
    return canonical(given) if isinstance(given, str | int | float) else given


Level = Annotated[str, BeforeValidator(_level), Field(min_length=1, max_length=200)]


def first_repeated(names: Iterable[str]) -> str:
    """Return the first name that stands somewhere before; "" if none does."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


class Place(NamedTuple):
    """Where a column is among a sample's inputs.

    Args:
        column: its name.
        first: place of its number, or of its first level.
        levels: how many it has; 0 of numbers.
        is_indicated: whether an indicator of missing values stands behind it.
    """

    column: str
    first: int
    levels: int
    is_indicated: bool

    @property
    def values(self) -> slice:
        """Its number, or its levels."""
        return slice(self.first, self.first + (self.levels or 1))

    @property
    def whole(self) -> slice:
        """All of it, an indicator among it."""
        return slice(self.first, self.values.stop + self.is_indicated)
