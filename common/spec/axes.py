"""Finds the channels' axis of a sample, for preparation, networks and augmentation.

The reader determines it if it knows its files; for arrays, the network does, or else their shape.
"""

from __future__ import annotations

from rankdad.common.errors import SpecError
from rankdad.common.spec.data import AnyData, NpzData, TableData
from rankdad.common.spec.images import FunctionData, NiftiData
from rankdad.common.spec.model import Cnn, Cnn3d, ModelSpec, Monai, Vit
from rankdad.common.spec.series import SeriesData

FEW = 4  # largest number of channels that the shape alone identifies
SPACE = ("depth", "height", "width")
Spatial = Vit | Cnn | Cnn3d | Monai


def channel_axis(data: AnyData, model: ModelSpec) -> int | None:
    """Return the channels' axis of a sample's shape; None without channels, as for grey volumes.

    Columns of a table and features of a series [time, features] are channels, too.

    Args:
        data: the schema.
        model: the network, whose spatial axes distinguish an image [height, width] from a series.

    Raises:
        SpecError: the axis is ambiguous, or network and reader contradict each other.
    """
    shape = data.shape
    if isinstance(data, TableData | SeriesData) or data.tokens is not None or len(shape) == 1:
        return len(shape) - 1
    if isinstance(data, NpzData | FunctionData):
        if isinstance(model, Spatial):
            return network_axis(model, shape)
        if len(shape) == 2:
            return 1
        return len(shape) - 1 if shape[-1] <= FEW < shape[0] else 0
    axis = None if isinstance(data, NiftiData) and len(shape) == 3 else 0
    if isinstance(model, Spatial) and network_axis(model, shape) != axis:
        if axis is None:
            problem = f"{model.name} takes an axis of the volumes {list(shape)} for channels, expected a network of"
            raise SpecError("model.name", f"{problem} three axes of space, such as cnn3d", code="channels-contradict")
        problem = (
            f"is {model.channels}, but the reader {data.reader} puts channels first: expected first, and a network"
        )
        what = f"of {len(shape) - 1} axes of space for data.shape {list(shape)}"
        raise SpecError("model.channels", f"{problem} {what}", code="channels-contradict")
    return axis


def network_axis(model: Spatial, shape: tuple[int, ...]) -> int | None:
    """Return the channels' axis of a network for images or volumes; None for inputs without channels.

    Raises:
        SpecError: the shape has too few or too many axes, or the channels' axis is ambiguous.
    """
    axes = ", ".join(SPACE[-model.dims :])
    if len(shape) == model.dims:
        return None
    if len(shape) != model.dims + 1:
        raise SpecError(
            "model.name",
            f"{model.name} expected [{axes}], [channels, {axes}] or [{axes}, channels], got data.shape {list(shape)}",
            code="shape-mismatch",
        )
    if model.channels is None and (shape[0] <= FEW) == (shape[-1] <= FEW):
        raise SpecError(
            "model.channels",
            f"is missing, expected first or last: data.shape {list(shape)} does not tell the channels' axis",
            code="channels-unknown",
        )
    last = shape[-1] <= FEW if model.channels is None else model.channels == "last"
    return model.dims if last else 0


def space(data: AnyData, model: ModelSpec) -> tuple[int, ...]:
    """Return the spatial axes of a sample's shape; none for tables, tokens and series.

    Raises:
        SpecError: see `channel_axis`.
    """
    if isinstance(data, TableData | SeriesData) or data.tokens is not None:
        return ()
    channels = channel_axis(data, model)
    axes = tuple(axis for axis in range(len(data.shape)) if axis != channels)
    return axes[-3:] if len(axes) > 1 else ()
