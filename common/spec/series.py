"""The schema of series in a long table."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rankdad.common.spec.table_schema import Column, FileName, PositiveInt, first_repeated
from rankdad.common.spec.written import Tabular


class SeriesData(Tabular):
    """Series in a long table, with a row for each time of each series and a column for each channel."""

    reader: Literal["series"]
    """File format: text (.csv, .tsv, .csv.gz), a workbook (.xlsx) or .parquet."""
    file: FileName | Annotated[tuple[FileName, ...], Field(min_length=1, max_length=1000)]
    """Name of the long table in the site's data folder; a list of names is one table."""
    covariates: FileName | None = None
    """Name of a table with a row for each series, with label and group; null if each row of the long table has them."""
    key: Column
    """Column that identifies the series, in both tables."""
    time: Column
    """Column that orders a series' rows: numbers, or dates and times such as 2020-04-03 14:05."""
    features: Annotated[tuple[Column, ...], Field(min_length=1, max_length=10_000)]
    """Channels: numeric columns, in this order."""
    frames: PositiveInt
    """Largest number of rows of a series; shorter ones are padded."""
    longer: Literal["refuse", "first", "last"] = "refuse"
    """Treatment of longer series: an error, or their first or last rows."""
    missing: Literal["refuse", "drop", "carry"] = "refuse"
    """Treatment of rows with a missing channel: an error, leaving them out, or carrying the last value of the series
    forward. The latter two leave out series without a label, a group or any row."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's input: frames and channels."""
        return self.frames, len(self.features)

    @property
    def tokens(self) -> None:
        """None: inputs are real numbers."""
        return None

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> SeriesData:
        for field, names in (("features", self.features), ("label", self.targets), ("values", self.values)):
            if repeated := first_repeated(names):
                raise ValueError(f"{field}: {repeated} occurs more than once")
        own = {"key": (self.key,), "time": (self.time,), "label": self.targets, "group": (self.group,)}
        for field, taken in own.items():
            if both := sorted(set(filter(None, taken)).intersection(self.features)):
                raise ValueError(f"{field}: {both[0]} is among the features too")
        for field in ("key", "time"):
            if getattr(self, field) in self.targets:
                raise ValueError(f"{field}: {getattr(self, field)} is the label too")
        if self.time == self.key:
            raise ValueError(f"time: {self.time} is the key too")
        return self
