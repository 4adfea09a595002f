"""Which samples test the trained model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from rankdad.common.documents import Part

MAX_FOLDS = 100  # of all repeats


class Holdout(Part):
    """Test once, on `training.test` of every site's samples or on what the data set aside."""

    name: Literal["holdout"] = "holdout"


class KFold(Part):
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


class LeaveOneSiteOut(Part):
    """Test every site on a model of all others."""

    name: Literal["leave-one-site-out"]
    refit: bool = True
    """Train once more at all sites in the end: the model that is kept."""


EvaluationSpec = Holdout | KFold | LeaveOneSiteOut
