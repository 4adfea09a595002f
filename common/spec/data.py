"""The schema of a run's data, by `reader`. The location of files is in each site's configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Discriminator, Field, Tag

from rankdad.common.documents import Part
from rankdad.common.errors import SpecError
from rankdad.common.spec.images import FunctionData, ImagesData, NiftiData
from rankdad.common.spec.patterns import MAX_PATTERNS, Entries, escaped, first_without, fits, is_pattern, literal
from rankdad.common.spec.series import SeriesData
from rankdad.common.spec.table_schema import (
    COLUMN,
    Column,
    FileName,
    Level,
    Place,
    PositiveInt,
    Shape,
    first_repeated,
)
from rankdad.common.spec.tasks import Classification, LanguageModel, MultiLabel, TaskSpec
from rankdad.common.spec.text import TextData
from rankdad.common.spec.written import Date, Tabular

MAX_FILES = 1000  # named in a spec


def _file_names(given: str | tuple[str, ...]) -> str | tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given
    wrong = [name for name in names if not re.fullmatch(r"[\w*?][\w.*?-]*", name)]
    if len(names) > MAX_FILES:
        raise ValueError(f"got {len(names)} names, expected at most {MAX_FILES}: a pattern matches any number")
    if wrong or not names:
        got = json.dumps(wrong[0]) if wrong else "no name"
        raise ValueError(
            f"got {got}, expected the name of a file in the data folder, with * and ? as in a shell, or a list of them"
        )
    return given


Bound = Annotated[float, Field(allow_inf_nan=False)] | None
Files = Annotated[str | tuple[str, ...], AfterValidator(_file_names)]


class NpzData(Part):
    """Arrays in a npz file."""

    reader: Literal["npz"] = "npz"
    """File format: npz holds `x` [samples, …], `y` [samples] and optionally `split` (0 train, 1 validation, 2 test)."""
    file: FileName = "data.npz"
    """Name of the file in the site's data folder."""
    shape: Shape
    """Shape of one sample's input."""
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Factor for inputs (1/255 for bytes)."""
    tokens: PositiveInt | None = None
    """Number of distinct tokens, for whole-number inputs of an embedding, with 0 for padding and 1 for the unknown one;
    null for real inputs."""


class TableData(Tabular):
    """Common fields of all tables: input columns and a label column."""

    features: Annotated[tuple[Column, ...], Field(max_length=100_000)]
    """Input columns, in this order. Entries with * or ? match columns, in the table's order; a run's spec names all
    matches instead. A literal * is written [*], a literal ? [?]."""
    exclude: Annotated[tuple[Column, ...], Field(max_length=100_000)] = ()
    """Columns, or patterns, excluded from the patterns in `features`; key, label and group are always excluded."""
    categorical: dict[Column, Annotated[tuple[Level, ...], Field(min_length=1)]] = Field(default={})
    """Categorical input and kept columns, each with its levels. An input becomes one number of 0 or 1 for every
    level."""
    missing: Literal["refuse", "drop", "impute"] = "refuse"
    """Treatment of rows with a missing input: an error, leaving them out with a note, or imputing the mean of all
    sites' training samples. The latter two leave out rows without a label."""
    key: Column | None = None
    """Column that identifies the subject in every table; null for one table whose rows are numbered."""
    categorical_other: Annotated[tuple[Column, ...], Field(max_length=100_000)] = ()
    """Columns of `categorical`, or patterns of them, with one more level for all unlisted values."""
    dates: dict[Column, Date] = Field(default={})
    """Columns of dates, and their conversion to numbers."""
    clip: dict[Column, tuple[Bound, Bound]] = Field(default={})
    """Smallest and largest number of a column, or of those matching a pattern; numbers beyond are clipped. null is no
    bound."""
    log: Annotated[tuple[Column, ...], Field(max_length=100_000)] = ()
    """Columns, or patterns, that are replaced by their natural logarithm, after `clip`."""
    missing_indicators: Annotated[tuple[Column, ...], Field(max_length=100_000)] = ()
    """Inputs, or patterns, with a further input: 1 if the value is missing and imputed, otherwise 0."""

    @property
    def levels_by_column(self) -> dict[str, tuple[str, ...]]:
        """Inputs and label with their values, which may have captions."""
        of_patterns = dict.fromkeys(self.captions, ()) if self.patterns else {}
        inputs = {column: self.categorical.get(column, ()) for column in self.named}
        return of_patterns | inputs | super().levels_by_column

    def levels(self, column: str) -> int:
        """Return the number of levels of a categorical column; 0 for others."""
        listed = self.categorical.get(column, ())
        return len(listed) + (bool(listed) and column in self._others)

    def is_logarithm(self, column: str) -> bool:
        """Return whether the logarithm of a column is taken."""
        return column in self._logarithms

    @cached_property
    def _others(self) -> Entries:
        return Entries(self.categorical_other)

    @cached_property
    def _indicated(self) -> Entries:
        return Entries(self.missing_indicators)

    @cached_property
    def _logarithms(self) -> Entries:
        return Entries(self.log)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Entries of `features` that are patterns."""
        return tuple(entry for entry in self.features if is_pattern(entry))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns of the inputs, in order.

        Raises:
            SpecError: a pattern is not resolved yet.
        """
        if self.patterns:
            raise SpecError(
                "data.features",
                f"{json.dumps(self.patterns[0])} is a pattern, expected the names of the matching columns: sites must "
                "agree on them before data are read (rankdad resolve writes them)",
                code="pattern-not-resolved",
            )
        return self.named

    @property
    def named(self) -> tuple[str, ...]:
        """Columns of the inputs that are named, without patterns."""
        return tuple(literal(entry) for entry in self.features if not is_pattern(entry))

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Positions of the input columns, in order.

        Raises:
            SpecError: a pattern is not resolved yet.
        """
        found, first = list[Place](), 0
        for column in self.inputs:
            found.append(Place(column, first, self.levels(column), column in self._indicated))
            first = found[-1].whole.stop
        return tuple(found)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's input.

        Raises:
            SpecError: a pattern is not resolved yet.
        """
        return (self.places[-1].whole.stop,)

    @property
    def tokens(self) -> None:
        """None: inputs are real numbers."""
        return None


class CsvData(TableData):
    """One or more tables with a row per sample: text (.csv, .tsv, .csv.gz), workbook (.xlsx) or .parquet."""

    reader: Literal["csv"]
    """File format."""
    file: Files
    """Name of the table in the site's data folder. A list of names, or a name with * or ?, is one table of the rows of
    all these files, which must have the same columns."""
    covariates: Files | None = None
    """Name of a second table with further columns of the same subjects, or a list of such tables."""


class FreesurferData(TableData):
    """FreeSurfer's statistics, one text file per subject, and a table that lists them.

    `features` are measures, or regions: by StructName for the volumes in aseg.stats and wmparc.stats; by the names of
    aparcstats2table, such as lh_bankssts_thickness, for aparc.stats. Other files have a name, a tab and a number on
    every line.
    """

    reader: Literal["freesurfer"]
    """File format."""
    covariates: Files
    """Name of the table with a row per subject, in the site's data folder; a list of tables is joined on the key."""
    key: Column
    """Column with the name of the subject's file, from the same folder."""
    covariate_features: Annotated[tuple[Column, ...], Field(max_length=100_000)] = ()
    """Columns of the table that are also inputs, after the regions."""

    @property
    def named(self) -> tuple[str, ...]:
        """Regions, then columns of the table, without patterns."""
        return (*super().named, *self.covariate_features)

    @property
    def regions(self) -> tuple[str, ...]:
        """Inputs from the subjects' files."""
        return self.inputs[: len(self.features)]

    @property
    def file(self) -> str | tuple[str, ...]:
        """Name of the first table."""
        return self.covariates


AnyData = NpzData | CsvData | FreesurferData | NiftiData | ImagesData | SeriesData | TextData | FunctionData


def _consistent(data: AnyData) -> AnyData:
    if isinstance(data, TableData):
        check_columns(data)
    return data


def check_columns(data: TableData) -> None:
    """Check that no column of a schema has two uses.

    Raises:
        ValueError: one has; names the field.
    """
    inputs, patterns = data.named, data.patterns
    if not inputs and not patterns:
        raise ValueError("features: got none, expected at least one column")
    lists: dict[str, Collection[str]] = {"dates": data.dates, "clip": data.clip, "log": data.log}
    lists |= {"categorical_other": data.categorical_other, "missing_indicators": data.missing_indicators}
    lists |= {"features": data.features, "exclude": data.exclude}
    for field, entries in lists.items():
        if (count := sum(map(is_pattern, entries))) > MAX_PATTERNS:
            raise ValueError(f"{field}: has {count:,} patterns, expected at most {MAX_PATTERNS}: name the columns")
    if data.missing_indicators and data.missing != "impute":
        raise ValueError(f"missing_indicators: missing is {data.missing}, expected impute")
    for field, names in (
        ("features", inputs),
        ("label", data.targets),
        ("values", data.values),
        *data.categorical.items(),
    ):
        if repeated := first_repeated(names):
            raise ValueError(f"{field}: {repeated} occurs more than once")
    taken = set(inputs)
    for target in data.targets:
        if target in taken:
            raise ValueError(f"label: {target} is among the features too")
        if target == data.key:
            raise ValueError(f"label: {target} is the key too")
        if target in data.categorical:
            raise ValueError(f"categorical: {target} is the label, whose values are in `values`")
    for field in ("dates", "clip", "log"):
        meant = Entries(lists[field])
        for column in data.categorical:
            if column in meant:
                raise ValueError(f"{field}: {column} is categorical, expected columns of numbers")
    if (entry := first_without(data.categorical_other, data.categorical)) is not None:
        raise ValueError(f"categorical_other: {entry} is no categorical column")
    if not patterns and (entry := first_without(data.missing_indicators, taken)) is not None:
        raise ValueError(f"missing_indicators: {entry} is no input, expected one of {', '.join(inputs[:20])}")
    if data.key in taken:
        raise ValueError(f"key: {data.key} is among the features too")
    if data.group in taken:
        raise ValueError(f"group: {data.group} is among the features too")
    if isinstance(data, FreesurferData):
        regions = taken.difference(data.covariate_features)
        for column in data.categorical:
            if column in regions:
                raise ValueError(f"categorical: {column} is a region, expected one of the covariate_features")
    if isinstance(data, CsvData) and data.covariates is not None and data.key is None:
        raise ValueError("key: is missing, expected the column that joins the tables")


def check_kept(data: TableData, keep: Sequence[str]) -> None:
    """Check the columns that harmonisation keeps, and that every categorical column is one of them or an input.

    Raises:
        ValueError: names the field.
    """
    for column in keep:
        if column in data.targets:
            raise ValueError(f"harmonise.keep: {column} is what is predicted: kept in the inputs, it would leak")
    if repeated := first_repeated(keep):
        raise ValueError(f"harmonise.keep: {repeated} occurs more than once")
    if not data.patterns:
        used = {*data.inputs, *keep}
        for column in data.categorical:
            if column not in used:
                raise ValueError(f"data.categorical: {column} is neither among the inputs nor in harmonise.keep")
        for field, entries in (("dates", data.dates), ("clip", data.clip), ("log", data.log)):
            if (entry := first_without(entries, used)) is not None:
                raise ValueError(f"data.{field}: {entry} is neither among the inputs nor in harmonise.keep")


T = TypeVar("T", bound=TableData)


def resolve_features(data: T, columns: Sequence[str]) -> T:
    """Replace the patterns in a schema by the matching columns.

    Args:
        data: the schema.
        columns: of a table in order, or all regions and measures of FreeSurfer's statistics.

    Raises:
        SpecError: a pattern matches no column, or one whose name is not valid in a spec.
    """
    other: Collection[str | None] = {"", data.key, data.group, *data.targets}
    open_to = [name for name in columns if name not in other and not any(fits(name, entry) for entry in data.exclude)]
    features: dict[str, None] = {}
    for entry in data.features:
        found = [entry]
        if is_pattern(entry):
            found = [escaped(name) for name in open_to if fits(name, entry)]
            if not found:
                raise SpecError(
                    "data.features", f"{json.dumps(entry)} matches no column", code="pattern-matches-nothing"
                )
            for name in found:
                if not re.fullmatch(COLUMN, name):
                    raise SpecError(
                        "data.features",
                        f"{json.dumps(entry)} matches a column {name!r}: rename it",
                        code="column-name-unusable",
                    )
        features |= dict.fromkeys(found)
    whole = data.model_copy(update={"features": tuple(features)})
    try:
        check_columns(whole)
    except ValueError as error:
        raise SpecError("data", str(error), code="columns-disagree") from None
    return whole


def covariate_width(data: TableData, keep: Sequence[str]) -> int:
    """Return the number of a sample's covariates: one per column, or one less than its levels."""
    return sum(data.levels(column) - 1 if column in data.categorical else 1 for column in keep)


def check_task(data: AnyData, task: TaskSpec) -> None:
    """Check that a schema's labels fit a task.

    Raises:
        ValueError: names the field.
    """
    if isinstance(task, LanguageModel):
        if not isinstance(data, TextData):
            raise ValueError(f"reader: got {data.reader}, expected text for the task {task.name}")
        if data.targets or data.values:
            raise ValueError(f"label: expected none for the task {task.name}, nor values")
        return
    if not isinstance(data, Tabular):
        return
    several = not isinstance(data.label, str)
    if several != (task.name == "multi-label"):
        raise ValueError(f"label: expected {'one column' if several else 'a list of columns'} for the task {task.name}")
    if isinstance(task, MultiLabel) and len(data.targets) != task.labels:
        raise ValueError(f"label: got {len(data.targets)} columns, expected task.labels, {task.labels}")
    classes = task.classes if isinstance(task, Classification) else 0
    if len(data.values) != classes:
        expected = f"one for each of {classes} task.classes" if classes else f"none for the task {task.name}"
        raise ValueError(f"values: got {len(data.values)}, expected {expected}")


def _reader(given: Any) -> str:
    """Return a schema's tag; by default npz."""
    return str(given.get("reader", "npz") if isinstance(given, dict) else getattr(given, "reader", "npz"))


DataSpec = Annotated[
    Annotated[NpzData, Tag("npz")]
    | Annotated[CsvData, Tag("csv")]
    | Annotated[FreesurferData, Tag("freesurfer")]
    | Annotated[NiftiData, Tag("nifti")]
    | Annotated[ImagesData, Tag("images")]
    | Annotated[SeriesData, Tag("series")]
    | Annotated[TextData, Tag("text")]
    | Annotated[FunctionData, Tag("function")],
    Discriminator(_reader),
    AfterValidator(_consistent),
]
