"""How gradients travel, told apart by their name; `common.gradients.methods` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from rankdad.common.errors import SpecError
from rankdad.common.spec.local_steps import EveryBatch, LocalPreset, LocalSteps
from rankdad.common.spec.numbers import Fraction, UpToMillion

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "converged": {"reducer": "spi", "feedback": "none"},
    "authors": {"reducer": "published", "feedback": "none", "iterations": 5, "tolerance": 1e-3},
}
SPARSELOCO: Mapping[str, Any] = {  # 2508.15706
    **{"local_steps": 30, "outer": "average", "proximal": 0.0, "moments": "kept"},
    **{"density": 64 / 4096, "decay": 0.95, "wire": "int2"},
}
Wire = Literal["float32", "float64", "bfloat16", "float16", "int8"]
RowWire = Literal["float32", "float64", "bfloat16", "float16", "int8", "int4", "int2"]


def _few_bits_have_feedback(method: RankDad | TopK) -> Any:
    """Refuse codes of few bits whose rounding nobody makes up for."""
    if method.wire in ("int4", "int2") and method.feedback == "none":
        raise ValueError(
            f"wire: got {method.wire}, which rounds off too much without feedback: expected int8, or another feedback "
            "than none"
        )
    return method


class Dsgd(LocalSteps):
    """Send full gradients and average them."""

    name: Literal["dsgd"]
    preset: LocalPreset | None = None
    """Local steps as published: fedavg, fedprox, fedopt or diloco; what else is given stands."""
    wire: Wire = "float32"
    """Precision on the wire; int8 is in blocks of 64 with one scale each."""


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
    preset: Literal["converged", "authors", LocalPreset] | None = None
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
    lazy: Annotated[float, Field(ge=0, le=100)] = 0.0
    """After its first step a site sends no rows of a parameter until what has gathered, gradient and residual, is so
    many times as large as the step's own gradient; 0 sends at every step, and up to 1 hardly any step is left out."""
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

    _few_bits = model_validator(mode="after")(_few_bits_have_feedback)

    @model_validator(mode="after")
    def _published_as_it_is(self) -> RankDad:
        if self.reducer == "published" and self.feedback != "none":
            raise ValueError(f"the reducer published has feedback none, but feedback {self.feedback} is asked for")
        if self.reducer == "published" and self.rank < 2:
            raise ValueError("rank: got 1, expected at least 2: the reducer published does not send its last row")
        return self

    @model_validator(mode="after")
    def _keeps_what_waits(self) -> RankDad:
        if self.lazy and self.feedback not in ("site", "both"):
            whose = f"the preset {self.preset} has" if self.preset in PRESETS else "there is"
            raise ValueError(
                f"lazy: got {self.lazy:g}, but {whose} feedback {self.feedback}, and no site keeps what waits: "
                "expected 0, or feedback site or both"
            )
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


class TopK(LocalSteps):
    """Send the largest entries of every weight's gradient, and where they stand; choose again at the aggregator."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {**LocalSteps.presets, "sparseloco": SPARSELOCO}

    name: Literal["top-k"]
    density: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Part of a weight's entries that travels, in each direction, equally many of every 4096."""
    preset: Literal["sparseloco", LocalPreset] | None = None
    """\"sparseloco\": local steps, 64 of 4096 entries in 2 bits, residuals that decay; the others are of local steps,
    as of dsgd. What else is given stands."""
    feedback: Literal["none", "site", "aggregator", "both"] = "both"
    """Where what was not sent is kept for the next step."""
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of a site's residual that is left in the next step; 1 forgets nothing."""
    wire: RowWire = "float32"
    """Precision on the wire; int8, int4 and int2 are in blocks of 64 with one scale each, and the last two need
    feedback."""

    _few_bits = model_validator(mode="after")(_few_bits_have_feedback)

    @model_validator(mode="after")
    def _decays_at_a_site(self) -> TopK:
        if self.decay < 1 and self.feedback not in ("site", "both"):
            raise ValueError(f"decay: got {self.decay:g}, but with feedback {self.feedback} no site has a residual")
        return self


MethodSpec = Dsgd | Dad | Edad | TopRows | RankDad | PowerSgd | TopK


def named_method(method: str | Mapping[str, Any], own: object = None) -> dict[str, Any]:
    """Return a method as a spec has it, by its name or that of a preset.

    Args:
        method: its fields; or a name: fedavg and its like are dsgd's, converged and authors rank-dad's.
        own: the method of the spec so far, whose rank is kept, and whose other fields are too if it has the same name.

    Raises:
        SpecError: there is none of this name.
    """
    if not isinstance(method, str):
        return dict(method)
    before = own if isinstance(own, Mapping) else {}
    classes = {get_args(one.model_fields["name"].annotation)[0]: one for one in get_args(MethodSpec)}
    presets = dict.fromkeys(LocalSteps.presets, "dsgd") | dict.fromkeys(PRESETS, "rank-dad") | {"sparseloco": "top-k"}
    name = presets.get(method, method)
    if name not in classes:
        raise SpecError(
            "run.method", f"got {method!r}, expected one of {', '.join([*classes, *presets])}", code="method-unknown"
        )
    if name == method and before.get("name") == name:
        return dict(before)
    rank = {"rank": before.get("rank", 2)} if "rank" in classes[name].model_fields and method != "authors" else {}
    return {"name": name, **rank} | ({"preset": method} if method in presets else {})
