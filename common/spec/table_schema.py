"""Names and values in columns of tables, for the schemas of several readers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, Field

PositiveInt = Annotated[int, Field(ge=1, le=1_000_000_000)]
Shape = Annotated[tuple[PositiveInt, ...], Field(max_length=16)]
FileName = Annotated[str, Field(pattern=r"^[\w][\w.-]*$")]
# Letters of other alphabets that look like Latin ones, typed with another keyboard layout.
LOOKALIKES = str.maketrans("авекмнорстухіαβεζηικνορτυχı", "abekmhopctyxiabezhiknoptyxi")
COLUMN = r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]{0,198}[^\s\x00-\x1f\x7f])?$"


def composed(text: str) -> str:
    """Return text with composed accents (Unicode's NFC)."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


Column = Annotated[
    str, BeforeValidator(lambda given: composed(given) if isinstance(given, str) else given), Field(pattern=COLUMN)
]


def canonical(value: object) -> str:
    """Return a cell's value as text for comparison: 1, "1", " 1.0" and "01" are equal."""
    text = composed(str(value).strip())
    if len(text) > 18:  # too many digits for a float
        return text
    if re.fullmatch(r"[+-]?[0-9]+(\.0*)?", text):
        return str(int(text.partition(".")[0]))
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        number = float(text)
        return str(int(number)) if number.is_integer() else repr(number)
    return text


def spelling(text: str) -> str:
    """Return a normal form of a value, equal for different spellings.

    Spellings differ in case, in spaces, hyphens or underscores between words, in invisible characters, in forms of one
    character, or in look-alike letters of another alphabet.
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
    """Return the first name that occurs twice; "" if there is none."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


class Place(NamedTuple):
    """The position of a column among a sample's inputs.

    Args:
        column: its name.
        first: index of its number, or of its first level.
        levels: number of its levels; 0 for numbers.
        is_indicated: whether an indicator of missing values follows it.
    """

    column: str
    first: int
    levels: int
    is_indicated: bool

    @property
    def values(self) -> slice:
        """Indices of its number, or its levels."""
        return slice(self.first, self.first + (self.levels or 1))

    @property
    def whole(self) -> slice:
        """Indices of the column including its indicator."""
        return slice(self.first, self.values.stop + self.is_indicated)
