"""The schema of texts, as sequences of tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rankdad.common.documents import Part
from rankdad.common.spec.model import Sha256
from rankdad.common.spec.table_schema import Column, FileName, PositiveInt, first_repeated
from rankdad.common.spec.written import Tabular

PADDING, UNKNOWN, BEGIN, END = range(4)  # tokens with a meaning of their own, before all others
SPECIAL = 4
BYTES = SPECIAL + 256  # tokens of a text as bytes


class Tokenizer(Part):
    """A tokenizer, from a file that every site has (pip install 'rankdad[text]')."""

    file: FileName
    """Name of the file of the library tokenizers, such as tokenizer.json, in the folder of the table."""
    sha256: Sha256
    """Digest of the file, in hexadecimal; another file is refused."""
    tokens: PositiveInt
    """Number of its tokens."""


class TextData(Tabular):
    """Texts in a column of a table, or in a file each, as sequences of tokens.

    A sample is a begin token, the UTF-8 bytes of the text or the tokens of a tokenizer, and an end token.
    """

    reader: Literal["text"]
    """File format: text (.csv, .tsv, .csv.gz), a workbook (.xlsx) or .parquet."""
    file: FileName | Annotated[tuple[FileName, ...], Field(min_length=1, max_length=1000)]
    """Name of the table in the site's data folder; a list of names is one table."""
    column: Column
    """Column with the texts."""
    holds: Literal["text", "file"] = "text"
    """Whether the column has the texts, or the paths of their files, in UTF-8, relative to the table's folder."""
    key: Column | None = None
    """Column that identifies the sample; null for the number of its row."""
    label: Column | Annotated[tuple[Column, ...], Field(max_length=1000)] = ()
    """Label column; for the task multi-label a list of columns, each 0 or 1; none for the task language-model."""
    tokenizer: Tokenizer | None = None
    """Tokenizer of the texts; null for their bytes."""
    length: Annotated[PositiveInt, Field(ge=3)]
    """Largest number of tokens of a sample, with begin and end; shorter ones are padded, without effect."""
    longer: Literal["refuse", "first", "last"] = "refuse"
    """Treatment of longer texts: an error, or their first or last tokens."""
    missing: Literal["refuse", "drop"] = "refuse"
    """Treatment of rows with an empty text, label or group: an error, or leaving them out with a note."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's input."""
        return (self.length,)

    @property
    def tokens(self) -> int:
        """Number of distinct tokens."""
        return BYTES if self.tokenizer is None else SPECIAL + self.tokenizer.tokens

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> TextData:
        for field, names in (("label", self.targets), ("values", self.values)):
            if repeated := first_repeated(names):
                raise ValueError(f"{field}: {repeated} occurs more than once")
        for field, column in (("column", self.column), ("key", self.key)):
            if column in self.targets:
                raise ValueError(f"{field}: {column} is the label too")
        for field, column in (("key", self.key), ("group", self.group)):
            if column == self.column:
                raise ValueError(f"{field}: {column} is the column of texts too")
        return self
