"""Checks that a run fits into this machine's memory, because a killed process reports nothing."""

from __future__ import annotations

import math

import torch

from rankdad.common.available_memory import available
from rankdad.common.errors import SpecError
from rankdad.common.models import build_network
from rankdad.common.models.channels import channels_first
from rankdad.common.protocol.routing import PROBE_SAMPLES
from rankdad.common.spec import RunSpec
from rankdad.common.spec.model import Cnn, Cnn3d, Factory, Gru, Lstm, Mlp, ModelSpec, Transformer, Vit

COPIES = 6  # of all weights: weights, gradient, two moments, best weights, and a message or file


def check_memory(spec: RunSpec) -> None:
    """Check that one of our networks can be trained here.

    Raises:
        SpecError: it needs more memory than there is; names both.
    """
    there, shape = available(), spec.data.shape
    if there is None:
        return
    weights = 0  # unknown for a factory's model, whose code may need real tensors
    if not isinstance(spec.model, Factory):
        with torch.device("meta"):
            weights = sum(parameter.numel() for parameter in build_network(spec).parameters())
    numbers = COPIES * weights + PROBE_SAMPLES * _kept(spec.model, shape)
    needed = numbers * getattr(torch, spec.training.dtype).itemsize
    if needed > there:
        raise SpecError(
            spec.model.sized_by,
            f"the network has {weights:,} weights and takes at least {needed / 2**30:.1f} GiB of memory to be trained "
            f"on samples of shape {list(shape)}, but there are {there / 2**30:.1f} GiB: choose a smaller one, or give "
            "the container more",
            code="out-of-memory",
        )


def _kept(model: ModelSpec, shape: tuple[int, ...]) -> int:
    """Return a lower estimate of the numbers that a network keeps per sample for its backward pass."""
    inputs = math.prod(shape)
    if isinstance(model, Mlp):
        return inputs + sum(model.hidden)
    if isinstance(model, Gru | Lstm):
        return inputs + shape[0] * sum(model.hidden) * (8 if isinstance(model, Lstm) else 6)
    if isinstance(model, Vit):
        tokens = inputs // channels_first(model, shape)[1][0] // model.patch**2
        return inputs + tokens * model.width * model.depth * (8 + 2 * model.expansion)
    if isinstance(model, Transformer):
        return inputs * model.width * model.depth * (8 + 2 * model.expansion)
    if isinstance(model, Cnn | Cnn3d):
        places = math.prod(channels_first(model, shape)[1][1:])
        halved = (filters * places >> model.dims * block for block, filters in enumerate(model.filters))
        return inputs + 2 * model.convolutions * sum(halved)
    return inputs
