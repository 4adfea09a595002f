"""How tables are written, and what their cells mean, the same at every site although files may differ."""

from __future__ import annotations

import datetime
import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from rankdad.common.documents import Part
from rankdad.common.spec.patterns import fits
from rankdad.common.spec.table_schema import COLUMN, Column, Level, first_repeated

Encoding = Literal[
    "cp1250",
    "cp1251",
    "cp1252",
    "cp1253",
    "cp1254",
    "cp1257",
    "cp437",
    "cp850",
    "iso-8859-1",
    "iso-8859-2",
    "iso-8859-15",
    "mac-roman",
    "koi8-r",
    "shift-jis",
    "gb18030",
    "big5",
    "euc-kr",
]
Caption = Annotated[str, Field(pattern=COLUMN, max_length=80)]
COMPARISON = re.compile(r"(>=|<=|>|<)\s*([+-]?[0-9]+(?:\.[0-9]+)?)")
YEAR = 365.25  # days


class Written(Part):
    """How the cells of tables are written; null values are detected in each file."""

    delimiter: Literal[",", ";", "\t", "|", " "] | None = None
    """Delimiter of a table's columns, " " for one or several spaces; null detects it in each file."""
    decimal: Literal[".", ","] | None = None
    """Decimal mark; null detects it in each file, and refuses ambiguous numbers, such as 1,234."""
    encoding: Encoding | None = None
    """Encoding of tables that are not in UTF-8, such as cp1252, which Excel writes in western Europe; null refuses
    them."""
    columns: Annotated[tuple[Column, ...], Field(max_length=100_000)] = ()
    """Column names, in order, for tables without a header row; empty for others. A file whose first row consists of
    these names, in any order, is read by its header."""
    sheet: Annotated[str, Field(min_length=1, max_length=31)] | None = None
    """Name of a workbook's sheet; null for the only one that is not empty."""
    missing_values: tuple[Level, ...] | dict[Column, tuple[Level, ...]] = ()
    """Further values that mean missing, in all columns or by column (or pattern). Always missing are: empty cells, NA,
    N/A, #N/A, <NA>, NaN, null and none, in upper or lower case."""

    def tokens_of(self, column: str) -> frozenset[str]:
        """Return the further values that mean missing in a column."""
        if not isinstance(self.missing_values, dict):
            return frozenset(self.missing_values)
        return frozenset(token for entry, own in self.missing_values.items() if fits(column, entry) for token in own)


class Comparison:
    """A rule such as "> 0".

    Raises:
        ValueError: the text is no rule.
    """

    def __init__(self, text: str) -> None:
        found = COMPARISON.fullmatch(text.strip())
        if found is None:
            raise ValueError(f'got {json.dumps(text)}, expected a comparison such as "> 0" or ">= 2.5"')
        self.sign, self.bound = found[1], float(found[2])

    def holds(self, numbers: Any) -> Any:
        """Return whether each number fulfils the rule; NaN does not."""
        greater = self.sign.startswith(">")
        strict = numbers > self.bound if greater else numbers < self.bound
        return strict | (numbers == self.bound) if self.sign.endswith("=") else strict


def _comparison(text: str) -> str:
    Comparison(text)
    return text


class Tabular(Written):
    """A table with a row per sample."""

    label: Column | Annotated[tuple[Column, ...], Field(max_length=1000)]
    """Label column; for the task multi-label a list of columns, each 0 or 1."""
    values: Annotated[tuple[Level, ...], Field(max_length=1000)] = ()
    """Values of the label, in the order of the classes; numbers are compared as numbers, everything else as text. Empty
    for the tasks regression and multi-label."""
    group: Column | None = None
    """Column of groups, such as families: all samples of a group are in one fold."""
    positive: Annotated[str, AfterValidator(_comparison)] | None = None
    """Rule such as "> 0" for a numeric label: numbers that fulfil it are the second of the two classes, whose names are
    in `values`."""
    merge: Annotated[dict[Level, tuple[Level, ...]], Field(max_length=1000)] = Field(default={})
    """Values of the label that belong to one class, by its name in `values`: {"ill": [1, 2, 3]}. A class without an
    entry is the value of its name."""
    captions: Annotated[dict[Column, Caption], Field(max_length=10_000)] = Field(default={})
    """Names in reports for a column or one of its values: {"num": "heart disease", "cp = 4": "no chest pain"}. The
    second of two classes has the label's name. Captions are used only in reports and warnings."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Label columns."""
        return (self.label,) if isinstance(self.label, str) else self.label

    @property
    def members(self) -> tuple[tuple[str, ...], ...]:
        """The label's values of each class."""
        return tuple(self.merge.get(value, (value,)) for value in self.values)

    @property
    def levels_by_column(self) -> dict[str, tuple[str, ...]]:
        """Columns that may have captions, with their values."""
        return dict.fromkeys(self.targets, self.values)

    def called(self, column: str, value: str | None = None) -> str:
        """Return the caption of a column, or of one of its values."""
        name = self.captions.get(column, column)
        return name if value is None else self.captions.get(f"{column} = {value}", f"{name} = {value}")

    def outcome(self, place: int) -> str:
        """Return the caption of a class."""
        label, value = self.targets[0], self.values[place]
        is_event = place == 1 and len(self.values) == 2 and label in self.captions
        return self.captions.get(f"{label} = {value}", self.captions[label] if is_event else self.called(label, value))

    @model_validator(mode="after")
    def _captions_fit(self) -> Tabular:
        if not self.captions:
            return self
        columns = self.levels_by_column
        names = {f"{column} = {value}": (column, value) for column, own in columns.items() for value in own}
        if unknown := next((name for name in self.captions if name not in columns and name not in names), None):
            got = json.dumps(unknown)
            raise ValueError(f'captions: got {got}, expected an input, the label, or one of its values: "num = 1"')
        classes = [self.outcome(place) for place in range(len(self.values))]
        shown = [*map(self.called, columns), *(self.called(*pair) for pair in names.values())]
        if repeated := first_repeated(classes) or first_repeated(shown):
            raise ValueError(f"captions: {json.dumps(repeated)} is the name of two, expected a caption for each")
        return self

    @model_validator(mode="after")
    def _rules_fit(self) -> Tabular:
        if self.positive is not None and (len(self.values) != 2 or self.merge):
            raise ValueError("positive: makes two classes, expected two values, their names; and nothing in merge")
        for name in self.merge:
            if name not in self.values:
                raise ValueError(f"merge: {name} is not among the values")
        known = [value for own in self.members for value in own]
        twice = sorted({value for value in known if known.count(value) > 1})
        if twice and len(set(self.values)) == len(self.values):
            raise ValueError(f"merge: {twice[0]} is in two classes")
        return self


class Date(Part):
    """The conversion of a date to the time since another one, for example to an age."""

    since: Column
    """A date, such as "2000-01-31", or the name of a column with one, such as the date of birth."""
    unit: Literal["years", "days"] = "years"
    """Years of 365.25 days, or days."""
    order: Literal["day/month/year", "month/day/year"] | None = None
    """Order of day and month in 03/04/2020; null refuses dates with slashes. 2020-04-03 and 3.4.2020 (day first) are
    always valid."""

    def day(self, text: str) -> float:
        """Return a date as a number of days.

        Raises:
            ValueError: it is no date, or ambiguous; says what is expected.
        """
        parts = re.fullmatch(
            r"(\d{4})-(\d\d?)-(\d\d?)(?:[T ][\d:.]*)?|(\d\d?)\.(\d\d?)\.(\d{4})|(\d\d?)/(\d\d?)/(\d{4})", text
        )
        expected = "expected a date such as 2020-04-03 or 3.4.2020"
        if parts is None:
            raise ValueError(expected)
        if parts[7] and self.order is None:
            raise ValueError(f"{expected}: with slashes, data.dates needs the order of day and month")
        year, month, day = (parts[1], parts[2], parts[3]) if parts[1] else (parts[6], parts[5], parts[4])
        if parts[7]:
            first, second = (parts[7], parts[8]) if self.order == "day/month/year" else (parts[8], parts[7])
            year, month, day = parts[9], second, first
        try:
            return float(datetime.date(int(year), int(month), int(day)).toordinal())
        except ValueError:
            raise ValueError(f"{expected} that is in the calendar") from None

    @property
    def start(self) -> float | None:
        """Start as a number of days; None if it is a column's."""
        return self.day(self.since) if re.fullmatch(r"\d{4}-\d\d-\d\d", self.since) else None

    @model_validator(mode="after")
    def _start_is_a_date(self) -> Date:
        try:
            _ = self.start
        except ValueError as error:
            raise ValueError(f"since: got {self.since}, {error}") from None
        return self
