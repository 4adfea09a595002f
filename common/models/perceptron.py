"""Networks for flattened inputs: a multilayer perceptron, and a single layer."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import nn

from rankdad.common.spec.model import Linear, Mlp

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


def perceptron(spec: Mlp | Linear, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build a chain of linear layers for inputs of any shape."""
    widths = [math.prod(shape), *(spec.hidden if isinstance(spec, Mlp) else ())]
    layers: list[nn.Module] = [nn.Flatten()]
    if isinstance(spec, Mlp):
        for width, following in pairwise(widths):
            layers += [nn.Linear(width, following), ACTIVATIONS[spec.activation]()]
            if spec.dropout:
                layers.append(nn.Dropout(spec.dropout))
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))
