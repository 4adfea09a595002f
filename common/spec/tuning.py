"""Settings chosen by validation within the training samples of each fold."""

from __future__ import annotations

from itertools import product
from typing import Annotated, NamedTuple

from pydantic import Field, model_validator

from rankdad.common.documents import Part
from rankdad.common.numbers import NonNegativeFloat, UpToMillion

MAX_VALUES = 8  # of one setting
MAX_CANDIDATES = 16


class Candidate(NamedTuple):
    """One combination of settings; None keeps the run's.

    Args:
        weight_decay: of the optimizer.
        rank: of the method.
        epochs: largest number.
    """

    weight_decay: float | None
    rank: int | None
    epochs: int | None


class Tuning(Part):
    """Train every combination of settings on a fold's training samples without `training.validation`, choose the best
    by `training.monitor` on these, and train it again on all training samples, for the best number of epochs.
    """

    weight_decay: Annotated[tuple[NonNegativeFloat, ...], Field(max_length=MAX_VALUES)] = ()
    """Weight decays to try; none for the optimizer's."""
    rank: Annotated[tuple[UpToMillion, ...], Field(max_length=MAX_VALUES)] = ()
    """Ranks of rank-dad to try, up to `method.rank`; none for that."""
    epochs: Annotated[tuple[UpToMillion, ...], Field(max_length=MAX_VALUES)] = ()
    """Numbers of epochs to try, up to `training.epochs`; none for that. A decay over the whole run uses these. Without
    one, the best epoch of the longest training tells as much."""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All combinations."""
        values = (self.weight_decay or (None,), self.rank or (None,), self.epochs or (None,))
        return tuple(Candidate(*one) for one in product(*values))

    @model_validator(mode="after")
    def _has_combinations(self) -> Tuning:
        for name in ("weight_decay", "rank", "epochs"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name}: one of the values occurs more than once")
        if not 2 <= len(self.candidates) <= MAX_CANDIDATES:
            raise ValueError(f"got {len(self.candidates)} combinations, expected 2 to {MAX_CANDIDATES} to choose from")
        return self
