"""The preparation of inputs; `common.preparation` implements it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rankdad.common.documents import Part
from rankdad.common.spec.table_schema import Column


class Combat(Part):
    """Remove each site's shift and scale of every feature, as in ComBat (Johnson 2007, Fortin 2018)."""

    name: Literal["combat"] = "combat"
    keep: Annotated[tuple[Column, ...], Field(max_length=100)] = ()
    """Columns whose effect on the features is kept, such as age; never the label."""
    empirical_bayes: bool = True
    """Whether to shrink a site's effects towards their mean over its features, which helps small sites."""


class Preparation(Part):
    """The preparation of inputs, fitted on training samples only."""

    standardise: Literal["none", "federated", "site"] = "none"
    """Whether to standardise features, by the statistics of all sites or of each site."""
    harmonise: Combat | None = None
    """Removal of site effects; null for none."""

    @property
    def keep(self) -> tuple[str, ...]:
        """Columns whose effect harmonisation keeps."""
        return () if self.harmonise is None else self.harmonise.keep
