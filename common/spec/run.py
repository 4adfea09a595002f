"""The run's specification: one JSON object, the same and hashed at every site."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from rankdad.common.documents import Part, load_json, replace, validate
from rankdad.common.spec.data import DataSpec, TableData, check_kept, check_task
from rankdad.common.spec.evaluation import EvaluationSpec, Holdout, KFold, LeaveOneSiteOut
from rankdad.common.spec.federation import Federation
from rankdad.common.spec.method import MethodSpec, RankDad
from rankdad.common.spec.model import Linear, ModelSpec
from rankdad.common.spec.preparation import Preparation
from rankdad.common.spec.tasks import Metric, TaskSpec
from rankdad.common.spec.training import Training

PEOPLE = ("patient", "subject", "participant", "person")  # in the name of a group's column


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

    @classmethod
    def read(cls, path: str | Path, assignments: Sequence[str] = ()) -> RunSpec:
        """Read a spec from a JSON file: its own, or one for `rankdad simulate`, which has it under `run`.

        Args:
            path: of the file.
            assignments: `KEY=JSON` of values to replace.

        Raises:
            UserError: the file is unreadable, or a field is wrong; names it.
        """
        document = replace(load_json(path), assignments)
        if isinstance(document, dict) and "run" in document:
            return validate(cls, document["run"], file=path, under="run")
        return validate(cls, document, file=path)

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
    def grouped(self) -> bool:
        """Whether a column says which samples belong together, such as those of a patient."""
        return getattr(self.data, "group", None) is not None

    @property
    def group_noun(self) -> str:
        """What rows are of, in the singular: what the group's column is called, if that is a word for people."""
        column = str(getattr(self.data, "group", "")).lower()
        return next((noun for noun in PEOPLE if noun in column), "group")

    @property
    def tested_folds(self) -> int:
        """How many times the run trains and tests."""
        if isinstance(self.evaluation, KFold):
            return self.evaluation.folds * self.evaluation.repeats
        return len(self.federation.sites) if isinstance(self.evaluation, LeaveOneSiteOut) else 1

    @property
    def folds_per_repeat(self) -> int:
        """How many folds test every sample once."""
        return self.evaluation.folds if isinstance(self.evaluation, KFold) else self.tested_folds

    @property
    def folds(self) -> int:
        """How many times the run trains: once more than it tests where a model of all samples is kept."""
        return self.tested_folds + (not isinstance(self.evaluation, Holdout) and self.evaluation.refit)

    def sha256(self) -> str:
        """Return the digest of the canonical JSON form (keys sorted, defaults written out)."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def training_name(fold: int, tested: int, folds: int) -> str:
    """Return what one of a run's trainings is called: the fold that it tests, or the model that is kept.

    Args:
        fold: counted from 0.
        tested: how many of the trainings are tested.
        folds: how many there are.
    """
    return f"fold {fold + 1} of {tested}" if fold < tested else "final model" * (folds > 1)
