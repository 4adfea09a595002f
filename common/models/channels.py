"""Where the channels of images and volumes stand."""

from __future__ import annotations

from torch import Tensor, nn

from rankdad.common.errors import SpecError
from rankdad.common.spec.augmentation import FEW
from rankdad.common.spec.model import Cnn, Cnn3d, Monai, Vit

AXES = ("depth", "height", "width")


class ChannelsFirst(nn.Module):
    """Bring inputs of either layout, or without channels, to [n, channels, …]."""

    def __init__(self, dims: int, last: bool) -> None:
        super().__init__()
        self.dims, self.last = dims, last

    def forward(self, x: Tensor) -> Tensor:
        """Return the input, in the layout that convolutions' gradients have too."""
        if x.dim() == self.dims + 1:
            return x.unsqueeze(1)
        return x.movedim(-1, 1).contiguous() if self.last else x


def channels_first(
    spec: Vit | Cnn | Cnn3d | Monai, shape: tuple[int, ...], dims: int
) -> tuple[ChannelsFirst, tuple[int, ...]]:
    """Return what brings inputs to [n, channels, …], and the shape [channels, …] of one that it returns.

    Args:
        spec: of the network; says where channels stand, or leaves it to the shape.
        shape: of one input.
        dims: of space: 2 for images, 3 for volumes.

    Raises:
        SpecError: the shape has too few or too many dimensions, or does not tell where channels stand.
    """
    axes = ", ".join(AXES[-dims:])
    if len(shape) == dims:
        return ChannelsFirst(dims, False), (1, *shape)
    if len(shape) != dims + 1:
        raise SpecError(
            "model.name",
            f"{spec.name} expected [{axes}], [channels, {axes}] or [{axes}, channels], got data.shape {list(shape)}",
            code="shape-does-not-fit",
        )
    last = spec.channels == "last"
    if spec.channels is None:
        last = shape[-1] <= FEW
        if last == (shape[0] <= FEW):
            raise SpecError(
                "model.channels",
                f"is missing, expected first or last: data.shape {list(shape)} does not tell where channels stand",
                code="channels-unknown",
            )
    return ChannelsFirst(dims, last), (shape[-1], *shape[:-1]) if last else shape
