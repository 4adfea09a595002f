"""How gradients travel, told apart by their name; `common.gradients.methods` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rankdad.common.spec.local_steps import EveryBatch, LocalPreset, LocalSteps
from rankdad.common.spec.numbers import Fraction, UpToMillion

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "converged": {"reducer": "spi", "feedback": "none"},
    "authors": {"reducer": "published", "feedback": "none", "iterations": 5, "tolerance": 1e-3},
}
Wire = Literal["float32", "float64", "bfloat16", "float16", "int8"]
RowWire = Literal["float32", "float64", "bfloat16", "float16", "int8", "int4", "int2"]


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
    preset: Literal["converged", "authors"] | LocalPreset | None = None
    """\"converged\" is the paper's algorithm run until it has converged, at a fixed rank: reducer spi, no feedback.
    \"authors\" is what the authors' code does, faults included: reducer published, 5 iterations, tolerance 0.001, no
    feedback, rank 10 where none is given. The others are of local steps, as of dsgd."""
    reducer: Literal["spi", "block", "exact", "published", "auto"] = "auto"
    """Structured power iterations (Algorithm 2), the same on all directions at once, a truncated SVD, the authors' own
    iterations, or by shape: one of the first three. published sends one row fewer than the rank, as their code does,
    and takes the bias from the sum of the reduced rows; it has no feedback."""
    feedback: Literal["none", "site", "aggregator", "both"] = "both"
    """Where the residual of a reduction is kept for the next step."""
    residual: Literal["factors", "dense"] = "factors"
    """How: as rows where a factor is captured, which is fast, or as a matrix, which forgets nothing."""
    tolerance: Fraction = 0.0
    """A component whose singular value is below this part of the largest is not sent. Of published: the distance of two
    directions, one found after the other, at which the search ends."""
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 40
    """Power iterations per component: of spi at most, of published always."""
    wire: RowWire = "float32"
    """Precision on the wire; int8, int4 and int2 are in blocks of 64 with one scale each, and the last two need
    feedback."""

    @model_validator(mode="before")
    @classmethod
    def _filled_from_preset(cls, given: Any) -> Any:
        name = given.get("preset") if isinstance(given, dict) else None
        if not isinstance(name, str) or name not in PRESETS:
            return given
        for field, value in PRESETS[name].items():
            if given.get(field, value) != value:
                raise ValueError(f"the preset {name} has {field} {value}, but {field} {given[field]} is asked for")
        return ({"rank": 10} if name == "authors" else {}) | given | PRESETS[name]

    @model_validator(mode="after")
    def _published_as_it_is(self) -> RankDad:
        if self.reducer == "published" and self.feedback != "none":
            raise ValueError(f"the reducer published has feedback none, but feedback {self.feedback} is asked for")
        if self.reducer == "published" and self.rank < 2:
            raise ValueError("rank: got 1, expected at least 2: the reducer published does not send its last row")
        return self

    @property
    def rows(self) -> int:
        """How many rows of a factor travel at most."""
        return self.rank - (self.reducer == "published")


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
