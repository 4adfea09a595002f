"""What a run keeps beside its metrics."""

from __future__ import annotations

from rankdad.common.documents import Part
from rankdad.common.spec.numbers import NonNegativeInt


class Recording(Part):
    """What a run keeps beside its metrics; nothing of it changes the weights."""

    spectra: NonNegativeInt = 0
    """Steps between two records of the leading singular values of each layer's update, for layers that travel as
    factors; 0 keeps none. They are in `spectra.csv`, on the page and in the report."""
