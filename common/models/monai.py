"""Networks of MONAI, by names from a fixed list, since specs do not name code."""

from __future__ import annotations

from typing import Any

from torch import nn

from rankdad.common.errors import SpecError, UserError
from rankdad.common.models.channels import channels_first
from rankdad.common.spec.model import Monai


def monai_network(spec: Monai, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build a network of MONAI for images or volumes of either layout.

    Raises:
        UserError: MONAI is not installed.
        SpecError: the inputs are not images or volumes.
    """
    try:
        from monai.networks import nets
        from monai.networks.nets.efficientnet import EfficientNetBN
    except ImportError:
        raise UserError(
            "model.name: monai needs MONAI, which is not installed: pip install 'rankdad[monai]'",
            code="not-installed",
            field="model.name",
        ) from None
    layout, (channels, *space) = channels_first(spec, shape)
    if min(space) < spec.least_side:
        raise SpecError(
            "model.network",
            f"{spec.network} halves its input too often for data.shape {list(shape)}, expected at least "
            f"{spec.least_side} along each axis of space",
            code="shape-does-not-fit",
        )
    common: dict[str, Any] = {"spatial_dims": spec.dims, "norm": spec.norm_layer}
    if spec.network.startswith("DenseNet"):
        common |= {"in_channels": channels, "out_channels": outputs, "dropout_prob": spec.dropout}
        made = getattr(nets, spec.network)(**common)
    elif spec.network.startswith("ResNet"):
        made = getattr(nets, spec.network.lower())(n_input_channels=channels, num_classes=outputs, **common)
    else:
        name = spec.network.lower().replace("efficientnetb", "efficientnet-b")
        made = EfficientNetBN(name, in_channels=channels, num_classes=outputs, pretrained=False, **common)
    return nn.Sequential(layout, made)
