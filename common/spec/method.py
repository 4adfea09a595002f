"""How gradients travel, told apart by their name; `common.methods` makes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rankdad.common.spec.local_steps import EveryBatch, LocalPreset, LocalSteps
from rankdad.common.spec.numbers import Fraction, UpToMillion

Wire = Literal["float32", "float64", "bfloat16", "float16", "int8"]


class Dsgd(LocalSteps):
    """Send full gradients and average them."""

    name: Literal["dsgd"]
    preset: LocalPreset | None = None
    """Local steps as published: fedavg, fedprox, fedopt or diloco; what else is given stands."""
    wire: Wire = "float32"
    """Precision on the wire; int8 is in blocks of 64 with one scale each."""
    exchanges: Literal["one", "per-tensor"] = "one"
    """All gradients in one message; or each tensor in an exchange of its own, as by a collective for every tensor: the
    same averages, in as many round trips as there are tensors."""


class Dad(EveryBatch):
    """Send full factors and concatenate them: exact (dAD)."""

    name: Literal["dad"]
    wire: Wire = "float32"
    """Precision on the wire."""


class Edad(EveryBatch):
    """Send activations and the last layer's deltas, and propagate the deltas again everywhere: exact, for chains."""

    name: Literal["edad"]
    wire: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    """Precision on the wire; int8 would round small activations to 0, and with them their slopes."""


class TopRows(EveryBatch):
    """Send the first rows of every factor: the paper's crude baseline."""

    name: Literal["top-rows"]
    rows: UpToMillion = 3
    """How many rows a site sends of a layer's factor."""
    wire: Wire = "float32"
    """Precision on the wire."""


class RankDad(LocalSteps):
    """Send factors reduced at the site, and reduce their concatenation again at the aggregator (rank-dAD)."""

    name: Literal["rank-dad"]
    rank: UpToMillion
    """Largest number of rows of a factor on the wire."""
    preset: Literal["paper"] | LocalPreset | None = None
    """\"paper\" is the method as published: reducer spi, no feedback. The others are of local steps, as of dsgd."""
    reducer: Literal["spi", "block", "exact", "auto"] = "auto"
    """Structured power iterations (Algorithm 2), the same on all directions at once, a truncated SVD, or by shape."""
    feedback: Literal["none", "site", "aggregator", "both"] = "both"
    """Where the residual of a reduction is kept for the next step."""
    residual: Literal["factors", "dense"] = "factors"
    """How: as rows where a factor is captured, which is fast, or as a matrix, which forgets nothing."""
    tolerance: Fraction = 0.0
    """A component whose singular value is below this part of the largest is not sent."""
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 40
    """Power iterations of spi per component at most."""
    wire: Wire = "float32"
    """Precision on the wire."""

    @model_validator(mode="before")
    @classmethod
    def _as_published(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("preset") != "paper":
            return given
        paper = {"reducer": "spi", "feedback": "none"}
        for field, value in paper.items():
            if given.get(field, value) != value:
                raise ValueError(f"the preset paper has {field} {value}, but {field} {given[field]} is asked for")
        return given | paper


class PowerSgd(LocalSteps):
    """Multiply gradients by shared directions, in two exchanges a step, with error feedback (Vogels 2019)."""

    name: Literal["powersgd"]
    rank: UpToMillion
    """Number of directions."""
    preset: LocalPreset | None = None
    """Local steps as published: fedavg, fedprox, fedopt or diloco; what else is given stands."""
    feedback: bool = True
    """Whether what was left out of a step joins the next."""
    wire: Wire = "float32"
    """Precision on the wire."""


MethodSpec = Dsgd | Dad | Edad | TopRows | RankDad | PowerSgd
