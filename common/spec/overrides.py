"""Settings of single sites: fewer epochs, other batch sizes, other local steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from rankdad.common.documents import Part
from rankdad.common.methods.local_steps import LocalSteps
from rankdad.common.numbers import UpToMillion

if TYPE_CHECKING:
    from rankdad.common.methods import MethodOptions
    from rankdad.common.spec.federation import Federation
    from rankdad.common.spec.training import Training


class Overrides(Part):
    """Settings of one site; null for the run's."""

    epochs: UpToMillion | None = None
    """Epochs in which the site trains, at most `training.epochs`; later it contributes nothing, but counts as
    present."""
    batch_size: UpToMillion | None = None
    """Replaces `training.batch_size`."""
    local_steps: UpToMillion | Literal["epoch"] | None = None
    """Replaces `method.local_steps`, if the method has them."""

    def trains(self, epoch: int) -> bool:
        """Return whether the site trains in an epoch, counted from 0."""
        return self.epochs is None or epoch < self.epochs

    @property
    def settings(self) -> tuple[dict[str, object], dict[str, object]]:
        """The site's settings for training and for the method; None keeps the run's."""
        return {"batch_size": self.batch_size}, {"local_steps": self.local_steps}


def ends(overrides: Mapping[str, Overrides], epochs: int) -> list[int]:
    """Return the epochs after which a site ends before the training does, in order."""
    return sorted({own.epochs for own in overrides.values() if own.epochs and own.epochs < epochs})


def check_overrides(federation: Federation, training: Training | None, method: MethodOptions | None) -> None:
    """Check that overrides fit a run; training and method are None if they are invalid themselves.

    Raises:
        ValueError: they do not.
    """
    for site, own in federation.overrides.items():
        if own.epochs and training and own.epochs > training.epochs:
            expected = f"expected at most training.epochs {training.epochs}"
            raise ValueError(f"overrides.{site}.epochs: got {own.epochs}, {expected}")
        if own.local_steps and method and getattr(method, "local_steps", None) is None:
            has = "has none" if isinstance(method, LocalSteps) else f"of {method.name} cannot have any"
            raise ValueError(f"overrides.{site}.local_steps: got {own.local_steps}, but the method {has}")
    if training and not any(federation.trains(site, training.epochs - 1) for site in federation.sites):
        raise ValueError(f"overrides: no site trains for training.epochs, which are {training.epochs}")
