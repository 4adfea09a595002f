"""Networks: the built-in ones, and the user's own through a factory that the caller allows."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from common.errors import PolicyError, SpecError, one_line
from common.networks import Factory, Mlp
from common.seeds import derive
from common.spec import RunSpec

OWN = {  # names that are ours
    "common",
    "local",
    "remote",
    "simulations",
    "platforms",
    "rankdad",
}
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


def build_model(spec: RunSpec, allowed_factories: Collection[str] = ()) -> nn.Module:
    """Build the run's model with its initial weights, which follow from the run's seed alone.

    Args:
        spec: the run.
        allowed_factories: names "package.module:function" that the caller permits to be imported and called.

    Raises:
        PolicyError: the spec names a factory that the caller does not allow.
        SpecError: a factory cannot be imported or does not return a module.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(spec.seed, "weights"))
        if isinstance(spec.model, Mlp):
            try:
                model = _mlp(spec.model, math.prod(spec.data.shape), spec.task.outputs)
            except (RuntimeError, TypeError, MemoryError):
                raise SpecError("model.hidden", "a network of these widths does not fit into memory") from None
        else:
            model = _from_factory(spec.model, allowed_factories)
    return model.to(getattr(torch, spec.training.dtype))


def _mlp(spec: Mlp, inputs: int, outputs: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for width, following in pairwise((inputs, *spec.hidden)):
        layers += [nn.Linear(width, following), ACTIVATIONS[spec.activation]()]
        if spec.dropout:
            layers.append(nn.Dropout(spec.dropout))
    return nn.Sequential(*layers, nn.Linear((inputs, *spec.hidden)[-1], outputs))


def _from_factory(spec: Factory, allowed: Collection[str]) -> nn.Module:
    if spec.factory not in allowed:
        raise PolicyError(
            "model.factory",
            f"{spec.factory} is not allowed here: read its code, then pass --allow-factory {spec.factory}, or list it "
            "under allow_factories in a site's file",
        )
    module_name, _, function_name = spec.factory.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # a console script, unlike `python -m`, does not look there
        sys.path.insert(0, here)
    try:
        factory = getattr(importlib.import_module(module_name), function_name)
    except (Exception, SystemExit) as error:
        ours = sorted(OWN & {_top(module_name), _top(getattr(error, "name", None) or "")})
        advice = f"; {ours[0]} is rankdad's own package: give yours another name" if ours else ""
        raise SpecError("model.factory", f"{spec.factory} cannot be imported: {one_line(error)}{advice}") from error
    try:
        model = factory(**spec.arguments)
    except (Exception, SystemExit) as error:
        raise SpecError("model.arguments", f"{spec.factory} raised {one_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise SpecError("model.factory", f"{spec.factory} returned {type(model).__name__}, expected a torch module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SpecError("model.factory", f"{spec.factory} returned a model without parameters to train")
    return model


def _top(module: str) -> str:
    return module.partition(".")[0]
