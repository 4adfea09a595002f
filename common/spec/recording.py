"""What a run keeps beside its metrics."""

from __future__ import annotations

from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from rankdad.common.documents import Part
from rankdad.common.numbers import NonNegativeInt


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

    @model_serializer(mode="wrap")
    def _without_what_is_off(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = serialise(self)
        # A digest is as it was before there were any.
        off = [name for name in ("tensorboard", "mlflow") if document.get(name) is False]
        return {name: value for name, value in document.items() if name not in off}
