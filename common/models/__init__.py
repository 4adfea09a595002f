"""Networks: built-in ones, and users' own through factories that the caller allows."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from torch import nn

from rankdad.common.errors import SpecError, naming
from rankdad.common.models.convolutional import convolutional
from rankdad.common.models.factory import from_factory
from rankdad.common.models.hugging_face import hugging_face
from rankdad.common.models.monai import monai_network
from rankdad.common.models.perceptron import perceptron
from rankdad.common.models.recurrent import recurrent
from rankdad.common.models.transformer import transformer
from rankdad.common.models.vit import vit
from rankdad.common.models.weights import freeze, load_pretrained
from rankdad.common.seeds import derive
from rankdad.common.spec import RunSpec
from rankdad.common.spec.model import Cnn, Cnn3d, Factory, Gru, HuggingFace, Lstm, ModelSpec, Monai, Transformer, Vit


def build_model(spec: RunSpec, allowed_factories: Collection[str] = (), weights: Path | None = None) -> nn.Module:
    """Build the run's model with its initial weights: pretrained, or random ones from the run's seed.

    Args:
        spec: the run.
        allowed_factories: names "package.module:function" that the caller allows to be imported and called.
        weights: folder with the files of pretrained weights.

    Raises:
        PolicyError: the spec names a factory that the caller does not allow.
        SpecError: the network does not fit the data or the memory, a factory cannot be imported or does not return a
            module, or pretrained weights are missing or of another network.
        DataError: the file of pretrained weights cannot be read, or is another one.
    """
    model = build_network(spec, allowed_factories)
    load_weights(model, spec, weights)
    return model


def load_weights(model: nn.Module, spec: RunSpec, folder: Path | None) -> None:
    """Load the pretrained weights of the run's model, if it has any.

    Raises:
        SpecError, DataError: as for `build_model`.
    """
    if spec.model.pretrained is not None:
        with naming(spec.says):
            load_pretrained(model, spec.model.pretrained, folder)


def build_network(spec: RunSpec, allowed_factories: Collection[str] = ()) -> nn.Module:
    """Build the run's model with random weights, even if the run starts from others.

    Raises:
        PolicyError, SpecError: as for `build_model`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(spec.seed, "weights"))
        if isinstance(spec.model, Factory):
            model = from_factory(spec.model, allowed_factories)
        else:
            try:
                model = _built_in(spec.model, spec.data.shape, spec.data.tokens, spec.output_shape)
            except (RuntimeError, TypeError, MemoryError):
                raise SpecError(
                    spec.model.sized_by, "a network of this size does not fit into memory", code="out-of-memory"
                ) from None
    freeze(model, spec.model.frozen)
    return model.to(getattr(torch, spec.training.dtype))


def _built_in(spec: ModelSpec, shape: tuple[int, ...], tokens: int | None, output_shape: tuple[int, ...]) -> nn.Module:
    outputs = output_shape[-1]
    if isinstance(spec, Gru | Lstm):
        return recurrent(spec, shape, outputs)
    if isinstance(spec, Transformer):
        return transformer(spec, tokens, shape[0], None if len(output_shape) > 1 else outputs)
    if isinstance(spec, HuggingFace):
        return hugging_face(spec, tokens, shape[0], None if len(output_shape) > 1 else outputs)
    if isinstance(spec, Vit):
        return vit(spec, shape, outputs)
    if isinstance(spec, Cnn | Cnn3d):
        return convolutional(spec, shape, outputs)
    if isinstance(spec, Monai):
        return monai_network(spec, shape, outputs)
    assert not isinstance(spec, Factory)
    return perceptron(spec, shape, outputs)
