"""Which samples test the trained model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from rankdad.common.documents import Part

MAX_FOLDS = 100  # of all repeats

Reference = Literal["local", "linear", "site"]


class Referenced(Part):
    """What the trained model is measured against, on the same samples; a guess from each site's labels always is."""

    references: Annotated[tuple[Reference, ...], Field(max_length=3)] = ()
    """local: each site alone, the run's model and settings on its own samples. linear: a logistic or ridge regression
    of all sites' samples. site: one of each site's own samples alone."""

    @field_validator("references")
    @classmethod
    def _each_once(cls, references: tuple[Reference, ...]) -> tuple[Reference, ...]:
        if len(set(references)) < len(references):
            raise ValueError("one of them stands there more than once")
        return references


class Holdout(Referenced):
    """Test once, on `training.test` of every site's samples or on what the data set aside."""

    name: Literal["holdout"] = "holdout"


class KFold(Referenced):
    """Test every sample once: train as often as there are folds, each time without the samples of one."""

    name: Literal["k-fold"]
    folds: Annotated[int, Field(ge=2, le=MAX_FOLDS)] = 5
    """Number of folds. A sample's fold follows from a hash of its key, or of its group's, and of `seed`."""
    repeats: Annotated[int, Field(ge=1, le=50)] = 1
    """How often samples are dealt out anew and all folds trained again, at most 100 folds together. Figures are means
    over repeats, and so are the ends of their intervals: samples that are tested again are no new ones."""
    stratified: bool = False
    """Deal every class out equally, in the hashes' order, at each site; else a new sample never moves another one."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Another seed makes other folds."""
    refit: bool = True
    """Train once more on all samples in the end: the model that is kept."""

    @field_validator("repeats")
    @classmethod
    def _trains_not_too_often(cls, repeats: int, info: ValidationInfo) -> int:
        if repeats * info.data.get("folds", 1) > MAX_FOLDS:
            raise ValueError(f"got {repeats} times {info.data['folds']} folds, expected at most {MAX_FOLDS} together")
        return repeats


class LeaveOneSiteOut(Referenced):
    """Test every site on a model of all others."""

    name: Literal["leave-one-site-out"]
    refit: bool = True
    """Train once more at all sites in the end: the model that is kept."""

    @field_validator("references")
    @classmethod
    def _sites_train(cls, references: tuple[Reference, ...]) -> tuple[Reference, ...]:
        alone = [name for name in references if name != "linear"]
        if alone:
            raise ValueError(
                f"got {' and '.join(alone)}, but a site that is left out has no samples to train on alone: expected "
                "linear, or another evaluation"
            )
        return references


EvaluationSpec = Holdout | KFold | LeaveOneSiteOut
