"""Chooses the solver of a linear model: exact, by sums over all sites, or in steps."""

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

NOT_EXACT: Literal["exact-solver-not-allowed"] = "exact-solver-not-allowed"  # a site's warning
MAX_WEIGHTS = 256  # limit for sending the curvature in each round
DEFAULT = RankDad(name="rank-dad", rank=8, wire="int8")  # default method
FULL = 2  # rank of gradients up to which the default is full ones: reduced factors save little


def lines(task: TaskSpec) -> int:
    """Return the number of a model's linear functions: one for two classes or a number, otherwise one per output."""
    binary = isinstance(task, Classification) and task.classes == 2
    return 1 if binary or isinstance(task, Regression) else task.outputs


def weights_of(spec: RunSpec) -> int:
    """Return the number of weights of a linear model of a run's inputs, with intercepts."""
    return lines(spec.task) * (math.prod(spec.data.shape) + 1)


def why_steps(spec: RunSpec) -> str:
    """Return why a run cannot be solved exactly, as a clause; "" if it can, if its policies allow it."""
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
    return f"{named} applies to steps" if named else ""


def is_exact(spec: RunSpec, warnings: Container[str]) -> bool:
    """Return whether a run is solved exactly, given its sites' warnings."""
    return spec.solver == "exact" or (spec.solver == "auto" and NOT_EXACT not in warnings)


def default_method(task: TaskSpec, model: ModelSpec) -> MethodSpec:
    """Return the default method: full gradients if their rank is at most 2, else few rows in int8."""
    if isinstance(model, Linear) and task.outputs <= FULL:
        return Dsgd(name="dsgd")
    return DEFAULT
