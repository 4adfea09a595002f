"""Images and volumes of either layout, for convolutions and attention."""

from __future__ import annotations

from torch import Tensor, nn

from rankdad.common.spec.axes import Spatial, network_axis


class ChannelsFirst(nn.Module):
    """Convert inputs of either layout, or without channels, to [n, channels, …]."""

    def __init__(self, axis: int | None) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Return the input, in the memory layout of convolutions' gradients."""
        if self.axis is None:
            return x.unsqueeze(1)
        return x.movedim(self.axis + 1, 1).contiguous() if self.axis else x


def channels_first(spec: Spatial, shape: tuple[int, ...]) -> tuple[ChannelsFirst, tuple[int, ...]]:
    """Return the conversion of inputs to [n, channels, …], and the shape [channels, …] of a converted input.

    Args:
        spec: of the network; names the axis of channels, or leaves it to the shape.
        shape: of one input.

    Raises:
        SpecError: the shape has too few or too many dimensions, or the axis of channels is ambiguous.
    """
    axis = network_axis(spec, shape)
    if axis is None:
        return ChannelsFirst(None), (1, *shape)
    return ChannelsFirst(axis), (shape[axis], *shape[:axis], *shape[axis + 1 :])
