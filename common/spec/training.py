"""The training of every replica: optimizer, schedule, splits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from rankdad.common.documents import Part
from rankdad.common.numbers import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UpToMillion,
)
from rankdad.common.spec.augmentation import Augmentation
from rankdad.common.spec.tasks import Monitor

Varied = Annotated[Augmentation, Field(discriminator="name")]
OF_STEPS = (  # settings without effect on the exact solver
    *("epochs", "batch_size", "batches", "accumulate", "optimizer", "schedule", "lr_scaling", "clip"),
    *("early_stopping", "augmentation", "autocast"),
)


def _named(monitor: object) -> object:
    """Return a metric's name; earlier files have null for the default."""
    return "loss" if monitor is None else monitor


class Adam(Part):
    """Adam, with decoupled weight decay where weight_decay is not 0 (AdamW)."""

    name: Literal["adam"]
    lr: PositiveFloat
    """Learning rate."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Decay of the running means of gradient and square."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    second_moment: Literal["elementwise", "factored"] = "elementwise"
    """Divisor of a step: the running mean of squares of the applied gradient, elementwise; or, for a matrix, the outer
    product of mean squares over rows and columns. The latter comes from random projections, which sites send as one
    more pair of rows per matrix, counted by policies. It is not misled by directions that feedback applies late. Not
    with `local_steps`."""


class Sgd(Part):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"]
    lr: PositiveFloat
    """Learning rate."""
    momentum: Fraction = 0.0
    """Momentum."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay, added to the gradient."""


class Constant(Part):
    """A constant learning rate."""

    name: Literal["constant"] = "constant"


class Cosine(Part):
    """Linear warm-up, then a decay along a cosine over the whole run."""

    name: Literal["cosine"]
    warmup: NonNegativeInt = 0
    """Steps of linear warm-up."""
    floor: Fraction = 0.0
    """Last learning rate as a fraction of the first."""


class StepDecay(Part):
    """Multiply the learning rate by gamma at regular intervals."""

    name: Literal["step"]
    epochs: PositiveInt
    """Epochs between two reductions."""
    gamma: Annotated[float, Field(gt=0, le=1)]
    """Factor of each reduction."""


class EarlyStopping(Part):
    """Stop when the monitored validation metric has not improved for some epochs."""

    patience: PositiveInt
    """Epochs without improvement before training stops."""


class Training(Part):
    """The training of every replica."""

    solver: Literal["exact", "steps", "auto"] | None = None
    """\"steps\" trains by gradients, with the settings below. \"exact\" fits a linear model by Newton's method on sums
    over all sites, without learning rate, epochs or validation samples; weights of standardised inputs are regularised
    as by scikit-learn's defaults (C = 1, alpha = 1), independent of the optimizer's weight decay. \"auto\" is exact if
    the model has at most 256 weights and every site's policy allows the sums, otherwise steps. Null is auto for a
    linear model with default settings of steps and method, otherwise steps."""
    epochs: UpToMillion = 30
    """Passes over the data."""
    batch_size: UpToMillion = 32
    """Samples per site and forward pass."""
    batches: Literal["full", "even"] | None = None
    """\"even\": every site makes as many batches as the largest, so that all take part in every step; a small site
    uses its samples several times an epoch, each with the weight of a large site's. \"full\": a site makes as few
    batches as its samples allow, and has no data for later steps. Null: full if sites exchange once an epoch, otherwise
    even."""
    accumulate: UpToMillion = 1
    """Batches per site and step: their gradients are sent together, as for one batch of this many times the size."""
    optimizer: Annotated[Adam | Sgd, Field(discriminator="name")] = Adam(name="adam", lr=0.01, weight_decay=0.01)
    """Optimizer, equal at every site."""
    schedule: Annotated[Constant | Cosine | StepDecay, Field(discriminator="name")] = Constant()
    """Learning-rate schedule."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Multiply the learning rate by the number of sites, or by its square root: the global batch grows with it."""
    clip: PositiveFloat | None = None
    """Largest norm of the aggregated gradient; null does not clip."""
    monitor: Annotated[Monitor, BeforeValidator(_named)] = "loss"
    """Validation metric that chooses the best model. \"auc_within\" is over pairs of samples of one site, where a site
    has enough with an outcome and without it; the AUC of all sites together is known of tests alone."""
    early_stopping: EarlyStopping | None = None
    """When to stop before the last epoch; null never does."""
    validation: Fraction = 0.15
    """Part of a site's training samples that is set aside for validation."""
    test: Fraction = 0.2
    """Part of a site's samples that is set aside for the test; unused where the data file has its own split."""
    augmentation: Annotated[tuple[Varied, ...], Field(max_length=20)] = ()
    """Random changes of training pictures, volumes and series, applied in this order, with seeds by site, sample and
    epoch."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of the replica."""
    autocast: Literal["bfloat16"] | None = None
    """Precision of forward and backward pass; gradients and weights stay in `dtype`."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Threads of a process's tensor operations: part of what makes results equal to the last bit."""

    @property
    def states_steps(self) -> bool:
        """Whether any setting that only steps have is not the default."""
        return any(getattr(self, name) != Training.model_fields[name].default for name in OF_STEPS)

    @property
    def sends_projections(self) -> bool:
        """Whether sites send random projections of their gradients."""
        return isinstance(self.optimizer, Adam) and self.optimizer.second_moment == "factored"

    @property
    def step_size(self) -> int:
        """Samples per site and step, at most."""
        return self.batch_size * self.accumulate

    @model_validator(mode="after")
    def _splits_fit(self) -> Training:
        if self.validation + self.test >= 1:
            raise ValueError(f"validation {self.validation} and test {self.test} leave nothing to train on")
        if self.early_stopping and not self.validation:
            raise ValueError("early_stopping needs samples to look at, but validation is 0")
        return self
