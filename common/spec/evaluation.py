"""Which samples test the trained model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rankdad.common.documents import Part


class Holdout(Part):
    """Test once, on `training.test` of every site's samples or on what the data set aside."""

    name: Literal["holdout"] = "holdout"


class KFold(Part):
    """Test every sample once: train as often as there are folds, each time without the samples of one."""

    name: Literal["k-fold"]
    folds: Annotated[int, Field(ge=2, le=100)] = 5
    """Number of folds. A sample's fold follows from a hash of its key, or of its group's, and of `seed`."""
    stratified: bool = False
    """Deal every class out equally, in the hashes' order, at each site; else a new sample never moves another one."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Another seed makes other folds."""
    refit: bool = True
    """Train once more on all samples in the end: the model that is kept."""


class LeaveOneSiteOut(Part):
    """Test every site on a model of all others."""

    name: Literal["leave-one-site-out"]
    refit: bool = True
    """Train once more at all sites in the end: the model that is kept."""


EvaluationSpec = Holdout | KFold | LeaveOneSiteOut
