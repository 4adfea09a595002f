"""A spec's parts that make a study of a training: what is done to inputs, and which samples test the model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rankdad.common.columns import Column
from rankdad.common.documents import Part


class Combat(Part):
    """Remove what sites add to and multiply every feature by, as ComBat does (Johnson 2007, Fortin 2018)."""

    name: Literal["combat"] = "combat"
    keep: Annotated[tuple[Column, ...], Field(max_length=100)] = ()
    """Columns whose effect on the features stays, such as age: covariates, and never what is predicted."""
    empirical_bayes: bool = True
    """Whether a site's effects are drawn towards their mean over its features: steadier where sites are small."""


class Preparation(Part):
    """What is done to inputs before they are trained on; every number of it comes from training samples alone."""

    standardise: Literal["none", "federated", "site"] = "none"
    """Subtract a feature's mean and divide by its standard deviation: all sites' together, or each site's own."""
    harmonise: Combat | None = None
    """Removal of site effects; null leaves them."""

    @property
    def keep(self) -> tuple[str, ...]:
        """Columns whose effect on the features harmonisation keeps."""
        return () if self.harmonise is None else self.harmonise.keep


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
