"""What a run keeps beside its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Annotated

from pydantic import AfterValidator, Field

from rankdad.common.documents import Part
from rankdad.common.numbers import NonNegativeInt

GROUP = "rankdad.rounds"  # of entry points, by which another package has rounds of its own
MOST_ROUNDS = 8
FURTHER: Mapping[str, str] = {point.name: point.value for point in entry_points(group=GROUP)}  # "package.module:Class"


def _installed(name: str) -> str:
    if name not in FURTHER:
        raise ValueError(f"no package here has such a round; there are: {', '.join(sorted(FURTHER)) or 'none'}")
    return name


class Recording(Part):
    """What a run keeps beside its metrics; nothing of it changes the weights."""

    spectra: NonNegativeInt = 0
    """Steps between two records of the leading singular values of each layer's update, for layers that travel as
    factors; 0 keeps none. They are in `spectra.csv`, on the page and in the report."""
    tensorboard: bool = False
    """Whether the aggregator writes files for TensorBoard, into `tensorboard` in the run's directory: of each epoch the
    pooled and the sites' metrics and training loss, and the traffic so far. Needs the extra `tensorboard` there."""
    mlflow: bool = False
    """Whether it tells MLflow of the same: in `mlflow` in the run's directory, or where the variable
    MLFLOW_TRACKING_URI of its own environment says. Needs the extra `mlflow` there."""

    rounds: Annotated[tuple[Annotated[str, AfterValidator(_installed)], ...], Field(max_length=MOST_ROUNDS)] = ()
    """Rounds of other packages, by the name of their entry point in the group `rankdad.rounds`. Each is held once,
    after preparation, and what it finds is under `rounds` in the summary. A site takes part if it lists the code under
    `allow_factories`; what that lets out nobody else checks."""
