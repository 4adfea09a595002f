"""All sites' rounds of a preparation, without trainer or wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankdad.common.preparation import Fit, Inputs, OwnFit, Preparing, Rows, in_memory
from rankdad.common.spec import RunSpec
from tests.conftest import run_spec

Array = NDArray[np.float64]


def table_spec(
    columns: int, task: dict[str, Any] | None = None, data: dict[str, Any] | None = None, **preparation: Any
) -> RunSpec:
    """A run on a table of columns c0, c1, …, whose label is a number unless a task is given."""
    csv = {"reader": "csv", "file": "t.csv", "features": [f"c{i}" for i in range(columns)], "label": "y"}
    return run_spec(task=task or {"name": "regression"}, data=csv | (data or {}), preparation=preparation)


def rows(inputs: Array, labels: Array | None = None, covariates: Array | None = None) -> Rows:
    return Rows(
        torch.from_numpy(np.asarray(inputs)),
        torch.from_numpy(np.zeros(len(inputs)) if labels is None else np.asarray(labels)),
        None if covariates is None else torch.from_numpy(np.asarray(covariates)),
    )


def applied(
    preparing: Preparing, fit: Fit, own: OwnFit | None, inputs: Inputs, covariates: Tensor | None = None
) -> Tensor:
    """Return prepared inputs."""
    return in_memory(preparing.transform(fit, own).prepared(inputs, covariates, torch.float64))


def prepared(preparing: Preparing, sites: Sequence[Rows]) -> tuple[Fit, list[OwnFit], list[Array]]:
    """Return the fit, every site's own, and its prepared rows."""
    fit = preparing.fitted(sites)
    owns = [preparing.own(fit, site) for site in sites]
    found = [
        applied(preparing, fit, own, site.inputs, site.covariates).numpy()
        for own, site in zip(owns, sites, strict=True)
    ]
    return fit, owns, found
