"""The run's specification: one JSON object, the same and hashed at every site.

Every part is a frozen pydantic model that forbids unknown keys: a typing mistake is an error, never a default.
Unions are told apart by their field `name`, data by their `reader`.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from rankdad.common.data import DataSpec, TableData, check_kept, check_task
from rankdad.common.documents import Part
from rankdad.common.networks import Linear, ModelSpec
from rankdad.common.studies import EvaluationSpec, Holdout, KFold, LeaveOneSiteOut, Preparation
from rankdad.common.tasks import Metric, TaskSpec

SiteName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Fraction = Annotated[float, Field(ge=0, lt=1)]
PositiveInt = Annotated[int, Field(ge=1, le=2**53)]
Millions = Annotated[int, Field(ge=1, le=1_000_000)]  # of what is counted, and what memory or time grows with
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


RESERVED = frozenset({"aggregator", "pooled"})


class Adam(Part):
    """Adam, with decoupled weight decay where weight_decay is not 0 (AdamW)."""

    name: Literal["adam"]
    lr: PositiveFloat
    """Learning rate."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Decay of the running means of gradient and square."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""


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
    """Keep the learning rate."""

    name: Literal["constant"] = "constant"


class Cosine(Part):
    """Warm up linearly, then fall along a cosine over the whole run."""

    name: Literal["cosine"]
    warmup: Annotated[int, Field(ge=0, le=2**53)] = 0
    """Steps of linear warm-up."""
    floor: Fraction = 0.0
    """Last learning rate as a fraction of the first."""


class StepDecay(Part):
    """Multiply the learning rate by gamma every so many epochs."""

    name: Literal["step"]
    epochs: PositiveInt
    """Epochs between two reductions."""
    gamma: Annotated[float, Field(gt=0, le=1)]
    """Factor of each reduction."""


class EarlyStopping(Part):
    """Stop when the monitored validation metric has not improved for some epochs."""

    patience: PositiveInt
    """Epochs without improvement after which training stops."""


class Training(Part):
    """How every replica is trained."""

    epochs: Millions = 30
    """Passes over the data."""
    batch_size: Millions = 32
    """Samples per site and forward pass."""
    batches: Literal["full", "even"] = "full"
    """Full batches until a site's samples are used up; or as many at every site as the largest has, so that every site
    is in every step with its share: for sites of unequal size, of which the small ones are else in the first alone."""
    accumulate: Millions = 1
    """Batches per site and step: their gradients travel together, as those of one batch so many times as large."""
    optimizer: Annotated[Adam | Sgd, Field(discriminator="name")] = Adam(name="adam", lr=0.01, weight_decay=0.01)
    """Optimizer, equal at every site."""
    schedule: Annotated[Constant | Cosine | StepDecay, Field(discriminator="name")] = Constant()
    """Learning-rate schedule."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Multiply the learning rate by the number of sites, or by its square root: the global batch grows with it."""
    clip: PositiveFloat | None = None
    """Largest norm of the aggregated gradient; null does not clip."""
    monitor: Metric | None = None
    """Validation metric that chooses the best model; null is auc for classes and labels, the loss for numbers."""
    early_stopping: EarlyStopping | None = None
    """When to stop before the last epoch; null never does."""
    validation: Fraction = 0.15
    """Part of a site's training samples that is set aside for validation."""
    test: Fraction = 0.2
    """Part of a site's samples that is set aside for the test; unused where the data file has its own split."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of the replica."""
    autocast: Literal["bfloat16"] | None = None
    """Precision of forward and backward pass; gradients and weights stay in `dtype`."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Threads of a process's tensor operations: part of what makes results equal to the last bit."""

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


Wire = Literal["float32", "float64", "bfloat16", "float16", "int8"]


class Dsgd(Part):
    """Send full gradients and average them."""

    name: Literal["dsgd"]
    wire: Wire = "float32"
    """Precision on the wire; int8 is in blocks of 64 with one scale each."""
    exchanges: Literal["one", "per-tensor"] = "one"
    """All gradients in one message; or each tensor in an exchange of its own, as by a collective for every tensor: the
    same averages, in as many round trips as there are tensors."""


class Dad(Part):
    """Send full factors and concatenate them: exact (dAD)."""

    name: Literal["dad"]
    wire: Wire = "float32"
    """Precision on the wire."""


class Edad(Part):
    """Send activations and the last layer's deltas, and propagate the deltas again everywhere: exact, for chains."""

    name: Literal["edad"]
    wire: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    """Precision on the wire; int8 would round small activations to 0, and with them their slopes."""


class TopRows(Part):
    """Send the first rows of every factor: the paper's crude baseline."""

    name: Literal["top-rows"]
    rows: Millions = 3
    """How many rows a site sends of a layer's factor."""
    wire: Wire = "float32"
    """Precision on the wire."""


class RankDad(Part):
    """Send factors reduced at the site, and reduce their concatenation again at the aggregator (rank-dAD)."""

    name: Literal["rank-dad"]
    rank: Millions
    """Largest number of rows of a factor on the wire."""
    preset: Literal["paper"] | None = None
    """\"paper\" is the method as published: reducer spi, no feedback."""
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


class PowerSgd(Part):
    """Multiply gradients by shared directions, in two exchanges a step, with error feedback (Vogels 2019)."""

    name: Literal["powersgd"]
    rank: Millions
    """Number of directions."""
    feedback: bool = True
    """Whether what was left out of a step joins the next."""
    wire: Wire = "float32"
    """Precision on the wire."""


MethodSpec = Dsgd | Dad | Edad | TopRows | RankDad | PowerSgd


class Federation(Part):
    """Who takes part."""

    sites: Annotated[tuple[SiteName, ...], Field(min_length=1, max_length=1000)]
    """Names of the sites; their order is the order of concatenation."""
    quorum: Literal["all"] | PositiveInt | Annotated[float, Field(gt=0, lt=1)] = "all"
    """How many sites a round needs once all have said hello: all, a number of them, or a part of them."""
    grace: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5.0
    """Seconds for which the others are waited for when the quorum is in."""
    timeout: PositiveFloat | None = None
    """Seconds after which a round without its quorum ends the run; null waits for as long as it takes."""
    compare_every: Annotated[int, Field(ge=0, le=2**53)] = 500
    """Steps after which all sites' weights are compared; 0 compares them at the end alone."""
    drift: PositiveFloat = 1e-4
    """Largest distance between two sites' weights, relative to their size; beyond it all take over one replica."""

    @property
    def required_sites(self) -> int:
        """How many sites a round needs."""
        count = len(self.sites)
        if self.quorum == "all":
            return count
        return self.quorum if isinstance(self.quorum, int) else math.ceil(self.quorum * count)

    @model_validator(mode="after")
    def _quorum_can_be_met(self) -> Federation:
        if self.required_sites > len(self.sites):
            raise ValueError(f"quorum: got {self.quorum}, expected at most the number of sites, {len(self.sites)}")
        return self

    @model_validator(mode="after")
    def _names_tell_apart(self) -> Federation:
        twice = sorted({name for name in self.sites if self.sites.count(name) > 1})
        if twice:
            raise ValueError(f"names must differ, but {', '.join(twice)} stands there more than once")
        reserved = sorted(RESERVED.intersection(self.sites))
        if reserved:
            raise ValueError(f"no site can be called {', '.join(reserved)}: results use that name")
        return self


class RunSpec(Part):
    """One training: what every site and the aggregator agree on."""

    name: Annotated[str, Field(pattern=r"^[\w][\w .-]{0,62}$")]
    """Name of the run."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of everything random."""
    task: Annotated[TaskSpec, Field(discriminator="name")]
    """What is predicted."""
    model: Annotated[ModelSpec, Field(discriminator="name")] = Linear(name="linear")
    """The network."""
    data: DataSpec
    """Schema of the data."""
    preparation: Annotated[Preparation, Field(validate_default=True)] = Preparation()
    """What is done to inputs before they are trained on."""
    evaluation: Annotated[EvaluationSpec, Field(discriminator="name")] = Holdout()
    """Which samples the trained model is tested on."""
    training: Training = Training()
    """Optimizer, schedule, splits."""
    method: Annotated[MethodSpec, Field(discriminator="name")] = RankDad(name="rank-dad", rank=2)
    """How gradients travel."""
    federation: Federation
    """Who takes part."""

    @field_validator("data")
    @classmethod
    def _data_fit_the_task(cls, data: DataSpec, info: ValidationInfo) -> DataSpec:
        if "task" in info.data:
            check_task(data, info.data["task"])
        return data

    @field_validator("preparation")
    @classmethod
    def _kept_columns_fit(cls, preparation: Preparation, info: ValidationInfo) -> Preparation:
        data, combat = info.data.get("data"), preparation.harmonise
        if isinstance(data, TableData):
            check_kept(data, preparation.keep)
        elif data is not None and combat is not None:
            raise ValueError(f"harmonise: the reader {data.reader} has no table with columns, expected none")
        return preparation

    @field_validator("evaluation")
    @classmethod
    def _held_out_sites_are_prepared(cls, evaluation: EvaluationSpec, info: ValidationInfo) -> EvaluationSpec:
        preparation = info.data.get("preparation")
        if isinstance(evaluation, LeaveOneSiteOut) and preparation and preparation.standardise == "site":
            raise ValueError(
                "a site that is left out has no training samples to standardise by, as preparation asks for"
            )
        return evaluation

    @field_validator("federation")
    @classmethod
    def _others_train(cls, federation: Federation, info: ValidationInfo) -> Federation:
        if isinstance(info.data.get("evaluation"), LeaveOneSiteOut) and len(federation.sites) == 1:
            raise ValueError("sites: got one, but evaluation is leave-one-site-out: expected at least two")
        return federation

    @field_validator("training")
    @classmethod
    def _monitor_is_measured(cls, training: Training, info: ValidationInfo) -> Training:
        task = info.data.get("task")
        if task is not None and training.monitor is not None and training.monitor not in task.metrics:
            raise ValueError(f"monitor: got {training.monitor}, expected one of {', '.join(task.metrics)}")
        return training

    @property
    def monitor(self) -> Metric:
        """Validation metric that chooses the best model."""
        return self.training.monitor or self.task.metrics[0]

    @property
    def tested_folds(self) -> int:
        """How many times the run trains and tests."""
        if isinstance(self.evaluation, KFold):
            return self.evaluation.folds
        return len(self.federation.sites) if isinstance(self.evaluation, LeaveOneSiteOut) else 1

    @property
    def folds(self) -> int:
        """How many times the run trains: once more than it tests where a model of all samples is kept."""
        return self.tested_folds + (not isinstance(self.evaluation, Holdout) and self.evaluation.refit)

    def sha256(self) -> str:
        """Return the digest of the canonical JSON form (keys sorted, defaults written out)."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()
