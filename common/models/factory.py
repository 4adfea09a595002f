"""The user's own model, through a factory that the caller allows."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection
from pathlib import Path

from torch import nn

from common.errors import PolicyError, SpecError, one_line
from common.networks import Factory

OWN = {"common", "local", "remote", "simulations", "platforms", "rankdad"}  # names that are ours


def from_factory(spec: Factory, allowed: Collection[str]) -> nn.Module:
    """Import and call a factory.

    Raises:
        PolicyError: the caller does not allow it.
        SpecError: it cannot be imported, raises, or does not return a module with something to train.
    """
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
