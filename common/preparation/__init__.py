"""Preparation: standardisation, imputation and harmonisation, fitted over sites without sending rows."""

from __future__ import annotations

from rankdad.common.preparation.fit import Fit, OwnFit
from rankdad.common.preparation.inputs import Inputs, has_gaps, in_memory
from rankdad.common.preparation.preparing import Preparing
from rankdad.common.preparation.rows import Rows, count_behind

__all__ = ["Fit", "Inputs", "OwnFit", "Preparing", "Rows", "count_behind", "has_gaps", "in_memory"]
