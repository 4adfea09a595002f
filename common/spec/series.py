"""The schema of series in a long table."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rankdad.common.spec.table_schema import Column, FileName, PositiveInt, first_repeated
from rankdad.common.spec.written import Tabular


class SeriesData(Tabular):
    """Series in a long table: a row for each time of each series, with the values of all channels then."""

    reader: Literal["series"]
    """File format: text (.csv, .tsv, .csv.gz), a workbook (.xlsx) or .parquet."""
    file: FileName | Annotated[tuple[FileName, ...], Field(min_length=1, max_length=1000)]
    """Name of the long table in the site's data folder; a list of names is one table."""
    covariates: FileName | None = None
    """Name of a table with a row for each series, which has label and group; null where these stand in each row of the
    long table."""
    key: Column
    """Column that names the series, in both tables."""
    time: Column
    """Column by which a series' rows are ordered: numbers, or dates and times such as 2020-04-03 14:05."""
    features: Annotated[tuple[Column, ...], Field(min_length=1, max_length=10_000)]
    """Channels: columns of numbers, in this order."""
    frames: PositiveInt
    """Rows of the longest series; shorter ones end before."""
    longer: Literal["refuse", "first", "last"] = "refuse"
    """What is done about a series of more rows: say so and stop, or take its first or its last ones."""
    missing: Literal["refuse", "drop", "carry"] = "refuse"
    """What is done about a row that lacks a channel: say so and stop, leave it out, or take the value before it in its
    series. Series without a label, a group or any row are left out by the latter two."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's input: frames and channels."""
        return self.frames, len(self.features)

    @property
    def tokens(self) -> None:
        """None: inputs are real numbers."""
        return None

    @model_validator(mode="after")
    def _tells_columns_apart(self) -> SeriesData:
        for field, names in (("features", self.features), ("label", self.targets), ("values", self.values)):
            if repeated := first_repeated(names):
                raise ValueError(f"{field}: {repeated} stands there more than once")
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
