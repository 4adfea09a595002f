"""Users' own models, through factories that the caller allows."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from rankdad.common.errors import SpecError, one_line
from rankdad.common.spec.model import Factory
from rankdad.common.user_code import resolve


def from_factory(spec: Factory, allowed: Collection[str]) -> nn.Module:
    """Import and call a factory.

    Raises:
        PolicyError: the caller does not allow it.
        SpecError: it cannot be imported, raises, or does not return a module with something to train.
    """
    factory = resolve(spec.factory, allowed, "model.factory")
    try:
        model = factory(**spec.arguments)
    except (Exception, SystemExit) as error:
        raise SpecError("model.arguments", f"{spec.factory} raised {one_line(error)}", code="factory-raised") from error
    if not isinstance(model, nn.Module):
        raise SpecError(
            "model.factory",
            f"{spec.factory} returned {type(model).__name__}, expected a torch module",
            code="factory-returned-no-module",
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SpecError(
            "model.factory", f"{spec.factory} returned a model without parameters to train", code="nothing-to-train"
        )
    return model
