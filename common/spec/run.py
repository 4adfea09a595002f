"""The run's specification: one JSON object, the same and hashed at every site."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from rankdad.common.documents import Part, load_json, replace, validate, without_defaults, words
from rankdad.common.errors import SpecError
from rankdad.common.methods.local_steps import LocalSteps
from rankdad.common.spec.asked import columns_of, files_of
from rankdad.common.spec.augmentation import check_augmentation
from rankdad.common.spec.data import DataSpec, TableData, check_kept, check_task
from rankdad.common.spec.evaluation import EvaluationSpec, Holdout, KFold, LeaveOneSiteOut, Reference
from rankdad.common.spec.federation import Federation
from rankdad.common.spec.method import MethodSpec, refuse_unusable
from rankdad.common.spec.model import Linear, ModelSpec
from rankdad.common.spec.overrides import check_overrides
from rankdad.common.spec.preparation import Preparation
from rankdad.common.spec.recording import FURTHER, Recording
from rankdad.common.spec.solver import DEFAULT, default_method, why_steps
from rankdad.common.spec.tasks import LanguageModel, TaskSpec
from rankdad.common.spec.training import Training
from rankdad.common.spec.tuning import Candidate, Tuning
from rankdad.common.staleness import check_method

MAX_TRAININGS = 1000  # of a run

P = TypeVar("P", bound=Part)
PEOPLE = ("patient", "subject", "participant", "person")  # nouns in the name of a group's column


class RunSpec(Part):
    """The specification of a run, which every site and the aggregator agree on."""

    name: Annotated[str, Field(pattern=r"^[\w][\w .-]{0,62}$")]
    """Name of the run."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of all random numbers."""
    task: Annotated[TaskSpec, Field(discriminator="name")]
    """What is predicted."""
    model: Annotated[ModelSpec, Field(discriminator="name")] = Linear(name="linear")
    """The network."""
    data: DataSpec
    """Schema of the data."""
    preparation: Annotated[Preparation, Field(validate_default=True)] = Preparation()
    """Preparation of the inputs."""
    evaluation: Annotated[EvaluationSpec, Field(discriminator="name")] = Holdout()
    """Test samples of the trained model."""
    training: Training = Training()
    """Optimizer, schedule, splits."""
    method: Annotated[
        MethodSpec, Field(discriminator="name", validate_default=True), BeforeValidator(refuse_unusable)
    ] = DEFAULT
    """Method for gradients. The default is dsgd for models whose gradients have a rank of at most 2, else rank-dad."""
    federation: Federation
    tuning: Tuning | None = None
    """Settings to choose by validation within each fold's training samples; null uses those above."""
    record: Recording = Recording()
    """What to store besides metrics."""

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
            for key in document.keys() - {"run", "simulation", "notes"}:
                raise SpecError(
                    key, f"is not known beside run: did you mean run.{key}?", file=path, code="unknown-field"
                )
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
        if evaluation.references and isinstance(info.data.get("task"), LanguageModel):
            raise ValueError(f"references: got {evaluation.references[0]}, expected none for the task language-model")
        if isinstance(evaluation, LeaveOneSiteOut) and preparation and preparation.standardise == "site":
            raise ValueError(
                "a site that is left out has no training samples to standardise by, as preparation asks for"
            )
        return evaluation

    @field_validator("federation")
    @classmethod
    def _some_site_trains(cls, federation: Federation, info: ValidationInfo) -> Federation:
        if isinstance(info.data.get("evaluation"), LeaveOneSiteOut) and len(federation.sites) == 1:
            raise ValueError("sites: got one, but evaluation is leave-one-site-out: expected at least two")
        return federation

    @field_validator("federation")
    @classmethod
    def _late_contributions_can_join(cls, federation: Federation, info: ValidationInfo) -> Federation:
        check_method(federation, info.data.get("method"))
        return federation

    @field_validator("training")
    @classmethod
    def _monitor_is_measured(cls, training: Training, info: ValidationInfo) -> Training:
        task = info.data.get("task")
        if task is not None and training.monitor not in task.monitors:
            raise ValueError(f"monitor: got {training.monitor}, expected one of {', '.join(task.monitors)}")
        return training

    @field_validator("training")
    @classmethod
    def _samples_can_be_varied(cls, training: Training, info: ValidationInfo) -> Training:
        if "data" in info.data and "model" in info.data:
            check_augmentation(training.augmentation, info.data["data"], info.data["model"])
        return training

    @field_validator("method", mode="before")
    @classmethod
    def _default_for_model(cls, method: Any, info: ValidationInfo) -> Any:
        if method is DEFAULT and {"task", "model"} <= info.data.keys():
            return default_method(info.data["task"], info.data["model"])
        return method

    @field_validator("method")
    @classmethod
    def _local_steps_are_not_projected(cls, method: MethodSpec, info: ValidationInfo) -> MethodSpec:
        training, local = info.data.get("training"), _local(method)
        if local and training and training.sends_projections:
            preset = getattr(method, "preset", None)
            got = f"the preset {preset} has {local.local_steps}" if preset else f"got {local.local_steps}"
            raise ValueError(
                f"local_steps: {got}, but training.optimizer.second_moment is factored, which is known of single "
                f"batches alone: expected elementwise, or no {'preset' if preset else 'local_steps'}"
            )
        return method

    @field_validator("federation")
    @classmethod
    def _overrides_fit(cls, federation: Federation, info: ValidationInfo) -> Federation:
        check_overrides(federation, info.data.get("training"), info.data.get("method"))
        return federation

    @field_validator("tuning")
    @classmethod
    def _candidates_can_train(cls, tuning: Tuning | None, info: ValidationInfo) -> Tuning | None:
        training, method = (info.data.get(name) for name in ("training", "method"))
        if tuning is None or training is None or method is None:
            return tuning
        if local := _local(method):
            raise ValueError(f"is not possible with method.local_steps, which is {local.local_steps}")
        if not training.validation:
            raise ValueError("needs samples to choose by, but training.validation is 0")
        if max(tuning.epochs, default=0) > training.epochs:
            raise ValueError(f"epochs: got {max(tuning.epochs)}, expected at most training.epochs {training.epochs}")
        if tuning.rank and not method.tuned:
            raise ValueError(f"rank: the method {method.name} is not tuned, expected rank-dad")
        own = getattr(method, "rank", 0)
        if tuning.rank and max(tuning.rank) > own:
            raise ValueError(f"rank: got {max(tuning.rank)}, expected at most method.rank {own}")
        return tuning

    @field_validator("record")
    @classmethod
    def _factors_have_spectra(cls, record: Recording, info: ValidationInfo) -> Recording:
        method = info.data.get("method")
        if record.spectra and method is not None and not method.updates_are_factors:
            raise ValueError(
                f"spectra: got {record.spectra}, but updates of {method.name} are no factors: expected 0, or one of "
                "rank-dad and dad"
            )
        return record

    @model_validator(mode="after")
    def _trains_not_too_often(self) -> RunSpec:
        if self.tuning and self.folds > MAX_TRAININGS:
            raise ValueError(f"tuning: asks for {self.folds} trainings, expected at most {MAX_TRAININGS}")
        return self

    @property
    def solver(self) -> Literal["exact", "auto", "steps"]:
        """How the model is trained; auto is settled when all sites have said whether their policies allow exact."""
        asked = self.training.solver
        if asked is None:
            default = isinstance(self.model, Linear) and self.method == default_method(self.task, self.model)
            asked = "auto" if default and not self.training.states_steps else "steps"
        return "steps" if asked == "auto" and why_steps(self) else asked

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the network's output for a sample: for a language model, logits of each token's successor."""
        if isinstance(self.task, LanguageModel):
            return (*self.data.shape, self.data.tokens or 0)
        return (self.task.outputs,)

    @property
    def trained_by(self) -> str:
        """What trains the model: the exact solver, the method of steps, or whichever policies allow."""
        method = self.method.name
        return {"exact": "exact", "auto": f"exact or {method}", "steps": method}[self.solver]

    @property
    def references(self) -> tuple[Reference, ...]:
        """What the model is measured against; an exact solution is the linear reference itself."""
        named = self.evaluation.references
        return named if self.solver == "steps" else tuple(name for name in named if name != "linear")

    @property
    def validation(self) -> float:
        """Part of the training samples that is set aside: none where the exact solver may have no use for it."""
        return self.training.validation if self.solver == "steps" else 0.0

    @property
    def kept_fold(self) -> int | None:
        """Which training makes the model that is kept; None where none does."""
        return self.folds - 1 if isinstance(self.evaluation, Holdout) or self.models > self.tested_folds else None

    @property
    def grouped(self) -> bool:
        """Whether a column says which samples belong together, such as those of a patient."""
        return getattr(self.data, "group", None) is not None

    @property
    def local(self) -> LocalSteps | None:
        """What sites do between two exchanges; None where they exchange every batch's gradient."""
        return _local(self.method)

    @property
    def local_steps(self) -> int | Literal["epoch"] | None:
        """How many batches a site trains on between two exchanges, at most; None where it takes no steps of its own."""
        return None if self.local is None else self.local.local_steps

    @property
    def batches(self) -> Literal["full", "even"]:
        """How many batches a site makes of its samples."""
        return self.training.batches or ("full" if self.local_steps == "epoch" else "even")

    @property
    def files(self) -> dict[str, tuple[str, ...]]:
        """Files of a site's data folder, as the run names them or writes patterns of them, by field."""
        return files_of(self.data)

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """Columns of a site's tables that the run reads, by the field that names them; without patterns."""
        return columns_of(self.data, self.preparation.keep)

    @property
    def functions(self) -> dict[str, str]:
        """Functions of the users' own that the run loads, by the field that names them."""
        model, data = getattr(self.model, "factory", None), getattr(self.data, "function", None)
        named = {"model.factory": model, "data.function": data}
        named |= {f"record.rounds.{name}": FURTHER[name] for name in self.record.rounds}
        return {field: name for field, name in named.items() if name is not None}

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
    def models(self) -> int:
        """How many models the run makes: one more than it tests where a model of all samples is kept."""
        return self.tested_folds + (not isinstance(self.evaluation, Holdout) and self.evaluation.refit)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Settings that are tried for every model; none without tuning."""
        return self.tuning.candidates if self.tuning else ()

    @property
    def folds(self) -> int:
        """How many times the run trains: once for every model, after its candidates."""
        return self.models * (1 + len(self.candidates))

    def place(self, fold: int) -> tuple[int, int | None]:
        """Return which model one of the run's trainings is for, from 0, and which candidate it is; None if it is none.

        Args:
            fold: which of the trainings, from 0.
        """
        model, tried = divmod(fold, 1 + len(self.candidates))
        return model, tried if tried < len(self.candidates) else None

    def tests(self, fold: int) -> bool:
        """Tell whether one of the run's trainings ends with a test: candidates' and that of all samples do not."""
        model, candidate = self.place(fold)
        return candidate is None and model < self.tested_folds

    def repeat(self, fold: int) -> int | None:
        """Return which repeat of the folds one of the run's trainings is of, from 0; None if it is of none."""
        model, _ = self.place(fold)
        return model // self.folds_per_repeat if model < self.tested_folds else None

    def training_name(self, fold: int) -> str:
        """Return what one of the run's trainings is called; see `training_name`."""
        return training_name(fold, self.tested_folds, self.folds, len(self.candidates))

    def at(self, site: str) -> RunSpec:
        """Return the run with a site's own batch size and local steps in place of the common ones."""
        own = self.federation.overrides.get(site)
        return self if own is None else self._with(*own.settings)

    def with_settings(self, candidate: Candidate) -> RunSpec:
        """Return the run with a candidate's settings in place of its own."""
        optimizer = _replaced(self.training.optimizer, {"weight_decay": candidate.weight_decay})
        return self._with({"optimizer": optimizer, "epochs": candidate.epochs}, {"rank": candidate.rank})

    def _with(self, training: Mapping[str, Any], method: Mapping[str, Any]) -> RunSpec:
        update = {"training": _replaced(self.training, training), "method": _replaced(self.method, method)}
        return self.model_copy(update=update)

    def says(self, word: str) -> bool:
        """Tell whether a word is one of the run's own: a field's path, or what a field holds or is called."""
        return word in words(self.model_dump(mode="json"))

    def document(self) -> dict[str, Any]:
        """Return the run as JSON without defaults: earlier versions can read it if it uses nothing that is new.

        The method is always named: a run that names none takes one that suits its model.
        """
        return without_defaults(self) | {"method": without_defaults(self.method)}

    def sha256(self) -> str:
        """Return the digest of the canonical JSON form: keys sorted, defaults left out, so that versions agree."""
        canonical = json.dumps(self.document(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def _local(method: MethodSpec) -> LocalSteps | None:
    return method if isinstance(method, LocalSteps) and method.local_steps is not None else None


def _replaced(part: P, values: Mapping[str, Any]) -> P:
    """Return a part with other values; None keeps its own."""
    return part.model_copy(update={name: value for name, value in values.items() if value is not None})


def training_name(fold: int, tested: int, folds: int, candidates: int = 0) -> str:
    """Return what one of a run's trainings is called: the fold that it tests, or the model that is kept.

    Args:
        fold: which of the trainings, from 0.
        tested: how many of the models are tested.
        folds: how many trainings there are.
        candidates: that are trained before each model.
    """
    model, tried = divmod(fold, 1 + candidates)
    models = folds // (1 + candidates)
    name = f"fold {model + 1} of {tested}" if model < tested and models > 1 else "final model" * (folds > 1)
    return f"{name}, candidate {tried + 1} of {candidates}" if tried < candidates else name
