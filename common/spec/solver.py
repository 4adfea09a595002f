"""Which solver trains a linear model: exactly, by sums over all sites, or by steps."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import TYPE_CHECKING, Literal

from rankdad.common.methods.dsgd import Dsgd
from rankdad.common.methods.rank_dad import RankDad
from rankdad.common.spec.method import MethodSpec
from rankdad.common.spec.model import Linear, ModelSpec
from rankdad.common.spec.tasks import Classification, MultiLabel, Regression, TaskSpec

if TYPE_CHECKING:
    from rankdad.common.spec.run import RunSpec

NOT_EXACT: Literal["exact-solver-not-allowed"] = "exact-solver-not-allowed"  # what a site warns of
MAX_WEIGHTS = 256  # whose curvature a site sends in each round
DEFAULT = RankDad(name="rank-dad", rank=2)  # method of a run that names none


def lines(task: TaskSpec) -> int:
    """Return how many linear functions a model has: one of two classes or of a number, else one for each output."""
    binary = isinstance(task, Classification) and task.classes == 2
    return 1 if binary or isinstance(task, Regression) else task.outputs


def weights_of(spec: RunSpec) -> int:
    """Return how many weights a linear model of a run's inputs has, intercepts included."""
    return lines(spec.task) * (math.prod(spec.data.shape) + 1)


def why_steps(spec: RunSpec) -> str:
    """Return why a run cannot be solved exactly, as a clause; "" where it can, as far as its policies allow it."""
    model, task, training = spec.model, spec.task, spec.training
    if not isinstance(model, Linear):
        return f"the model is {model.name}, not linear"
    if model.pretrained or model.frozen:
        return "the model has pretrained or frozen weights"
    if spec.data.tokens is not None or len(spec.data.shape) > 1:
        return "the inputs are tokens, series or pictures, not columns of a table"
    if (count := weights_of(spec)) > MAX_WEIGHTS:
        return f"the model has {count:,} weights, more than {MAX_WEIGHTS}"
    if isinstance(task, Regression) and task.loss != "mse":
        return f"the loss is {task.loss}, not mse"
    if isinstance(task, MultiLabel) and task.class_weights != "none":
        return "labels are balanced (task.class_weights)"
    settings = {
        "tuning": spec.tuning,
        "training.early_stopping": training.early_stopping,
        "training.augmentation": training.augmentation,
        "federation.overrides": spec.federation.overrides,
        "record.spectra": spec.record.spectra,
    }
    named = next((name for name, value in settings.items() if value), "")
    return f"{named} is of steps" if named else ""


def is_exact(spec: RunSpec, warnings: Container[str]) -> bool:
    """Tell whether a run is solved exactly, given what its sites have warned of."""
    return spec.solver == "exact" or (spec.solver == "auto" and NOT_EXACT not in warnings)


def default_method(task: TaskSpec, model: ModelSpec) -> MethodSpec:
    """Return the method of a run that names none: full gradients where none has a larger rank than the default one."""
    if isinstance(model, Linear) and task.outputs <= DEFAULT.rank:
        return Dsgd(name="dsgd")
    return DEFAULT
