"""The schema of a run's data, told apart by `reader`; where the files are is each site's business."""

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
from rankdad.common.spec.tasks import Classification, MultiLabel, TaskSpec
from rankdad.common.spec.written import Date, Tabular

MAX_FILES = 1000  # that a spec names one by one


def _file_names(given: str | tuple[str, ...]) -> str | tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given
    wrong = [name for name in names if not re.fullmatch(r"[\w*?][\w.*?-]*", name)]
    if len(names) > MAX_FILES:
        raise ValueError(f"got {len(names)} names, expected at most {MAX_FILES}: a pattern stands for any number")
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
    """Factor by which inputs are multiplied (1/255 for bytes)."""
    tokens: PositiveInt | None = None
    """Number of distinct tokens where inputs are whole numbers for an embedding; null where they are real."""


class TableData(Tabular):
    """What all tables have in common: columns that are inputs, and one that is the label."""

    features: Annotated[tuple[Column, ...], Field(max_length=100_000)]
    """Inputs, in this order. With * or ? an entry stands for the columns that match, in the table's order; a run's spec
    names them all in its place. A column's own * is written [*], its ? [?]."""
    exclude: Annotated[tuple[Column, ...], Field(max_length=100_000)] = ()
    """Columns, or patterns of them, that no pattern in `features` stands for; nor does any for key, label or group."""
    categorical: dict[Column, Annotated[tuple[Level, ...], Field(min_length=1)]] = Field(default={})
    """Inputs and kept columns that hold no numbers, each with its levels: such an input becomes one of 0 or 1 for every
    level."""
    missing: Literal["refuse", "drop", "impute"] = "refuse"
    """What is done about a row that lacks an input: say so and stop, leave it out and say so, or put the mean of all
    sites' training samples there. A row that lacks its label is left out by the latter two."""
    key: Column | None = None
    """Column that names the subject in every table; null where one table has none, and rows go by their number."""
    categorical_other: Annotated[tuple[Column, ...], Field(max_length=100_000)] = ()
    """Columns of `categorical`, or patterns of them, with one more level: for whatever it does not list."""
    dates: dict[Column, Date] = Field(default={})
    """Columns of dates, and what number each becomes."""
    clip: dict[Column, tuple[Bound, Bound]] = Field(default={})
    """Least and largest number of a column, or of those for which a pattern stands: what lies beyond becomes that; null
    is no bound."""
    log: Annotated[tuple[Column, ...], Field(max_length=100_000)] = ()
    """Columns, or patterns of them, whose natural logarithm is taken, after `clip`."""
    missing_indicators: Annotated[tuple[Column, ...], Field(max_length=100_000)] = ()
    """Inputs, or patterns of them, beside which stands one more: 1 where the value is missing and imputed, else 0."""

    @property
    def levels_by_column(self) -> dict[str, tuple[str, ...]]:
        """Inputs and label, each with its values; also what has a caption and may be among the inputs."""
        of_patterns = dict.fromkeys(self.captions, ()) if self.patterns else {}
        inputs = {column: self.categorical.get(column, ()) for column in self.named}
        return of_patterns | inputs | super().levels_by_column

    def levels(self, column: str) -> int:
        """Return how many levels a categorical column has; 0 of another."""
        listed = self.categorical.get(column, ())
        return len(listed) + (bool(listed) and column in self._others)

    def is_logarithm(self, column: str) -> bool:
        """Tell whether the logarithm of a column is taken."""
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
        """Entries of `features` in whose place a run needs names of columns."""
        return tuple(entry for entry in self.features if is_pattern(entry))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns of the inputs, in order.

        Raises:
            SpecError: a pattern stands for some of them.
        """
        if self.patterns:
            raise SpecError(
                "data.features",
                f"{json.dumps(self.patterns[0])} is a pattern, expected the names of the columns that it stands for: "
                "sites must agree on them before data are read (rankdad resolve writes them)",
                code="pattern-not-resolved",
            )
        return self.named

    @property
    def named(self) -> tuple[str, ...]:
        """Columns of the inputs that have their names here."""
        return tuple(literal(entry) for entry in self.features if not is_pattern(entry))

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Where each column of the inputs is, in order.

        Raises:
            SpecError: a pattern stands for some inputs.
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
            SpecError: a pattern stands for some inputs.
        """
        return (self.places[-1].whole.stop,)

    @property
    def tokens(self) -> None:
        """None: inputs are real numbers."""
        return None


class CsvData(TableData):
    """A table with a row per sample, and optionally more: text (.csv, .tsv, .csv.gz), a workbook (.xlsx), .parquet."""

    reader: Literal["csv"]
    """File format."""
    file: Files
    """Name of the table in the site's data folder. A list of names, or one with * or ?, is one table: the rows of all
    these files, which have the same columns."""
    covariates: Files | None = None
    """Name of a second table with more columns of the same subjects, or a list of several such tables."""


class FreesurferData(TableData):
    """FreeSurfer's statistics, one text file per subject, and a table that lists them.

    `features` are measures, or regions: of aseg.stats and wmparc.stats by StructName, which stands for the volume; of
    aparc.stats by the names of aparcstats2table, such as lh_bankssts_thickness. Other files have a name, a tab and a
    number on every line.
    """

    reader: Literal["freesurfer"]
    """File format."""
    covariates: Files
    """Name of the table with a row per subject, in the site's data folder; a list of tables is joined on the key."""
    key: Column
    """Column with the name of the subject's file, from the same folder."""
    covariate_features: Annotated[tuple[Column, ...], Field(max_length=100_000)] = ()
    """Columns of the table that are inputs too; they follow the regions."""

    @property
    def named(self) -> tuple[str, ...]:
        """Regions, then columns of the table, that have their names here."""
        return (*super().named, *self.covariate_features)

    @property
    def regions(self) -> tuple[str, ...]:
        """Inputs from the subjects' files."""
        return self.inputs[: len(self.features)]

    @property
    def file(self) -> str | tuple[str, ...]:
        """Name of the table with which reading begins."""
        return self.covariates


AnyData = NpzData | CsvData | FreesurferData | NiftiData | ImagesData | SeriesData | FunctionData


def _consistent(data: AnyData) -> AnyData:
    if isinstance(data, TableData):
        check_columns(data)
    return data


def check_columns(data: TableData) -> None:
    """Check that no column of a schema is meant for two things.

    Raises:
        ValueError: naming the field.
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
            raise ValueError(f"{field}: {repeated} stands there more than once")
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
    """Check columns whose effect harmonisation keeps, and that every categorical column is one of them or an input.

    Raises:
        ValueError: naming the field.
    """
    for column in keep:
        if column in data.targets:
            raise ValueError(f"harmonise.keep: {column} is what is predicted: kept in the inputs, it would leak")
    if repeated := first_repeated(keep):
        raise ValueError(f"harmonise.keep: {repeated} stands there more than once")
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
    """Return a schema with the names of columns in place of patterns.

    Args:
        data: the schema.
        columns: all that a table has, in its order; of FreeSurfer's statistics all regions and measures.

    Raises:
        SpecError: a pattern stands for no column, or for one with a name that no spec can hold.
    """
    other: Collection[str | None] = {"", data.key, data.group, *data.targets}
    open_to = [name for name in columns if name not in other and not any(fits(name, entry) for entry in data.exclude)]
    features: dict[str, None] = {}  # in order, each once
    for entry in data.features:
        found = [entry]
        if is_pattern(entry):
            found = [escaped(name) for name in open_to if fits(name, entry)]
            if not found:
                raise SpecError(
                    "data.features", f"{json.dumps(entry)} stands for no column", code="pattern-matches-nothing"
                )
            for name in found:
                if not re.fullmatch(COLUMN, name):
                    raise SpecError(
                        "data.features",
                        f"{json.dumps(entry)} stands for a column {name!r}: rename it",
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
    """Return how many numbers a sample's kept columns become: one, of a column with levels one less than it has."""
    return sum(data.levels(column) - 1 if column in data.categorical else 1 for column in keep)


def check_task(data: AnyData, task: TaskSpec) -> None:
    """Check that a schema's labels are those of a task.

    Raises:
        ValueError: naming the field.
    """
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
    """Return the tag of a schema; without one it is npz's."""
    return str(given.get("reader", "npz") if isinstance(given, dict) else getattr(given, "reader", "npz"))


DataSpec = Annotated[
    Annotated[NpzData, Tag("npz")]
    | Annotated[CsvData, Tag("csv")]
    | Annotated[FreesurferData, Tag("freesurfer")]
    | Annotated[NiftiData, Tag("nifti")]
    | Annotated[ImagesData, Tag("images")]
    | Annotated[SeriesData, Tag("series")]
    | Annotated[FunctionData, Tag("function")],
    Discriminator(_reader),
    AfterValidator(_consistent),
]
