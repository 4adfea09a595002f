"""The schemas of images, and of what a function of the user's own reads."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from rankdad.common.documents import Part
from rankdad.common.spec.table_schema import Column, FileName, PositiveInt, Shape, first_repeated
from rankdad.common.spec.written import Tabular
from rankdad.common.user_code import FunctionName


class ListedData(Tabular):
    """Files of an image each, and a table that lists them; none may lie outside the table's folder."""

    image: Column = "image"
    """Column with the image's file: a path from the table's folder."""
    key: Column | None = None
    """Column that names the sample; null where the file's path does."""
    missing: Literal["refuse", "drop"] = "refuse"
    """What is done about a row that lacks its file, label or group: say so and stop, or leave it out and say so."""

    @property
    def tokens(self) -> None:
        """None: inputs are real numbers."""
        return None

    @model_validator(mode="after")
    def _tells_columns_and_values_apart(self) -> ListedData:
        for field, names in (("label", self.targets), ("values", self.values)):
            if repeated := first_repeated(names):
                raise ValueError(f"{field}: {repeated} stands there more than once")
        for field, column in (("image", self.image), ("key", self.key)):
            if column in self.targets:
                raise ValueError(f"{field}: {column} is the label too")
        return self


class NiftiData(ListedData):
    """Volumes in NIfTI files (.nii, .nii.gz), all of one shape: bring them into one space before."""

    reader: Literal["nifti"]
    """File format."""
    file: FileName
    """Name of the table in the site's data folder."""
    shape: Annotated[tuple[PositiveInt, ...], Field(min_length=3, max_length=4)]
    """Shape of a volume: its three axes, or a number of channels before them, which is the files' last axis."""
    orientation: Literal["canonical", "stored"] = "canonical"
    """Turn every volume so that its axes go from left to right, from back to front and from below upwards (RAS), as far
    as whole axes do; or leave all of them as they are stored, whatever their headers say."""
    normalise: Literal["none", "volume"] = "none"
    """Leave voxels as they are, or give every volume the mean 0 and the standard deviation 1."""


class ImagesData(ListedData):
    """Pictures in PNG, JPEG, TIFF or BMP files: in a sub-folder for each class, or listed by a table."""

    reader: Literal["images"]
    """File format."""
    file: FileName | Literal["."] = "."
    """Name of the table in the site's data folder; "." is the folder itself, with a sub-folder for each of `values`."""
    label: Column | Annotated[tuple[Column, ...], Field(max_length=1000)] = "class"
    """Column of the label, as in other tables; of sub-folders what predictions call it."""
    mode: Literal["grey", "rgb"] = "rgb"
    """Colours to which all pictures are converted: one channel or three, each from 0 to 1."""
    size: tuple[PositiveInt, PositiveInt]
    """Height and width in pixels."""
    resize: bool = False
    """Whether pictures of another size are scaled to this one; else they are an error."""

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
    """Arrays that a function of the user's own returns; a site calls it only through its own allow-list."""

    reader: Literal["function"]
    """A function in place of a file format."""
    function: FunctionName
    """Where the function is: "package.module:function". It is called with the site's data folder and returns a dict of
    arrays under the names of a npz file: `x`, `y` and optionally `key`, `group`, `split` and `length`."""
    arguments: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the function."""
    file: Literal["."] = "."
    """The folder itself."""
    shape: Shape
    """Shape of one sample's input."""
    tokens: PositiveInt | None = None
    """Number of distinct tokens where inputs are whole numbers for an embedding; null where they are real."""
