"""What is done to inputs before they are trained on; `common.preparation` does it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rankdad.common.documents import Part
from rankdad.common.spec.table_schema import Column


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
