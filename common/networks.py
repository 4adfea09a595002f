"""The networks of a spec, told apart by their name; `common.models` builds them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from common.documents import Part

PositiveInt = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
FactoryName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]


class Mlp(Part):
    """A multilayer perceptron on the flattened input."""

    name: Literal["mlp"]
    hidden: tuple[PositiveInt, ...]
    """Width of each hidden layer."""
    activation: Literal["relu", "tanh", "gelu"] = "relu"
    """Function after each hidden layer."""
    dropout: Fraction = 0.0
    """Probability with which a hidden unit is dropped in training."""


class Factory(Part):
    """A function of the user's that returns the model; a site resolves it only through its own allow-list."""

    name: Literal["factory"]
    factory: FactoryName
    """Where the function is: "package.module:function"."""
    arguments: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the function."""


ModelSpec = Mlp | Factory
