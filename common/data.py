"""The schema of a run's data, told apart by `reader`; where the files are is each site's business."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from common.columns import Column, FileName, Labelled, Level, PositiveInt
from common.documents import Part
from common.imaging import FunctionData, ImagesData, NiftiData
from common.tasks import Classification, MultiLabel, TaskSpec


class NpzData(Part):
    """Arrays in a npz file."""

    reader: Literal["npz"] = "npz"
    """File format: npz holds `x` [samples, …], `y` [samples] and optionally `split` (0 train, 1 validation, 2 test)."""
    file: FileName = "data.npz"
    """Name of the file in the site's data folder."""
    shape: tuple[PositiveInt, ...]
    """Shape of one sample's input."""
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Factor by which inputs are multiplied (1/255 for bytes)."""
    tokens: PositiveInt | None = None
    """Number of distinct tokens where inputs are whole numbers for an embedding; null where they are real."""


class TableData(Labelled):
    """What all tables have in common: columns that are inputs, and one that is the label."""

    features: Annotated[tuple[Column, ...], Field(max_length=100_000)]
    """Inputs, in this order."""
    categorical: dict[Column, Annotated[tuple[Level, ...], Field(min_length=1)]] = Field(default={})
    """Inputs that hold no numbers, each with its levels: such an input becomes one of 0 or 1 for every level."""
    missing: Literal["refuse", "drop", "impute"] = "refuse"
    """What is done about a row that lacks an input: say so and stop, leave it out and say so, or put the mean of all
    sites' training samples there. A row that lacks its label is left out by the latter two."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns of the inputs, in order."""
        return self.features

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's input."""
        return (sum(len(self.categorical[c]) if c in self.categorical else 1 for c in self.inputs),)

    @property
    def tokens(self) -> None:
        """None: inputs are real numbers."""
        return None


class CsvData(TableData):
    """A table with a row per sample, and optionally a second one: CSV in UTF-8, with tabs if its name ends in .tsv."""

    reader: Literal["csv"]
    """File format."""
    file: FileName
    """Name of the table in the site's data folder."""
    covariates: FileName | None = None
    """Name of a second table with more columns of the same subjects."""
    key: Column | None = None
    """Column that names the subject in both tables; null where one table has none."""


class FreesurferData(TableData):
    """FreeSurfer's statistics, one text file per subject, and a table that lists them.

    `features` are regions, by StructName, or measures. The files are as FreeSurfer writes aseg.stats, or have a name, a
    tab and a number on every line.
    """

    reader: Literal["freesurfer"]
    """File format."""
    covariates: FileName
    """Name of the table with a row per subject, in the site's data folder."""
    key: Column
    """Column with the name of the subject's file, from the same folder."""
    covariate_features: tuple[Column, ...] = ()
    """Columns of the table that are inputs too; they follow the regions."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Regions, then columns of the table."""
        return (*self.features, *self.covariate_features)

    @property
    def file(self) -> str:
        """Name of the table with which reading begins."""
        return self.covariates


AnyData = NpzData | CsvData | FreesurferData | NiftiData | ImagesData | FunctionData


def _consistent(data: AnyData) -> AnyData:
    if not isinstance(data, CsvData | FreesurferData):
        return data
    inputs = data.inputs
    encodable = inputs if isinstance(data, CsvData) else data.covariate_features
    where = "features" if isinstance(data, CsvData) else "covariate_features"
    if not inputs:
        raise ValueError("features: got none, expected at least one column")
    for field, names in (
        ("features", inputs),
        ("label", data.targets),
        ("values", data.values),
        *data.categorical.items(),
    ):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise ValueError(f"{field}: {name} stands there more than once")
            seen.add(name)
    for target in data.targets:
        if target in inputs:
            raise ValueError(f"label: {target} is among the features too")
        if target == data.key:
            raise ValueError(f"label: {target} is the key too")
    if data.key in inputs:
        raise ValueError(f"key: {data.key} is among the features too")
    for column in data.categorical:
        if column not in encodable:
            raise ValueError(f"categorical: {column} is not among the {where}")
    if isinstance(data, CsvData) and data.covariates is not None and data.key is None:
        raise ValueError("key: is missing, expected the column that joins the two tables")
    return data


def check_task(data: AnyData, task: TaskSpec) -> None:
    """Check that a schema's labels are those of a task.

    Raises:
        ValueError: naming the field.
    """
    if not isinstance(data, Labelled):
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
    | Annotated[FunctionData, Tag("function")],
    Discriminator(_reader),
    AfterValidator(_consistent),
]
