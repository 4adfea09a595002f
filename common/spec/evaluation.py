"""Test sets of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from rankdad.common.documents import Part

MAX_FOLDS = 100  # over all repeats

Reference = Literal["local", "linear", "site"]


class Referenced(Part):
    """Reference models, tested on the same samples; a guess from each site's labels is always one."""

    references: Annotated[tuple[Reference, ...], Field(max_length=3)] = ()
    """local: the run's model and settings, trained at each site alone. linear: a logistic or ridge regression of all
    sites' samples. site: one of each site's own samples."""

    @field_validator("references")
    @classmethod
    def _each_once(cls, references: tuple[Reference, ...]) -> tuple[Reference, ...]:
        if len(set(references)) < len(references):
            raise ValueError("one of them occurs more than once")
        return references


class Holdout(Referenced):
    """Test once, on `training.test` of every site's samples or on the data's own test set."""

    name: Literal["holdout"] = "holdout"


class KFold(Referenced):
    """Test every sample once: train once per fold, each time without the fold's samples."""

    name: Literal["k-fold"]
    folds: Annotated[int, Field(ge=2, le=MAX_FOLDS)] = 5
    """Number of folds. A sample's fold is determined by a hash of its key, or of its group's, and of `seed`."""
    repeats: Annotated[int, Field(ge=1, le=50)] = 1
    """Number of repeats with other folds, at most 100 folds in total. Metrics and ends of their intervals are means
    over repeats, because samples that are tested again are not new."""
    stratified: bool = False
    """Balance classes between folds at each site; otherwise a new sample never moves another one."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the folds."""
    refit: bool = True
    """Finally train on all samples: the model that is kept."""

    @field_validator("repeats")
    @classmethod
    def _trains_not_too_often(cls, repeats: int, info: ValidationInfo) -> int:
        if repeats * info.data.get("folds", 1) > MAX_FOLDS:
            raise ValueError(f"got {repeats} times {info.data['folds']} folds, expected at most {MAX_FOLDS} in total")
        return repeats


class LeaveOneSiteOut(Referenced):
    """Test every site on a model of all others."""

    name: Literal["leave-one-site-out"]
    refit: bool = True
    """Finally train at all sites: the model that is kept."""

    @field_validator("references")
    @classmethod
    def _sites_train(cls, references: tuple[Reference, ...]) -> tuple[Reference, ...]:
        alone = [name for name in references if name != "linear"]
        if alone:
            raise ValueError(
                f"got {' and '.join(alone)}, but a left-out site has no training samples of its own: expected linear, "
                "or another evaluation"
            )
        return references


EvaluationSpec = Holdout | KFold | LeaveOneSiteOut
