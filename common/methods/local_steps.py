"""Options of methods with local steps between two exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from rankdad.common.documents import Part
from rankdad.common.methods.options import MethodOptions
from rankdad.common.numbers import Fraction, NonNegativeFloat, PositiveFloat, UpToMillion

LocalPreset = Literal["fedavg", "fedprox", "fedopt", "diloco"]
PRESETS: Mapping[str, Mapping[str, Any]] = {  # as published; inner optimizers are the spec's own
    "fedavg": {"local_steps": "epoch", "outer": "average", "proximal": 0.0, "moments": "reset"},  # 1602.05629
    "fedprox": {"local_steps": "epoch", "outer": "average", "proximal": 0.01, "moments": "reset"},  # 1812.06127
    "fedopt": {"local_steps": "epoch", "outer": "adam", "proximal": 0.0, "moments": "reset"},  # 2003.00295
    "diloco": {"local_steps": 500, "outer": "nesterov", "proximal": 0.0, "moments": "kept"},  # 2311.08105
}


class Average(Part):
    """Move the shared weights by the weighted mean of the sites' differences (FedAvg)."""

    name: Literal["average"] = "average"
    lr: PositiveFloat = 1.0
    """Outer learning rate; 1 takes the mean of the sites' weights."""


class Nesterov(Part):
    """Use the mean difference as a gradient, with Nesterov's momentum (DiLoCo)."""

    name: Literal["nesterov"]
    lr: PositiveFloat = 0.7
    """Outer learning rate."""
    momentum: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Momentum."""


class OuterAdam(Part):
    """Use the mean difference as Adam's gradient, with bias correction (FedOpt's FedAdam)."""

    name: Literal["adam"]
    lr: PositiveFloat = 0.01
    """Outer learning rate."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.99)
    """Decay of the running means of difference and square."""
    epsilon: PositiveFloat = 1e-3
    """Added to the root of the mean square, to limit the steps of weights with small differences."""


class LocalSteps(MethodOptions):
    """Local training between two exchanges; without `local_steps`, every batch's gradient is exchanged."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    local_steps: UpToMillion | Literal["epoch"] | None = None
    """Largest number of batches that a site trains on before it sends the change of its weights; an epoch is divided
    evenly, and \"epoch\" is one whole epoch. null exchanges gradients. `training.optimizer`, `schedule` and `clip` then
    apply to a site's own steps."""
    outer: Annotated[Average | Nesterov | OuterAdam, Field(discriminator="name")] = Average()
    """How replicas apply the mean of the sites' differences."""
    proximal: NonNegativeFloat = 0.0
    """FedProx's term: this times the distance from the shared weights is added to every gradient of a local step."""
    moments: Literal["kept", "reset"] = "kept"
    """Whether a site's own optimizer keeps its moments between exchanges, or resets them."""

    @model_validator(mode="before")
    @classmethod
    def _as_its_preset(cls, given: Any) -> Any:
        preset = given.get("preset") if isinstance(given, dict) else None
        if not isinstance(preset, str) or preset not in cls.presets:
            return given
        own = cls.presets[preset]
        filled = {**own, **{name: value for name, value in given.items() if value is not None}}
        outer, name = filled["outer"], own["outer"]
        outer = {"name": outer} if isinstance(outer, str) else outer
        if isinstance(outer, dict) and outer.get("name", name) != name:
            raise ValueError(f"outer: the preset {preset} has {name}, but {outer['name']} is asked for")
        if bool(filled["proximal"]) != (preset == "fedprox"):
            raise ValueError(f"proximal: got {filled['proximal']}, but only fedprox has such a term")
        return filled | {"outer": {"name": name} | outer if isinstance(outer, dict) else outer}

    @model_validator(mode="after")
    def _needs_local_steps(self) -> LocalSteps:
        for name in ("outer", "proximal", "moments"):
            if self.local_steps is None and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} applies only with local steps: set local_steps, too")
        return self


class EveryBatch(MethodOptions):
    """A method that exchanges rows of every batch."""

    @model_validator(mode="before")
    @classmethod
    def _has_no_local_steps(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("local_steps") is not None:
            raise ValueError(
                f"local_steps: {given.get('name')} sends rows of single batches, and differences of weights have none: "
                "expected dsgd, rank-dad, powersgd or top-k"
            )
        return given
