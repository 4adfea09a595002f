"""Convolutional networks for images and volumes, with GroupNorm, because BatchNorm would differ between sites."""

from __future__ import annotations

from torch import nn

from rankdad.common.errors import SpecError
from rankdad.common.models.channels import channels_first
from rankdad.common.spec.model import Cnn, Cnn3d

GROUPS = 8  # at most
GROUP_CHANNELS = 4  # least number in a group: with one channel, its mean would be lost


def convolutional(spec: Cnn | Cnn3d, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build blocks of convolutions, the mean over space, and a linear layer.

    Raises:
        SpecError: inputs are not images or volumes, or too small for this many blocks.
    """
    convolution, pool = (nn.Conv2d, nn.MaxPool2d) if spec.dims == 2 else (nn.Conv3d, nn.MaxPool3d)
    layout, (channels, *space) = channels_first(spec, shape)
    halved = len(spec.filters) - 1
    if min(space) < 2**halved:
        raise SpecError(
            "model.filters",
            f"got {len(spec.filters)} blocks, expected at most {min(space).bit_length()} for data.shape {list(shape)}: "
            "each but the last halves its input",
            code="too-many-blocks",
        )
    layers: list[nn.Module] = [layout]
    for block, filters in enumerate(spec.filters):
        if block:
            layers.append(pool(2))
        for _ in range(spec.convolutions):
            layers += [
                convolution(channels, filters, spec.kernel, padding=spec.kernel // 2, bias=False),
                nn.GroupNorm(_groups(filters), filters),
                nn.ReLU(),
            ]
            channels = filters
    layers += [nn.AdaptiveAvgPool2d(1) if spec.dims == 2 else nn.AdaptiveAvgPool3d(1), nn.Flatten()]
    if spec.dropout:
        layers.append(nn.Dropout(spec.dropout))
    return nn.Sequential(*layers, nn.Linear(channels, outputs))


def _groups(filters: int) -> int:
    fitting = (g for g in range(1, GROUPS + 1) if filters % g == 0 and filters >= g * GROUP_CHANNELS)
    return max(fitting, default=1)
