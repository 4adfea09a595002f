"""The schemas of images, and of user-defined reader functions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from rankdad.common.documents import Part
from rankdad.common.spec.table_schema import Column, FileName, PositiveInt, Shape, first_repeated
from rankdad.common.spec.written import Tabular
from rankdad.common.user_code import FunctionName


class ListedData(Tabular):
    """Image files, one per sample, and a table that lists them; all must be in the table's folder."""

    image: Column = "image"
    """Column with the path of the image's file, relative to the table's folder."""
    key: Column | None = None
    """Column that identifies the sample; null for the file's path."""
    missing: Literal["refuse", "drop"] = "refuse"
    """Treatment of rows with a missing file, label or group: an error, or leaving them out with a note."""

    @property
    def tokens(self) -> None:
        """None: inputs are real numbers."""
        return None

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> ListedData:
        for field, names in (("label", self.targets), ("values", self.values)):
            if repeated := first_repeated(names):
                raise ValueError(f"{field}: {repeated} occurs more than once")
        for field, column in (("image", self.image), ("key", self.key)):
            if column in self.targets:
                raise ValueError(f"{field}: {column} is the label too")
        return self


class NiftiData(ListedData):
    """Volumes in NIfTI files (.nii, .nii.gz), all of one shape and in one space."""

    reader: Literal["nifti"]
    """File format."""
    file: FileName
    """Name of the table in the site's data folder."""
    shape: Annotated[tuple[PositiveInt, ...], Field(min_length=3, max_length=4)]
    """Shape of a volume: its three axes, optionally after a number of channels, the files' last axis."""
    orientation: Literal["canonical", "stored"] = "canonical"
    """Whether to turn every volume to canonical orientation, left to right, back to front and bottom to top (RAS), by
    whole axes; or to leave all of them as stored, ignoring their headers."""
    normalise: Literal["none", "volume"] = "none"
    """Whether to standardise every volume to mean 0 and standard deviation 1."""


class ImagesData(ListedData):
    """Pictures in PNG, JPEG, TIFF or BMP files: in one sub-folder per class, or listed by a table."""

    reader: Literal["images"]
    """File format."""
    file: FileName | Literal["."] = "."
    """Name of the table in the site's data folder; "." is the folder itself, with a sub-folder for each of `values`."""
    label: Column | Annotated[tuple[Column, ...], Field(max_length=1000)] = "class"
    """Column of the label; for sub-folders, its name in predictions."""
    mode: Literal["grey", "rgb"] = "rgb"
    """Colours of the converted pictures: one or three channels, from 0 to 1."""
    size: tuple[PositiveInt, PositiveInt]
    """Height and width in pixels."""
    resize: bool = False
    """Whether to scale pictures of another size; otherwise they are an error."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's input: channels, height, width."""
        return (3 if self.mode == "rgb" else 1, *self.size)

    @model_validator(mode="after")
    def _has_labels(self) -> ImagesData:
        if self.file == ".":
            if not self.values:
                raise ValueError("values: got none, expected the names of the sub-folders, or file: a table of labels")
            if self.positive or self.merge:
                raise ValueError("positive, merge: sub-folders are the classes, expected neither, or file: a table")
            for field, column in (("group", self.group), ("key", self.key)):
                if column is not None:
                    raise ValueError(f"{field}: sub-folders have no columns, expected null, or file: a table")
        return self


class FunctionData(Part):
    """Arrays returned by a user-defined function, which a site calls only if it allows it."""

    reader: Literal["function"]
    """A function instead of a file format."""
    function: FunctionName
    """Name of the function: "package.module:function". It is called with the site's data folder and returns a dict of
    arrays named as in a npz file: `x`, `y` and optionally `key`, `group`, `split` and `length`."""
    arguments: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the function."""
    file: Literal["."] = "."
    """The folder itself."""
    shape: Shape
    """Shape of one sample's input."""
    tokens: PositiveInt | None = None
    """Number of distinct tokens, for whole-number inputs of an embedding; null for real inputs."""
